//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::agent::AgentArgs;
use crate::model::Model;
use crate::pki::Pki;
use crate::switch::{Gpu, Switch};

/// One address in front of all your language models.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    about = "One address in front of all your language models: keys, limits, a ledger, routing.",
    after_help = "Start here:\n  tidegate check DIR                 are my documents right?\n  tidegate up DIR                    run everything in one process\n  tidegate key create --team TEAM    make a key, shown once\n  tidegate usage --by team,alias     who used how much\n  tidegate plan DIR                  what happens at the next switch, and why\n  tidegate switch --help             switch now, wait for it, go back\n  tidegate model --help              models from an object store"
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check a directory (or file) of documents; every error at once.
    ///
    /// Exit code 0 when the documents are right, 64 when not.
    Check(Check),
    /// Run everything in one process from a directory of documents.
    ///
    /// Reloads when a file changes or on SIGHUP; a bad document leaves the old state in force. SIGTERM or Ctrl-C lets
    /// what runs finish (Site.spec.gateway.drain), then stops engines that were started here.
    Up(Up),
    /// This machine as a node, for a controller on another one: its GPUs, its engines, its model cache.
    Agent(AgentArgs),
    /// Certificates between a controller and its agents.
    Pki(Pki),
    /// What will happen at the next switch, and why.
    ///
    /// Exit code 64 when the documents are wrong, a shift does not fit or a gap is longer than is allowed.
    Plan(PlanArgs),
    /// Which shifts start when, and what is loaded in them.
    Shifts(ShiftsArgs),
    /// Models between the object store and this machine: push, pull, verify, ls, pin, unpin, gc, du.
    Model(Model),
    /// Make, list, rotate and revoke API keys.
    Key(Key),
    /// Who used how much.
    Usage(Usage),
    /// Say which shift is in force: with a Schedule a switch, as `switch now --to`; else read when the process starts.
    Shift(Shift),
    /// Who changed what, when: keys, shifts, switches by hand, released GPUs.
    Audit(Audit),
    /// Which models are loaded when: switch now, hold, pause, resume, abort, rollback, status, ls.
    Switch(Switch),
    /// GPUs that were not proven free.
    Gpu(Gpu),
    /// What is running: shift, switch in progress, deployments, replicas, GPUs in quarantine, documents in force.
    Status(Status),
}

/// `tidegate check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Directory or file of documents.
    pub(crate) documents: PathBuf,
    /// Diagnostics as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tidegate plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Directory or file of documents.
    pub(crate) documents: PathBuf,
    /// Plan a switch at once to this shift, instead of the next one of the Schedules.
    #[arg(long, value_name = "SHIFT")]
    pub(crate) to: Option<String>,
    /// As seen at this instant or civil time in the site's zone; default: now.
    #[arg(long, value_name = "TIME")]
    pub(crate) at: Option<String>,
    /// Write the timeline as a picture, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Columns of the timeline.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(usize))]
    pub(crate) width: usize,
    /// The plan as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tidegate shifts`.
#[derive(Debug, Args)]
pub(crate) struct ShiftsArgs {
    /// Directory or file of documents.
    pub(crate) documents: PathBuf,
    /// From this instant or civil time in the site's zone on; default: now.
    #[arg(long, value_name = "TIME")]
    pub(crate) at: Option<String>,
    /// So many days ahead.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=400))]
    pub(crate) days: u16,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the state folder is.
#[derive(Debug, Args, Clone)]
pub(crate) struct StateDir {
    /// State folder: store, journal, pepper, admin socket.
    #[arg(long, value_name = "DIR", default_value = "./.tidegate", env = "TIDEGATE_STATE")]
    pub(crate) state: PathBuf,
}

/// How a verb reaches a running process.
#[derive(Debug, Args, Clone)]
pub(crate) struct Reach {
    #[command(flatten)]
    pub(crate) state: StateDir,
    /// Admin address of a running process, instead of the socket in the state folder; needs an admin key.
    #[arg(long, value_name = "http://HOST:PORT")]
    pub(crate) url: Option<String>,
    /// Admin key for --url.
    #[arg(long, env = "TIDEGATE_ADMIN_KEY", hide_env_values = true)]
    pub(crate) admin_key: Option<String>,
    /// Answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tidegate up`.
#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Directory or file of documents.
    pub(crate) documents: PathBuf,
    #[command(flatten)]
    pub(crate) state: StateDir,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Log lines as text instead of JSON.
    #[arg(long)]
    pub(crate) log_text: bool,
}

/// Which cluster, where the documents say `launcher: kubernetes`.
#[derive(Debug, Args, Clone)]
pub(crate) struct ClusterArgs {
    /// Kubeconfig of the cluster of `launcher: kubernetes` (default: the Pod's own ServiceAccount).
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Its namespace for replicas, pools and routes.
    #[arg(long, value_name = "NAME", default_value = "tidegate-models", env = "TIDEGATE_NAMESPACE")]
    pub(crate) namespace: String,
}

/// `tidegate key`.
#[derive(Debug, Args)]
pub(crate) struct Key {
    #[command(subcommand)]
    pub(crate) verb: KeyVerb,
}

/// Verbs on keys.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyVerb {
    /// Make a key. The secret is shown once and never again.
    Create(KeyCreate),
    /// List keys; secrets are not stored, so none is shown.
    Ls(KeyList),
    /// Make a new secret for a key; the old one stays valid for --grace.
    Rotate(KeyRotate),
    /// Refuse a key from now on.
    Revoke(KeyRevoke),
}

