//! Everything that can be done now.

use jiff::Timestamp;
use tidegate_core::DeploymentName;

use super::wish::Wishes;
use super::{Alarm, Effect, Mode, New, Old, Outcome, Side, Switch};
use crate::plan::{Change, Departure, End, Plan};

impl Switch {
    pub(super) fn advance(&mut self, plan: &Plan, now: Timestamp, out: &mut Vec<Effect>) {
        loop {
            let before = out.len();
            let wishes = self.wishes(plan, now);
            self.warn(plan, &wishes, now, out);
            if self.mode == Mode::Paused {
                return;
            }
            self.route(plan, &wishes, now, out);
            self.start(plan, &wishes, now, out);
            self.unload(&wishes, out);
            for old in &plan.departures {
                self.old(plan, old, &wishes, now, out);
            }
            if out.len() == before {
                break;
            }
        }
        self.finish(plan, now, out);
    }

    /// Alarms are raised whatever the mode is.
    fn warn(&mut self, plan: &Plan, wishes: &Wishes, now: Timestamp, out: &mut Vec<Effect>) {
        for change in &plan.changes {
            let waits = matches!(self.new.get(&change.deployment), Some(New::Planned | New::Starting));
            if waits && now > change.ready_at && self.mode != Mode::Aborts {
                self.alarm(Alarm::Late(change.deployment.clone()), out);
            }
        }
        for route in plan.routes.iter().filter(|route| wishes.held.aliases.contains(&route.alias)) {
            let serves_old = self
                .lines
                .get(&route.alias)
                .is_some_and(|line| line.confirmed.iter().any(|member| member.side == Side::Old));
            if serves_old && now > plan.at && self.mode != Mode::Aborts {
                self.alarm(Alarm::Overrun(route.alias.clone()), out);
            }
        }
    }

    fn route(&mut self, plan: &Plan, wishes: &Wishes, now: Timestamp, out: &mut Vec<Effect>) {
        for route in &plan.routes {
            let wish = self.wish(plan, route, wishes, now);
            let Some(line) = self.lines.get_mut(&route.alias) else { continue };
            // one at a time: what is under way is answered first
            if line.is_pending || line.wanted == wish {
                continue;
            }
            line.wanted.clone_from(&wish);
            if line.wanted != line.confirmed {
                line.is_pending = true;
                out.push(Effect::SetRoute(route.alias.clone(), wish));
            }
        }
    }

    fn start(&mut self, plan: &Plan, wishes: &Wishes, now: Timestamp, out: &mut Vec<Effect>) {
        for change in &plan.changes {
            let has_room =
                change.displaces.iter().all(|old| matches!(self.old.get(old), Some(Old::Gone | Old::Asleep)));
            if has_room && self.is_next(plan, change, &wishes.held, now) && self.mode == Mode::Runs {
                self.new.insert(change.deployment.clone(), New::Starting);
                out.push(Effect::Start(change.deployment.clone()));
            }
        }
    }

    /// Held new ones go when no alias is on them; those that never started are simply not.
    fn unload(&mut self, wishes: &Wishes, out: &mut Vec<Effect>) {
        for name in &wishes.held.new {
            let is_used = self.is_routed(name, Side::New);
            let Some(new) = self.new.get_mut(name) else { continue };
            match new {
                New::Planned => *new = New::Gone,
                New::Starting | New::Proven if !is_used => {
                    *new = New::Unloading;
                    out.push(Effect::Unload(name.clone()));
                }
                New::Starting | New::Proven | New::Unloading | New::Gone | New::Quarantined => {}
            }
        }
    }

    fn is_routed(&self, name: &DeploymentName, side: Side) -> bool {
        let lines = self.lines.values();
        let mut members = lines.flat_map(|line| line.wanted.iter().chain(&line.confirmed));
        members.any(|member| member.side == side && member.deployment == *name)
    }

