//! A plan being carried out.
//!
//! Events say what has happened; after each one [`Switch::step`] looks at everything that is known and asks for whatever
//! can be done now and has not been asked for. Nothing is remembered but the state of each deployment and alias, so a
//! controller that was killed fills them from what it observes and goes on.
//!
//! ```text
//! new  Planned ─▶ Starting ─▶ Proven ─(held)─▶ Unloading ─▶ Gone | Quarantined
//! old  Serving ─▶ Draining ─▶ Drained ─▶ Sleeping ─▶ Asleep ──(held)─▶ Restoring ─▶ Serving | Lost
//!         ▲──(held)──┴──────────┘   └──▶ Stopping ─▶ Gone ────(held)──────┘  └▶ Quarantined
//! alias  wanted ≠ confirmed ─▶ SetRoute
//! ```
//!
//! What holds at every step (the tests walk all of them):
//! * no GPU is booked above its band;
//! * an old deployment is drained only when no alias is routed to it: its aliases have moved, have vanished, or are in
//!   a gap that the plan announces;
//! * whatever fails, an alias ends on its new deployments, on its old ones, absent as planned, or with an alarm that
//!   names it.

mod advance;
mod wish;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tidegate_core::{AliasName, DeploymentName};

use crate::generation::{Generation, Stamped};
use crate::plan::Plan;

/// A new deployment in a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum New {
    /// It is not started yet.
    Planned,
    /// It loads and warms up.
    Starting,
    /// It passed its gate.
    Proven,
    /// It failed or is held, and is on its way out.
    Unloading,
    /// Nothing of it is left.
    Gone,
    /// Its memory was not proven free.
    Quarantined,
}

/// An old deployment in a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Old {
    /// It serves.
    Serving,
    /// It gets nothing new.
    Draining,
    /// Nothing is in flight; it is warm.
    Drained,
    /// It goes to sleep.
    Sleeping,
    /// It sleeps.
    Asleep,
    /// It is being stopped.
    Stopping,
    /// Its memory is proven free.
    Gone,
    /// It is woken or loaded again, and proven.
    Restoring,
    /// It could not be brought back.
    Lost,
    /// Its memory was not proven free.
    Quarantined,
}

/// Which replicas of a deployment are meant: a changed revision has old and new ones under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Side {
    /// Those that stay, or that somebody else runs.
    Stays,
    /// Those that go.
    Old,
    /// Those that come.
    New,
}

/// Replicas that an alias is routed to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// The deployment.
    pub deployment: DeploymentName,
    /// Which of its replicas.
    pub side: Side,
}

/// An alias in a switch; an empty list is *absent*.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Line {
    /// Where it shall go.
    pub wanted: Vec<Member>,
    /// Where all route actuators have confirmed that it goes.
    pub confirmed: Vec<Member>,
    /// Whether an answer of the actuators is awaited.
    pub is_pending: bool,
}