/// `tidegate key create`.
#[derive(Debug, Args)]
pub(crate) struct KeyCreate {
    /// The team whose policy applies.
    #[arg(long, required_unless_present = "admin")]
    pub(crate) team: Option<String>,
    /// Who it is for: usage and per-caller limits are booked on this name (default: the key's id).
    #[arg(long)]
    pub(crate) caller: Option<String>,
    /// Only this alias, within the team's grants; may be repeated.
    #[arg(long = "alias", value_name = "ALIAS")]
    pub(crate) aliases: Vec<String>,
    /// How long it is valid: 12h, 30d; at most 90d.
    #[arg(long, value_name = "TIME", default_value = "30d")]
    pub(crate) expires: String,
    /// Requests per minute of this key alone.
    #[arg(long)]
    pub(crate) rpm: Option<u64>,
    /// Tokens per minute of this key alone.
    #[arg(long)]
    pub(crate) tpm: Option<u64>,
    /// Requests in flight of this key alone.
    #[arg(long)]
    pub(crate) concurrency: Option<u64>,
    /// Tokens a day of this key alone.
    #[arg(long)]
    pub(crate) daily_tokens: Option<u64>,
    /// Tokens a month of this key alone.
    #[arg(long)]
    pub(crate) monthly_tokens: Option<u64>,
    /// A key for the admin port; the gate refuses it.
    #[arg(long)]
    pub(crate) admin: bool,
    /// Mark it as a test key (tg_test_…).
    #[arg(long)]
    pub(crate) test: bool,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// `tidegate key ls`.
#[derive(Debug, Args)]
pub(crate) struct KeyList {
    /// Only this team's.
    #[arg(long)]
    pub(crate) team: Option<String>,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// `tidegate key rotate`.
#[derive(Debug, Args)]
pub(crate) struct KeyRotate {
    /// The key's id: the eight characters after tg_live_.
    pub(crate) id: String,
    /// How long the old secret stays valid.
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub(crate) grace: String,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// `tidegate key revoke`.
#[derive(Debug, Args)]
pub(crate) struct KeyRevoke {
    /// The key's id: the eight characters after tg_live_.
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// `tidegate usage`.
#[derive(Debug, Args)]
pub(crate) struct Usage {
    /// Rows for each: team, caller, key, alias, model.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "team,alias")]
    pub(crate) by: Vec<By>,
    /// Rows for each hour, day or month, or one for the whole time.
    #[arg(long, value_enum, default_value = "total")]
    pub(crate) per: Per,
    /// From this instant or civil date (in --zone) on; default: the first of the month in which --until lies.
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<String>,
    /// Up to this instant or civil date (in --zone), exclusive; default: now.
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
    /// Time zone of hours, days and months; default: the site's.
    #[arg(long)]
    pub(crate) zone: Option<String>,
    /// Only this team's.
    #[arg(long)]
    pub(crate) team: Option<String>,
    /// Comma-separated values, with a header.
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// What rows of usage are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// Team.
    Team,
    /// Caller.
    Caller,
    /// API key.
    Key,
    /// Alias asked for.
    Alias,
    /// Model that served.
    Model,
}

impl By {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Team => "team",
            Self::Caller => "caller",
            Self::Key => "key",
            Self::Alias => "alias",
            Self::Model => "model",
        }
    }
}

/// Length of a row's period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Per {
    /// Civil hour.
    Hour,
    /// Civil day.
    Day,
    /// Civil month.
    Month,
    /// The whole time.
    Total,
}

impl Per {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
            Self::Total => "total",
        }
    }
}

/// `tidegate shift`.
#[derive(Debug, Args)]
pub(crate) struct Shift {
    #[command(subcommand)]
    pub(crate) verb: ShiftVerb,
}

/// Verbs on shifts.
#[derive(Debug, Subcommand)]
pub(crate) enum ShiftVerb {
    /// Put a shift in force: at once by a switch where a Schedule is in force, else from the next start on.
    Set(ShiftSet),
}

/// `tidegate shift set`.
#[derive(Debug, Args)]
pub(crate) struct ShiftSet {
    /// The shift's name.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// `tidegate audit`.
#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// The last so many rows.
    #[arg(long, default_value_t = tidegate_console::AUDIT_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// `tidegate status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) reach: Reach,
}
