//! Real servers, each on loopback ports of its own with its state in a folder that goes with it.
//!
//! The scripts of `tools/real` install, start and end them: the first test on a machine waits for the installation,
//! `cargo xtask test` has it done before. A server ends when its handle is dropped, by its own pid.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use tempfile::TempDir;

/// Access key of every server started here; no secret.
pub const ACCESS_KEY: &str = "tidegate-test";
/// Its secret key; no secret either.
pub const SECRET_KEY: &str = "tidegate-test-secret";
/// Region that the servers take.
pub const REGION: &str = "us-east-1";
/// The bucket that is there from the start.
pub const BUCKET: &str = "models";

/// Ports to choose from: above what services use, below what the kernel gives to outgoing connections.
const PORTS: std::ops::Range<u16> = 22_000..31_000;
/// `SeaweedFS` takes its port and the seven after it.
const PORTS_EACH: u16 = 8;
/// Ports that are tried before giving up: somebody else may take one between our look and its use.
const STARTS_MAX: usize = 5;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum S3Server {
    /// Its objects are plain files that [`RealS3::object_file`] names. Starts in less than half a second.
    Versitygw,
    /// Knows nothing of the other. Starts in four seconds.
    Seaweedfs,
}

/// How a server is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3Options {
    /// Serves https with a certificate for 127.0.0.1, localhost and *.localhost from a CA of its own.
    pub tls: bool,
    /// Answers 503 `SlowDown` to what comes while so many requests are in progress (versitygw).
    pub limit: Option<u32>,
    /// Also takes `BUCKET.DOMAIN` as the host (versitygw).
    pub virtual_host: Option<String>,
}

/// A server that runs.
#[derive(Debug)]
pub struct RealS3 {
    folder: TempDir,
    server: S3Server,
    options: S3Options,
    port: u16,
    url: String,
}

impl RealS3 {
    /// Installs the server if need be, starts it with the empty bucket [`BUCKET`], and waits until it answers. Blocks.
    ///
    /// # Errors
    /// The scripts' own, with what they wrote to standard error; no free ports.
    pub fn start(server: S3Server, options: S3Options) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("tidegate-s3-").tempdir()?;
        let mut last = io::Error::other("no port was tried");
        for _ in 0..STARTS_MAX {
            let port = free_ports()?;
            match up(folder.path(), server, &options, port) {
                Ok(url) => return Ok(Self { folder, server, options, port, url }),
                Err(error) if is_taken(&error) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Ends the server and keeps its data: the store is cut off. Blocks.
    ///
    /// # Errors
    /// The script's own.
    pub fn stop(&self) -> io::Result<()> {
        script("s3", "down.sh").arg(self.folder.path()).finish().map(drop)
    }

    /// Starts it again on the same port with the same data. Blocks.
    ///
    /// # Errors
    /// The script's own.
    pub fn start_again(&self) -> io::Result<()> {
        up(self.folder.path(), self.server, &self.options, self.port).map(drop)
    }

    /// `http://127.0.0.1:PORT`, or https.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its CA as a PEM file; `None` without TLS.
    #[must_use]
    pub fn ca(&self) -> Option<PathBuf> {
        self.options.tls.then(|| self.folder.path().join("tls/ca.pem"))
    }

    /// What a program needs in its environment to be let in.
    #[must_use]
    pub fn env(&self) -> [(&'static str, &'static str); 3] {
        [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY), ("AWS_REGION", REGION)]
    }

    /// The plain file that is an object in [`BUCKET`]. Change it and the server serves the change under the old entity
    /// tag; shorten it and ranges beyond are refused; remove it and the object is gone. Only versitygw has such files.
    #[must_use]
    pub fn object_file(&self, key: &str) -> PathBuf {
        self.folder.path().join("data").join(BUCKET).join(key)
    }

    /// Flips one bit of an object's byte beneath the server.
    ///
    /// # Errors
    /// The object is not there or ends before `offset`.
    pub fn flip_byte(&self, key: &str, offset: u64) -> io::Result<()> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(self.object_file(key))?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset)?;
        file.write_all_at(&[byte[0] ^ 1], offset)
    }

    /// Shortens an object beneath the server.
    ///
    /// # Errors
    /// The object is not there.
    pub fn truncate(&self, key: &str, bytes: u64) -> io::Result<()> {
        std::fs::OpenOptions::new().write(true).open(self.object_file(key))?.set_len(bytes)
    }
}

