//! Real components: each has a folder under `tools/real` with scripts that install it once into a cache folder outside
//! the clone, start it on loopback and end exactly what they started.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use crate::terminal::say;
use crate::workspace;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Which component.
    name: Name,
    /// What to do with it.
    #[arg(default_value = "install")]
    action: Action,
    /// Folder for its pid file, log and settings (default target/real/NAME).
    #[arg(long)]
    state: Option<PathBuf>,
    /// Port on loopback (default: the component's own in this table).
    #[arg(long)]
    port: Option<u16>,
    /// HOST:PORT of the one upstream, for proxies.
    #[arg(long)]
    upstream: Option<String>,
}

/// Components with a folder of that name under `tools/real`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// llama.cpp's server with a small real model; serves on its own.
    Llamacpp,
    /// nginx as a plain reverse proxy.
    Nginx,
    /// The OpenAI and Anthropic Python libraries; nothing to start.
    Clients,
    /// sglang-router, a Rust router.
    SglangRouter,
    /// The LiteLLM proxy, a Python gateway.
    Litellm,
    /// Two S3 servers: versitygw, which `up` starts, and `SeaweedFS`, which it starts with SERVER=seaweedfs set.
    S3,
    /// A Kubernetes control plane, built from source: `up` starts etcd and the API server, and with CONTROLLERS=1 and
    /// SCHEDULER=1 set the others.
    Kubernetes,
    /// rclone, a downloader; nothing to start.
    Rclone,
    /// s5cmd, a downloader; nothing to start.
    S5cmd,
    /// The AWS command line; nothing to start.
    Awscli,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Install it where it is missing, and print where it is.
    Install,
    /// Install it if need be, start it, wait until it is ready, and print its address.
    Up,
    /// End what `up` started.
    Down,
    /// Print where it is installed; fails where it is not.
    Path,
}

impl Name {
    const fn folder(self) -> &'static str {
        match self {
            Self::Llamacpp => "llamacpp",
            Self::Nginx => "nginx",
            Self::Clients => "clients",
            Self::SglangRouter => "sglang-router",
            Self::Litellm => "litellm",
            Self::S3 => "s3",
            Self::Kubernetes => "kubernetes",
            Self::Rclone => "rclone",
            Self::S5cmd => "s5cmd",
            Self::Awscli => "awscli",
        }
    }

    /// Its port when none is named; `None` when there is nothing to start.
    const fn port(self) -> Option<u16> {
        match self {
            Self::Llamacpp => Some(18_080),
            Self::Nginx => Some(18_081),
            Self::SglangRouter => Some(18_082),
            Self::Litellm => Some(18_084),
            Self::S3 => Some(18_085),
            Self::Kubernetes => Some(18_093),
            Self::Clients | Self::Rclone | Self::S5cmd | Self::Awscli => None,
        }
    }

    const fn needs_upstream(self) -> bool {
        matches!(self, Self::Nginx | Self::SglangRouter | Self::Litellm)
    }

    fn script(self, script: &str) -> Command {
        workspace::command(workspace::root().join("tools/real").join(self.folder()).join(script))
    }
}

/// Installs a component where it is missing, and gives back where it is: the first place where there are several.
///
/// # Errors
/// The script's own, which it has written to standard error.
pub(crate) fn install(name: Name) -> Result<PathBuf> {
    let printed = workspace::output(&mut name.script("install.sh"))?;
    Ok(PathBuf::from(printed.lines().next().unwrap_or_default()))
}

/// A started component: ended when dropped, so that no way out leaves it behind.
#[derive(Debug)]
pub(crate) struct Running {
    name: Name,
    state: PathBuf,
    /// `http://HOST:PORT`.
    pub(crate) url: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        // the script says on standard error what went wrong; there is nobody left to tell otherwise
        drop(down(self.name, &self.state));
    }
}

/// Starts a component and waits until it is ready.
///
/// # Errors
/// The script's own, which it has written to standard error.
pub(crate) fn up(name: Name, state: &Path, port: u16, upstream: Option<&str>, env: &[(&str, &str)]) -> Result<Running> {
    let mut script = name.script("up.sh");
    script.arg(state).arg(port.to_string()).args(upstream).envs(env.iter().copied());
    let url = workspace::output(&mut script)?.trim_end().to_owned();
    Ok(Running { name, state: state.to_path_buf(), url })
}

fn down(name: Name, state: &Path) -> Result<()> {
    workspace::run(name.script("down.sh").arg(state))
}

/// The command line's `real`.
///
/// # Errors
/// The component has nothing to start, a proxy was given no upstream, or a script failed.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let name = arguments.name;
    let state = arguments.state.clone().unwrap_or_else(|| workspace::root().join("target/real").join(name.folder()));
    match arguments.action {
        Action::Install => say!("{}", workspace::output(&mut name.script("install.sh"))?.trim_end()),
        Action::Path => {
            let printed = workspace::output(name.script("install.sh").env("TIDEGATE_REAL_INSTALL", "never"))?;
            say!("{}", printed.trim_end());
        }
        Action::Down => {
            name.port().with_context(|| format!("there is nothing to stop in {}", name.folder()))?;
            down(name, &state)?;
        }
        Action::Up => {
            let own = name.port().with_context(|| format!("there is nothing to start in {}", name.folder()))?;
            let upstream = arguments.upstream.as_deref();
            if name.needs_upstream() != upstream.is_some() {
                let needed = if name.needs_upstream() { "needs" } else { "takes no" };
                bail!("{} {needed} --upstream HOST:PORT", name.folder());
            }
            let running = up(name, &state, arguments.port.unwrap_or(own), upstream, &[])?;
            say!("{}", running.url);
            // it goes on after us, until `down`
            std::mem::forget(running);
        }
    }
    Ok(())
}
