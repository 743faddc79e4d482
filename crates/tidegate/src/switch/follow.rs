//! Following a switch from one look at the controller to the next. Pure: looks and the clock are arguments.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tidegate_console::lifecycle::{Accepted, LifecycleStatus, Note, SwitchView};
use tidegate_core::{AliasName, DeploymentName, ShiftName};
use tidegate_store::store::{SwitchMode, SwitchOutcome};

/// What is said of a switch while one waits for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// A switch is in progress.
    Switch { number: u64, from: ShiftName, to: ShiftName, at: jiff::Timestamp },
    /// It goes on otherwise than before.
    Mode { number: u64, mode: SwitchMode },
    /// A deployment does something else.
    Deployment { deployment: DeploymentName, side: &'static str, state: String },
    /// What a replica waits for, or how far it is.
    Progress { replica: String, text: String },
    /// An alias goes elsewhere; nowhere: an empty list.
    Alias { alias: AliasName, deployments: Vec<DeploymentName> },
    /// Something happened.
    Note(Note),
    /// It is over.
    Finished { number: u64, outcome: SwitchOutcome, seconds: f64 },
    /// Nobody answers; the controller may be starting again.
    Away { why: String },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch { number, from, to, at } => write!(f, "switch {number}: {from} to {to}, at {at}"),
            Self::Mode { mode: SwitchMode::Runs, .. } => f.write_str("  goes on"),
            Self::Mode { mode: SwitchMode::Paused, .. } => f.write_str("  is paused: no new step"),
            Self::Mode { mode: SwitchMode::Aborts, .. } => f.write_str("  goes back to the old set"),
            Self::Deployment { deployment, side, state } => write!(f, "  {side} {deployment}: {state}"),
            Self::Progress { replica, text } => write!(f, "    {replica}: {text}"),
            Self::Alias { alias, deployments } if deployments.is_empty() => write!(f, "  alias {alias} goes nowhere"),
            Self::Alias { alias, deployments } => {
                let names: Vec<_> = deployments.iter().map(DeploymentName::as_str).collect();
                write!(f, "  alias {alias} goes to {}", names.join(", "))
            }
            Self::Note(note) => write!(f, "  {} {}: {}", note.code, note.about, note.text),
            Self::Finished { number, outcome, seconds } => {
                write!(f, "switch {number} {} after {seconds:.0} s", outcome_text(*outcome))
            }
            Self::Away { why } => write!(f, "  no answer ({why}); waiting for the controller to come back"),
        }
    }
}

/// An outcome as people read it.
pub(crate) const fn outcome_text(outcome: SwitchOutcome) -> &'static str {
    match outcome {
        SwitchOutcome::Complete => "is complete",
        SwitchOutcome::Partly => "is over; what failed is held back, its old deployments serve on",
        SwitchOutcome::Aborted => "was aborted, the old set serves",
    }
}

/// How waiting ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// What was asked for is so.
    Done,
    /// It will not be, or not all of it.
    Failed,
}

/// Follows what comes of an ask.
#[derive(Debug)]
pub(crate) struct Follower {
    accepted: Accepted,
    /// Whether going back is what was asked for.
    wants_abort: bool,
    before: Option<SwitchView>,
    progress: BTreeMap<String, String>,
    is_away: bool,
}

impl Follower {
    pub(crate) const fn new(accepted: Accepted, wants_abort: bool) -> Self {
        Self { accepted, wants_abort, before: None, progress: BTreeMap::new(), is_away: false }
    }

    /// What is new since the look before, and whether the wait is over.
    pub(crate) fn look(&mut self, status: &LifecycleStatus) -> (Vec<Event>, Option<End>) {
        self.is_away = false;
        let mut events = Vec::new();
        if let Some(now) = &status.switch {
            let before = self.before.take().filter(|before| before.number == now.number);
            changes(before.as_ref(), now, &mut events);
            self.progress(status, &mut events);
            self.before = Some(now.clone());
            return (events, None);
        }
        let followed = self.before.take();
        let is_ours = |last: &&SwitchView| {
            followed.as_ref().map_or(last.generation > self.accepted.generation, |before| before.number == last.number)
        };
        let last = status.last.as_ref().filter(is_ours);
        if let Some(last) = last
            && let Some(outcome) = last.outcome
        {
            changes(followed.as_ref(), last, &mut events);
            let seconds = last.ended.unwrap_or(last.started).duration_since(last.started).as_secs_f64();
            events.push(Event::Finished { number: last.number, outcome, seconds });
            if let Some(end) = self.end(last, outcome) {
                return (events, Some(end));
            }
        }
        let is_there = self.accepted.desired.is_none() || status.shift == self.accepted.desired;
        (events, is_there.then_some(End::Done))
    }

