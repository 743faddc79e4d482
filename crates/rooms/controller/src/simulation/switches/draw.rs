//! What chance makes: a site with a day and a night, and what goes wrong when.

use std::fmt::Write as _;

use super::super::Temper;

/// Numbers from a seed (SplitMix64, Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of the numbers below `end`; 0 when there is none.
    pub(super) const fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }

    /// Whether something of so many percent comes about.
    pub(super) const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn one<'t, T>(&mut self, of: &'t [T]) -> Option<&'t T> {
        let at = usize::try_from(self.below(of.len() as u64)).unwrap_or(0);
        of.get(at)
    }
}

/// GPUs of the node.
const GPUS: u64 = 8;
/// Deployments of one shift at most.
const UNITS_MAX: u64 = 4;

/// A site that fits on one node by day and by night.
#[derive(Clone, Debug, Default)]
pub(super) struct Drawn {
    /// Its documents.
    pub(super) text: String,
    /// What is loaded by day only.
    pub(super) day: Vec<String>,
    /// What is loaded by night only.
    pub(super) night: Vec<String>,
    /// Aliases, each with whether it is present by day and by night.
    pub(super) aliases: Vec<(String, bool, bool)>,
}

impl Drawn {
    pub(super) fn new(dice: &mut Dice) -> Self {
        let mut drawn = Self::default();
        drawn.text.push_str(
            "apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {name: s}\nspec: {timeZone: UTC, launcher: processes, modelStore: {url: 'file:///nowhere'}, modelCache: {path: /nowhere}}\n---\n\
             kind: Node\nmetadata: {name: n1}\nspec: {facts: document, gpus: {count: 8, product: X, memory: 100GB}, hostMemory: 400GB, numa: [{node: 0, gpus: 0-3, cpus: 0-31}, {node: 1, gpus: 4-7, cpus: 32-63}]}\n---\n\
             kind: Model\nmetadata: {name: m}\nspec: {engine: vllm, source: {path: a/b}}\n---\n\
             kind: Model\nmetadata: {name: c}\nspec: {engine: llama.cpp, source: {path: c/d}}\n---\n",
        );
        let stays = dice.chance(30);
        // room for what stays, in both shifts
        let free = GPUS - u64::from(stays);
        drawn.day = drawn.units(dice, "d", free);
        drawn.night = drawn.units(dice, "n", free);
        if stays {
            let _ = drawn.unit(dice, "s0", 1);
        }
        drawn.routes(dice, stays);
        let (mut day, mut night) = (drawn.day.clone(), drawn.night.clone());
        if stays {
            day.push("s0".to_owned());
            night.push("s0".to_owned());
        }
        let atomicity = if dice.chance(25) { "set" } else { "perAlias" };
        let _ = write!(
            drawn.text,
            "kind: Schedule\nmetadata: {{name: all}}\nspec: {{timeZone: UTC, shifts: [{{name: day, start: '08:00', deployments: [{}]}}, {{name: night, start: '22:00', deployments: [{}]}}], drain: {{timeout: 2m}}, atomicity: {atomicity}, gap: {{allowed: 4h}}}}\n",
            day.join(", "),
            night.join(", ")
        );
        drawn
    }

    fn units(&mut self, dice: &mut Dice, letter: &str, mut free: u64) -> Vec<String> {
        let mut names = Vec::new();
        for index in 0..1 + dice.below(UNITS_MAX) {
            let sizes: Vec<u64> = [1, 2, 4].into_iter().filter(|tp| *tp <= free).collect();
            let Some(tp) = dice.one(&sizes).copied() else { break };
            let name = format!("{letter}{index}");
            free -= self.unit(dice, &name, tp).min(free);
            names.push(name);
        }
        names
    }

    /// A deployment; the GPUs that it takes.
    fn unit(&mut self, dice: &mut Dice, name: &str, tp: u64) -> u64 {
        let percent = 20 + dice.below(66);
        let is_sleeper = dice.chance(60);
        let weights = (percent * tp).saturating_sub(12).max(1);
        let memory = if is_sleeper && dice.chance(20) {
            String::new()
        } else {
            format!(", memory: {{weights: {weights}GB, kvCache: 4GB, workspace: 4GB, reserve: 4GB}}")
        };
        let _ = write!(
            self.text,
            "kind: Deployment\nmetadata: {{name: {name}}}\nspec: {{model: {}, parallel: {{tp: {tp}}}, gpus: {{required: {tp}}}, priority: {}{memory}, launch: {{replicas: 1}}}}\n---\n",
            if is_sleeper { "m" } else { "c" },
            dice.below(5)
        );
        tp
    }

