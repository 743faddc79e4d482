//! A plan being carried out: the story of golden 14, the story of three night models, and every other story there is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use tidegate_config::Site;
use tidegate_core::{AliasName, DeploymentName};
use tidegate_planner::Plan;
use tidegate_planner::generation::{Generation, Stamped};
use tidegate_planner::hardware::{GpuId, Hardware};
use tidegate_planner::memory;
use tidegate_planner::need::Need;
use tidegate_planner::placement::{ReplicaKey, Seat};
use tidegate_planner::plan::RouteKind;
use tidegate_planner::strategy::Strategy as How;
use tidegate_planner::switch::{Alarm, Effect, Event, Member, Mode, New, Old, Outcome, Side, Switch};

use crate::fleet::{alias, deployment, fleet, node, schedule};
use crate::plan::{golden_15, plan_at_22};

const GENERATION: Generation = Generation(3);

fn name(text: &str) -> DeploymentName {
    DeploymentName::from(text)
}

fn step(switch: Switch, plan: &Plan, event: Event, now: Timestamp) -> (Switch, Vec<Effect>) {
    let (switch, effects) = switch.step(plan, Stamped { generation: GENERATION, what: event }, now);
    (switch, effects.into_iter().map(|effect| effect.what).collect())
}

/// A switch with a world that does at once what it is told, but for what `fails`.
struct Story {
    plan: Plan,
    switch: Switch,
    fails: BTreeSet<DeploymentName>,
    said: Vec<Effect>,
}

impl Story {
    fn new(plan: Plan, fails: &[&str]) -> Self {
        let switch = Switch::new(&plan, GENERATION);
        Self { plan, switch, fails: fails.iter().map(|text| name(text)).collect(), said: Vec::new() }
    }

    fn at(&mut self, minutes: i64, event: Event) -> &mut Self {
        let now = self.plan.at + SignedDuration::from_mins(minutes);
        let mut queue = VecDeque::from([event]);
        while let Some(event) = queue.pop_front() {
            let (switch, effects) = step(self.switch.clone(), &self.plan, event, now);
            self.switch = switch;
            for effect in effects {
                queue.extend(self.answer(&effect));
                self.said.push(effect);
            }
        }
        self
    }

    fn answer(&self, effect: &Effect) -> Option<Event> {
        Some(match effect.clone() {
            Effect::Start(name) if self.fails.contains(&name) => Event::Failed(name),
            Effect::Start(name) => Event::Proven(name),
            Effect::Unload(name) => Event::Unloaded(name),
            Effect::SetRoute(alias, _) => Event::RouteSet(alias),
            Effect::Drain(name) => Event::Drained(name),
            Effect::Sleep(name) => Event::Asleep(name),
            Effect::Stop(name) => Event::Gone(name),
            Effect::Restore(name) => Event::Restored(name),
            Effect::Keep(_) | Effect::Alarm(_) | Effect::Finished(_) => return None,
        })
    }

    fn route(&self, alias: &str) -> Vec<String> {
        self.switch.lines[&AliasName::from(alias)]
            .confirmed
            .iter()
            .map(|member| member.deployment.to_string())
            .collect()
    }
}

#[test]
fn golden_14_at_the_hour_aliases_move_then_the_old_is_drained_and_unloaded() {
    let mut story = Story::new(plan_at_22(&golden_15(true, "")), &[]);
    story.at(-16, Event::Tick);
    assert_eq!(story.said, [], "21:44: no engine yet");
    story.at(-15, Event::Tick);
    assert_eq!(story.said.len(), 3, "21:45 deploy");
    story.at(-1, Event::Tick);
    assert_eq!((story.route("glm").len(), story.route("deepseek").len()), (0, 1));
    story.at(0, Event::Tick);
    assert_eq!((story.route("glm"), story.route("deepseek")), (vec!["glm".to_owned()], vec![]));
    assert!(!story.said.iter().any(|effect| matches!(effect, Effect::Stop(_))), "warm during the watch window");
    story.at(5, Event::Tick);
    assert!(
        story.said.contains(&Effect::Stop(name("deepseek"))) && story.said.contains(&Effect::Stop(name("glm-flash")))
    );
    assert_eq!(story.switch.outcome, Some(Outcome::Complete));
}

