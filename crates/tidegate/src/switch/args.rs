//! The command line of `tidegate switch` and `tidegate gpu`.

use clap::{Args, Subcommand};

use crate::cli::Reach;

/// `tidegate switch`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Switch {
    #[command(subcommand)]
    pub(crate) verb: SwitchVerb,
}

const EXAMPLES: &str = "\
Switches happen by themselves, at the hours of the Schedules. These verbs are for everything else. What they say lasts
until the next start of a Schedule, or --until; `resume` takes it back at once. Who said what is in the audit log.

Examples:
  tidegate switch status                          what is loaded, what is next, what is in the way
  tidegate switch now --to night --wait           load the night's set now, and wait until it serves
  tidegate switch now --to day --until 14:00      the day's set until two o'clock, then what the Schedules say
  tidegate switch abort --wait                    back to the old set of the switch in progress
  tidegate switch rollback --wait                 back to the set before the last completed switch
  tidegate switch hold --until 2026-12-24T08:00   no switch before that
  tidegate switch pause; …; tidegate switch resume    no new step in between; alarms go on
  tidegate switch ls                              what became of the last switches

In cron or a workflow engine (progress as NDJSON on standard output, one object a line):
  tidegate switch now --to night --wait --timeout 45m --json || notify \"night did not come: $?\"

Times are an instant (2026-12-24T08:00:00Z), a civil time in the site's zone (2026-12-24T08:00), the next such time of
the day (08:00), or a time from now (2h).

Exit codes:
  0    done; without --wait: taken
  1    anything else: the message says what
  2    the command line is wrong, or names a shift that the documents do not have
  3    the switch failed or was aborted, as a whole or in part: what it was to replace serves on
  4    --timeout is over and the switch is not; it goes on
  5    nothing to do, or it cannot be done in this state: nothing is in progress, nothing to go back to";

/// Verbs on switches.
#[derive(Debug, Subcommand)]
pub(crate) enum SwitchVerb {
    /// Switch to a shift now. It stays until the next start of a Schedule, or --until.
    Now(Now),
    /// Stay with what is loaded until the next start of a Schedule, or --until.
    Hold(Hold),
    /// Take no new step; what runs finishes, alarms go on.
    Pause(Simple),
    /// Go on: after a pause, after a verb, and with deployments that have failed too often.
    Resume(Waiting),
    /// Back to the old set of the switch in progress. The old set serves meanwhile, wherever it can.
    Abort(Waiting),
    /// Back to the set before the last completed switch.
    Rollback(Waiting),
    /// What is loaded, what is next, what is in progress.
    Status(Simple),
    /// What became of the last switches.
    Ls(List),
}

/// How long to wait.
#[derive(Debug, Args)]
pub(crate) struct Patience {
    /// Wait until the switch is over, and say each step.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Longest wait: 90s, 45m, 2h.
    #[arg(long, value_name = "TIME", default_value = "2h", requires = "wait")]
    pub(crate) timeout: String,
}

/// `tidegate switch now`.
#[derive(Debug, Args)]
pub(crate) struct Now {
    /// The shift.
    #[arg(long, value_name = "SHIFT")]
    pub(crate) to: String,
    /// Until when it stays: an instant, a civil time, 08:00, 2h.
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
    #[command(flatten)]
    pub(crate) patience: Patience,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// `tidegate switch hold`.
#[derive(Debug, Args)]
pub(crate) struct Hold {
    /// Until when: an instant, a civil time, 08:00, 2h.
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// A verb that begins something.
#[derive(Debug, Args)]
pub(crate) struct Waiting {
    #[command(flatten)]
    pub(crate) patience: Patience,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// A verb without more to say.
#[derive(Debug, Args)]
pub(crate) struct Simple {
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// `tidegate switch ls`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// So many.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) reach: Reach,
}

/// `tidegate gpu`.
#[derive(Debug, Args)]
pub(crate) struct Gpu {
    #[command(subcommand)]
    pub(crate) verb: GpuVerb,
}

/// Verbs on GPUs.
#[derive(Debug, Subcommand)]
pub(crate) enum GpuVerb {
    /// Say that a quarantined GPU is free, although that was not proven.
    ///
    /// A GPU whose memory was not proven free after an unload goes to nobody; `tidegate status` lists it, with what is
    /// still there. It is looked at again every 10 s and comes back by itself. Release it by hand only when you have
    /// looked (nvidia-smi) and know why the proof fails: a model that is loaded beside what is left runs out of memory.
    ///
    /// Exit code 5 when it is not quarantined, 2 when the name is wrong.
    #[command(
        after_help = "Example:\n  tidegate gpu release gpu-node-01/3 --reason \"nvidia-smi shows 0 MiB, the driver reports a dead pid\""
    )]
    Release(Release),
}

/// `tidegate gpu release`.
#[derive(Debug, Args)]
pub(crate) struct Release {
    /// The GPU: NODE/INDEX, as status shows it.
    #[arg(value_name = "NODE/GPU")]
    pub(crate) gpu: String,
    /// How you know that it is free: kept in the audit log.
    #[arg(long)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) reach: Reach,
}