    fn routes(&mut self, dice: &mut Dice, stays: bool) {
        let (day, night) = (self.day.clone(), self.night.clone());
        for index in 0..day.len().max(night.len()) {
            let targets = |name: Option<&String>| {
                name.map_or_else(|| "{absent: {}}".to_owned(), |name| format!("{{targets: [{{deployment: {name}}}]}}"))
            };
            self.alias(&format!("a{index}"), &targets(day.get(index)), &targets(night.get(index)));
        }
        if let ([first, second, ..], true) = (night.as_slice(), dice.chance(30)) {
            let both =
                format!("{{targets: [{{deployment: {first}, weight: 30}}, {{deployment: {second}, weight: 70}}]}}");
            let by_day = day
                .last()
                .map_or_else(|| "{absent: {}}".to_owned(), |last| format!("{{targets: [{{deployment: {last}}}]}}"));
            self.alias("both", &by_day, &both);
        }
        if stays {
            self.alias("stays", "{targets: [{deployment: s0}]}", "{targets: [{deployment: s0}]}");
        }
    }

    fn alias(&mut self, name: &str, day: &str, night: &str) {
        let _ = write!(
            self.text,
            "kind: Alias\nmetadata: {{name: {name}}}\nspec: {{shifts: {{day: {day}, night: {night}}}}}\n---\n"
        );
        let is_present = |targets: &str| !targets.contains("absent");
        self.aliases.push((name.to_owned(), is_present(day), is_present(night)));
    }
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The controller is killed and another one starts.
    Kill,
    /// The controller is killed when it has written so many further steps down.
    KillAfterSteps(usize),
    /// Engines of a deployment behave like this from now on.
    Temper(String, Temper),
    /// An engine ends as by the kernel's hand.
    Break(String),
    /// The gate refuses routes of an alias for so many seconds.
    RefuseRoute(String, u64),
    /// The node does not answer for so many seconds.
    Away(u64),
    /// Somebody says `abort`.
    Abort,
    /// Somebody says `pause`, and `resume` after so many seconds.
    Pause(u64),
    /// Somebody says `rollback`.
    Rollback,
}

impl Trouble {
    /// Troubles with their second, earliest first; none of them in every fifth run.
    pub(super) fn draw(dice: &mut Dice, drawn: &Drawn, seconds: u64) -> Vec<(u64, Self)> {
        let count = if dice.chance(20) { 0 } else { 1 + dice.below(4) };
        let mut troubles: Vec<(u64, Self)> =
            (0..count).filter_map(|_| Some((dice.below(seconds), Self::one(dice, drawn)?))).collect();
        troubles.sort_by_key(|(at, _)| *at);
        troubles
    }

    fn one(dice: &mut Dice, drawn: &Drawn) -> Option<Self> {
        Some(match dice.below(12) {
            0 | 1 => Self::Kill,
            2 | 3 => Self::KillAfterSteps(1 + usize::try_from(dice.below(12)).unwrap_or(0)),
            4 => Self::Temper(dice.one(&drawn.night)?.clone(), new_temper(dice)),
            5 => Self::Temper(dice.one(&drawn.night)?.clone(), Temper { fails_gate: true, ..Temper::default() }),
            6 => Self::Temper(dice.one(&drawn.day)?.clone(), old_temper(dice)),
            7 => Self::Break(if dice.chance(50) { dice.one(&drawn.night)? } else { dice.one(&drawn.day)? }.clone()),
            8 => Self::RefuseRoute(dice.one(&drawn.aliases)?.0.clone(), 10 + dice.below(200)),
            9 => Self::Away(5 + dice.below(150)),
            10 => match dice.below(2) {
                0 => Self::Abort,
                _ => Self::Rollback,
            },
            _ => Self::Pause(10 + dice.below(600)),
        })
    }
}

fn new_temper(dice: &mut Dice) -> Temper {
    let none = Temper::default();
    match dice.below(5) {
        0 => Temper { refuses_start: true, ..none },
        1 => Temper { ends_in_load: true, ..none },
        2 => Temper { breaks_in_service: true, ..none },
        3 => Temper { ignores_term: true, ..none },
        _ => Temper { keeps_memory: true, ..none },
    }
}

fn old_temper(dice: &mut Dice) -> Temper {
    let none = Temper::default();
    match dice.below(4) {
        0 => Temper { refuses_sleep: true, ..none },
        1 => Temper { wakes_mad: true, ..none },
        2 => Temper { ignores_term: true, ..none },
        _ => Temper { keeps_memory: true, ..none },
    }
}
