//! The stand: one mock upstream and, in front of it, everything that is compared. All of it on loopback, ended when
//! dropped.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::figures::Column;
use super::load::Generator;
use super::process::Owned;
use crate::real::{self, Name, Running};
use crate::workspace;

/// What is measured, in the order of the table's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Target {
    /// Tidegate: two workers, authentication, access lists, all limits, journal.
    Tidegate,
    /// No proxy at all.
    Direct,
    /// nginx `proxy_pass`, two workers.
    Nginx,
    /// sglang-router, round robin, no policy.
    SglangRouter,
    /// LiteLLM, one worker, master key, no database.
    Litellm,
}

impl Target {
    pub(super) const ALL: [Self; 5] = [Self::Tidegate, Self::Direct, Self::Nginx, Self::SglangRouter, Self::Litellm];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::SglangRouter => "sglang-router",
            Self::Litellm => "litellm",
        }
    }
}

impl Column for Target {
    const ALL: &'static [Self] = &Self::ALL;
    const OWN: Self = Self::Tidegate;
    const BESIDE: Self = Self::Nginx;
    const BENCH: &'static str = "gate";

    fn name(self) -> &'static str {
        self.as_str()
    }
}

/// Where a target is asked.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) host_port: String,
    pub(super) key: Option<String>,
}

/// A target that runs.
#[derive(Debug)]
pub(super) struct Runs {
    pub(super) address: Address,
    /// Whose CPU and memory count; `None` for the direct connection.
    pub(super) pid: Option<u32>,
    _process: Held,
}

/// What keeps it running.
#[derive(Debug)]
enum Held {
    Nothing,
    Component { _running: Running },
    Own { _process: Owned },
}

/// Everything that runs.
#[derive(Debug)]
pub(super) struct Stand {
    pub(super) folder: PathBuf,
    /// The program that is measured.
    pub(super) tidegate: PathBuf,
    pub(super) generator: Generator,
    /// Answers as fast as it can, and paced at 10 ms for the name that says so.
    pub(super) mock: String,
    /// Two seconds between events: for streams that are only held.
    pub(super) slow: String,
    pub(super) targets: BTreeMap<Target, Runs>,
    // last, so that proxies end before what they talk to
    _upstreams: Vec<Owned>,
}

/// A port that is free now. Somebody may take it before it is used; then the start fails and says so.
pub(super) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?.local_addr()?.port())
}

/// Lets the processes started from here open as many files as the machine permits.
fn raise_open_files() -> Result<()> {
    let pid = std::process::id().to_string();
    let read = workspace::output(workspace::command("prlimit").args([
        "--pid",
        &pid,
        "--nofile",
        "--output",
        "HARD",
        "--noheadings",
    ]))?;
    let hard = read.trim();
    workspace::run(workspace::command("prlimit").args(["--pid", &pid, &format!("--nofile={hard}:{hard}")]))
}

impl Stand {
    /// Starts the upstreams and every target but those left out.
    ///
    /// # Errors
    /// Something cannot be installed or started.
    pub(super) fn start(binaries: &Path, without: &[Target]) -> Result<Self> {
        raise_open_files()?;
        let folder = workspace::target().join("bench/gate");
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir_all(&folder)?;
        let mock = format!("127.0.0.1:{}", free_port()?);
        let slow = format!("127.0.0.1:{}", free_port()?);
        let upstreams = vec![
            upstream(binaries, &folder.join("mock.log"), &["--listen", &mock])?,
            upstream(
                binaries,
                &folder.join("slow.log"),
                &["--listen", &slow, "--pace-ms", "2000", "--model", "mock-slow"],
            )?,
        ];
        wait_for(&mock, "/health", None)?;
        wait_for(&slow, "/health", None)?;
        let tidegate = binaries.join("tidegate");
        let generator = Generator { program: binaries.join("load-generator") };
        let mut stand =
            Self { folder, tidegate, generator, mock, slow, targets: BTreeMap::new(), _upstreams: upstreams };
        for target in Target::ALL.into_iter().filter(|target| !without.contains(target)) {
            let runs =
                stand.target(target, &stand.mock).with_context(|| format!("{} does not start", target.as_str()))?;
            stand.targets.insert(target, runs);
        }
        Ok(stand)
    }