#[test]
fn golden_14_not_healthy_at_the_hour_the_day_keeps_serving_and_nothing_is_unloaded() {
    let mut story = Story::new(plan_at_22(&golden_15(true, "")), &["glm", "qwen", "gpt-oss"]);
    for minutes in [-15, 0, 60] {
        story.at(minutes, Event::Tick);
    }
    assert_eq!(
        (story.route("deepseek"), story.route("glm-flash")),
        (vec!["deepseek".to_owned()], vec!["glm-flash".to_owned()])
    );
    assert!(!story.said.iter().any(|effect| matches!(effect, Effect::Drain(_) | Effect::Stop(_) | Effect::Sleep(_))));
    assert_eq!(story.switch.outcome, Some(Outcome::Partly));
}

#[test]
fn one_of_three_night_models_fails_and_the_other_two_serve_at_the_hour() {
    let mut story = Story::new(plan_at_22(&golden_15(true, "")), &["glm"]);
    story.at(-15, Event::Tick).at(0, Event::Tick);
    assert_eq!((story.route("qwen"), story.route("gpt-oss")), (vec!["qwen".to_owned()], vec!["gpt-oss".to_owned()]));
    assert_eq!(story.route("deepseek"), ["deepseek"], "the day model on its GPUs still answers");
    assert_eq!(story.route("glm-flash"), [""; 0]);
    story.at(10, Event::Tick);
    let overrun = Effect::Alarm(Alarm::Overrun(AliasName::from("deepseek")));
    assert!(story.said.contains(&overrun) && story.said.contains(&Effect::Alarm(Alarm::Failed(name("glm")))));
    assert_eq!(story.switch.outcome, Some(Outcome::Partly));
    let mut all = Story::new(plan_at_22(&golden_15(true, ", atomicity: set")), &["glm"]);
    all.at(-15, Event::Tick).at(0, Event::Tick).at(10, Event::Tick);
    assert_eq!((all.route("deepseek").len(), all.route("glm-flash").len(), all.route("qwen").len()), (1, 1, 0));
}

/// Two aliases on one old engine; by night one of them goes to two engines, of which one needs the old one's GPUs.
fn site_of_a_shared_alias() -> Site {
    let both = "---\nkind: Alias\nmetadata: {name: both}\nspec: {shifts: {day: {targets: [{deployment: old}]}, night: {targets: [{deployment: new-a}, {deployment: new-b}]}}}\n";
    let one = "---\nkind: Alias\nmetadata: {name: one}\nspec: {shifts: {day: {targets: [{deployment: old}]}, night: {targets: [{deployment: new-a}]}}}\n";
    let deployments = ["old", "new-a", "new-b"].map(|name| deployment(name, 4, ""));
    let times = schedule(&["old"], &["new-a", "new-b"], ", gap: {allowed: 1h}");
    fleet(&[node(""), deployments.concat(), both.to_owned(), one.to_owned(), times].concat())
}

#[test]
fn l19_a_new_model_does_not_wait_for_ever_for_gpus_of_an_old_one_whose_alias_is_served_by_another() {
    let plan = plan_at_22(&site_of_a_shared_alias());
    let displaced: Vec<_> = plan.changes.iter().flat_map(|change| &change.displaces).collect();
    assert_eq!(displaced, [&name("old")], "{plan:#?}");
    let mut story = Story::new(plan, &[]);
    for minutes in [-15, 0, 1, 20, 40] {
        story.at(minutes, Event::Tick);
    }
    assert_eq!((story.route("both"), story.route("one").len()), (vec!["new-a".to_owned(), "new-b".to_owned()], 1));
    assert_eq!(story.switch.outcome, Some(Outcome::Complete));
    let emptied = Effect::SetRoute(AliasName::from("both"), Vec::new());
    assert!(!story.said.contains(&emptied), "somebody served it all the time");
}

#[test]
fn a_late_success_switches_at_once() {
    let plan = plan_at_22(&golden_15(true, ""));
    let mut switch = Switch::new(&plan, GENERATION);
    let minute = |minutes| plan.at + SignedDuration::from_mins(minutes);
    for (minutes, event) in
        [(-15, Event::Tick), (-2, Event::Proven(name("qwen"))), (-2, Event::Proven(name("gpt-oss"))), (0, Event::Tick)]
    {
        switch = step(switch, &plan, event, minute(minutes)).0;
    }
    let (switch, effects) = step(switch, &plan, Event::Tick, minute(1));
    assert_eq!(effects, [Effect::Alarm(Alarm::Late(name("glm")))]);
    let (_, effects) = step(switch, &plan, Event::Proven(name("glm")), minute(12));
    assert!(
        matches!(&effects[0], Effect::SetRoute(alias, to) if alias.as_str() == "glm" && to.len() == 1),
        "{effects:?}"
    );
}

