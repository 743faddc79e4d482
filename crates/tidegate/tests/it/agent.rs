//! Agents as a person runs them: real processes, real certificates, engines that outlive them.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tidegate_node::tls::{ClientTls, TlsFiles};
use tidegate_node::{InstanceId, InstanceReport, InstanceState, Node as _, NodeError, RemoteNode, StartOrder};
use tidegate_testkit::fake::Script;
use tokio::runtime::Runtime;

use crate::day_night::{GOOD, site};
use crate::gate::{Gate, program};

const SITE: &str = "munich";

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A site's authority, in a folder of its own.
fn pki(folder: &Path, site: &str, nodes: &[&str]) -> PathBuf {
    let dir = folder.join("pki");
    done(program().args(["pki", "init", "--site", site, "--dir"]).arg(&dir));
    for node in nodes {
        done(program().args(["pki", "issue", "node", node, "--dir"]).arg(&dir));
    }
    dir
}

/// An agent that runs; killed when it is dropped.
struct Agent {
    child: Child,
    address: String,
    log: BufReader<ChildStderr>,
}

/// What an agent is started with.
struct Started<'a> {
    node: &'a str,
    pki: &'a Path,
    state: PathBuf,
    listen: &'a str,
    more: &'a [&'a str],
}

impl Started<'_> {
    fn command(&self) -> Command {
        let mut command = program();
        command.args(["agent", self.node, "--listen", self.listen, "--certificates"]).arg(self.pki);
        command.arg("--state").arg(&self.state).args(self.more).stderr(Stdio::piped());
        command
    }

    /// Runs it until it serves.
    fn run(&self) -> Agent {
        let mut child = self.command().spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut agent = Agent { child, address: String::new(), log };
        let mut said = String::new();
        loop {
            let mut line = String::new();
            assert!(agent.log.read_line(&mut line).unwrap() > 0, "the agent ended: {said}");
            said.push_str(&line);
            let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
            if event["message"] == "agent serves" {
                event["address"].as_str().unwrap().clone_into(&mut agent.address);
                return agent;
            }
        }
    }
}

impl Agent {
    /// SIGTERM, and its end.
    fn stop(&mut self) {
        done(Command::new("kill").arg("-TERM").arg(self.child.id().to_string()));
        assert!(self.child.wait().unwrap().success());
    }

