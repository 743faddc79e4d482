//! Random stories: a site, callers, switches one after the other, and faults at random moments. What must never happen is
//! looked for every second. The same seed tells the same story.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tidegate_config::site::ShiftTargets;
use tidegate_config::{Site, Source, check};
use tidegate_core::{AliasName, DeploymentName, ShiftName};
use tidegate_planner::desired::set_of;
use tidegate_planner::hardware::Hardware;
use tidegate_planner::plan::RouteKind;
use tidegate_planner::switch::Outcome;
use tidegate_planner::{Outlook, outlook};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::{Pace, Temper, World};
use crate::controller::{Controller, ControllerHandle, Ended, Parts};
use crate::records::{MemoryRecords, SwitchRow};
use crate::route::{NoGates, OwnTable};
use crate::verbs::Verb;

/// The Schedule's drain: streams are shorter.
const DRAIN: Duration = Duration::from_secs(60);
/// Longest stream.
const STREAM_MAX: u64 = 45;
/// How long the world has to come to rest when all faults are over.
const REST: Duration = Duration::from_mins(90);
/// What went wrong, at most.
const WRONGS_MAX: usize = 20;

/// What a story was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Switches that were begun.
    pub switches: u32,
    /// Of these: as planned, in part, back to the old set, and given up for another.
    pub complete: u32,
    /// Some deployments failed, the others switched.
    pub partly: u32,
    /// The old set is back.
    pub aborted: u32,
    /// Another one took its place.
    pub superseded: u32,
    /// Faults that were injected.
    pub faults: u32,
    /// Times that the controller was killed.
    pub kills: u32,
    /// Requests.
    pub asked: u64,
    /// Of these: refused inside an announced gap, or while an alias was absent or down with an alarm.
    pub excused: u64,
    /// What must never happen: empty.
    pub wrongs: Vec<String>,
}

/// A small generator (xorshift*, Vigna 2016): the same numbers everywhere.
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound.max(1)
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// A random site that fits, with its shifts.
fn site(dice: &mut Dice) -> Arc<Site> {
    loop {
        let text = documents(dice);
        let checked = check(&[Source::new("story.yaml", text)]);
        let Some(site) = checked.site else { continue };
        let outlook =
            Outlook::new(&site, Hardware::of(&site), tidegate_planner::plan::Known::default(), &BTreeMap::new());
        let findings = outlook.findings(Timestamp::UNIX_EPOCH);
        if findings.iter().all(|finding| finding.weight != outlook::Weight::Refused) {
            return Arc::new(site);
        }
    }
}

fn documents(dice: &mut Dice) -> String {
    let mut text = String::from(
        "apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {name: story}\nspec: {timeZone: UTC, launcher: processes, \
         modelStore: {url: 'file:///nowhere'}, modelCache: {path: /nowhere}}\n",
    );
    let nodes = 1 + dice.below(2);
    for node in 0..nodes {
        let _ = write!(
            text,
            "---\nkind: Node\nmetadata: {{name: n{node}}}\nspec: {{facts: document, gpus: {{count: 4, product: X, memory: 100GB}}, hostMemory: 1TB}}\n"
        );
    }
    let shifts = ["day", "night", "noon"];
    let shifts = &shifts[..2 + dice.below(2) as usize];
    let engines = ["vllm", "llama.cpp"];
    let count = 2 + dice.below(4);
    for engine in engines {
        let name = if engine == "vllm" { "v" } else { "l" };
        let _ = write!(
            text,
            "---\nkind: Model\nmetadata: {{name: {name}}}\nspec: {{engine: {engine}, source: {{path: a/{name}}}}}\n"
        );
    }
    let mut sets: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); shifts.len()];
    for number in 0..count {
        let tp = [1, 2, 4][dice.below(3) as usize];
        let share = [30, 40, 60, 80][dice.below(4) as usize];
        let model = if dice.one_in(2) { "v" } else { "l" };
        let priority = 10 * dice.below(5);
        let _ = write!(
            text,
            "---\nkind: Deployment\nmetadata: {{name: d{number}}}\nspec: {{model: {model}, parallel: {{tp: {tp}}}, gpus: {{required: {tp}, min: {tp}, preferred: {tp}}}, priority: {priority}, \
             memory: {{weights: {}GB, kvCache: {tp}GB, workspace: {tp}GB, reserve: {tp}GB}}, launch: {{replicas: 1}}}}\n",
            (share - 3) * tp
        );
        let shift = dice.below(shifts.len() as u64) as usize;
        sets[shift].insert(number);
        if dice.one_in(4) {
            sets[(shift + 1) % shifts.len()].insert(number);
        }
    }
    aliases(dice, &mut text, shifts, &mut sets);
    let _ = write!(
        text,
        "---\nkind: Schedule\nmetadata: {{name: all}}\nspec: {{timeZone: UTC, drain: {{timeout: {}s}}, gap: {{allowed: 20h}}, atomicity: {}, shifts: [",
        DRAIN.as_secs(),
        if dice.one_in(4) { "set" } else { "perAlias" }
    );
    for (index, shift) in shifts.iter().enumerate() {
        let names: Vec<String> = sets[index].iter().map(|number| format!("d{number}")).collect();
        let _ = write!(text, "{{name: {shift}, start: '{:02}:00', deployments: [{}]}}, ", 6 * index, names.join(", "));
    }
    text.push_str("]}\n");
    text
}

