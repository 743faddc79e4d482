//! What happens at a switch.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use tidegate_config::Site;
use tidegate_core::DeploymentName;
use tidegate_planner::hardware::Hardware;
use tidegate_planner::outlook::{Finding, Weight, check};
use tidegate_planner::plan::{End, Known, Phase, Phases, held};
use tidegate_planner::strategy::Strategy;
use tidegate_planner::{Outlook, Plan};

use crate::fleet::{alias, deployment, fleet, node, schedule};
use crate::site_of::at;

/// 2026-12-01 22:00 in Seoul.
pub(crate) const HOUR: &str = "2026-12-01T22:00:00+09:00";
pub(crate) const BUDGET: [&str; 3] = [
    ", memory: {weights: 280GB, kvCache: 80GB, workspace: 20GB, reserve: 20GB}",
    ", memory: {weights: 120GB, kvCache: 60GB, workspace: 10GB, reserve: 10GB}",
    ", memory: {weights: 50GB, kvCache: 40GB, workspace: 5GB, reserve: 5GB}",
];

/// The site of golden 15: budgets of 100 GB per GPU, or engines at 0.90.
pub(crate) fn golden_15(has_budgets: bool, more: &str) -> Site {
    let names = [("deepseek", 4), ("glm-flash", 4), ("glm", 4), ("qwen", 2), ("gpt-oss", 1)];
    let budget = |tp| {
        if has_budgets {
            BUDGET[match tp {
                4 => 0,
                2 => 1,
                _ => 2,
            }]
        } else {
            ""
        }
    };
    let deployments: String = names.iter().map(|(name, tp)| deployment(name, *tp, budget(*tp))).collect();
    let aliases: String = names
        .iter()
        .map(|(name, _)| {
            let (here, there) =
                if matches!(*name, "deepseek" | "glm-flash") { ("day", "night") } else { ("night", "day") };
            alias(name, name, &[here], &[there])
        })
        .collect();
    let schedule = schedule(&["deepseek", "glm-flash"], &["glm", "qwen", "gpt-oss"], more);
    fleet(&format!("{}{deployments}{aliases}{schedule}", node("")))
}

pub(crate) fn outlook(site: &Site) -> Outlook<'_> {
    Outlook::new(site, Hardware::of(site), Known::default(), &BTreeMap::new())
}

pub(crate) fn plan_at_22(site: &Site) -> Plan {
    outlook(site).next(None, at("2026-12-01T12:00:00+09:00")).unwrap()
}

fn clock(instant: Timestamp) -> String {
    instant.to_zoned(jiff::tz::TimeZone::get("Asia/Seoul").unwrap()).strftime("%H:%M").to_string()
}

fn strategies(plan: &Plan) -> BTreeSet<Strategy> {
    plan.changes.iter().map(|change| change.strategy).collect()
}

fn refused(site: &Site) -> Vec<Finding> {
    check(site, at("2026-12-01T12:00:00+09:00"))
        .into_iter()
        .filter(|finding| finding.weight == Weight::Refused)
        .collect()
}

#[test]
fn golden_14_steps_before_the_hour_without_measurements() {
    let site = golden_15(true, "");
    let plan = plan_at_22(&site);
    assert_eq!(plan.at, at(HOUR));
    let steps: Vec<String> =
        plan.changes[0].steps.iter().map(|step| format!("{} {}", clock(step.from), step.phase.as_str())).collect();
    assert_eq!(steps, ["21:30 prefetch", "21:40 verify", "21:45 deploy", "21:50 load", "21:55 warm"]);
    assert!(plan.routes.iter().all(|route| route.at == at(HOUR)));
    for old in &plan.departures {
        assert_eq!((clock(old.drains_at), clock(old.drained_by), old.end), ("22:00".into(), "22:05".into(), End::Stop));
        assert!(old.gone_by >= old.drained_by, "unloaded after the drain");
    }
}

#[test]
fn golden_15_budgets_overlap_and_engines_without_wait_twenty_minutes() {
    let with = golden_15(true, "");
    let plan = plan_at_22(&with);
    assert_eq!(strategies(&plan), BTreeSet::from([Strategy::Overlap]));
    assert_eq!(plan.longest_gap(), Duration::ZERO);
    let (_, booked, memory) =
        plan.changes.iter().find(|change| change.deployment.as_str() == "glm").unwrap().beside_old.clone().unwrap();
    assert_eq!((booked, tidegate_planner::memory::percent(booked, memory)), (200_000_000_000, "69.4 %".to_owned()));
    assert_eq!(refused(&with), []);

    let without = golden_15(false, "");
    let plan = plan_at_22(&without);
    assert!(
        strategies(&plan).iter().all(|strategy| matches!(strategy, Strategy::Sleep | Strategy::Replace)),
        "{plan:?}"
    );
    assert!(plan.routes.iter().filter(|route| !route.to.is_empty()).all(|route| route.gap == Duration::from_mins(20)));
    let (_, booked, memory) = plan.changes[0].beside_old.clone().unwrap();
    assert_eq!(booked * 10, memory * 18, "1.80 > 1");
    let said = refused(&without);
    assert_eq!(said.len(), 2, "both ways: {said:?}");
    assert_eq!(said[0].message, "day -> night: alias `qwen` would have a gap of 20m, 0s is allowed");
    assert!(said[0].hints[0].starts_with("gap: {allowed: 20m}"), "{said:?}");
    assert!(said[0].hints[1].contains("at most 259.2 GB per GPU"), "{said:?}");

    let announced = golden_15(false, ", gap: {allowed: 20m}");
    assert_eq!(refused(&announced), []);
    assert!(plan_at_22(&announced).is_allowed());
    let said = check(&announced, at("2026-12-01T12:00:00+09:00"));
    assert!(said.iter().any(|finding| finding.weight == Weight::Notice && finding.message.contains("a gap of 20m")));
}

