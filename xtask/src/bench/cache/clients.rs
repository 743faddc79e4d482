//! The downloaders: how each is asked for a model, and what it costs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::Client;
use super::stand::{Model, Stand};
use crate::bench::process;
use crate::real::{self, Name};
use crate::workspace;

/// How often a running client is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// What one fetch cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// From the start until everything is durable.
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// The most that was resident.
    pub(super) rss_bytes: u64,
}

/// Fetches a model into an empty folder.
///
/// # Errors
/// The client fails, or leaves less than the model.
pub(super) fn fetch(stand: &Stand, client: Client, model: &Model) -> Result<Cost> {
    let folder = stand.fresh()?;
    let mut cost = Cost::default();
    let start = Instant::now();
    for mut step in steps(stand, client, model, &folder)? {
        let log = stand.folder.join("client.log");
        let file = File::create(&log)?;
        let child = step.stdout(file.try_clone()?).stderr(file);
        run(child, &mut cost)
            .with_context(|| format!("{}: its log is {}", super::Column::name(client), log.display()))?;
    }
    if client == Client::S5cmd {
        let mut openssl = workspace::command("openssl");
        openssl.args(["dgst", "-sha256"]).args(files(&folder)?).stdout(File::create(stand.folder.join("digests"))?);
        run(&mut openssl, &mut cost)?;
    }
    let found = files(&folder)?;
    for file in &found {
        File::open(file)?.sync_all().with_context(|| format!("cannot make {} durable", file.display()))?;
    }
    cost.seconds = start.elapsed().as_secs_f64();
    let bytes = found.iter().filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum::<u64>();
    if bytes < model.bytes {
        bail!("{} fetched {bytes} of {} bytes", super::Column::name(client), model.bytes);
    }
    Ok(cost)
}

fn steps(stand: &Stand, client: Client, model: &Model, folder: &Path) -> Result<Vec<Command>> {
    let to = folder.display().to_string();
    let endpoint = stand.endpoint();
    let objects = model.objects();
    let rclone = |streams: usize| -> Result<Vec<Command>> {
        let mut command = workspace::command(real::install(Name::Rclone)?);
        let from = format!(":s3,provider=Other,env_auth=true,region=us-east-1,endpoint=\"{endpoint}\":{objects}");
        command.args([
            "copy",
            &from,
            &to,
            "--config",
            "/dev/null",
            "--transfers",
            "2",
            "--multi-thread-cutoff",
            "32Mi",
        ]);
        // two files at once, each in half of the streams
        command.args(["--multi-thread-streams", &(streams / 2).to_string(), "--s3-no-check-bucket"]);
        Ok(vec![command])
    };
    let mut steps = match client {
        Client::Tidegate => vec![stand.model_command(&["pull", &model.path, "--cache", &to])],
        Client::Rclone8 => rclone(8)?,
        Client::Rclone16 => rclone(16)?,
        Client::Rclone32 => rclone(32)?,
        Client::S5cmd => {
            let mut command = workspace::command(real::install(Name::S5cmd)?);
            command.args(["--endpoint-url", endpoint, "cp", "--concurrency", "16", "--part-size", "16"]);
            command.args([format!("s3://{objects}/*"), format!("{to}/")]);
            vec![command]
        }
        Client::Aws => {
            let mut command = workspace::command(real::install(Name::Awscli)?);
            command.args(["--endpoint-url", endpoint, "s3", "cp", "--recursive", "--only-show-errors"]);
            command.args([format!("s3://{objects}/"), to]);
            vec![command]
        }
    };
    for step in &mut steps {
        stand.admit(step);
    }
    Ok(steps)
}

/// Runs a client to its end and adds what it cost, apart from time.
fn run(command: &mut Command, cost: &mut Cost) -> Result<()> {
    let before = process::reaped_cpu_seconds();
    let mut child = command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let status = loop {
        cost.rss_bytes = cost.rss_bytes.max(process::peak_resident_bytes(child.id()));
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(LOOK);
    };
    cost.cpu_seconds += process::reaped_cpu_seconds() - before;
    if !status.success() {
        bail!("{} ended with {status}", command.get_program().display());
    }
    Ok(())
}

/// All files below a folder, links to the same file once.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    use std::os::unix::fs::MetadataExt as _;
    let mut seen = std::collections::BTreeSet::new();
    let mut found = Vec::new();
    let mut next = vec![folder.to_path_buf()];
    while let Some(folder) = next.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            let meta = fs::symlink_metadata(&path)?;
            if meta.is_dir() {
                next.push(path);
            } else if meta.is_file() && seen.insert(meta.ino()) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