    /// Nobody answers.
    pub(crate) fn away(&mut self, why: &str) -> Option<Event> {
        let is_new = !std::mem::replace(&mut self.is_away, true);
        is_new.then(|| Event::Away { why: why.to_owned() })
    }

    /// What an outcome means for what was asked. `None`: it is that of a switch which had to end first.
    fn end(&self, last: &SwitchView, outcome: SwitchOutcome) -> Option<End> {
        if self.wants_abort {
            return Some(if outcome == SwitchOutcome::Aborted { End::Done } else { End::Failed });
        }
        let is_wanted = self.accepted.desired.as_ref().is_none_or(|desired| last.to == *desired);
        match outcome {
            _ if !is_wanted => None,
            SwitchOutcome::Complete => Some(End::Done),
            SwitchOutcome::Partly | SwitchOutcome::Aborted => Some(End::Failed),
        }
    }

    fn progress(&mut self, status: &LifecycleStatus, events: &mut Vec<Event>) {
        let of_now = status.replicas.iter().filter_map(|replica| {
            let text = replica.problem.as_ref()?;
            Some((format!("{} {}", replica.replica, replica.instance), replica.replica.clone(), text.clone()))
        });
        let mut now = BTreeMap::new();
        for (key, replica, text) in of_now {
            if self.progress.get(&key) != Some(&text) {
                events.push(Event::Progress { replica, text: text.clone() });
            }
            now.insert(key, text);
        }
        self.progress = now;
    }
}

