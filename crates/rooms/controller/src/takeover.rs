//! What a controller does first: it takes over what an earlier one left, engines, routes and a switch that was under way.
//!
//! Nothing is believed that cannot be seen: which engines run, the launcher says; where aliases go, the store says, and all
//! gates are told again; how far a switch is follows from both.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tidegate_core::DeploymentName;
use tidegate_planner::Plan;
use tidegate_planner::generation::Generation;
use tidegate_planner::instance::{self, State};
use tidegate_planner::placement::{ReplicaKey, Seat};
use tidegate_planner::switch::{Mode, New, Old, Switch};

use crate::controller::Controller;
use crate::cycle::goal;
use crate::launcher::{Blueprint, Seen, SeenState};
use crate::records::{RecordError, SwitchRow};
use crate::replica::ReplicaHandle;
use crate::run::{Run, find};

impl Controller {
    /// Takes over what is there: engines of an earlier controller, its routes, and a switch that it did not finish.
    pub(crate) async fn take_over(&mut self) -> Result<(), RecordError> {
        let records = Arc::clone(&self.parts.records);
        self.next_generation().await?;
        self.routes = records.routes().await?;
        // An earlier controller may have ended between one gate and the next: all are told again.
        let generation = self.generation();
        for row in self.routes.values_mut() {
            row.generation = generation;
        }
        for row in self.routes.values().cloned().collect::<Vec<_>>() {
            self.send_route(row);
        }
        self.said = records.said().await?;
        self.is_paused = records.is_paused().await?;
        self.recall(records.measured().await?);
        let sight = self.hands.eyes.first().await;
        let now = self.now();
        self.look_at_hardware(now).await;
        let last = records.last_switch().await?;
        self.adopt(&sight, last.as_ref()).await;
        match last {
            Some(row) if row.ended.is_none() => self.resume_switch(row).await?,
            Some(row) => {
                let is_aborted = row.outcome == Some(tidegate_planner::switch::Outcome::Aborted);
                let shift = if is_aborted { &row.plan.from } else { &row.plan.to };
                self.shift = Some(shift.clone()).filter(|shift| self.site.shifts().contains(shift));
                self.last = Some(row);
            }
            None => {}
        }
        self.is_stale = true;
        self.forgiven_at = Some(now);
        Ok(())
    }

    /// Seats as plans write them. A node knows the GPUs of an instance, not why it has just those.
    fn known_seats(&self, last: Option<&SwitchRow>) -> Vec<(ReplicaKey, Seat)> {
        let site = Arc::clone(&self.site);
        let outlook = self.outlook(&site);
        let planned = last.into_iter().flat_map(|row| {
            let new = row.plan.changes.iter().flat_map(|new| new.seats.clone());
            let old = row.plan.departures.iter().flat_map(|old| old.seats.clone());
            new.chain(old).chain(row.plan.stays.clone())
        });
        let placed = site.shifts().into_iter().filter_map(|shift| outlook.seats(&shift).cloned()).flatten();
        planned.chain(placed).collect()
    }

    /// Drives what runs: what is routed serves on, what sleeps sleeps on, everything else is proven anew. What the documents do not know any
    /// more is ended.
    async fn adopt(&mut self, sight: &crate::sight::Sight, last: Option<&SwitchRow>) {
        let seats = self.known_seats(last);
        for seen in sight.seen.values() {
            let name = &seen.key.deployment;
            let is_routed = self.routes.values().flat_map(|row| &row.targets).any(|target| {
                target.deployment == *name && target.revision.is_none_or(|revision| revision == seen.revision)
            });
            let known = self.blueprint(name, seen.revision);
            let is_ending = !matches!(seen.state, SeenState::Running { .. } | SeenState::Pending { .. });
            let now = self.now();
            let soon = now.checked_add(SignedDuration::from_mins(60)).unwrap_or(Timestamp::MAX);
            let end = instance::End::Unwanted;
            let state = match (&known, is_ending) {
                (Some(_), false) if is_routed => State::Serving,
                (Some(blueprint), false) => match self.asleep(seen, blueprint).await {
                    Some(level) => State::Asleep { level },
                    None => State::Loading { attempt: 1, deadline: soon },
                },
                (Some(_), true) | (None, _) => {
                    State::Stopping { kill_at: soon.min(later(now, instance::TERM_GRACE)), end }
                }
            };
            tracing::info!(instance = %seen.instance, state = crate::replica::state_name(&state), "taken over");
            let blueprint = known.unwrap_or_else(|| Arc::new(Blueprint::gone(name.clone(), seen.revision)));
            let order = crate::launcher::Order {
                instance: seen.instance.clone(),
                key: seen.key.clone(),
                seat: as_planned(&seats, &seen.key, &seen.seat),
                blueprint,
                is_first: false,
            };
            self.drive(order, state);
        }
    }

    /// The level at which an engine sleeps that an earlier controller put to sleep: no start and no proof is wanted of it.
    async fn asleep(&self, seen: &Seen, blueprint: &Blueprint) -> Option<u8> {
        let SeenState::Running { address } = &seen.state else { return None };
        if !blueprint.may_sleep {
            return None;
        }
        self.parts.care.asleep(&seen.key, *address, blueprint).await
    }