    /// Starts one target in front of an upstream.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn target(&self, target: Target, upstream: &str) -> Result<Runs> {
        let name = match target {
            Target::Direct => {
                let address = Address { host_port: upstream.to_owned(), key: None };
                return Ok(Runs { address, pid: None, _process: Held::Nothing });
            }
            Target::Tidegate => return self.tidegate_on(&self.folder.join("tidegate"), &self.documents()?),
            Target::Nginx => Name::Nginx,
            Target::SglangRouter => Name::SglangRouter,
            Target::Litellm => Name::Litellm,
        };
        let port = free_port()?;
        let state = self.folder.join(format!("{}-{port}", target.as_str()));
        let running = real::up(name, &state, port, Some(upstream), &[])?;
        let key = (target == Target::Litellm).then(|| "sk-bench-master".to_owned());
        let pid = std::fs::read_to_string(state.join("pid"))?;
        let pid = pid.split_whitespace().next().and_then(|pid| pid.parse().ok()).context("a pid file without a pid")?;
        let address = Address { host_port: format!("127.0.0.1:{port}"), key };
        Ok(Runs { address, pid: Some(pid), _process: Held::Component { _running: running } })
    }

    /// Tidegate's documents: three aliases, and a limit in every dimension at every level that has one.
    ///
    /// # Errors
    /// There is no free port.
    pub(super) fn documents(&self) -> Result<String> {
        let mut text = site(free_port()?, free_port()?);
        for (name, url, served) in [
            ("bench", &self.mock, "mock"),
            ("bench-paced", &self.mock, "mock-paced"),
            ("bench-slow", &self.slow, "mock-slow"),
        ] {
            text.push_str(&alias(name, url, served));
        }
        text.push_str(TEAM);
        Ok(text)
    }

    /// Starts Tidegate on documents and makes a key that has limits of its own.
    ///
    /// # Errors
    /// It does not start, or makes no key.
    pub(super) fn tidegate_on(&self, folder: &Path, documents: &str) -> Result<Runs> {
        std::fs::create_dir_all(folder.join("site"))?;
        std::fs::write(folder.join("site/site.yaml"), documents)?;
        let gate = listen_of(documents, "gateway")?;
        let admin = listen_of(documents, "admin")?;
        let mut process = self.up(folder)?;
        wait_for(&admin, "/readyz", Some(&mut process))?;
        let key = make_key(&self.tidegate, folder)?;
        let pid = Some(process.pid());
        Ok(Runs {
            address: Address { host_port: gate, key: Some(key) },
            pid,
            _process: Held::Own { _process: process },
        })
    }

    /// Starts `tidegate up` on a folder's documents.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn up(&self, folder: &Path) -> Result<Owned> {
        let mut command = workspace::command(&self.tidegate);
        command.arg("up").arg(folder.join("site")).arg("--state").arg(folder.join("state"));
        Owned::start(&mut command, &folder.join("log"))
    }
}

fn upstream(binaries: &Path, log: &Path, arguments: &[&str]) -> Result<Owned> {
    Owned::start(workspace::command(binaries.join("mock-upstream")).args(arguments), log)
}

/// The Site document.
pub(super) fn site(gate: u16, admin: u16) -> String {
    format!(
        "apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {{name: bench}}\nspec:\n  \
         gateway: {{listen: \"127.0.0.1:{gate}\", workers: 2}}\n  admin: {{listen: \"127.0.0.1:{admin}\"}}\n"
    )
}

/// A model, its deployment on an upstream, and an alias of the given name.
pub(super) fn alias(name: &str, upstream: &str, served: &str) -> String {
    let mut text = String::new();
    // writing to a String cannot fail
    let _written = write!(
        text,
        "---\nkind: Model\nmetadata: {{name: {name}-model}}\nspec: {{engine: vllm, precision: bf16}}\n\
         ---\nkind: Deployment\nmetadata: {{name: {name}-v1}}\nspec:\n  model: {name}-model\n  \
         endpoints: [{{url: \"http://{upstream}\"}}]\n  servedName: {served}\n  \
         limits: {{contextTokens: 131072, maxOutputTokens: 8192}}\n\
         ---\nkind: Alias\nmetadata: {{name: {name}}}\nspec:\n  targets: [{{deployment: {name}-v1}}]\n  \
         limits: {{rpm: 1G, tpm: 1000G, concurrency: 100k}}\n"
    );
    text
}