    fn remote(&self, pki: &Path, site: &str, node: &str) -> RemoteNode {
        let tls = ClientTls::new(TlsFiles::in_folder(pki, "controller"), site, node).unwrap();
        RemoteNode::new(node, &self.address, tls)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn order(instance: &str) -> StartOrder {
    serde_json::from_value(serde_json::json!({
        "instance": instance, "deployment": "small", "replica": 0, "revision": 1,
        "command": {"program": "sleep", "args": ["1000"], "env": {}},
        "model": null, "gpus": [], "numa": null, "memory_max_bytes": null, "cpu_milli": null,
        "ports": [24_000, 29_999], "host": "127.0.0.1",
    }))
    .unwrap()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Ends everything on a node, and waits for it.
async fn end_all(node: &RemoteNode, generation: u64) {
    for report in node.instances().await.unwrap() {
        node.stop(generation, &report.instance, Duration::ZERO).await.unwrap();
    }
    let mut after = 0;
    let is_over = |report: &InstanceReport| matches!(report.state, InstanceState::Ended { .. });
    while !node.instances().await.unwrap().iter().all(is_over) {
        after = node.events(after).await.unwrap().last().map_or(after, |event| event.number);
    }
}

#[test]
fn an_engine_outlives_its_agent_and_a_stale_generation_is_refused_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let pki = pki(folder.path(), SITE, &["a", "b"]);
    let state = |node: &str| folder.path().join(node);
    let of = |node: &'static str| Started {
        node,
        pki: &pki,
        state: state(node),
        listen: "127.0.0.1:0",
        more: &["--site", SITE],
    };
    let (mut a, b) = (of("a").run(), of("b").run());
    runtime().block_on(async {
        let other = b.remote(&pki, SITE, "b");
        let node = a.remote(&pki, SITE, "a");
        let started = node.start(7, order("small-0-g7")).await.unwrap();
        assert!(other.instances().await.unwrap().is_empty(), "two agents are two nodes");
        assert_eq!(other.facts().await.unwrap().node, "b");
        a.stop();
        let away = node.stop(7, &started.instance, Duration::ZERO).await.unwrap_err();
        assert!(away.is_away(), "{away}");
        a = of("a").run();
        let node = a.remote(&pki, SITE, "a");
        assert_eq!(node.instances().await.unwrap()[0].state, started.state, "after SIGTERM");
        a.child.kill().unwrap();
        a.child.wait().unwrap();
        a = of("a").run();
        let node = a.remote(&pki, SITE, "a");
        assert_eq!(node.instances().await.unwrap()[0].state, started.state, "after SIGKILL");
        let stale = node.start(6, order("small-0-g6")).await.unwrap_err();
        assert_eq!(stale, NodeError::StaleGeneration { generation: 6, highest: 7 });
        end_all(&node, 7).await;
    });
}

#[test]
fn a_second_agent_on_the_same_cache_or_the_same_state_is_refused() {
    let folder = TempDir::new().unwrap();
    let pki = pki(folder.path(), SITE, &["a", "b"]);
    let (store, documents) = (folder.path().join("store"), folder.path().join("site"));
    std::fs::create_dir(&store).unwrap();
    std::fs::create_dir(&documents).unwrap();
    let site = format!(
        "apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {{name: {SITE}}}\nspec: {{timeZone: UTC, modelStore: {{url: 'file://{}'}}}}\n---\n\
         kind: Node\nmetadata: {{name: a}}\nspec: {{facts: document, gpus: {{count: 1}}, hostMemory: 2GB}}\n---\n\
         kind: Node\nmetadata: {{name: b}}\nspec: {{facts: document, gpus: {{count: 1}}, hostMemory: 2GB}}\n",
        store.display()
    );
    std::fs::write(documents.join("site.yaml"), site).unwrap();
    let (cache, documents) = (folder.path().join("cache"), documents.display().to_string());
    let cache = cache.display().to_string();
    let more = ["--documents", &documents, "--cache", &cache];
    let of = |node: &'static str, state: &str| Started {
        node,
        pki: &pki,
        state: folder.path().join(state),
        listen: "127.0.0.1:0",
        more: &more,
    };
    let first = of("a", "a").run();
    // It owns the cache a moment after it serves: what comes next asks it, over its socket.
    let owned = || {
        let ls = program().args(["model", "ls", "--cache", &cache]).output().unwrap();
        ls.status.success() && Path::new(&cache).join("owner.sock").exists()
    };
    while !owned() {
        std::thread::yield_now();
    }
    let second = text(&of("b", "b").command().output().unwrap());
    assert!(second.contains(&format!("belongs to process {}", first.child.id())), "{second}");
    let third = text(&of("b", "a").command().output().unwrap());
    assert!(third.contains("is in use by process"), "{third}");
}

#[test]
fn a_check_says_what_works_and_what_to_do() {
    let folder = TempDir::new().unwrap();
    let pki = pki(folder.path(), SITE, &["a"]);
    let check = |node: &str| {
        let mut command = program();
        command.args(["agent", node, "--site", SITE, "--listen", "127.0.0.1:0", "--check", "--json", "--certificates"]);
        let output = command.arg(&pki).arg("--state").arg(folder.path().join("none")).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
        (output.status.code(), answer)
    };
    let of = |answer: &Value, what: &str| {
        let findings = answer["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["what"] == what).unwrap_or_else(|| panic!("{answer}")).clone()
    };
    let (code, good) = check("a");
    assert_eq!(code, Some(0), "{good}");
    assert_eq!(of(&good, "certificates")["grade"], "works");
    assert_eq!(of(&good, "address")["grade"], "works");
    for what in ["processes", "memory limit", "gpus", "numa", "disk", "clock"] {
        assert!(of(&good, what)["found"].is_string(), "{what}");
    }
    assert!(good["facts"]["guard"]["kill"].is_string());
    let (code, bad) = check("b");
    assert_eq!(code, Some(1), "{bad}");
    let certificates = of(&bad, "certificates");
    assert_eq!(certificates["grade"], "fails");
    assert!(certificates["hint"].as_str().unwrap().contains("tidegate pki issue"), "{certificates}");
    assert!(!folder.path().join("none").exists(), "a check makes no state folder");
}

#[test]
fn certificates_are_private_for_one_name_and_never_overwritten() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = TempDir::new().unwrap();
    let dir = pki(folder.path(), SITE, &["a"]);
    for key in ["ca.key", "controller.key", "a.key"] {
        assert_eq!(std::fs::metadata(dir.join(key)).unwrap().permissions().mode() & 0o777, 0o600, "{key}");
    }
    let before = std::fs::read(dir.join("a.pem")).unwrap();
    for args in [&["init", "--site", "other"][..], &["issue", "node", "a"], &["issue", "controller"]] {
        let again = program().arg("pki").args(args).arg("--dir").arg(&dir).output().unwrap();
        assert!(!again.status.success());
        assert!(text(&again).contains("is there already"), "{}", text(&again));
    }
    for name in ["ca", "controller", "a/b", ""] {
        let refused = program().args(["pki", "issue", "node", name, "--dir"]).arg(&dir).output().unwrap();
        assert!(!refused.status.success(), "{name}");
    }
    assert_eq!(std::fs::read(dir.join("a.pem")).unwrap(), before);
    done(program().args(["pki", "issue", "node", "a", "--renew", "--dir"]).arg(&dir));
    assert_ne!(std::fs::read(dir.join("a.pem")).unwrap(), before);
    let files = TlsFiles::in_folder(&dir, "controller");
    assert!(ClientTls::new(files.clone(), SITE, "a").is_ok());
    assert!(ClientTls::new(files, "elsewhere", "a").is_err());
}