fn aliases(dice: &mut Dice, text: &mut String, shifts: &[&str], sets: &mut [BTreeSet<u64>]) {
    for (index, set) in sets.iter().enumerate() {
        for number in set {
            // each deployment has an alias of its own in its first shift
            let first = sets.iter().position(|other| other.contains(number));
            if first != Some(index) {
                continue;
            }
            let _ = write!(text, "---\nkind: Alias\nmetadata: {{name: a{number}}}\nspec: {{shifts: {{");
            for (other, shift) in shifts.iter().enumerate() {
                let own = sets[other].contains(number).then_some(*number);
                let target = own.or_else(|| {
                    let there: Vec<&u64> = sets[other].iter().collect();
                    let has_one = !there.is_empty() && !dice.one_in(3);
                    has_one.then(|| *there[dice.below(there.len() as u64) as usize])
                });
                let says = target
                    .map_or("{absent: {}}".to_owned(), |target| format!("{{targets: [{{deployment: d{target}}}]}}"));
                let _ = write!(text, "{shift}: {says}, ");
            }
            text.push_str("}}\n");
        }
    }
}

/// A story being told.
struct Story {
    site: Arc<Site>,
    world: Arc<World>,
    records: Arc<MemoryRecords>,
    handle: ControllerHandle,
    task: JoinHandle<Ended>,
    dice: Dice,
    report: Report,
    tempered: BTreeSet<DeploymentName>,
    /// Streams by the instant of their end.
    streams: Vec<(Instant, tidegate_routing::Lease)>,
    cuts: usize,
}

/// Tells one story. Needs a tokio runtime of one thread whose time is paused.
pub async fn tell(seed: u64, switches: u32) -> Report {
    let mut dice = Dice::new(seed);
    let site = site(&mut dice);
    let world = World::new(Hardware::of(&site), &site, Timestamp::UNIX_EPOCH, Pace::default());
    let records = Arc::new(MemoryRecords::default());
    let (handle, task) = start(&site, &world, &records);
    let report = Report { seed, ..Report::default() };
    let mut story = Story {
        site,
        world,
        records,
        handle,
        task,
        dice,
        report,
        tempered: BTreeSet::new(),
        streams: Vec::new(),
        cuts: 0,
    };
    story.live(300).await;
    for _ in 0..switches {
        story.one().await;
    }
    story.rest().await;
    story.end()
}

fn start(site: &Arc<Site>, world: &Arc<World>, records: &Arc<MemoryRecords>) -> (ControllerHandle, JoinHandle<Ended>) {
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
    (handle, tokio::spawn(controller.run(std::future::pending())))
}