/// A team whose limits are all set and never reached.
pub(super) const TEAM: &str = "---\nkind: Team\nmetadata: {name: bench}\nspec:\n  \
     limits: {rpm: 1G, tpm: 1000G, concurrency: 100k, dailyTokens: 1000G, monthlyTokens: 1000G}\n  models:\n    \
     - {all: true, rpm: 1G, tpm: 1000G, concurrency: 100k, dailyTokens: 1000G, monthlyTokens: 1000G, \
     maxInputTokens: 128Ki, maxOutputTokens: 8Ki}\n  perCaller: {rpm: 1G, tpm: 1000G, concurrency: 100k, dailyTokens: 1000G}\n";

/// The `HOST:PORT` that a Site document gives a listener.
pub(super) fn listen_of(documents: &str, listener: &str) -> Result<String> {
    let line = documents.lines().find_map(|line| line.trim().strip_prefix(&format!("{listener}: {{listen: \"")));
    let address = line.and_then(|rest| rest.split('"').next()).context("a Site document without that listener")?;
    Ok(address.to_owned())
}

/// Makes a key with the running process and gives back its secret.
///
/// # Errors
/// The command fails or prints no key.
pub(super) fn make_key(tidegate: &Path, folder: &Path) -> Result<String> {
    let mut command = workspace::command(tidegate);
    command.args([
        "key",
        "create",
        "--team",
        "bench",
        "--caller",
        "load",
        "--rpm",
        "1000000000",
        "--tpm",
        "1000000000000",
    ]);
    command.args(["--concurrency", "100000", "--daily-tokens", "1000000000000", "--monthly-tokens", "1000000000000"]);
    command.arg("--json").arg("--state").arg(folder.join("state"));
    let made: serde_json::Value = serde_json::from_str(&workspace::output(&mut command)?)?;
    Ok(made["secret"].as_str().context("no key was printed")?.to_owned())
}

/// Waits until a path answers 200.
///
/// # Errors
/// The process ended, or a minute has passed.
pub(super) fn wait_for(host_port: &str, path: &str, mut process: Option<&mut Owned>) -> Result<()> {
    let start = Instant::now();
    loop {
        let answer = ask(host_port, &format!("GET {path} HTTP/1.1\r\nhost: {host_port}\r\nconnection: close\r\n\r\n"));
        match answer {
            Ok(200) => return Ok(()),
            _ if start.elapsed() > Duration::from_secs(60) => bail!("{host_port}{path} never answered 200: {answer:?}"),
            _ => {}
        }
        if let Some(process) = process.as_deref_mut() {
            process.alive()?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends one HTTP/1.1 message on a connection of its own and gives back the status.
///
/// # Errors
/// No connection, or no status line.
pub(super) fn ask(host_port: &str, message: &str) -> Result<u16> {
    let address: SocketAddr = host_port.parse()?;
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(message.as_bytes())?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    std::str::from_utf8(&head[9..])?.parse().context("no status")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_documents_listeners_are_found() {
        let documents = site(1234, 5678);
        assert_eq!(listen_of(&documents, "gateway").unwrap(), "127.0.0.1:1234");
        assert_eq!(listen_of(&documents, "admin").unwrap(), "127.0.0.1:5678");
        assert!(listen_of(&documents, "other").is_err());
    }

    #[test]
    fn the_benchs_documents_are_right() {
        let documents = [site(1234, 5678), alias("bench", "127.0.0.1:9", "mock"), TEAM.to_owned()].concat();
        let checked = tidegate_config::check(&[tidegate_config::Source::new("bench.yaml", documents)]);
        assert!(checked.site.is_some() && checked.diagnostics.is_empty(), "{:?}", checked.diagnostics);
    }
}
