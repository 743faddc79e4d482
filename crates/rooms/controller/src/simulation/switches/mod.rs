//! One switch of a random site under load, with troubles at random seconds, and what must hold whatever happens.
//!
//! ```text
//! seed ─▶ site, troubles       21:20 the day is loaded ─▶ 21:40 load and troubles ─▶ 22:00 the hour ─▶ 22:50 it rests
//!                              ─▶ everything is mended ─▶ `switch now --to day` ─▶ the whole day set serves
//! ```
//!
//! What is checked: no GPU has two owners and no stale command is obeyed (the world itself looks); no request is refused
//! unless its alias is in a gap that the plan announces, has not appeared yet, or lost its only engine to a fault of
//! that engine; no request is cut; the switch ends, and whoever should serve then does or is named with the reason; and
//! when the troubles are over nothing of them is left.

mod draw;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tidegate_config::{Site, Source, check};
use tidegate_core::ShiftName;
use tidegate_planner::hardware::Hardware;
use tidegate_planner::plan::{Route, RouteKind};
use tidegate_planner::switch::{Effect, Mode, Outcome};
use tidegate_routing::Lease;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use self::draw::{Dice, Drawn, Trouble};
use super::{Pace, Temper, World};
use crate::controller::{Controller, ControllerHandle, Ended, Parts};
use crate::records::{MemoryRecords, Records as _, SwitchRow};
use crate::route::{NoGates, OwnTable};
use crate::verbs::Verb;

/// Sites that are drawn until one passes its check.
const DRAWS_MAX: u32 = 200;
/// The longest that a request lasts, in seconds.
const REQUEST_MAX: u64 = 60;
/// What the plan does not count: requests come once a second, and turns are taken.
const LATE_MAX: Duration = Duration::from_secs(5);
/// Violations of one kind that are told one by one.
const TOLD_MAX: usize = 8;

const BEGIN: &str = "2026-12-01T21:20:00Z";
const LOADED: u64 = 20 * 60;
const TROUBLES: u64 = 35 * 60;
const REST: u64 = 35 * 60;
/// The last of three attempts begins 21 minutes after the first has failed.
const TRIES: u64 = 60 * 60;
const BACK: u64 = 30 * 60;

/// How one random switch went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Told {
    /// Its seed: the same one makes the same switch.
    pub seed: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that were refused in a gap that the plan announced.
    pub refused_in_gap: u64,
    /// Requests to aliases that had not appeared yet.
    pub refused_before: u64,
    /// Requests to aliases whose way back, after a failure that is named, needs room first.
    pub refused_on_the_way_back: u64,
    /// Requests that were refused because the only engine of their alias broke.
    pub refused_broken: u64,
    /// Times that the controller was killed.
    pub kills: u32,
    /// Changes by strategy.
    pub strategies: BTreeMap<&'static str, u32>,
    /// What went wrong, by our doing.
    pub troubles: Vec<String>,
    /// What must never be: empty.
    pub violations: Vec<String>,
}