impl Drop for RealS3 {
    fn drop(&mut self) {
        // the folder goes next, and with it all that a failure could be about
        drop(self.stop());
    }
}

fn up(state: &Path, server: S3Server, options: &S3Options, port: u16) -> io::Result<String> {
    let mut command = script("s3", "up.sh");
    command.arg(state).arg(port.to_string()).env("BUCKET", BUCKET);
    command.env(
        "SERVER",
        match server {
            S3Server::Versitygw => "versitygw",
            S3Server::Seaweedfs => "seaweedfs",
        },
    );
    for name in ["TLS", "LIMIT", "VIRTUAL_HOST"] {
        command.env_remove(name);
    }
    if options.tls {
        command.env("TLS", "1");
    }
    if let Some(limit) = options.limit {
        command.env("LIMIT", limit.to_string());
    }
    if let Some(domain) = &options.virtual_host {
        command.env("VIRTUAL_HOST", domain);
    }
    Ok(command.finish()?.trim_end().to_owned())
}

fn is_taken(error: &io::Error) -> bool {
    let text = error.to_string();
    text.contains("already served") || text.contains("already in use")
}

fn script(component: &str, name: &str) -> Command {
    // this crate lies two folders below the root, wherever the clone is
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/real").join(component).join(name))
}

/// Which programs of a control plane run beside the API server and etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlPlane {
    /// None: objects are kept, and nobody acts on them.
    #[default]
    ApiServer,
    /// Controllers and scheduler: Deployments get Pods, and Pods nodes.
    Whole,
}

/// A Kubernetes control plane that runs. There is no kubelet: see [`crate::Kubelet`].
#[derive(Debug)]
pub struct RealKubernetes {
    folder: PathBuf,
    plane: ControlPlane,
    port: u16,
    is_shared: bool,
}