impl Story {
    /// One switch with what befalls it.
    async fn one(&mut self) {
        let shifts: Vec<ShiftName> = self.site.shifts().into_iter().collect();
        let to = shifts[self.dice.below(shifts.len() as u64) as usize].clone();
        if self.dice.one_in(2) {
            self.fault(&to);
        }
        self.report.switches += 1;
        // A refusal is an answer, too: the same shift, a verb that comes too late.
        let _ = self.handle.say(Verb::Now { to, until: None }, "story").await;
        let parts = 1 + self.dice.below(4);
        for _ in 0..parts {
            let seconds = self.dice.below(150);
            self.live(seconds).await;
            match self.dice.below(12) {
                0 | 1 => self.kill().await,
                2 => drop(self.handle.say(Verb::Abort, "story").await),
                3 => drop(self.handle.say(Verb::Rollback, "story").await),
                4 => {
                    drop(self.handle.say(Verb::Pause, "story").await);
                    self.live(60).await;
                    drop(self.handle.say(Verb::Resume, "story").await);
                }
                5 => {
                    self.report.faults += 1;
                    self.world.away(true);
                    self.live(20).await;
                    self.world.away(false);
                }
                6 => {
                    self.report.faults += 1;
                    let aliases: Vec<AliasName> = self.site.aliases.keys().cloned().collect();
                    let alias = aliases[self.dice.below(aliases.len() as u64) as usize].clone();
                    self.world.refuse_route(alias.as_str(), true);
                    self.live(30).await;
                    self.world.refuse_route(alias.as_str(), false);
                }
                _ => {}
            }
        }
        let seconds = 60 + self.dice.below(400);
        self.live(seconds).await;
        if self.dice.one_in(2) {
            self.calm();
        }
    }

    /// One of a shift's deployments gets a bad temper.
    fn fault(&mut self, shift: &ShiftName) {
        let serving = self.world.running();
        let set: Vec<DeploymentName> =
            set_of(&self.site, shift).into_iter().filter(|name| !serving.contains(name.as_str())).collect();
        if set.is_empty() {
            return;
        }
        let name = set[self.dice.below(set.len() as u64) as usize].clone();
        let calm = Temper::default();
        let temper = match self.dice.below(6) {
            0 => Temper { refuses_start: true, ..calm },
            1 => Temper { ends_in_load: true, ..calm },
            2 => Temper { fails_gate: true, ..calm },
            3 => Temper { ignores_term: true, ..calm },
            4 => Temper { wakes_mad: true, ..calm },
            _ => Temper { refuses_sleep: true, ..calm },
        };
        self.report.faults += 1;
        self.world.temper(name.as_str(), temper);
        self.tempered.insert(name);
    }

    fn calm(&mut self) {
        for name in std::mem::take(&mut self.tempered) {
            self.world.temper(name.as_str(), Temper::default());
        }
    }

    async fn kill(&mut self) {
        self.report.kills += 1;
        self.task.abort();
        // That it was ended is what was wanted.
        let _ = (&mut self.task).await;
        // The gate is in the same process.
        self.streams.clear();
        let down = self.dice.below(10);
        self.live(down).await;
        (self.handle, self.task) = start(&self.site, &self.world, &self.records);
    }

    /// Lets seconds pass, with a caller on every alias.
    async fn live(&mut self, seconds: u64) {
        for _ in 0..seconds {
            sleep(Duration::from_secs(1)).await;
            self.streams.retain(|(until, _)| *until > Instant::now());
            let aliases: Vec<AliasName> = self.site.aliases.keys().cloned().collect();
            for alias in aliases {
                self.ask(&alias);
            }
            self.look_for_cuts();
        }
    }

    /// Whether an instance has ended with requests on it since the last look.
    fn look_for_cuts(&mut self) {
        let cut = self.world.cut();
        for id in cut.iter().skip(self.cuts) {
            let (now, status) = (self.world.now(), self.handle.status());
            self.wrong(format!("{now}: {id} was ended under its requests: {:?} {:?}", status.switch, status.replicas));
        }
        self.cuts = cut.len();
    }