/// A controller at work in its world.
struct Play {
    site: Arc<Site>,
    world: Arc<World>,
    records: Arc<MemoryRecords>,
    handle: ControllerHandle,
    end: Option<oneshot::Sender<()>>,
    tasks: JoinSet<Ended>,
    dice: Dice,
    drawn: Drawn,
    leases: Vec<(u64, Lease)>,
    /// Seconds since the beginning.
    second: u64,
    /// Deployments with an engine that broke.
    broken: BTreeSet<String>,
    /// Whether one of them will do so again.
    broken_for_good: bool,
    /// Aliases that may be refused, until they answer: why.
    excused: BTreeMap<String, Excuse>,
    /// Since when an alias has had nobody.
    down_since: BTreeMap<String, Timestamp>,
    /// The longest time that an alias had nobody.
    outages: BTreeMap<String, SignedDuration>,
    /// What is undone at a second.
    later: Vec<(u64, Later)>,
    /// Steps at which the controller is killed.
    kill_at_step: Vec<usize>,
    told: Told,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Excuse {
    Gap,
    NotYet,
    Broken,
    Failed,
}

#[derive(Clone, Debug)]
enum Later {
    AcceptRoute(String),
    Home,
    Resume,
}

/// Plays the switch of a seed. Needs a tokio runtime of one thread whose time is paused.
pub async fn play(seed: u64) -> Told {
    let mut dice = Dice::new(seed);
    let mut found = None;
    for _ in 0..DRAWS_MAX {
        let drawn = Drawn::new(&mut dice);
        let checked = check(&[Source::new("site.yaml", drawn.text.clone())]);
        if let Some(site) = checked.site {
            found = Some((drawn, Arc::new(site)));
            break;
        }
    }
    let (Some((drawn, site)), Ok(begin)) = (found, BEGIN.parse::<Timestamp>()) else {
        let violations = vec!["no site was drawn that passes its check".to_owned()];
        return Told { seed, violations, ..Told::default() };
    };
    let troubles = Trouble::draw(&mut dice, &drawn, TROUBLES);
    let world = World::new(Hardware::of(&site), &site, begin, Pace::default());
    let records = Arc::new(MemoryRecords::default());
    let mut tasks = JoinSet::new();
    let (handle, end) = start(&site, &world, &records, &mut tasks);
    let told =
        Told { seed, troubles: troubles.iter().map(|trouble| format!("{trouble:?}")).collect(), ..Told::default() };
    let mut play = Play {
        site,
        world,
        records,
        handle,
        end: Some(end),
        tasks,
        dice,
        drawn,
        leases: Vec::new(),
        second: 0,
        broken: BTreeSet::new(),
        broken_for_good: false,
        excused: BTreeMap::new(),
        down_since: BTreeMap::new(),
        outages: BTreeMap::new(),
        later: Vec::new(),
        kill_at_step: Vec::new(),
        told,
    };
    play.run(troubles).await;
    play.told
}

fn start(
    site: &Arc<Site>,
    world: &Arc<World>,
    records: &Arc<MemoryRecords>,
    tasks: &mut JoinSet<Ended>,
) -> (ControllerHandle, oneshot::Sender<()>) {
    let table = Arc::<MemoryRecords>::clone(records);
    let parts = Parts {
        records: Arc::<MemoryRecords>::clone(records),
        actuators: vec![Arc::new(OwnTable::new(table, Arc::new(NoGates))), Arc::<World>::clone(world)],
        launcher: Arc::<World>::clone(world),
        care: Arc::<World>::clone(world),
        counts: None,
    };
    let clock = Arc::clone(world);
    let (controller, handle) = Controller::new(Arc::clone(site), parts, Arc::new(move || clock.now()));
    let (end, ended) = oneshot::channel::<()>();
    tasks.spawn(controller.run(async {
        // It ends when the play does, too.
        let _ = ended.await;
    }));
    (handle, end)
}

impl Play {
    async fn run(&mut self, mut troubles: Vec<(u64, Trouble)>) {
        for _ in 0..LOADED {
            self.pass().await;
        }
        troubles.reverse();
        for second in 0..TROUBLES + REST {
            while troubles.last().is_some_and(|(at, _)| *at <= second) {
                if let Some((_, trouble)) = troubles.pop() {
                    self.trouble(trouble).await;
                }
            }
            self.pass().await;
            self.ask().await;
        }
        self.comes_to_rest().await;
        self.rests("after the switch");
        self.mend().await;
        for _ in 0..BACK {
            self.pass().await;
            self.ask().await;
        }
        self.is_back();
        let cut = self.world.cut();
        let is_ours = |id: &str| !self.broken.iter().any(|name| id.starts_with(&format!("{name}-")));
        let cut: Vec<String> = cut.iter().map(ToString::to_string).filter(|id| is_ours(id)).collect();
        cut.into_iter().for_each(|id| self.violated(format!("requests on {id} were cut")));
        self.emptied();
        self.world.wrongs().into_iter().for_each(|wrong| self.violated(wrong));
        // the last one is told to end, as a process is
        drop(self.end.take());
        while self.tasks.join_next().await.is_some() {}
    }