impl RealKubernetes {
    /// The one whole control plane of this test program, with the kinds of [`crate::kubernetes::crds`]; it ends with
    /// the program. Tests keep out of each other's way by namespaces, and by names of nodes. Blocks for 10 s once.
    ///
    /// # Errors
    /// As [`RealKubernetes::start`], to everyone that asks.
    pub fn shared() -> io::Result<&'static Self> {
        static SHARED: OnceLock<Result<RealKubernetes, String>> = OnceLock::new();
        let start = || {
            let started = Self::start_with(ControlPlane::Whole, true)?;
            // its own runtime, on its own thread: the caller may be inside of one
            std::thread::scope(|scope| {
                let api = started.api()?;
                let made = scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                    runtime.block_on(crate::kubernetes::install_crds(&api))
                });
                made.join().map_err(|_| io::Error::other("the kinds were not made"))?
            })?;
            Ok(started)
        };
        let shared = SHARED.get_or_init(|| start().map_err(|error: io::Error| error.to_string()));
        shared.as_ref().map_err(|error| io::Error::other(error.clone()))
    }

    /// Installs it if need be (minutes), starts it, and waits until it answers (seconds). Blocks.
    ///
    /// # Errors
    /// The scripts' own, with what they wrote to standard error; no free ports.
    pub fn start(plane: ControlPlane) -> io::Result<Self> {
        Self::start_with(plane, false)
    }

    fn start_with(plane: ControlPlane, is_shared: bool) -> io::Result<Self> {
        let mut last = io::Error::other("no port was tried");
        for _ in 0..STARTS_MAX {
            let folder = tempfile::Builder::new().prefix("tidegate-kubernetes-").tempdir()?.keep();
            let started = Self { folder, plane, port: free_ports()?, is_shared };
            match started.up() {
                Ok(()) => return Ok(started),
                Err(error) if is_taken(&error) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn up(&self) -> io::Result<()> {
        let mut command = script("kubernetes", "up.sh");
        command.arg(&self.folder).arg(self.port.to_string());
        let flag = match self.plane {
            ControlPlane::ApiServer => "",
            ControlPlane::Whole => "1",
        };
        command.env("CONTROLLERS", flag).env("SCHEDULER", flag).env_remove("APISERVER_FLAGS");
        if self.is_shared {
            command.env("WITH_PID", std::process::id().to_string());
        }
        command.finish().map(drop)
    }

    /// An administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// A kubeconfig with another token in it, in the same folder.
    ///
    /// # Errors
    /// The file's.
    pub fn kubeconfig_of(&self, name: &str, token: &str) -> io::Result<PathBuf> {
        let text = std::fs::read_to_string(self.kubeconfig())?;
        let path = self.folder.join(format!("{name}.kubeconfig"));
        std::fs::write(&path, text.replace(&self.token()?, token))?;
        Ok(path)
    }

    fn token(&self) -> io::Result<String> {
        let tokens = std::fs::read_to_string(self.folder.join("tokens.csv"))?;
        let token = tokens.lines().find_map(|line| line.split_once(",admin,"));
        token.map(|(token, _)| token.to_owned()).ok_or_else(|| io::Error::other("no administrator's token"))
    }

    /// A client with an administrator's token.
    ///
    /// # Errors
    /// The files'.
    pub fn api(&self) -> io::Result<crate::KubeApi> {
        let address = (Ipv4Addr::LOCALHOST, self.port).into();
        crate::KubeApi::new(address, &self.folder.join("tls/apiserver.crt"), &self.token()?)
    }

    /// Kills one program: `etcd`, `apiserver`, `controllers`, `scheduler`. Blocks.
    ///
    /// # Errors
    /// The script's own.
    pub fn kill(&self, program: &str) -> io::Result<()> {
        script("kubernetes", "down.sh").arg(&self.folder).arg(program).finish().map(drop)
    }

    /// Starts what does not run, on the same ports with the same data. Blocks.
    ///
    /// # Errors
    /// The script's own.
    pub fn start_again(&self) -> io::Result<()> {
        self.up()
    }
}

impl Drop for RealKubernetes {
    fn drop(&mut self) {
        drop(script("kubernetes", "down.sh").arg(&self.folder).finish());
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// Runs a command to its end.
trait Finish {
    fn finish(&mut self) -> io::Result<String>;
}

impl Finish for Command {
    fn finish(&mut self) -> io::Result<String> {
        // what it started must not hold a pipe of ours open: the script itself redirects all three
        let output = self.stdin(Stdio::null()).output()?;
        if output.status.success() {
            return String::from_utf8(output.stdout).map_err(io::Error::other);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("{} ended with {}: {said}", self.get_program().display(), output.status)))
    }
}

/// The first of [`PORTS_EACH`] ports in a row that are free now.
fn free_ports() -> io::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let sets = (PORTS.end - PORTS.start) / PORTS_EACH;
    // processes that run at once begin at different places
    let first = u16::try_from(std::process::id() % u32::from(sets)).map_err(io::Error::other)?;
    for _ in 0..sets {
        let set = (first + NEXT.fetch_add(1, Ordering::Relaxed) % sets) % sets;
        let port = PORTS.start + set * PORTS_EACH;
        let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if (port..port + PORTS_EACH).all(is_free) {
            return Ok(port);
        }
    }
    Err(io::Error::other(format!("no {PORTS_EACH} ports in a row are free in {PORTS:?}")))
}