    fn ask(&mut self, alias: &AliasName) {
        self.report.asked += 1;
        match self.world.ask(alias.as_str()) {
            Some(lease) => {
                let until = Instant::now() + Duration::from_secs(self.dice.below(STREAM_MAX));
                self.streams.push((until, lease));
            }
            None if self.is_excused(alias) => self.report.excused += 1,
            None => {
                let (route, now) = (self.world.route(alias.as_str()), self.world.now());
                let switches = self.records.switches();
                let last = switches.last().map(|row| {
                    let planned = row.plan.routes.iter().find(|route| route.alias == *alias);
                    (row.number, row.mode, row.plan.at, &row.why, &row.failed, planned, &row.notes)
                });
                let status = self.handle.status();
                let switch = status.switch.as_ref().map(|switch| (&switch.new, &switch.old));
                self.wrong(format!("{now}: {alias} is not served: {route:?}, switch {last:?} {switch:?}"));
            }
        }
    }

    fn wrong(&mut self, what: String) {
        if self.report.wrongs.len() < WRONGS_MAX {
            self.report.wrongs.push(what);
        }
    }

    /// Whether an alias may be without an answer now.
    fn is_excused(&self, alias: &AliasName) -> bool {
        let Some(row) = self.world.route(alias.as_str()) else { return true };
        let is_absent = |shift: &ShiftName| {
            let says = self.site.aliases.get(alias).and_then(|alias| alias.shifts.get(shift));
            !matches!(says, Some(ShiftTargets::Targets(_)))
        };
        let switches = self.records.switches();
        let is_known = |row: &SwitchRow| {
            let codes = ["alias_down", "not_restored", "quarantined"];
            let said = row.notes.iter().any(|note| codes.contains(&&*note.code));
            let route = row.plan.routes.iter().find(|route| route.alias == *alias);
            let is_gap = route.is_some_and(|route| {
                let is_new = route.kind != RouteKind::Moves;
                (route.gap > Duration::ZERO || is_new) && self.world.now() >= row.plan.at
            });
            said || is_gap
        };
        // A gap that one switch began goes on in the one that takes its place.
        let recent = switches.iter().rev().scan(true, |goes_on, row| {
            let is_one = *goes_on;
            *goes_on = row.outcome.is_none()
                || row.plan.routes.iter().any(|route| route.alias == *alias) && row.ended.is_none();
            is_one.then_some(row)
        });
        (row.targets.is_empty() && is_absent(&row.shift)) || recent.take(6).any(is_known)
    }

    /// Faults are over; whatever is in progress comes to its end.
    async fn rest(&mut self) {
        self.calm();
        drop(self.handle.say(Verb::Resume, "story").await);
        self.live(60).await;
        self.streams.clear();
        sleep(REST).await;
        let status = self.handle.status();
        if let Some(switch) = &status.switch {
            self.wrong(format!("it does not come to rest: {switch:?} {:?}", status.replicas));
        }
        let Some(shift) = status.shift.clone() else { return self.wrong("no shift is in force".to_owned()) };
        if status.desired.as_ref() != Some(&shift) {
            self.wrong(format!("{shift} is loaded, {:?} is desired", status.desired));
        }
        if status.quarantined().next().is_some() {
            return;
        }
        for (name, alias) in &self.site.clone().aliases {
            let is_present = matches!(alias.shifts.get(&shift), Some(ShiftTargets::Targets(_)));
            if is_present && self.world.ask(name.as_str()).is_none() {
                self.wrong(format!(
                    "at rest in {shift}, {name} is not served: {:?} {status:?}",
                    self.world.route(name.as_str())
                ));
            }
        }
    }

    fn end(mut self) -> Report {
        self.task.abort();
        for wrong in self.world.wrongs() {
            self.wrong(wrong);
        }
        for row in self.records.switches() {
            match row.outcome {
                Some(Outcome::Complete) => self.report.complete += 1,
                Some(Outcome::Partly) => self.report.partly += 1,
                Some(Outcome::Aborted) => self.report.aborted += 1,
                None => self.report.superseded += 1,
            }
        }
        self.report
    }
}