/// How a switch goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// As planned.
    #[default]
    Runs,
    /// No new step; alarms go on.
    Paused,
    /// Back to the old set.
    Aborts,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Event {
    /// The clock.
    Tick,
    /// A new deployment passed its gate.
    Proven(DeploymentName),
    /// A new deployment will not come, or broke.
    Failed(DeploymentName),
    /// Nothing of a new deployment is left.
    Unloaded(DeploymentName),
    /// Nothing is in flight on an old deployment any more.
    Drained(DeploymentName),
    /// An old deployment sleeps, and its memory is down to the residue.
    Asleep(DeploymentName),
    /// An old deployment is stopped, and its memory proven free.
    Gone(DeploymentName),
    /// The memory of a deployment, old or new, was not proven free.
    NotProven(DeploymentName),
    /// An old deployment is back and passed its gate.
    Restored(DeploymentName),
    /// An old deployment does not come back.
    NotRestored(DeploymentName),
    /// All actuators confirm an alias's route.
    RouteSet(AliasName),
    /// One of them refuses; it is undone on all.
    RouteRefused(AliasName),
    /// Error rate or latency went wrong within the watch window.
    Regressed(AliasName),
    /// Back to the old set.
    Abort,
    /// No new step.
    Pause,
    /// Go on.
    Resume,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Effect {
    /// Start a new deployment.
    Start(DeploymentName),
    /// Unload a new deployment and prove it.
    Unload(DeploymentName),
    /// Route an alias to these replicas only; none: absent.
    SetRoute(AliasName, Vec<Member>),
    /// Let an old deployment's streams end.
    Drain(DeploymentName),
    /// Go on with an old deployment that was to drain.
    Keep(DeploymentName),
    /// Put an old deployment to sleep.
    Sleep(DeploymentName),
    /// Stop an old deployment and prove it.
    Stop(DeploymentName),
    /// Wake an old deployment, or load it again, and prove it.
    Restore(DeploymentName),
    /// Tell somebody; once each.
    Alarm(Alarm),
    /// The switch is over.
    Finished(Outcome),
}

/// What somebody has to know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Alarm {
    /// A new deployment is not proven when it should be.
    Late(DeploymentName),
    /// A new deployment failed.
    Failed(DeploymentName),
    /// An old deployment serves an alias past its hour.
    Overrun(AliasName),
    /// GPUs are nobody's.
    Quarantined(DeploymentName),
    /// An old deployment could not be brought back.
    NotRestored(DeploymentName),
    /// An alias has no deployment, and that was not planned.
    AliasDown(AliasName),
    /// An actuator refused a route.
    RouteRefused(AliasName),
    /// The new deployments of an alias did worse than the old.
    Regressed(AliasName),
}

/// How a switch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// Everything as planned.
    Complete,
    /// What failed is held, the rest switched.
    Partly,
    /// The old set is back.
    Aborted,
}

/// A switch in progress.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Switch {
    /// The plan's number.
    pub generation: Generation,
    /// How it goes on.
    pub mode: Mode,
    /// New deployments.
    pub new: BTreeMap<DeploymentName, New>,
    /// Old deployments.
    pub old: BTreeMap<DeploymentName, Old>,
    /// Aliases that change.
    pub lines: BTreeMap<AliasName, Line>,
    /// New deployments that will not come.
    pub failed: BTreeSet<DeploymentName>,
    /// When the last of the new ones was proven or put into a route, as far as that was seen.
    pub moved_at: Option<Timestamp>,
    /// What was said already.
    pub alarms: BTreeSet<Alarm>,
    /// Whether it is over.
    pub outcome: Option<Outcome>,
}

impl Switch {
    /// The switch of a plan, before its first step.
    #[must_use]
    pub fn new(plan: &Plan, generation: Generation) -> Self {
        let line = |route: &crate::plan::Route| {
            let goes = |name: &DeploymentName| plan.departures.iter().any(|old| old.deployment == *name);
            let member = |target: &tidegate_config::site::Target| Member {
                deployment: target.deployment.clone(),
                side: if goes(&target.deployment) { Side::Old } else { Side::Stays },
            };
            let from: Vec<Member> = route.from.iter().map(member).collect();
            (route.alias.clone(), Line { wanted: from.clone(), confirmed: from, is_pending: false })
        };
        Self {
            generation,
            mode: Mode::Runs,
            new: plan.changes.iter().map(|change| (change.deployment.clone(), New::Planned)).collect(),
            old: plan.departures.iter().map(|old| (old.deployment.clone(), Old::Serving)).collect(),
            lines: plan.routes.iter().map(line).collect(),
            failed: BTreeSet::new(),
            moved_at: None,
            alarms: BTreeSet::new(),
            outcome: None,
        }
    }