/// What is different in a switch, in the order in which people want to read it.
fn changes(before: Option<&SwitchView>, now: &SwitchView, events: &mut Vec<Event>) {
    if before.is_none() {
        events.push(Event::Switch { number: now.number, from: now.from.clone(), to: now.to.clone(), at: now.at });
    }
    if before.map_or(SwitchMode::Runs, |before| before.mode) != now.mode {
        events.push(Event::Mode { number: now.number, mode: now.mode });
    }
    let notes = before.map_or(0, |before| before.notes.len());
    events.extend(now.notes.iter().skip(notes).cloned().map(Event::Note));
    let mut deployments = |side, before: Option<&BTreeMap<DeploymentName, String>>, now: &BTreeMap<_, _>| {
        let changed = now.iter().filter(|(name, state)| before.and_then(|before| before.get(*name)) != Some(*state));
        events.extend(changed.map(|(deployment, state): (&DeploymentName, &String)| Event::Deployment {
            deployment: deployment.clone(),
            side,
            state: state.replace('_', " "),
        }));
    };
    deployments("new", before.map(|before| &before.new), &now.new);
    deployments("old", before.map(|before| &before.old), &now.old);
    let moved =
        now.aliases.iter().filter(|(alias, to)| before.and_then(|before| before.aliases.get(*alias)) != Some(to));
    events.extend(moved.map(|(alias, to)| Event::Alias { alias: alias.clone(), deployments: to.clone() }));
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn accepted(to: &str) -> Accepted {
        Accepted { changes: true, desired: Some(to.into()), generation: 4, later: false }
    }

    fn switch(number: u64, to: &str) -> SwitchView {
        SwitchView {
            number,
            generation: number,
            from: if to == "night" { "day".into() } else { "night".into() },
            to: to.into(),
            at: Timestamp::UNIX_EPOCH,
            started: Timestamp::UNIX_EPOCH,
            ended: None,
            mode: SwitchMode::Runs,
            outcome: None,
            why: "verb".to_owned(),
            new: [("n".into(), "planned".to_owned())].into(),
            old: [("o".into(), "serving".to_owned())].into(),
            aliases: [("a".into(), vec!["o".into()])].into(),
            steps: Vec::new(),
            overrun: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    fn over(view: &SwitchView, outcome: SwitchOutcome) -> SwitchView {
        let ended = Timestamp::from_second(90).unwrap();
        let bare = SwitchView { new: BTreeMap::new(), old: BTreeMap::new(), aliases: BTreeMap::new(), ..view.clone() };
        SwitchView { outcome: Some(outcome), ended: Some(ended), ..bare }
    }

    fn status(shift: &str, switch: Option<&SwitchView>, last: Option<&SwitchView>) -> LifecycleStatus {
        LifecycleStatus {
            shift: Some(shift.into()),
            switch: switch.cloned(),
            last: last.cloned(),
            ..LifecycleStatus::default()
        }
    }

    fn said(events: &[Event]) -> Vec<String> {
        events.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_change_is_said_once() {
        let mut follower = Follower::new(accepted("night"), false);
        let first = switch(5, "night");
        let (events, end) = follower.look(&status("day", Some(&first), None));
        assert_eq!(
            said(&events),
            [
                "switch 5: day to night, at 1970-01-01T00:00:00Z",
                "  new n: planned",
                "  old o: serving",
                "  alias a goes to o"
            ]
        );
        assert_eq!(end, None);
        assert_eq!(follower.look(&status("day", Some(&first), None)), (Vec::new(), None));
        let mut moved = first.clone();
        moved.new.insert("n".into(), "proven".to_owned());
        moved.old.insert("o".into(), "falling_asleep".to_owned());
        moved.aliases.insert("a".into(), vec!["n".into()]);
        let (events, _) = follower.look(&status("day", Some(&moved), None));
        assert_eq!(said(&events), ["  new n: proven", "  old o: falling asleep", "  alias a goes to n"]);
        let (events, end) = follower.look(&status("night", None, Some(&over(&moved, SwitchOutcome::Complete))));
        assert_eq!((said(&events), end), (vec!["switch 5 is complete after 90 s".to_owned()], Some(End::Done)));
    }

    #[test]
    fn a_switch_that_came_and_went_between_two_looks_is_not_missed() {
        for (outcome, expected) in [
            (SwitchOutcome::Complete, End::Done),
            (SwitchOutcome::Partly, End::Failed),
            (SwitchOutcome::Aborted, End::Failed),
        ] {
            let mut follower = Follower::new(accepted("night"), false);
            let last = over(&switch(5, "night"), outcome);
            assert_eq!(follower.look(&status("day", None, Some(&last))).1, Some(expected));
        }
    }

    #[test]
    fn a_switch_from_before_the_ask_decides_nothing() {
        let mut follower = Follower::new(accepted("night"), false);
        let earlier = over(&switch(4, "night"), SwitchOutcome::Aborted);
        assert_eq!(follower.look(&status("day", None, Some(&earlier))), (Vec::new(), None));
        assert_eq!(follower.look(&status("night", None, Some(&earlier))).1, Some(End::Done), "it is so already");
    }

    #[test]
    fn the_end_of_a_switch_that_had_to_go_first_is_waited_through() {
        let mut follower = Follower::new(accepted("night"), false);
        let first = switch(3, "day");
        follower.look(&status("night", Some(&first), None));
        let back = over(&first, SwitchOutcome::Aborted);
        assert_eq!(follower.look(&status("day", None, Some(&back))).1, None);
        follower.look(&status("day", Some(&switch(5, "night")), Some(&back)));
        let done = over(&switch(5, "night"), SwitchOutcome::Complete);
        assert_eq!(follower.look(&status("night", None, Some(&done))).1, Some(End::Done));
    }

    #[test]
    fn an_abort_is_done_when_the_old_set_is_back_and_failed_when_it_came_too_late() {
        for (outcome, expected) in [(SwitchOutcome::Aborted, End::Done), (SwitchOutcome::Complete, End::Failed)] {
            let mut follower = Follower::new(accepted("day"), true);
            let running = switch(3, "night");
            follower.look(&status("day", Some(&running), None));
            assert_eq!(follower.look(&status("day", None, Some(&over(&running, outcome)))).1, Some(expected));
        }
    }

    #[test]
    fn silence_is_said_once_until_somebody_answers_again() {
        let mut follower = Follower::new(accepted("night"), false);
        assert!(follower.away("refused").is_some());
        assert_eq!(follower.away("refused"), None);
        follower.look(&status("day", None, None));
        assert!(follower.away("refused").is_some());
    }

    #[test]
    fn events_are_lines_of_json_with_a_name() {
        let event = Event::Finished { number: 5, outcome: SwitchOutcome::Partly, seconds: 1.5 };
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(line, r#"{"event":"finished","number":5,"outcome":"partly","seconds":1.5}"#);
        let note =
            Note { at: Timestamp::UNIX_EPOCH, code: "late".to_owned(), about: "n".to_owned(), text: "slow".to_owned() };
        let line = serde_json::to_string(&Event::Note(note)).unwrap();
        assert!(line.starts_with(r#"{"event":"note","at":"#), "{line}");
    }
}