#[test]
fn an_abort_in_a_gap_wakes_the_old_and_routes_it_back() {
    let mut story = Story::new(plan_at_22(&golden_15(false, ", gap: {allowed: 20m}")), &["glm"]);
    story.at(0, Event::Tick).at(5, Event::Tick);
    assert_eq!(story.route("deepseek"), ["deepseek"], "restored after its successor failed");
    assert!(story.said.contains(&Effect::Restore(name("deepseek"))));
    let mut story = Story::new(plan_at_22(&golden_15(false, ", gap: {allowed: 20m}")), &[]);
    story.at(0, Event::Tick).at(1, Event::Abort);
    assert_eq!((story.route("deepseek"), story.route("glm")), (vec!["deepseek".to_owned()], vec![]));
    assert_eq!(story.switch.outcome, Some(Outcome::Aborted));
}

#[test]
fn a_regression_in_the_watch_window_brings_the_old_back_and_one_after_it_does_not() {
    let site = site_of_two(true, &[]);
    let mut story = Story::new(plan_at_22(&site), &[]);
    story.at(-15, Event::Tick).at(0, Event::Tick);
    assert_eq!(story.route("x"), ["new"]);
    story.at(3, Event::Regressed(AliasName::from("x")));
    assert_eq!(story.route("x"), ["old"]);
    assert!(story.said.contains(&Effect::Keep(name("old"))), "it was kept warm");
}

#[test]
fn a_pause_takes_no_new_step_and_alarms_go_on() {
    let plan = plan_at_22(&golden_15(true, ""));
    let switch = step(Switch::new(&plan, GENERATION), &plan, Event::Pause, plan.at - SignedDuration::from_mins(20)).0;
    let (switch, effects) = step(switch, &plan, Event::Tick, plan.at + SignedDuration::from_mins(1));
    assert!(effects.iter().all(|effect| matches!(effect, Effect::Alarm(Alarm::Late(_)))) && effects.len() == 3);
    let (_, effects) = step(switch, &plan, Event::Resume, plan.at + SignedDuration::from_mins(2));
    assert_eq!(effects.iter().filter(|effect| matches!(effect, Effect::Start(_))).count(), 3);
}

/// One alias that moves from `old` to `new` on the same GPUs, and more.
fn site_of_two(has_budget: bool, more: &[String]) -> Site {
    let budget = if has_budget { ", memory: {weights: 600GB, kvCache: 200GB}" } else { "" };
    let documents = [
        node(""),
        deployment("old", 8, budget),
        deployment("new", 8, budget),
        "---\nkind: Alias\nmetadata: {name: x}\nspec: {shifts: {day: {targets: [{deployment: old}]}, night: {targets: [{deployment: new}]}}}\n".to_owned(),
        schedule(&["old"], &["new"], ", gap: {allowed: 1h}"),
    ];
    fleet(&[documents.concat(), more.concat()].concat())
}

/// Old and new swap their halves of the node: `x` matters more, so `y` waits.
fn site_of_swap() -> Site {
    let documents = [
        node(", groups: [{name: low, gpus: 0-3}, {name: high, gpus: 4-7}]"),
        deployment("old-x", 4, ", priority: 10, placement: {group: low}"),
        deployment("old-y", 4, ", placement: {group: high}"),
        deployment("new-x", 4, ", priority: 10, placement: {group: high}"),
        deployment("new-y", 4, ", placement: {group: low}"),
        "---\nkind: Alias\nmetadata: {name: x}\nspec: {shifts: {day: {targets: [{deployment: old-x}]}, night: {targets: [{deployment: new-x}]}}}\n".to_owned(),
        "---\nkind: Alias\nmetadata: {name: y}\nspec: {shifts: {day: {targets: [{deployment: old-y}]}, night: {targets: [{deployment: new-y}]}}}\n".to_owned(),
        schedule(&["old-x", "old-y"], &["new-x", "new-y"], ", gap: {allowed: 1h}"),
    ];
    fleet(&documents.concat())
}