#[test]
fn measured_phases_replace_the_lead_and_the_gap() {
    let site = golden_15(false, ", gap: {allowed: 20m}");
    let seconds = Duration::from_secs;
    let phases = Phases {
        image_pull: seconds(10),
        fetch: seconds(600),
        verify: seconds(60),
        load: seconds(60),
        compile: seconds(120),
        warm_up: seconds(20),
        stabilise: seconds(30),
        stop: seconds(15),
        proof: seconds(5),
    };
    let known =
        Known { phases: site.deployments.keys().map(|name| (name.clone(), phases)).collect(), ..Known::default() };
    let outlook = Outlook::new(&site, Hardware::of(&site), known, &BTreeMap::new());
    let plan = outlook.next(None, at("2026-12-01T12:00:00+09:00")).unwrap();
    let gap = seconds(300 + 15 + 5 + 10 + 60 + 120 + 20 + 30);
    assert_eq!(plan.longest_gap(), gap);
    let change = &plan.changes[0];
    assert_eq!(change.ready_at, at(HOUR) + gap);
    let of = |phase| change.steps.iter().find(|step| step.phase == phase).unwrap();
    assert_eq!(of(Phase::Verify).until, at(HOUR) - seconds(240), "cached before the hour");
    assert_eq!(of(Phase::Load).from, at(HOUR) + seconds(330), "after drain, stop, proof and image");
}

#[test]
fn a_failed_night_model_holds_the_day_model_on_its_gpus_and_nothing_else() {
    let site = golden_15(true, "");
    let plan = plan_at_22(&site);
    let names = |names: &[&str]| names.iter().map(|name| DeploymentName::from(*name)).collect::<BTreeSet<_>>();
    let outcome = held(&plan, &names(&["glm"]));
    assert_eq!((outcome.old, outcome.new), (names(&["deepseek"]), names(&["glm"])));
    let all = held(&plan_at_22(&golden_15(true, ", atomicity: set")), &names(&["glm"]));
    assert_eq!((all.old, all.new), (names(&["deepseek", "glm-flash"]), names(&["glm", "qwen", "gpt-oss"])));
    let chain = held(&plan_at_22(&golden_15(false, ", gap: {allowed: 20m}")), &names(&["qwen"]));
    assert_eq!(
        (chain.old, chain.new),
        (names(&["glm-flash"]), names(&["qwen", "gpt-oss"])),
        "gpt-oss needs the same day model gone"
    );
}

#[test]
fn the_alias_in_a_gap_names_who_serves() {
    let documents = [
        node(""),
        deployment("a", 8, ""),
        deployment("b", 8, ""),
        "---\nkind: Deployment\nmetadata: {name: away}\nspec: {model: m-a, endpoints: [{url: 'http://127.0.0.1:9000'}]}\n".to_owned(),
        "---\nkind: Alias\nmetadata: {name: other}\nspec: {targets: [{deployment: away}]}\n".to_owned(),
        "---\nkind: Alias\nmetadata: {name: chat}\nspec: {fallback: [other], shifts: {day: {targets: [{deployment: a}]}, night: {targets: [{deployment: b}]}}}\n".to_owned(),
        schedule(&["a", "away"], &["b", "away"], ", gap: {allowed: 1h}"),
    ];
    let plan = plan_at_22(&fleet(&documents.concat()));
    assert_eq!(plan.routes.len(), 1);
    let route = &plan.routes[0];
    assert_eq!(
        (route.gap, route.served_by.as_ref().map(|alias| alias.as_str())),
        (Duration::from_mins(20), Some("other"))
    );
    assert_eq!((clock(route.gap_from), clock(route.at)), ("22:00".into(), "22:20".into()));
}

#[test]
fn a_reservation_that_leaves_no_room_is_refused_with_who_would_have_to_go() {
    let reserved = "---\nkind: Reservation\nmetadata: {name: tune}\nspec: {node: n, gpus: 4-7, from: '2026-12-05T00:00', until: '2026-12-06T00:00', owner: research}\n";
    let deployments = [deployment("a", 4, ", priority: 5"), deployment("b", 4, ", priority: 1")].concat();
    let aliases = [alias("a", "a", &["day", "night"], &[]), alias("b", "b", &["day"], &["night"])].concat();
    let documents = format!("{}{reserved}{deployments}{aliases}{}", node(""), schedule(&["a", "b"], &["a"], ""));
    let said = refused(&fleet(&documents));
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!((said[0].document.as_str(), said[0].hints[0].as_str()), ("Reservation tune", "take out b"));
    assert!(
        said[0].message.starts_with("shift `day during tune` does not fit: b finds no place: 4 GPUs short"),
        "{said:?}"
    );
    let over = documents.replace("2026-12-0", "2026-11-0");
    assert_eq!(refused(&fleet(&over)), [], "what is over is not refused");
}

#[test]
fn without_nodes_feasibility_is_unknown_and_said_so() {
    let alias = "---\nkind: Alias\nmetadata: {name: a}\nspec: {targets: [{deployment: a}]}\n";
    let documents = format!("{}{alias}", deployment("a", 4, ""));
    let site = fleet(documents.trim_start_matches("---\n"));
    let said = check(&site, at(HOUR));
    assert_eq!((said.len(), said[0].weight), (1, Weight::Warning));
    assert!(said[0].message.starts_with("feasibility unknown"));
}
