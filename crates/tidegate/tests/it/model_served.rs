//! A real model on its whole way: pushed to a real S3 server, pulled with server and process failing on the way, damaged
//! and repaired, served by llama.cpp from the cache.
//!
//! Needs what `cargo xtask real s3` and `cargo xtask real llamacpp` install; their scripts are run for it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tidegate_testkit::fake::Script;
use tidegate_testkit::real::{ACCESS_KEY, BUCKET, SECRET_KEY};
use tidegate_testkit::{RealS3, S3Options, S3Server};

use crate::gate::{Gate, program};

const MODEL: &str = "smollm2/135m-instruct";
/// The file in the manifest.
const WEIGHTS: &str = "weights/model.gguf";
const CHUNK: u64 = 1 << 20;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The folder with `python` and `model.gguf`.
fn llamacpp() -> PathBuf {
    let output = Command::new(root().join("tools/real/llamacpp/install.sh")).output().unwrap();
    assert!(output.status.success(), "llama.cpp's server is needed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().into()
}

/// A store with the model in it.
struct Stand {
    s3: RealS3,
    folder: TempDir,
    installed: PathBuf,
}

impl Stand {
    fn new() -> Self {
        let s3 = RealS3::start(S3Server::Versitygw, S3Options::default())
            .unwrap_or_else(|error| panic!("versitygw is needed: {error}"));
        let stand = Self { s3, folder: TempDir::new().unwrap(), installed: llamacpp() };
        let model = stand.path("model");
        fs::create_dir(&model).unwrap();
        std::os::unix::fs::symlink(stand.installed.join("model.gguf").canonicalize().unwrap(), stand.path("origin"))
            .unwrap();
        fs::copy(stand.path("origin"), model.join("model.gguf")).unwrap();
        fs::write(model.join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
        let push = |stand: &Self| {
            let output = stand.model("push", &[model.to_str().unwrap(), MODEL, "--chunk-size", "1MiB"], None);
            assert!(output.status.success(), "{output:?}");
            last(&output)
        };
        assert!(push(&stand)["sent_bytes"].as_u64().unwrap() > 90 * CHUNK);
        assert_eq!(push(&stand)["sent_bytes"], 0, "a second push moves no bytes");
        fs::remove_dir_all(&model).unwrap();
        stand
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, verb: &str, args: &[&str], cache: Option<&str>) -> Command {
        let mut command = program();
        command.args(["model", verb]).args(args).args(["--json", "--endpoint", self.s3.url()]);
        command.arg("--store").arg(format!("s3://{BUCKET}/llm")).arg("--state").arg(self.path("state"));
        command.envs(self.s3.env());
        if let Some(cache) = cache {
            command.arg("--keep-free").arg("0B").arg("--cache").arg(self.path(cache));
        }
        command
    }

    fn model(&self, verb: &str, args: &[&str], cache: Option<&str>) -> Output {
        self.command(verb, args, cache).output().unwrap()
    }

    /// The object's key in the bucket.
    fn key() -> String {
        format!("llm/{MODEL}/{WEIGHTS}")
    }

    fn published(&self, cache: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path(cache)).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("sha256-")).collect()
    }

    /// A pull whose server is cut off as soon as the first bytes have come, and that is killed while it waits for it.
    fn cut_off_and_killed(&self) {
        let mut child =
            self.command("pull", &[MODEL, "--streams", "1"], Some("cache")).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut until = |name: &str| {
            let is_it = |line: &String| serde_json::from_str::<Value>(line).unwrap()["event"] == name;
            lines.by_ref().map(|line| line.unwrap()).find(is_it).unwrap_or_else(|| panic!("no {name} on the way"))
        };
        until("progress");
        let pause = |signal: &str| {
            assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        };
        // It stands still while the server goes, so that it cannot have ended by then.
        pause("-STOP");
        self.s3.stop().unwrap();
        pause("-CONT");
        until("retry");
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(self.published("cache").is_empty(), "nothing is published before all is there");
        self.s3.start_again().unwrap();
    }

    /// A pull that is cancelled while it waits for its server.
    fn cancelled(&self) {
        self.s3.stop().unwrap();
        let mut child = self.command("pull", &[MODEL], Some("cache")).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
        assert!(lines.any(|line| line.contains(r#""event":"retry""#)));
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        let failed: Value = serde_json::from_str(&lines.last().unwrap()).unwrap();
        assert_eq!((&failed["event"], &failed["code"]), (&"failed".into(), &"cancelled".into()), "{failed}");
        assert!(failed["hint"].as_str().unwrap().contains("resumes"), "{failed}");
        assert_eq!(child.wait().unwrap().code(), Some(130));
        self.s3.start_again().unwrap();
    }

    fn documents(&self, gate: SocketAddr, admin: SocketAddr) -> String {
        fs::write(self.path("access"), ACCESS_KEY).unwrap();
        fs::write(self.path("secret"), SECRET_KEY).unwrap();
        let python = self.installed.join("python");
        let wrapper = root().join("tools/llama_server.py");
        format!(
            "apiVersion: tidegate.dev/v1alpha1
kind: Site
metadata: {{name: served}}
spec:
  gateway: {{listen: '{gate}', workers: 1, drain: 5s}}
  admin: {{listen: '{admin}'}}
  enginePorts: 20300-20399
  engines: {{llama.cpp: {{command: ['{python}', '{wrapper}']}}}}
  modelStore:
    url: 's3://{BUCKET}/llm'
    endpoint: '{endpoint}'
    accessKey: {{fromFile: '{access}'}}
    secretKey: {{fromFile: '{secret}'}}
  modelCache: {{path: '{cache}', keepFree: 1MB}}
---
kind: Model
metadata: {{name: small}}
spec: {{source: {{path: {MODEL}}}, engine: llama.cpp, precision: q4_1}}
---
kind: Deployment
metadata: {{name: small-v1}}
spec:
  model: small
  launch: {{replicas: 1}}
  limits: {{contextTokens: 2048, maxOutputTokens: 64}}
  profile: {{capacity: 1}}
---
kind: Alias
metadata: {{name: chat}}
spec: {{targets: [{{deployment: small-v1, weight: 100}}]}}
---
kind: Team
metadata: {{name: red}}
spec: {{models: [{{alias: chat, rpm: 1000}}]}}
",
            python = python.display(),
            wrapper = wrapper.display(),
            endpoint = self.s3.url(),
            access = self.path("access").display(),
            secret = self.path("secret").display(),
            cache = self.path("served").display(),
        )
    }
}

fn events(output: &Output) -> Vec<Value> {
    output.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

fn last(output: &Output) -> Value {
    events(output).pop().unwrap_or_else(|| panic!("{output:?}"))
}

#[test]
fn a_real_model_survives_a_cut_server_a_killed_process_and_flipped_bytes() {
    let stand = Stand::new();
    stand.cut_off_and_killed();
    stand.cancelled();
    let resumed = stand.model("pull", &[MODEL], Some("cache"));
    assert!(resumed.status.success(), "{resumed:?}");
    let size = fs::metadata(stand.path("origin")).unwrap().len();
    let fetched = last(&resumed)["fetched_bytes"].as_u64().unwrap();
    assert!(fetched <= size - CHUNK, "what was there was not fetched again: {fetched} of {size}");
    let [folder] = &stand.published("cache")[..] else { panic!("one model is published") };
    let file = folder.join("model.gguf");
    assert!(fs::read(&file).unwrap() == fs::read(stand.path("origin")).unwrap(), "byte for byte");

    // On the local disk: found, named, and only that chunk fetched.
    let flip = |path: &Path, at: u64| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    flip(&file, 41 * CHUNK + 3);
    let found = stand.model("verify", &[MODEL], Some("cache"));
    assert_eq!(found.status.code(), Some(4), "{found:?}");
    assert_eq!(last(&found)["wrong"], serde_json::json!([{"file": WEIGHTS, "chunk": 41}]));
    let repaired = stand.model("verify", &[MODEL, "--repair"], Some("cache"));
    assert!(repaired.status.success(), "{repaired:?}");
    assert_eq!(last(&repaired)["repaired_bytes"], CHUNK);
    assert!(stand.model("verify", &[MODEL], Some("cache")).status.success());
    fs::remove_dir_all(stand.path("cache")).unwrap();

    // On the server: named with file and chunk, and never published.
    stand.s3.flip_byte(&Stand::key(), 5 * CHUNK + 3).unwrap();
    let refused = stand.model("pull", &[MODEL], Some("other"));
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    let fault = last(&refused);
    assert_eq!(fault["code"], "wrong_bytes", "{fault}");
    let message = fault["message"].as_str().unwrap();
    assert!(message.contains(WEIGHTS) && message.contains("chunk 5"), "{fault}");
    assert!(stand.published("other").is_empty());
}

#[test]
fn a_real_model_is_pulled_and_served_from_the_cache_and_needs_no_store_from_then_on() {
    let stand = Stand::new();
    let mut gate = Gate::start_with(Script::vllm("unused"), |gate, admin, _| stand.documents(gate, admin));
    let key = gate.key();
    let ask = |gate: &Gate| {
        let body = r#"{"model":"chat","temperature":0,"max_tokens":16,"messages":[{"role":"user","content":"What is the capital of France? Answer in one sentence."}]}"#;
        let answer = gate.post(&key, body);
        assert_eq!(answer.status, 200, "{answer:?}");
        let text = answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        assert!(text.contains("Paris"), "{text}");
    };
    ask(&gate);
    let status = gate.verb_json(&["status"]);
    assert_eq!(status["modelCache"]["owned"], true, "{status}");
    assert!(gate.metric("tidegate_model_cache_fetch_bytes_total") > 90.0 * CHUNK as f64);
    assert!(gate.metric("tidegate_model_cache_free_bytes") > 0.0);
    assert!((gate.metric("tidegate_model_cache_misses_total") - 1.0).abs() < f64::EPSILON);

    // The process owns the cache; others ask it.
    let hits = gate.metric("tidegate_model_cache_hits_total");
    let asked = stand.model("pull", &[MODEL], Some("served"));
    assert!(asked.status.success(), "{asked:?}");
    assert_eq!(last(&asked)["fetched_bytes"], 0);
    let one_more = gate.metric("tidegate_model_cache_hits_total") - hits;
    assert!((one_more - 1.0).abs() < f64::EPSILON, "asked, not gone round: {one_more}");
    let listed = stand.model("ls", &[], Some("served"));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("\"serving\""), "what serves stays: {listed:?}");

    assert!(gate.stop().success(), "{}", gate.log());
    stand.s3.stop().unwrap();
    gate.start_again();
    ask(&gate);
    stand.s3.start_again().unwrap();
}