    fn old(&mut self, plan: &Plan, departure: &Departure, wishes: &Wishes, now: Timestamp, out: &mut Vec<Effect>) {
        let name = &departure.deployment;
        let Some(state) = self.old.get(name).copied() else { return };
        let is_held = wishes.held.old.contains(name);
        let next = match state {
            Old::Serving if !is_held && now >= plan.at && !self.is_routed(name, Side::Old) => {
                Some((Old::Draining, Effect::Drain(name.clone())))
            }
            Old::Draining | Old::Drained if is_held => Some((Old::Serving, Effect::Keep(name.clone()))),
            Old::Drained => self.after_drain(plan, departure, now),
            Old::Asleep | Old::Gone if is_held && self.rivals(plan, name).next().is_none() => {
                Some((Old::Restoring, Effect::Restore(name.clone())))
            }
            Old::Serving
            | Old::Draining
            | Old::Sleeping
            | Old::Asleep
            | Old::Stopping
            | Old::Gone
            | Old::Restoring
            | Old::Lost
            | Old::Quarantined => None,
        };
        if let Some((next, effect)) = next {
            self.old.insert(name.clone(), next);
            out.push(effect);
        }
    }

    /// A sleeper sleeps, who is in the way stops at once, the others when the watch window is over.
    fn after_drain(&self, plan: &Plan, departure: &Departure, now: Timestamp) -> Option<(Old, Effect)> {
        let name = &departure.deployment;
        if matches!(departure.end, End::Sleep { .. }) {
            return Some((Old::Sleeping, Effect::Sleep(name.clone())));
        }
        let waits = |change: &Change| {
            change.displaces.contains(name) && self.new.get(&change.deployment) == Some(&New::Planned)
        };
        let is_in_the_way = plan.changes.iter().any(waits);
        let is_watched = now < self.watched_until(plan) && self.new.values().any(|new| *new != New::Gone);
        (is_in_the_way || !is_watched).then(|| (Old::Stopping, Effect::Stop(name.clone())))
    }

    /// Over, when nothing is under way and nothing more will be asked for.
    fn finish(&mut self, plan: &Plan, now: Timestamp, out: &mut Vec<Effect>) {
        let is_held = self.mode == Mode::Aborts || !self.failed.is_empty();
        let new_rests = self.new.values().all(|new| matches!(new, New::Proven | New::Gone | New::Quarantined));
        let old_rests = self.old.iter().all(|(name, old)| match old {
            Old::Asleep | Old::Gone | Old::Lost | Old::Quarantined => true,
            Old::Serving => is_held && self.wishes(plan, now).held.old.contains(name),
            Old::Draining | Old::Drained | Old::Sleeping | Old::Stopping | Old::Restoring => false,
        });
        let routes_rest = self.lines.values().all(|line| !line.is_pending && line.wanted == line.confirmed);
        let is_watched = now < self.watched_until(plan) && self.mode == Mode::Runs;
        if !new_rests || !old_rests || !routes_rest || is_watched || self.has_hope(plan, now) {
            return;
        }
        let held = self.wishes(plan, now).held;
        let is_away = |name: &DeploymentName| self.old.get(name) != Some(&Old::Serving);
        let away: Vec<DeploymentName> = held.old.into_iter().filter(is_away).collect();
        away.into_iter().for_each(|name| self.alarm(Alarm::NotRestored(name), out));
        for route in &plan.routes {
            let is_down = self.lines.get(&route.alias).is_some_and(|line| line.confirmed.is_empty());
            let should_be = if self.mode == Mode::Aborts { !route.from.is_empty() } else { !route.to.is_empty() };
            if is_down && should_be {
                self.alarm(Alarm::AliasDown(route.alias.clone()), out);
            }
        }
        let outcome = match self.mode {
            Mode::Aborts => Outcome::Aborted,
            Mode::Runs | Mode::Paused if self.failed.is_empty() => Outcome::Complete,
            Mode::Runs | Mode::Paused => Outcome::Partly,
        };
        self.outcome = Some(outcome);
        out.push(Effect::Finished(outcome));
    }

    /// Whether a held old deployment is still to come back: it will as soon as it has room.
    fn has_hope(&self, plan: &Plan, now: Timestamp) -> bool {
        let held = self.wishes(plan, now).held;
        held.old.iter().any(|name| {
            let is_away = matches!(self.old.get(name), Some(Old::Asleep | Old::Gone));
            let is_blocked = self.rivals(plan, name).any(|rival| self.is_kept(&rival.deployment));
            is_away && !is_blocked
        })
    }

    /// Whether a new deployment stays on its GPUs although it is held: nobody can prove them free, or its alias has no
    /// other any more.
    fn is_kept(&self, name: &DeploymentName) -> bool {
        self.new.get(name) == Some(&New::Quarantined) || self.is_routed(name, Side::New)
    }
}