/// Two new ones on one old one's GPUs, one alias that appears and one that vanishes.
fn site_of_three(has_budget: bool) -> Site {
    let budget = |gigabytes: u32| {
        if has_budget { format!(", memory: {{weights: {gigabytes}GB, kvCache: 10GB}}") } else { String::new() }
    };
    let documents = [
        node(""),
        deployment("old", 8, &budget(800)),
        deployment("a", 4, &budget(400)),
        deployment("b", 4, &budget(400)),
        alias("gone", "old", &["day"], &["night"]),
        alias("a", "a", &["night"], &["day"]),
        alias("b", "b", &["night"], &["day"]),
        schedule(&["old"], &["a", "b"], ", gap: {allowed: 1h}"),
    ];
    fleet(&documents.concat())
}

/// The world as the switch is told about it, for the checks.
struct World<'w> {
    plan: &'w Plan,
    hardware: Hardware,
    needs: BTreeMap<DeploymentName, Need>,
}

impl<'w> World<'w> {
    fn new(site: &Site, plan: &'w Plan) -> Self {
        Self { plan, hardware: Hardware::of(site), needs: Need::all(site) }
    }

    /// No GPU is booked above its band, counting whoever is or may be on it.
    fn check_gpus(&self, switch: &Switch) {
        let mut booked: BTreeMap<GpuId, u64> = BTreeMap::new();
        let mut has_sleeper: BTreeSet<GpuId> = BTreeSet::new();
        let mut book = |who: &DeploymentName, seats: &[(ReplicaKey, Seat)], asleep: bool| {
            for gpu in seats.iter().flat_map(|(_, seat)| seat.gpus()) {
                let memory = self.hardware.gpu(&gpu).unwrap().memory.unwrap();
                let need = &self.needs[who];
                let bytes = if asleep {
                    memory::RESIDUE_DEFAULT
                } else {
                    memory::booked(&need.footprint, need.gpus_per_replica(), memory)
                };
                if asleep {
                    has_sleeper.insert(gpu.clone());
                }
                *booked.entry(gpu).or_default() += bytes;
            }
        };
        for old in &self.plan.departures {
            match switch.old[&old.deployment] {
                Old::Gone | Old::Lost => {}
                Old::Asleep => book(&old.deployment, &old.seats, true),
                _ => book(&old.deployment, &old.seats, false),
            }
        }
        for new in &self.plan.changes {
            if !matches!(switch.new[&new.deployment], New::Planned | New::Gone) {
                book(&new.deployment, &new.seats, false);
            }
        }
        for (gpu, bytes) in booked {
            let memory = self.hardware.gpu(&gpu).unwrap().memory.unwrap();
            let most = if has_sleeper.contains(&gpu) { memory::REFUSED_ABOVE_ASLEEP } else { memory::REFUSED_ABOVE };
            assert!(memory::fits(bytes, memory, most), "two owners of {gpu}: {switch:#?}");
        }
    }

    /// Every alias is where it may be.
    fn check_routes(&self, switch: &Switch, now: Timestamp, broken: &BTreeSet<DeploymentName>) {
        for route in &self.plan.routes {
            let line = &switch.lines[&route.alias];
            for Member { deployment, side } in &line.confirmed {
                let serves = match side {
                    Side::Old => matches!(switch.old[deployment], Old::Serving),
                    Side::New => switch.new[deployment] == New::Proven,
                    Side::Stays => true,
                };
                assert!(serves, "{} is routed to {deployment}, which does not serve: {switch:#?}", route.alias);
            }
            if !line.confirmed.is_empty() || route.kind == RouteKind::Vanishes && now >= self.plan.at {
                continue;
            }
            let is_excused = switch.mode != Mode::Runs || !switch.failed.is_empty() || !broken.is_empty();
            let is_announced = route.gap > Duration::ZERO && now >= self.plan.at;
            let appears_late = route.kind == RouteKind::Appears
                && (now < self.plan.at
                    || line.is_pending
                    || route.to.iter().any(|to| switch.new[&to.deployment] != New::Proven));
            assert!(
                is_announced || is_excused || appears_late,
                "{} has no deployment outside its gap: {switch:#?}",
                route.alias
            );
        }
    }

    /// At the end each alias is on its new, on its old, absent as planned, or somebody knows.
    fn check_end(&self, switch: &Switch) {
        assert!(switch.outcome.is_some(), "it hangs: {switch:#?}");
        for route in &self.plan.routes {
            let on = |side| switch.lines[&route.alias].confirmed.iter().any(|member| member.side == side);
            let absent = switch.lines[&route.alias].confirmed.is_empty();
            let fine = on(Side::New)
                || on(Side::Old)
                || on(Side::Stays)
                || absent && (route.kind != RouteKind::Moves)
                || switch.alarms.contains(&Alarm::AliasDown(route.alias.clone()));
            assert!(fine, "{} is lost: {switch:#?}", route.alias);
            if switch.outcome == Some(Outcome::Aborted) && !route.from.is_empty() {
                assert!(
                    on(Side::Old)
                        || on(Side::Stays)
                        || switch.alarms.iter().any(|alarm| matches!(
                            alarm,
                            Alarm::NotRestored(_) | Alarm::Quarantined(_) | Alarm::AliasDown(_)
                        )),
                    "{switch:#?}"
                );
            }
        }
    }
}

