//! What `tidegate agent` takes.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::cli::StateDir;

/// `tidegate agent`.
#[derive(Debug, Args)]
#[command(after_help = "Once for a site, then once for each node:\n  \
    tidegate pki init --dir pki --site munich            the authority, and the controller's certificate\n  \
    tidegate pki issue --dir pki node gpu-1              this node's certificate\n  \
    tidegate agent gpu-1 --certificates pki --check      would it work here?\n  \
    tidegate agent gpu-1 --certificates pki --documents site/\n\n\
    The folder holds ca.pem, NODE.pem and NODE.key; files that change are read again. In the controller's documents\n\
    the node has `address: HOST:8950` and the Site has `agents: {ca, cert, key}` of the controller.\n\
    SIGTERM ends the agent and leaves its engines running: the next agent on the same --state takes them over.")]
pub(crate) struct AgentArgs {
    /// The node's name in the documents and in its certificate.
    pub(crate) node: String,
    /// The site's documents: its name, this node's GPUs, the model store and the cache. Without them the node has no
    /// models but those in folders of its own.
    #[arg(long, value_name = "DIR")]
    pub(crate) documents: Option<PathBuf>,
    /// The site's name, where no documents say it.
    #[arg(long, value_name = "NAME", required_unless_present = "documents")]
    pub(crate) site: Option<String>,
    /// Where controllers reach it.
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:8950")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) state: StateDir,
    /// The model cache, instead of Site.spec.modelCache.path.
    #[arg(long, value_name = "DIR", requires = "documents")]
    pub(crate) cache: Option<PathBuf>,
    /// Folder of ca.pem, NODE.pem and NODE.key.
    #[arg(long, value_name = "DIR", default_value = "pki")]
    pub(crate) certificates: PathBuf,
    /// The authority, instead of ca.pem of the folder.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// The certificate, instead of NODE.pem of the folder.
    #[arg(long, value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,
    /// The private key, instead of NODE.key of the folder.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Say what works on this machine and what to do about the rest, and start nothing. Exit code 1 when it would not
    /// work.
    #[arg(long)]
    pub(crate) check: bool,
    /// The answer of --check as JSON.
    #[arg(long, requires = "check")]
    pub(crate) json: bool,
    /// Log lines as text instead of JSON.
    #[arg(long)]
    pub(crate) log_text: bool,
}