    /// What an event makes of it, and what is to be done. An event of another generation changes nothing.
    #[must_use]
    pub fn step(mut self, plan: &Plan, event: Stamped<Event>, now: Timestamp) -> (Self, Vec<Stamped<Effect>>) {
        if event.generation != self.generation {
            return (self, Vec::new());
        }
        let mut effects = Vec::new();
        if self.outcome.is_none() {
            self.apply(plan, event.what, now, &mut effects);
            self.advance(plan, now, &mut effects);
        }
        let generation = self.generation;
        (self, effects.into_iter().map(|what| Stamped { generation, what }).collect())
    }

    fn apply(&mut self, plan: &Plan, event: Event, now: Timestamp, out: &mut Vec<Effect>) {
        match event {
            Event::Tick => self.resend(out),
            Event::Proven(name) => {
                self.move_new(&name, New::Starting, New::Proven);
                self.moved_at = Some(now);
            }
            Event::Failed(name) => self.fail(name, out),
            Event::Unloaded(name) => self.move_new(&name, New::Unloading, New::Gone),
            Event::Drained(name) => self.move_old(&name, Old::Draining, Old::Drained),
            Event::Asleep(name) => self.move_old(&name, Old::Sleeping, Old::Asleep),
            Event::Gone(name) => {
                self.move_old(&name, Old::Sleeping, Old::Gone);
                self.move_old(&name, Old::Stopping, Old::Gone);
            }
            Event::NotProven(name) => self.not_proven(plan, name, out),
            Event::Restored(name) => self.move_old(&name, Old::Restoring, Old::Serving),
            Event::NotRestored(name) => {
                if self.old.get(&name) == Some(&Old::Restoring) {
                    self.old.insert(name.clone(), Old::Lost);
                    self.alarm(Alarm::NotRestored(name), out);
                }
            }
            Event::RouteSet(alias) => {
                if let Some(line) = self.lines.get_mut(&alias).filter(|line| line.is_pending) {
                    line.confirmed = line.wanted.clone();
                    line.is_pending = false;
                    self.moved_at = Some(now);
                }
            }
            Event::RouteRefused(alias) => self.refused(plan, alias, out),
            Event::Regressed(alias) => {
                if now < self.watched_until(plan) && self.is_moved(plan, &alias) {
                    self.alarm(Alarm::Regressed(alias.clone()), out);
                    self.fail_alias(plan, &alias, out);
                }
            }
            Event::Abort => self.mode = Mode::Aborts,
            Event::Pause => {
                if self.mode == Mode::Runs {
                    self.mode = Mode::Paused;
                }
            }
            Event::Resume => {
                if self.mode == Mode::Paused {
                    self.mode = Mode::Runs;
                }
            }
        }
    }

    fn move_new(&mut self, name: &DeploymentName, from: New, to: New) {
        if let Some(new) = self.new.get_mut(name).filter(|new| **new == from) {
            *new = to;
        }
    }

    fn move_old(&mut self, name: &DeploymentName, from: Old, to: Old) {
        if let Some(old) = self.old.get_mut(name).filter(|old| **old == from) {
            *old = to;
        }
    }

    fn alarm(&mut self, alarm: Alarm, out: &mut Vec<Effect>) {
        if self.alarms.insert(alarm.clone()) {
            out.push(Effect::Alarm(alarm));
        }
    }

    /// A route that was refused on the way back is asked for again with every tick.
    fn resend(&mut self, out: &mut Vec<Effect>) {
        for (alias, line) in &mut self.lines {
            if !line.is_pending && line.wanted != line.confirmed {
                line.is_pending = true;
                out.push(Effect::SetRoute(alias.clone(), line.wanted.clone()));
            }
        }
    }

    fn fail(&mut self, name: DeploymentName, out: &mut Vec<Effect>) {
        let can_fail = matches!(self.new.get(&name), Some(New::Planned | New::Starting | New::Proven));
        if can_fail && self.failed.insert(name.clone()) {
            self.alarm(Alarm::Failed(name), out);
        }
    }