    fn violated(&mut self, what: String) {
        if self.told.violations.len() < TOLD_MAX {
            self.told.violations.push(format!("{}: {what}", self.world.now()));
        }
    }

    async fn pass(&mut self) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.second += 1;
        let second = self.second;
        self.leases.retain(|(until, _)| second < *until);
        let (due, later) = std::mem::take(&mut self.later).into_iter().partition(|(at, _)| *at <= second);
        self.later = later;
        for (_, later) in Vec::<(u64, Later)>::from_iter(due) {
            match later {
                Later::AcceptRoute(alias) => self.world.refuse_route(&alias, false),
                Later::Home => self.world.away(false),
                Later::Resume => self.say(Verb::Resume).await,
            }
        }
        let steps = self.records.steps().len();
        if self.kill_at_step.iter().any(|at| *at <= steps) {
            self.kill_at_step.retain(|at| *at > steps);
            self.kill().await;
        }
    }

    /// A verb may be out of place: that is an answer, too.
    async fn say(&self, verb: Verb) {
        let _ = self.handle.say(verb, "simulation").await;
    }

    /// Requests are those of a gate in the same process: they end with it.
    async fn kill(&mut self) {
        self.tasks.shutdown().await;
        self.leases.clear();
        let (handle, end) = start(&self.site, &self.world, &self.records, &mut self.tasks);
        (self.handle, self.end) = (handle, Some(end));
        self.told.kills += 1;
    }