#[test]
fn a_site_is_served_and_switched_by_a_node_behind_an_agent_that_dies_in_between() {
    let folder = TempDir::new().unwrap();
    let mut agent = None;
    let mut started = Vec::new();
    let gate = Gate::start_in(Script::vllm("unused"), |documents, address, admin, _| {
        let golden = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": 4}\n";
        std::fs::write(documents.join("golden.jsonl"), golden).unwrap();
        let own = site(address, admin, GOOD);
        let name = own.split_once("metadata: {name: ").unwrap().1.split_once('}').unwrap().0.to_owned();
        let dir = pki(folder.path(), &name, &["here"]);
        // The agent's documents: the same, before anybody has its address.
        let copy = folder.path().join("site");
        std::fs::create_dir(&copy).unwrap();
        std::fs::write(copy.join("golden.jsonl"), golden).unwrap();
        std::fs::write(copy.join("site.yaml"), &own).unwrap();
        let copy = copy.display().to_string();
        let more = ["--documents", &copy];
        let state = folder.path().join("agent");
        let run = Started { node: "here", pki: &dir, state, listen: "127.0.0.1:0", more: &more };
        let running = run.run();
        let at = running.address.clone();
        agent = Some(running);
        started = vec![name, copy, at.clone()];
        let files = format!(
            "  agents: {{ca: {{fromFile: '{0}/ca.pem'}}, cert: {{fromFile: '{0}/controller.pem'}}, \
             key: {{fromFile: '{0}/controller.key'}}}}\n",
            dir.display()
        );
        let own = own.replacen("---\nkind: Node", &format!("{files}---\nkind: Node"), 1);
        own.replacen("spec: {facts: document,", &format!("spec: {{address: '{at}', facts: document,"), 1)
    });
    let [name, copy, at] = started.as_slice() else { panic!("not started") };
    let dir = folder.path().join("pki");
    let key = gate.key();
    let content = || gate.chat(&key).json()["choices"][0]["message"]["content"].clone();
    gate.until("day is loaded", || {
        let status = gate.verb_json(&["switch", "status"]);
        status["shift"] == "day" && status["switch"].is_null()
    });
    assert_eq!(content(), "sun");
    let mut first = agent.unwrap();
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert_eq!(content(), "sun", "an engine serves without its agent");
    let more = ["--documents", copy.as_str()];
    let state = folder.path().join("agent");
    let second = Started { node: "here", pki: &dir, state, listen: at, more: &more }.run();
    let switched = gate.verb(&["switch", "now", "--to", "night", "--wait"]);
    assert!(switched.status.success(), "{}\n{}", text(&switched), gate.log());
    assert_eq!(content(), "moon");
    let node = Arc::new(second.remote(&dir, name, "here"));
    drop(gate);
    runtime().block_on(async {
        let ids: Vec<InstanceId> = node.instances().await.unwrap().into_iter().map(|report| report.instance).collect();
        assert!(!ids.is_empty());
        end_all(&node, u64::MAX).await;
    });
}
