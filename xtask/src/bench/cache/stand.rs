//! The stand: versitygw with a model in it, and a folder that is empty again at the end.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::Options;
use crate::bench::stand::free_port;
use crate::real::{self, Name, Running};
use crate::workspace;

/// Longest file of a model: larger models have more of them, as real ones do.
const SHARD_MIB: u64 = 512;
/// Bucket and prefix of the store.
const STORE: &str = "models/bench";

/// A model in the store.
#[derive(Debug)]
pub(super) struct Model {
    /// `<family>/<version>`.
    pub(super) path: String,
    pub(super) bytes: u64,
    pub(super) mib: u64,
}

impl Model {
    /// `bucket/prefix` of its objects.
    pub(super) fn objects(&self) -> String {
        format!("{STORE}/{}", self.path)
    }

    /// For the table.
    pub(super) fn size(&self) -> String {
        if self.mib.is_multiple_of(1024) { format!("{} GiB", self.mib / 1024) } else { format!("{} MiB", self.mib) }
    }

    pub(super) fn gib(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 30)
    }
}

/// All that runs, and where.
#[derive(Debug)]
pub(super) struct Stand {
    pub(super) folder: PathBuf,
    program: PathBuf,
    // ends before its folder goes
    store: Option<Running>,
}

impl Stand {
    /// # Errors
    /// Nothing to measure can be built, or the store does not start.
    pub(super) fn start(options: &Options) -> Result<Self> {
        let program = match &options.program {
            Some(program) => program.canonicalize().context("there is no such program")?,
            None => build(&options.profile)?,
        };
        let folder = options.folder.clone().unwrap_or_else(|| workspace::target().join("bench/cache"));
        wipe(&folder)?;
        let environment = [("SERVER", "versitygw"), ("BUCKET", "models"), ("ACCESS_LOG", "1")];
        let store = real::up(Name::S3, &folder.join("store"), free_port()?, None, &environment)?;
        Ok(Self { folder, program, store: Some(store) })
    }

    pub(super) fn endpoint(&self) -> &str {
        self.store.as_ref().map_or("", |store| &store.url)
    }

    /// Lets a command into the store.
    pub(super) fn admit<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("AWS_ACCESS_KEY_ID", "tidegate-test")
            .env("AWS_SECRET_ACCESS_KEY", "tidegate-test-secret")
            .env("AWS_REGION", "us-east-1")
    }

    /// `tidegate model` on the store.
    pub(super) fn model_command(&self, words: &[&str]) -> Command {
        let mut command = self.model_command_on(&format!("s3://{STORE}"), words);
        self.admit(command.args(["--endpoint", self.endpoint()]));
        command
    }

    /// `tidegate model` on a store of its own.
    pub(super) fn model_command_on(&self, store: &str, words: &[&str]) -> Command {
        let mut command = workspace::command(&self.program);
        command.arg("model").args(words).args(["--store", store, "--keep-free", "0%", "--json", "--state"]);
        command.arg(self.folder.join("state"));
        command
    }

    /// Runs `tidegate model` on the store.
    ///
    /// # Errors
    /// It fails.
    pub(super) fn model_run(&self, words: &[&str]) -> Result<()> {
        workspace::output(&mut self.model_command(words)).map(drop)
    }

    /// Makes a model of random bytes and pushes it.
    ///
    /// # Errors
    /// It cannot be written or pushed.
    pub(super) fn model(&self, mib: u64) -> Result<Model> {
        let source = self.folder.join("source");
        fs::create_dir_all(source.join("weights"))?;
        fs::write(source.join("config.json"), "{}\n")?;
        let shards = mib.div_ceil(SHARD_MIB).max(1);
        let mut bytes = 3;
        for shard in 0..shards {
            let length = (mib << 20) / shards;
            let path = source.join(format!("weights/model-{:05}-of-{shards:05}.safetensors", shard + 1));
            let mut random = io::Read::take(File::open("/dev/urandom").context("no random bytes")?, length);
            bytes += io::copy(&mut random, &mut File::create(path)?)?;
        }
        let path = format!("bench/{mib}-mib");
        self.model_run(&["push", &source.display().to_string(), &path])?;
        fs::remove_dir_all(&source)?;
        Ok(Model { path, bytes, mib })
    }

    /// Takes a model out of the store and out of every cache.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(super) fn forget(&self, model: &Model) -> Result<()> {
        wipe(&self.fresh()?)?;
        fs::remove_dir_all(self.folder.join("store/data").join(model.objects())).context("cannot remove the model")
    }

    /// An empty folder to fetch into; what was in it is gone.
    ///
    /// # Errors
    /// It cannot be emptied.
    pub(super) fn fresh(&self) -> Result<PathBuf> {
        let folder = self.folder.join("fetched");
        wipe(&folder)?;
        Ok(folder)
    }

    /// Bytes that the store has written so far, to sockets and everything else.
    ///
    /// # Errors
    /// It cannot be asked.
    pub(super) fn sent_bytes(&self) -> Result<u64> {
        let pid = fs::read_to_string(self.folder.join("store/pid"))?;
        let pid = pid.split_whitespace().next().context("a pid file without a pid")?;
        let counts = fs::read_to_string(format!("/proc/{pid}/io")).context("cannot see what the store has written")?;
        let line = counts.lines().find_map(|line| line.strip_prefix("wchar: ")).context("no count of bytes")?;
        Ok(line.parse()?)
    }

    /// Requests for objects below `weights` so far.
    ///
    /// # Errors
    /// The store's log cannot be read.
    pub(super) fn weight_requests(&self) -> Result<usize> {
        let log = fs::read_to_string(self.folder.join("store/access.log")).context("no log of requests")?;
        Ok(log.lines().filter(|line| line.contains("/weights/")).count())
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.store = None;
        // gigabytes: nobody wants to find them later
        drop(fs::remove_dir_all(&self.folder));
    }
}

fn wipe(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

fn build(profile: &str) -> Result<PathBuf> {
    let mut cargo = workspace::cargo();
    workspace::run(cargo.args(["build", "--quiet", "--locked", "--profile", profile, "--package", "tidegate"]))?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(workspace::target().join(folder).join("tidegate"))
}