    async fn trouble(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::Kill => self.kill().await,
            Trouble::KillAfterSteps(steps) => self.kill_at_step.push(self.records.steps().len() + steps),
            Trouble::Temper(name, temper) => {
                self.world.temper(&name, temper);
                if temper.breaks_in_service {
                    self.broken_for_good = true;
                    self.broken.insert(name);
                }
            }
            Trouble::Break(name) => {
                if self.world.break_one(&name) {
                    self.broken.insert(name);
                }
            }
            Trouble::RefuseRoute(alias, seconds) => {
                self.world.refuse_route(&alias, true);
                self.later.push((self.second + seconds, Later::AcceptRoute(alias)));
            }
            Trouble::Away(seconds) => {
                self.world.away(true);
                self.later.push((self.second + seconds, Later::Home));
            }
            Trouble::Abort => self.say(Verb::Abort).await,
            Trouble::Rollback => self.say(Verb::Rollback).await,
            Trouble::Pause(seconds) => {
                self.say(Verb::Pause).await;
                self.later.push((self.second + seconds, Later::Resume));
            }
        }
    }

    /// One request to each alias.
    async fn ask(&mut self) {
        let Ok(row) = self.records.last_switch().await else { return };
        let now = self.world.now();
        if let Some(row) = row.as_ref().filter(|row| row.ended.is_none()) {
            self.announce(row, now);
        }
        for (alias, by_day, by_night) in self.drawn.aliases.clone() {
            if let Some(lease) = self.world.ask(&alias) {
                self.told.answered += 1;
                self.excused.remove(&alias);
                if let Some(since) = self.down_since.remove(&alias) {
                    let lasted = self.outages.entry(alias.clone()).or_default();
                    *lasted = (*lasted).max(now.duration_since(since));
                }
                self.leases.push((self.second + 1 + self.dice.below(REQUEST_MAX), lease));
                continue;
            }
            let is_night = self.handle.status().shift.as_ref().is_some_and(|shift| shift.as_str() == "night");
            let is_absent = self.world.route(&alias).is_none_or(|row| row.targets.is_empty());
            let vanishes = row.iter().flat_map(|row| &row.plan.routes).any(|route| {
                route.alias.as_str() == alias && route.kind == RouteKind::Vanishes && now >= route.gap_from
            });
            if is_absent && (vanishes || !(if is_night { by_night } else { by_day })) {
                self.down_since.remove(&alias);
                continue;
            }
            self.down_since.entry(alias.clone()).or_insert(now);
            self.refused(&alias);
        }
    }

    /// Aliases that may be refused by the plan that is carried out.
    fn announce(&mut self, row: &SwitchRow, now: Timestamp) {
        if !row.failed.is_empty() || row.mode == Mode::Aborts {
            for route in &row.plan.routes {
                self.excused.entry(route.alias.to_string()).or_insert(Excuse::Failed);
            }
        }
        let is_over = |route: &&Route| now >= route.gap_from && route.gap > Duration::ZERO;
        for route in row.plan.routes.iter().filter(is_over) {
            self.excused.insert(route.alias.to_string(), Excuse::Gap);
        }
        for route in row.plan.routes.iter().filter(|route| route.kind == RouteKind::Appears) {
            self.excused.entry(route.alias.to_string()).or_insert(Excuse::NotYet);
        }
    }

    fn refused(&mut self, alias: &str) {
        let route = self.world.route(alias);
        let is_broken =
            route.iter().flat_map(|row| &row.targets).any(|target| self.broken.contains(target.deployment.as_str()));
        if is_broken {
            self.excused.entry(alias.to_owned()).or_insert(Excuse::Broken);
        }
        match self.excused.get(alias) {
            Some(Excuse::Gap) => self.told.refused_in_gap += 1,
            Some(Excuse::NotYet) => self.told.refused_before += 1,
            Some(Excuse::Broken) => self.told.refused_broken += 1,
            Some(Excuse::Failed) => self.told.refused_on_the_way_back += 1,
            None => {
                let to = route.map(|row| row.targets);
                let planned = self.records.switches().pop().map(|row| {
                    let routes = row.plan.routes.into_iter();
                    let own = routes.filter(|route| route.alias.as_str() == alias);
                    own.map(|route| (route.kind, route.gap_from.to_string(), route.gap)).collect::<Vec<_>>()
                });
                self.violated(format!(
                    "a request to {alias} was refused outside of a gap, its route: {to:?}, planned {planned:?}"
                ));
                // the next one would say the same
                self.excused.insert(alias.to_owned(), Excuse::Broken);
            }
        }
    }

    /// Whether nothing is under way.
    fn is_at_rest(&self) -> bool {
        let status = self.handle.status();
        let rests = |state: &str| matches!(state, "serving" | "asleep" | "quarantined" | "failed");
        status.switch.is_none() && status.replicas.iter().all(|replica| rests(replica.state))
    }

    /// Failed deployments are tried again for a while.
    async fn comes_to_rest(&mut self) {
        for _ in 0..TRIES {
            if self.is_at_rest() {
                break;
            }
            self.pass().await;
            self.ask().await;
        }
    }

    /// The switch is over, and whoever should serve does or is named.
    fn rests(&mut self, when: &str) {
        let status = self.handle.status();
        // one that breaks again and again is started again and again
        let is_restless = self.broken_for_good && when == "after the switch";
        if is_restless {
            return;
        }
        if let Some(switch) = &status.switch {
            let (new, old) = (&switch.new, &switch.old);
            self.violated(format!(
                "{when}: a switch is still under way: new {new:?}, old {old:?}, {:?}",
                switch.aliases
            ));
        }
        for replica in &status.replicas {
            if !matches!(replica.state, "serving" | "asleep" | "quarantined" | "failed") {
                self.violated(format!("{when}: {} is {}", replica.replica, replica.state));
            }
        }
        let rows = self.records.switches();
        let is_named = !status.failures.is_empty()
            || status.quarantined().next().is_some()
            || rows.last().is_some_and(|row| !row.notes.is_empty());
        let is_night = status.shift.as_ref().is_some_and(|shift| shift.as_str() == "night");
        for (alias, by_day, by_night) in self.drawn.aliases.clone() {
            let is_due = if is_night { by_night } else { by_day };
            if is_due && !is_named && self.world.ask(&alias).is_none() {
                self.violated(format!("{when}: {alias} has nobody, and nothing says why"));
            }
        }
        for change in rows.iter().skip(1).flat_map(|row| &row.plan.changes) {
            *self.told.strategies.entry(change.strategy.as_str()).or_default() += 1;
        }
        if self.told.troubles.is_empty() {
            self.as_planned(&rows);
        }
    }

    /// No route was emptied, however shortly, that the plan does not let be empty.
    fn emptied(&mut self) {
        let rows = self.records.switches();
        for (generation, number, what) in self.records.steps() {
            let Ok(Effect::SetRoute(alias, members)) = serde_json::from_str(&what) else { continue };
            let row = rows.iter().rfind(|row| row.number <= generation);
            let Some(row) = row.filter(|row| members.is_empty() && row.failed.is_empty()) else { continue };
            let is_whole =
                |route: &&Route| route.alias == alias && route.kind == RouteKind::Moves && route.gap == Duration::ZERO;
            if row.mode == Mode::Runs && row.plan.routes.iter().any(|route| is_whole(&route)) {
                self.violated(format!("{alias} was emptied by step {number} of generation {generation}"));
            }
        }
    }

    /// Without troubles everything is as the plan says.
    fn as_planned(&mut self, rows: &[SwitchRow]) {
        let Some(row) = rows.last() else { return self.violated("nothing was switched".to_owned()) };
        if row.outcome != Some(Outcome::Complete) {
            self.violated(format!("nothing went wrong, and the switch ended {:?}: {:?}", row.outcome, row.notes));
        }
        let announced: BTreeMap<&str, Duration> =
            row.plan.routes.iter().map(|route| (route.alias.as_str(), route.gap)).collect();
        let is_longer = |(alias, lasted): &(&String, &SignedDuration)| {
            let gap = announced.get(alias.as_str()).copied().unwrap_or_default() + LATE_MAX;
            SignedDuration::try_from(gap).is_ok_and(|gap| **lasted > gap)
        };
        let longer: Vec<String> = self
            .outages
            .iter()
            .filter(is_longer)
            .map(|(alias, lasted)| format!("{alias} had nobody for {lasted:#}, longer than announced"))
            .collect();
        longer.into_iter().for_each(|what| self.violated(what));
    }

    /// Troubles end; a person does what the alarms ask for.
    async fn mend(&mut self) {
        for name in self.drawn.day.iter().chain(&self.drawn.night) {
            self.world.temper(name, Temper::default());
        }
        for (alias, ..) in &self.drawn.aliases {
            self.world.refuse_route(alias, false);
        }
        self.world.away(false);
        self.later.clear();
        self.kill_at_step.clear();
        self.say(Verb::Resume).await;
        for gpu in 0..8 {
            let reason = "nothing is on it".into();
            self.say(Verb::Release { node: "n1".into(), gpu, reason }).await;
        }
        self.say(Verb::Now { to: ShiftName::from("day"), until: None }).await;
        // from here on everything is by the plan again
        let all = self.drawn.aliases.iter().map(|(alias, ..)| (alias.clone(), Excuse::NotYet));
        self.excused = all.collect();
    }

    /// The whole day set serves, and nothing else is there.
    fn is_back(&mut self) {
        self.rests("when all is mended");
        let status = self.handle.status();
        for (alias, by_day, _) in self.drawn.aliases.clone() {
            if by_day && self.world.ask(&alias).is_none() {
                let route = self.world.route(&alias).map(|row| (row.generation, row.targets));
                self.violated(format!("when all is mended: {alias} has nobody, its route: {route:?}"));
            }
        }
        for name in self.drawn.day.clone() {
            let is = |replica: &&crate::status::ReplicaView| replica.deployment.as_str() == name;
            let states: Vec<&str> = status.replicas.iter().filter(is).map(|replica| replica.state).collect();
            if states != ["serving"] {
                self.violated(format!("when all is mended: {name} is {states:?}: {:?}", status.failures));
            }
        }
        for replica in status.replicas.iter().filter(|replica| replica.deployment.as_str().starts_with('n')) {
            if replica.state != "asleep" {
                self.violated(format!("when all is mended: {} is {}", replica.replica, replica.state));
            }
        }
    }
}