/// What may come of an effect: the good answer first.
fn answers(effect: &Effect) -> Vec<Event> {
    match effect.clone() {
        Effect::Start(name) => vec![Event::Proven(name.clone()), Event::Failed(name)],
        Effect::Unload(name) => vec![Event::Unloaded(name.clone()), Event::NotProven(name)],
        Effect::SetRoute(alias, _) => vec![Event::RouteSet(alias.clone()), Event::RouteRefused(alias)],
        Effect::Drain(name) => vec![Event::Drained(name)],
        Effect::Sleep(name) => vec![Event::Asleep(name.clone()), Event::NotProven(name)],
        Effect::Stop(name) => vec![Event::Gone(name.clone()), Event::NotProven(name)],
        Effect::Restore(name) => vec![Event::Restored(name.clone()), Event::NotRestored(name)],
        Effect::Keep(_) | Effect::Alarm(_) | Effect::Finished(_) => Vec::new(),
    }
}

/// The checks after each step, and what is under way afterwards.
fn follow(
    world: &World<'_>,
    before: &Switch,
    switch: &Switch,
    effects: &[Effect],
    pending: &mut BTreeSet<Effect>,
    now: Timestamp,
) {
    for effect in effects {
        if let Effect::Drain(name) = effect {
            let is_used =
                before.lines.values().chain(switch.lines.values()).any(|line| {
                    line.confirmed.iter().any(|member| member.deployment == *name && member.side == Side::Old)
                });
            let still = switch
                .lines
                .values()
                .any(|line| line.confirmed.iter().any(|member| member.deployment == *name && member.side == Side::Old));
            assert!(!still, "drained while routed: {name} {is_used}");
            let change = world.plan.routes.iter().filter(|route| {
                route.from.iter().any(|from| from.deployment == *name) && route.kind == RouteKind::Moves
            });
            for route in change.filter(|route| route.gap == Duration::ZERO) {
                assert!(
                    route.to.iter().any(|to| switch.new.get(&to.deployment).is_none_or(|new| *new == New::Proven)),
                    "unloaded before its successor is proven: {name}"
                );
            }
        }
        if let Effect::Keep(name) = effect {
            pending.remove(&Effect::Drain(name.clone()));
        }
        if !answers(effect).is_empty() {
            assert!(pending.insert(effect.clone()), "asked twice: {effect:?} {switch:#?}");
        }
    }
    world.check_gpus(switch);
    world.check_routes(switch, now, &BTreeSet::new());
}

/// Walks every order of answers, with at most so many bad ones, an abort and a regression at any point.
fn walk(site: &Site, bad_max: u32) -> usize {
    let plan = plan_at_22(site);
    let world = World::new(site, &plan);
    let minutes = [-40, -15, 0, 21, 60];
    let time = |index: usize| plan.at + SignedDuration::from_mins(minutes[index]);
    type Node = (Switch, BTreeSet<Effect>, usize, u32, bool);
    let first: Node = (Switch::new(&plan, GENERATION), BTreeSet::new(), 0, bad_max, true);
    let mut seen: BTreeSet<Node> = BTreeSet::from([first.clone()]);
    let mut queue = vec![first];
    let mut ends = 0;
    while let Some((switch, pending, index, bad, may_abort)) = queue.pop() {
        let mut next: Vec<(Event, Option<Effect>, usize, u32, bool)> = Vec::new();
        for effect in &pending {
            for (number, event) in answers(effect).into_iter().enumerate() {
                if number == 0 || bad > 0 {
                    next.push((event, Some(effect.clone()), index, bad - u32::from(number > 0), may_abort));
                }
            }
        }
        // a tick also asks again for a route that was refused on the way back
        let later = (index + 1).min(minutes.len() - 1);
        next.push((Event::Tick, None, later, bad, may_abort));
        if may_abort && switch.outcome.is_none() {
            next.push((Event::Abort, None, index, bad, false));
            if bad > 0 {
                next.extend(
                    switch.lines.keys().map(|alias| (Event::Regressed(alias.clone()), None, index, bad - 1, may_abort)),
                );
            }
        }
        for (event, answered, index, bad, may_abort) in next {
            let mut pending = pending.clone();
            if let Some(answered) = &answered {
                pending.remove(answered);
            }
            // the last ticks are past the watch window of whatever moved at last
            let is_last = event == Event::Tick && index == minutes.len() - 1;
            let now = if is_last { plan.at + SignedDuration::from_hours(10) } else { time(index) };
            let (after, effects) = step(switch.clone(), &plan, event.clone(), now);
            follow(&world, &switch, &after, &effects, &mut pending, now);
            // nothing is under way, all clocks have run out, and the clock changes nothing any more
            if event == Event::Tick && pending.is_empty() && index == minutes.len() - 1 && after == switch {
                world.check_end(&after);
                ends += 1;
            }
            let node = (after, pending, index, bad, may_abort);
            if seen.insert(node.clone()) {
                queue.push(node);
            }
        }
    }
    assert!(ends > 0);
    seen.len()
}

