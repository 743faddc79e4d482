//! `tidegate switch` and `tidegate gpu`: what the controller is told from the command line, and waiting for it.

mod args;
mod follow;
mod text;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use serde::Serialize;
use tidegate_console::lifecycle::{Accepted, GpuRelease, LifecycleStatus, SwitchHistory, SwitchTo};

use crate::admin_client::{Refusal, ask, ask_running, try_ask};
use crate::cli::Reach;
use crate::terminal;
use crate::verbs::{seconds, show};

pub(crate) use args::{Gpu, Switch};
use args::{GpuVerb, Patience, Release, SwitchVerb};
use follow::{End, Event, Follower};
pub(crate) use text::lifecycle as lifecycle_text;

const PATH: &str = "/admin/v1/lifecycle";
/// How often the controller is looked at while one waits.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The command line is wrong, or names what the documents do not have.
const USAGE: u8 = 2;
/// The switch failed, or was aborted.
const FAILED: u8 = 3;
/// The wait was too long.
const TIMED_OUT: u8 = 4;
/// Nothing to do, or not in this state.
const CONFLICT: u8 = 5;

/// `tidegate switch`.
pub(crate) fn switch(args: &Switch) -> anyhow::Result<ExitCode> {
    match &args.verb {
        SwitchVerb::Now(args) => {
            let body = SwitchTo { to: args.to.clone(), until: args.until.clone() };
            begin(&args.reach, &args.patience, &Said { verb: "switch", body: &body, may_be_idle: false })
        }
        SwitchVerb::Hold(args) => {
            let body = tidegate_console::lifecycle::Hold { until: args.until.clone() };
            let said = Said { verb: "hold", body: &body, may_be_idle: true };
            taken(&args.reach, &said, &said.ask(&args.reach)?)
        }
        SwitchVerb::Pause(args) => {
            let said = Said { verb: "pause", body: &(), may_be_idle: true };
            taken(&args.reach, &said, &said.ask(&args.reach)?)
        }
        SwitchVerb::Resume(args) => {
            begin(&args.reach, &args.patience, &Said { verb: "resume", body: &(), may_be_idle: true })
        }
        SwitchVerb::Abort(args) => {
            begin(&args.reach, &args.patience, &Said { verb: "abort", body: &(), may_be_idle: false })
        }
        SwitchVerb::Rollback(args) => {
            begin(&args.reach, &args.patience, &Said { verb: "rollback", body: &(), may_be_idle: false })
        }
        SwitchVerb::Status(args) => {
            let status: LifecycleStatus = ask(&args.reach, Method::GET, PATH, "")?;
            show(&args.reach, &status, status_text)?;
            Ok(ExitCode::SUCCESS)
        }
        SwitchVerb::Ls(args) => {
            let path = format!("{PATH}/switches?limit={}", args.limit);
            let page: SwitchHistory = ask(&args.reach, Method::GET, &path, "")?;
            show(&args.reach, &page.switches, |switches| text::history(switches))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn status_text(status: &LifecycleStatus) -> String {
    let mut lines = lifecycle_text(status);
    if !status.controller {
        lines.insert(0, "no controller runs; this is what the store says".to_owned());
    }
    lines.join("\n")
}

/// `tidegate gpu`.
pub(crate) fn gpu(args: &Gpu) -> anyhow::Result<ExitCode> {
    let GpuVerb::Release(Release { gpu, reason, reach }) = &args.verb;
    let named = gpu.rsplit_once('/').and_then(|(node, index)| Some((node, index.parse::<u32>().ok()?)));
    let Some((node, index)) = named.filter(|(node, _)| !node.is_empty()) else {
        terminal::note(&format!("error: {gpu:?} is no GPU: write NODE/INDEX, as `tidegate status` shows it"));
        return Ok(ExitCode::from(USAGE));
    };
    let body = GpuRelease { node: node.to_owned(), gpu: index, reason: reason.clone() };
    let said = Said { verb: "release", body: &body, may_be_idle: true };
    taken(reach, &said, &said.ask(reach)?)
}

/// What is asked.
struct Said<'a, T> {
    verb: &'static str,
    body: &'a T,
    /// Whether it is done although nothing is switched because of it.
    may_be_idle: bool,
}

impl<T: Serialize> Said<'_, T> {
    fn ask(&self, reach: &Reach) -> anyhow::Result<Result<Accepted, Refusal>> {
        let body = serde_json::to_string(self.body)?;
        // A verb without anything to say has no body.
        let body = if body == "null" { "" } else { &body };
        try_ask(reach, Method::POST, &format!("{PATH}/{}", self.verb), body)
    }
}

/// What was asked is taken, or is not.
fn taken<T>(reach: &Reach, said: &Said<'_, T>, answer: &Result<Accepted, Refusal>) -> anyhow::Result<ExitCode> {
    let accepted = match answer {
        Ok(accepted) => accepted,
        Err(refusal) => return Ok(refused(refusal)),
    };
    show(reach, accepted, |accepted| {
        let desired = accepted.desired.as_ref().map_or("what the Schedules say", |shift| shift.as_str());
        match accepted {
            Accepted { later: true, .. } => format!("no process runs; the next one is told: {desired}"),
            Accepted { changes: true, .. } => format!("taken: {desired}; `tidegate switch status` says how far it is"),
            Accepted { .. } if said.may_be_idle => format!("done: {desired}"),
            Accepted { .. } => format!("nothing to do: {desired} is loaded"),
        }
    })?;
    let is_idle = !accepted.changes && !accepted.later && !said.may_be_idle;
    Ok(if is_idle { ExitCode::from(CONFLICT) } else { ExitCode::SUCCESS })
}

fn refused(refusal: &Refusal) -> ExitCode {
    terminal::note(&format!("error: {}", refusal.message));
    match refusal.status {
        StatusCode::CONFLICT => ExitCode::from(CONFLICT),
        StatusCode::BAD_REQUEST => ExitCode::from(USAGE),
        _ => ExitCode::FAILURE,
    }
}

/// Asks, and waits for what comes of it when that is wanted.
fn begin<T: Serialize>(reach: &Reach, patience: &Patience, said: &Said<'_, T>) -> anyhow::Result<ExitCode> {
    let timeout = Duration::from_secs(seconds(&patience.timeout, "--timeout")?);
    let answer = said.ask(reach)?;
    match answer {
        Ok(accepted) if patience.wait && accepted.changes => {
            let wants_abort = said.verb == "abort";
            Ok(wait(reach, Follower::new(accepted, wants_abort), timeout))
        }
        answer => taken(reach, said, &answer),
    }
}

fn wait(reach: &Reach, mut follower: Follower, timeout: Duration) -> ExitCode {
    let until = Instant::now() + timeout;
    loop {
        match ask_running::<LifecycleStatus>(reach, PATH) {
            Ok(status) => {
                let (events, end) = follower.look(&status);
                events.iter().for_each(|event| say(reach, event));
                match end {
                    Some(End::Done) => return ExitCode::SUCCESS,
                    Some(End::Failed) => return ExitCode::from(FAILED),
                    None => {}
                }
            }
            Err(error) => {
                if let Some(event) = follower.away(&format!("{error:#}")) {
                    say(reach, &event);
                }
            }
        }
        if Instant::now() >= until {
            terminal::note("error: --timeout is over and the switch is not; it goes on (`tidegate switch status`)");
            return ExitCode::from(TIMED_OUT);
        }
        std::thread::sleep(LOOK_EVERY.min(until.saturating_duration_since(Instant::now())));
    }
}

/// One line: for programs on standard output, for people beside it.
fn say(reach: &Reach, event: &Event) {
    if !reach.json {
        terminal::note(&event.to_string());
    } else if let Ok(line) = serde_json::to_string(event) {
        terminal::answer(&line);
    }
}