    fn fail_alias(&mut self, plan: &Plan, alias: &AliasName, out: &mut Vec<Effect>) {
        let targets = plan.routes.iter().filter(|route| route.alias == *alias).flat_map(|route| &route.to);
        let names: Vec<DeploymentName> = targets.map(|target| target.deployment.clone()).collect();
        names.into_iter().for_each(|name| self.fail(name, out));
    }

    fn not_proven(&mut self, plan: &Plan, name: DeploymentName, out: &mut Vec<Effect>) {
        if self.new.get(&name) == Some(&New::Unloading) {
            self.new.insert(name.clone(), New::Quarantined);
        } else if matches!(self.old.get(&name), Some(Old::Stopping | Old::Sleeping)) {
            self.old.insert(name.clone(), Old::Quarantined);
            // who was to have its GPUs will not come
            let blocked = plan.changes.iter().filter(|change| change.displaces.contains(&name));
            let blocked: Vec<DeploymentName> = blocked.map(|change| change.deployment.clone()).collect();
            blocked.into_iter().for_each(|name| self.fail(name, out));
        } else {
            return;
        }
        self.alarm(Alarm::Quarantined(name), out);
    }

    /// A refused move forward counts as a failure of what it was to move to; a refused move back is tried again.
    fn refused(&mut self, plan: &Plan, alias: AliasName, out: &mut Vec<Effect>) {
        let Some(line) = self.lines.get_mut(&alias).filter(|line| line.is_pending) else { return };
        line.is_pending = false;
        let is_forward = line.wanted.iter().any(|member| member.side == Side::New);
        self.alarm(Alarm::RouteRefused(alias.clone()), out);
        if is_forward {
            self.fail_alias(plan, &alias, out);
        }
    }

    /// Whether an alias has left its old deployments.
    fn is_moved(&self, plan: &Plan, alias: &AliasName) -> bool {
        let route = plan.routes.iter().find(|route| route.alias == *alias);
        let line = self.lines.get(alias);
        route.zip(line).is_some_and(|(route, line)| {
            !route.to.is_empty() && line.confirmed.iter().any(|member| member.side == Side::New)
        })
    }

    /// The end of the watch window: as long as a drain, from the hour, the last proof or the last move on; while some are
    /// still to come, from when they are expected.
    #[must_use]
    pub fn watched_until(&self, plan: &Plan) -> Timestamp {
        let window = SignedDuration::try_from(plan.rules.drain_timeout).unwrap_or(SignedDuration::MAX);
        let is_complete = self.new.values().all(|new| !matches!(new, New::Planned | New::Starting));
        let expected = plan.changes.iter().map(|change| change.ready_at).max().unwrap_or(plan.at);
        let ready = self.moved_at.filter(|_| is_complete).unwrap_or(expected).max(plan.at);
        ready.checked_add(window).unwrap_or(Timestamp::MAX)
    }
}

/// A reason that is kept with an alarm, for people.
impl Alarm {
    /// The alarm's stable name.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Late(_) => "late",
            Self::Failed(_) => "failed",
            Self::Overrun(_) => "overrun",
            Self::Quarantined(_) => "quarantined",
            Self::NotRestored(_) => "not_restored",
            Self::AliasDown(_) => "alias_down",
            Self::RouteRefused(_) => "route_refused",
            Self::Regressed(_) => "regressed",
        }
    }

    /// What it is about: a deployment or an alias.
    #[must_use]
    pub fn about(&self) -> Arc<str> {
        match self {
            Self::Late(name) | Self::Failed(name) | Self::Quarantined(name) | Self::NotRestored(name) => {
                Arc::from(name.as_str())
            }
            Self::Overrun(alias) | Self::AliasDown(alias) | Self::RouteRefused(alias) | Self::Regressed(alias) => {
                Arc::from(alias.as_str())
            }
        }
    }
}
