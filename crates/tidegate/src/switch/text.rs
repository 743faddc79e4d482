//! The lifecycle as people read it.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tidegate_console::lifecycle::{LifecycleStatus, StepView, SwitchView};
use tidegate_core::DeploymentName;
use tidegate_store::store::{SwitchMode, SwitchOutcome};

use super::follow::outcome_text;
use crate::verbs::table;

/// What the lifecycle is at, in lines; none when there never was a switch and nobody has said anything.
pub(crate) fn lifecycle(status: &LifecycleStatus) -> Vec<String> {
    let at = Clock::of(status);
    let mut lines = Vec::new();
    let name = |shift: &Option<tidegate_core::ShiftName>| shift.as_ref().map_or("-", |shift| shift.as_str()).to_owned();
    if status.controller || status.shift.is_some() {
        let wanted = if status.desired.is_none() || status.desired == status.shift {
            String::new()
        } else {
            format!(" (should be {})", name(&status.desired))
        };
        lines.push(format!("loaded     {}{wanted}", name(&status.shift)));
    }
    if let Some(said) = &status.said {
        let until =
            said.until.map_or_else(|| "until the next start".to_owned(), |until| format!("until {}", at.day(until)));
        lines.push(format!(
            "said       {} {} by {} at {}, {until}",
            said.verb,
            said.shift,
            said.who,
            at.day(said.made)
        ));
    }
    if status.paused {
        lines.push("PAUSED     no new step is taken; `tidegate switch resume` goes on".to_owned());
    }
    if let Some(next) = &status.next {
        let begins = next.begins.map_or_else(String::new, |begins| format!(", first step at {}", at.time(begins)));
        lines.push(format!("next       {} at {}{begins}", next.shift, at.day(next.at)));
    }
    if let Some(switch) = &status.switch {
        lines.push(in_progress(switch, status.controller, &at));
    }
    if let Some(last) = &status.last {
        lines.push(format!("last       {}", over(last, &at)));
    }
    lines.extend(troubles(status, &at));
    lines
}

fn in_progress(switch: &SwitchView, has_controller: bool, at: &Clock) -> String {
    let mode = match switch.mode {
        _ if !has_controller => ", left half done: the next controller goes on with it",
        SwitchMode::Runs => "",
        SwitchMode::Paused => ", PAUSED",
        SwitchMode::Aborts => ", going back",
    };
    let mut text = format!(
        "switch     {} from {} to {} at {}, since {}{mode} ({})",
        switch.number,
        switch.from,
        switch.to,
        at.day(switch.at),
        at.time(switch.started),
        switch.why
    );
    let states = switch.new.iter().map(|(name, state)| ("new", name, state));
    for (side, name, state) in states.chain(switch.old.iter().map(|(name, state)| ("old", name, state))) {
        text.push_str(&format!("\n           {side} {name}: {}", state.replace('_', " ")));
    }
    for (alias, to) in &switch.aliases {
        let to: Vec<_> = to.iter().map(DeploymentName::as_str).collect();
        let overrun = switch.overrun.get(alias).map_or_else(String::new, |past| format!(", {past} s past its hour"));
        let goes = if to.is_empty() { "nowhere".to_owned() } else { format!("to {}", to.join(", ")) };
        text.push_str(&format!("\n           alias {alias} goes {goes}{overrun}"));
    }
    for note in &switch.notes {
        text.push_str(&format!("\n           {} {} {}: {}", at.time(note.at), note.code, note.about, note.text));
    }
    if !switch.steps.is_empty() {
        text.push_str(&format!("\n\n{}", steps(&switch.steps, at)));
    }
    text
}

fn steps(steps: &[StepView], at: &Clock) -> String {
    let mut table = table(&["deployment", "step", "planned", "began", "ended", ""]);
    for step in steps {
        let when = |instant: Option<Timestamp>| instant.map_or_else(|| "-".to_owned(), |instant| at.time(instant));
        table.add_row([
            step.deployment.to_string(),
            step.phase.clone(),
            format!("{} to {}", at.time(step.from), at.time(step.until)),
            when(step.began),
            when(step.ended),
            step.text.clone().unwrap_or_default(),
        ]);
    }
    table.to_string()
}

fn over(last: &SwitchView, at: &Clock) -> String {
    let outcome = last.outcome.map_or("was superseded by the next one", outcome_text);
    let ended = last.ended.map_or_else(String::new, |ended| format!(" {}", at.day(ended)));
    let mut text = format!("{} from {} to {}: {outcome},{ended} ({})", last.number, last.from, last.to, last.why);
    if last.outcome != Some(SwitchOutcome::Complete) {
        for note in &last.notes {
            text.push_str(&format!("\n           {} {} {}: {}", at.time(note.at), note.code, note.about, note.text));
        }
    }
    text
}

fn troubles(status: &LifecycleStatus, at: &Clock) -> Vec<String> {
    let mut lines = Vec::new();
    for gap in &status.gaps {
        let until = gap.until.map_or_else(String::new, |until| format!(", expected back at {}", at.time(until)));
        let by = gap.served_by.as_ref().map_or_else(String::new, |alias| format!(", {alias} serves meanwhile"));
        lines.push(format!("GAP        alias {} since {}{until}{by}", gap.alias, at.time(gap.since)));
    }
    for gpu in &status.quarantined {
        let why = gpu.why.as_deref().unwrap_or("its memory was not proven free");
        lines.push(format!("QUARANTINE GPU {}/{}, last of {}: {why}", gpu.node, gpu.gpu, gpu.replica));
    }
    for failure in &status.failures {
        let next = failure.next_at.map_or_else(
            || "not tried again by itself: change a document or `tidegate switch resume`".to_owned(),
            |next| format!("tried again at {}", at.time(next)),
        );
        lines.push(format!("FAILED     {} ({} times): {}; {next}", failure.deployment, failure.failed, failure.fault));
    }
    for away in &status.away {
        lines.push(format!("AWAY       node {}: {}", away.node, away.why));
    }
    for note in &status.notes {
        lines.push(format!("note       {} {} {}: {}", at.day(note.at), note.code, note.about, note.text));
    }
    lines
}

/// Switches, latest first.
pub(crate) fn history(switches: &[SwitchView]) -> String {
    let at = Clock(TimeZone::UTC);
    let mut table = table(&["switch", "from", "to", "hour", "started", "ended", "outcome", "why"]);
    for switch in switches {
        let outcome = match switch.outcome {
            Some(SwitchOutcome::Complete) => "complete",
            Some(SwitchOutcome::Partly) => "partly",
            Some(SwitchOutcome::Aborted) => "aborted",
            None if switch.ended.is_some() => "superseded",
            None => "in progress",
        };
        table.add_row([
            switch.number.to_string(),
            switch.from.to_string(),
            switch.to.to_string(),
            at.day(switch.at),
            at.day(switch.started),
            switch.ended.map_or_else(|| "-".to_owned(), |ended| at.day(ended)),
            outcome.to_owned(),
            switch.why.clone(),
        ]);
    }
    table.to_string()
}

/// Instants in the site's zone.
struct Clock(TimeZone);

impl Clock {
    fn of(status: &LifecycleStatus) -> Self {
        Self(TimeZone::get(&status.time_zone).unwrap_or(TimeZone::UTC))
    }

    fn time(&self, at: Timestamp) -> String {
        at.to_zoned(self.0.clone()).strftime("%H:%M:%S").to_string()
    }

    fn day(&self, at: Timestamp) -> String {
        at.to_zoned(self.0.clone()).strftime("%Y-%m-%d %H:%M%:z").to_string()
    }
}