#[test]
fn every_story_of_one_model_for_another_keeps_the_invariants() {
    for has_budget in [true, false] {
        let site = site_of_two(has_budget, &[]);
        let plan = plan_at_22(&site);
        let how = if has_budget { How::Overlap } else { How::Sleep };
        assert_eq!(plan.changes[0].strategy, how);
        let states = walk(&site, 3);
        assert!(states > 100, "{states}");
    }
}

#[test]
fn every_story_of_two_models_that_swap_their_gpus_keeps_the_invariants() {
    let site = site_of_swap();
    let plan = plan_at_22(&site);
    assert_eq!(plan.changes.iter().map(|change| change.after.clone()).collect::<Vec<_>>(), [None, Some(name("new-x"))]);
    let states = walk(&site, 2);
    assert!(states > 1_000, "{states}");
}

#[test]
fn every_story_of_two_models_on_one_old_ones_gpus_keeps_the_invariants() {
    for has_budget in [true, false] {
        let states = walk(&site_of_three(has_budget), 2);
        assert!(states > 500, "{states}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any order of answers, good and bad, at any times, with pauses, aborts and regressions, on whole sites.
    #[test]
    fn any_story_keeps_the_invariants_and_ends(
        variant in 0_u8..4,
        choices in proptest::collection::vec((any::<u16>(), 0_u8..12, 0_i64..400), 10..150),
    ) {
        let site = match variant {
            0 => golden_15(true, ""),
            1 => golden_15(false, ", gap: {allowed: 20m}"),
            2 => golden_15(true, ", atomicity: set"),
            _ => site_of_swap(),
        };
        let plan = plan_at_22(&site);
        let world = World::new(&site, &plan);
        let mut switch = Switch::new(&plan, GENERATION);
        let mut pending: BTreeSet<Effect> = BTreeSet::new();
        let mut now = plan.at - SignedDuration::from_mins(20);
        let take = |switch: &mut Switch, pending: &mut BTreeSet<Effect>, event: Event, now| {
            let (after, effects) = step(switch.clone(), &plan, event, now);
            follow(&world, switch, &after, &effects, pending, now);
            *switch = after;
        };
        for (pick, kind, seconds) in choices {
            now += SignedDuration::from_secs(seconds);
            let chosen = pending.iter().nth(usize::from(pick) % pending.len().max(1)).cloned();
            let event = match (kind, chosen) {
                (0, _) => Event::Pause,
                (1 | 2, _) => Event::Resume,
                (3, _) if pick % 16 == 0 => Event::Abort,
                (4, _) if pick % 4 == 0 => Event::Regressed(switch.lines.keys().next().unwrap().clone()),
                (5.., Some(effect)) => {
                    pending.remove(&effect);
                    let mut all = answers(&effect);
                    let bad = usize::from(pick % 5 == 0).min(all.len() - 1);
                    all.swap_remove(bad)
                }
                _ => Event::Tick,
            };
            take(&mut switch, &mut pending, event, now);
        }
        // from here on the world does what it is told
        take(&mut switch, &mut pending, Event::Resume, now);
        for _ in 0..400 {
            now += SignedDuration::from_mins(1);
            match pending.pop_first() {
                Some(effect) => take(&mut switch, &mut pending, answers(&effect).swap_remove(0), now),
                None => take(&mut switch, &mut pending, Event::Tick, now),
            }
        }
        world.check_end(&switch);
    }
}