    /// Goes on with a switch that an earlier controller began: its machine is filled from what is seen.
    async fn resume_switch(&mut self, mut row: SwitchRow) -> Result<(), RecordError> {
        let now = self.now();
        let is_known = |name: &DeploymentName| self.site.deployments.contains_key(name);
        let all = row.plan.changes.iter().map(|new| &new.deployment);
        if !all.clone().all(is_known) || !self.site.shifts().contains(&row.plan.to) {
            row.ended = Some(now);
            row.generation = self.generation();
            return self.parts.records.save_switch(&row).await;
        }
        let before = row.generation;
        row.generation = self.generation();
        let mut switch = Switch::new(&row.plan, Generation(row.generation));
        switch.mode = row.mode;
        switch.failed.clone_from(&row.failed);
        self.fill(&mut switch, &row.plan);
        for (alias, line) in &mut switch.lines {
            let Some(route) = self.routes.get(alias) else { continue };
            let members: Vec<_> = route.targets.iter().map(|target| member(&row.plan, target)).collect();
            if members.iter().any(|member| member.side == tidegate_planner::switch::Side::New) {
                // when that was is not known: it is watched anew, and not until the hour at which it was expected
                switch.moved_at = Some(now);
            }
            line.wanted.clone_from(&members);
            line.confirmed = members;
        }
        tracing::info!(before, generation = row.generation, to = %row.plan.to, "goes on with the switch that was under way");
        self.shift = Some(if now >= row.plan.at && row.mode != Mode::Aborts {
            row.plan.to.clone()
        } else {
            row.plan.from.clone()
        });
        self.parts.records.save_switch(&row).await?;
        let site = Arc::clone(&self.site);
        let goal = goal(&self.outlook(&site), &row.plan.to);
        self.run = Some(Run { row, switch, queued: Vec::new(), deferred: BTreeSet::new(), steps: 0, goal });
        Ok(())
    }

    /// Fills a machine with what is seen of the new and the old ones.
    fn fill(&self, switch: &mut Switch, plan: &Plan) {
        for change in &plan.changes {
            let states: Vec<Option<State>> = change
                .seats
                .iter()
                .map(|(key, seat)| find(&self.replicas, key, change.revision, seat))
                .map(|replica| replica.filter(|replica| !replica.is_over()).map(ReplicaHandle::state))
                .collect();
            // one that serves an alias is not taken out of it only because nobody has said `proven` to this controller
            let state = if states.iter().all(|state| *state == Some(State::Serving)) {
                New::Proven
            } else if states.iter().any(Option::is_some) {
                New::Starting
            } else {
                New::Planned
            };
            switch.new.insert(change.deployment.clone(), state);
        }
        for old in &plan.departures {
            let state = |(key, seat): &(ReplicaKey, Seat)| {
                find(&self.replicas, key, old.revision, seat).map_or(State::Absent, ReplicaHandle::state)
            };
            let states: Vec<State> = old.seats.iter().map(state).collect();
            let is_gone = states.iter().all(|state| matches!(state, State::Absent | State::Stopped));
            let is_ending = states.iter().any(|state| matches!(state, State::Stopping { .. } | State::Proving { .. }));
            let is_asleep = states.iter().all(|state| matches!(state, State::Asleep { .. }));
            let state = match () {
                () if is_gone => Old::Gone,
                () if is_asleep => Old::Asleep,
                () if is_ending => Old::Stopping,
                () => Old::Serving,
            };
            switch.old.insert(old.deployment.clone(), state);
        }
    }
}

/// The planned seat with the same GPUs on the same nodes; the seen one where no plan had that.
fn as_planned(seats: &[(ReplicaKey, Seat)], key: &ReplicaKey, seen: &Seat) -> Seat {
    let nodes = |seat: &Seat| seat.parts.iter().map(|part| Arc::clone(&part.node)).collect::<BTreeSet<_>>();
    let same = |seat: &Seat| seat.gpus() == seen.gpus() && nodes(seat) == nodes(seen);
    let planned = seats.iter().find(|(known, seat)| known == key && same(seat));
    planned.map_or_else(|| seen.clone(), |(_, seat)| seat.clone())
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by).ok().and_then(|by| at.checked_add(by).ok()).unwrap_or(Timestamp::MAX)
}

fn member(plan: &Plan, target: &crate::route::RouteTarget) -> tidegate_planner::switch::Member {
    use tidegate_planner::switch::{Member, Side};
    let is_new = plan.changes.iter().any(|new| {
        new.deployment == target.deployment && target.revision.is_some_and(|revision| revision == new.revision)
    });
    let is_old = plan.departures.iter().any(|old| {
        old.deployment == target.deployment && target.revision.is_none_or(|revision| revision == old.revision)
    });
    let side = if is_old && !(is_new && target.revision.is_some()) {
        Side::Old
    } else if is_new {
        Side::New
    } else {
        Side::Stays
    };
    Member { deployment: target.deployment.clone(), side }
}
