//! Goldens G 2, G 3 and G 13, with exactly their values.

use std::sync::Arc;

use tidegate_config::site::{Class, Site};
use tidegate_core::{AliasName, Dimension, Level, Limits, Monotonic, Refusal, RequestId, TeamName, Unix};
use tidegate_policy::admission::{ClassPolicy, Outcome, ReplicaLoad, Saturation, Situation, Thresholds, decide};
use tidegate_policy::grants::resolve;
use tidegate_policy::limiter::{AdmitError, Admitted, Demand, MemoryCounters, Rules, SubjectKey, Subjects};

use crate::site::{alias_scope, grant, site, team};

const NOW: Monotonic = Monotonic::from_ms(3_600_000);
const WALL: Unix = Unix::from_ms(1_781_524_800_000);

struct House {
    site: Site,
    counters: MemoryCounters,
    next: std::cell::Cell<u128>,
}

impl House {
    fn new(site: Site) -> Self {
        Self { site, counters: MemoryCounters::new(), next: std::cell::Cell::new(0) }
    }

    /// The subjects of a team's calls to an alias, as the documents say; `None` when it is not granted.
    fn subjects(&self, team: &str, alias: &str) -> Option<Arc<Subjects>> {
        let (team, alias) = (TeamName::from(team), AliasName::from(alias));
        let granted = resolve(&self.site, &team, &alias)?;
        let rules = |limits| Rules { limits, ..Rules::default() };
        let keys = [
            (SubjectKey::alias(&alias), rules(self.site.aliases[&alias].limits)),
            (SubjectKey::team(&team), rules(self.site.teams[&team].limits)),
            (SubjectKey::team_alias(&team, &alias), rules(granted.limits)),
        ];
        Some(self.counters.subjects_now(&keys, NOW, WALL).unwrap())
    }

    fn admit(&self, team: &str, alias: &str, tokens: u64) -> Result<Admitted, Refusal> {
        self.next.set(self.next.get() + 1);
        let subjects = self.subjects(team, alias).expect("granted");
        let demand = Demand { subjects: &subjects, tokens, now: NOW, wall: WALL };
        self.counters.admit_now(RequestId::new(0, self.next.get()), demand).map_err(|error| match error {
            AdmitError::Limit(refusal) => refusal,
            other => panic!("{other:?}"),
        })
    }
}

fn limits(rpm: u64, tpm: u64, concurrency: u64, daily_tokens: u64) -> Limits {
    Limits {
        rpm: Some(rpm),
        tpm: Some(tpm),
        concurrency: Some(concurrency),
        daily_tokens: Some(daily_tokens),
        monthly_tokens: None,
    }
}

fn golden_2() -> House {
    let mut site = site(&[("glm", Class::General), ("deepseek", Class::Interactive), ("qwen", Class::General)]);
    let none = Limits::default();
    let team_a = vec![
        grant(alias_scope("glm"), limits(60, 500_000, 10, 20_000_000)),
        grant(alias_scope("deepseek"), limits(30, 300_000, 5, 10_000_000)),
    ];
    team(&mut site, "team-a", none, team_a, &[]);
    team(&mut site, "team-b", none, vec![grant(alias_scope("qwen"), limits(100, 1_000_000, 20, 50_000_000))], &[]);
    team(&mut site, "batch", none, vec![grant(alias_scope("glm"), limits(10, 5_000_000, 4, 200_000_000))], &[]);
    House::new(site)
}

#[test]
fn golden_2_the_eleventh_request_of_50_000_tokens_is_refused_by_tokens() {
    let house = golden_2();
    for n in 1..=10 {
        let admitted =
            house.admit("team-a", "glm", 50_000).unwrap_or_else(|refusal| panic!("request {n}: {refusal:?}"));
        house.counters.settle_now(&admitted, 50_000);
        house.counters.release_now(&admitted);
    }
    let refusal = house.admit("team-a", "glm", 50_000).unwrap_err();
    assert_eq!((refusal.level, refusal.dimension, refusal.limit), (Level::TeamAlias, Dimension::Tokens, 500_000));
    // Others are not touched by it.
    drop((house.admit("batch", "glm", 50_000).unwrap(), house.admit("team-a", "deepseek", 50_000).unwrap()));
}

#[test]
fn golden_2_the_sixty_first_request_of_500_tokens_is_refused_by_requests_at_30_000_tokens() {
    let house = golden_2();
    for _ in 1..=60 {
        let admitted = house.admit("team-a", "glm", 500).unwrap();
        house.counters.settle_now(&admitted, 500);
        house.counters.release_now(&admitted);
    }
    let refusal = house.admit("team-a", "glm", 500).unwrap_err();
    assert_eq!((refusal.level, refusal.dimension, refusal.limit), (Level::TeamAlias, Dimension::Requests, 60));
    let subjects = house.subjects("team-a", "glm").unwrap();
    assert_eq!(subjects.at(Level::TeamAlias).unwrap().counts(NOW, WALL).tokens, 30_000);
}

#[test]
fn golden_2_slots_are_ten_five_twenty_and_four() {
    let house = golden_2();
    for (team, alias, slots) in
        [("team-a", "glm", 10), ("team-a", "deepseek", 5), ("team-b", "qwen", 20), ("batch", "glm", 4)]
    {
        let held: Vec<_> = (0..slots).map(|_| house.admit(team, alias, 1).unwrap()).collect();
        let refusal = house.admit(team, alias, 1).unwrap_err();
        assert_eq!((refusal.dimension, refusal.limit), (Dimension::Concurrency, slots), "{team}/{alias}");
        drop(held);
    }
}

fn golden_3() -> House {
    let mut site = site(&[("discovery", Class::Interactive), ("qwen", Class::General), ("document", Class::Batch)]);
    let none = Limits::default();
    let both = |names: [&str; 2]| names.map(|name| grant(alias_scope(name), none)).to_vec();
    let discovery = Limits { tpm: Some(2_000_000), rpm: Some(100), concurrency: Some(20), ..none };
    team(&mut site, "discovery", discovery, both(["discovery", "qwen"]), &[]);
    let wizard = Limits { tpm: Some(500_000), rpm: Some(50), concurrency: Some(8), ..none };
    team(&mut site, "wizard", wizard, both(["qwen", "document"]), &[]);
    House::new(site)
}

#[test]
fn golden_3_the_team_is_full_at_20_whichever_alias_they_are_on() {
    let house = golden_3();
    let mut held: Vec<_> = (0..7).map(|_| house.admit("discovery", "discovery", 1).unwrap()).collect();
    held.extend((0..5).map(|_| house.admit("discovery", "qwen", 1).unwrap()));
    assert_eq!(held.len(), 12);
    held.push(house.admit("discovery", "qwen", 1).expect("at 12 in flight: pass"));
    held.extend((0..7).map(|_| house.admit("discovery", "qwen", 1).unwrap()));
    for alias in ["discovery", "qwen"] {
        let refusal = house.admit("discovery", alias, 1).unwrap_err();
        assert_eq!((refusal.level, refusal.dimension, refusal.limit), (Level::Team, Dimension::Concurrency, 20));
    }
    drop(house.admit("wizard", "qwen", 1).expect("another team has its own slots"));
}

#[test]
fn golden_3_aliases_outside_the_grants_do_not_exist() {
    let house = golden_3();
    assert!(house.subjects("discovery", "document").is_none());
    assert!(house.subjects("wizard", "discovery").is_none());
    assert!(house.subjects("wizard", "document").is_some());
}

#[test]
fn golden_3_shares_of_an_alias_of_30() {
    for (second, passes) in [(10, true), (11, false)] {
        let mut house = golden_3();
        let alias = house.site.aliases.get_mut(&AliasName::from("discovery")).unwrap();
        alias.limits.concurrency = Some(30);
        team(
            &mut house.site,
            "other",
            Limits::default(),
            vec![grant(alias_scope("discovery"), Limits::default())],
            &[],
        );
        let _first: Vec<_> = (0..20).map(|_| house.admit("discovery", "discovery", 1).unwrap()).collect();
        let others: Vec<_> = (0..second).map(|_| house.admit("other", "discovery", 1)).collect();
        assert_eq!(others.iter().all(Result::is_ok), passes, "20 + {second}");
        if let Some(Err(refusal)) = others.last() {
            assert_eq!((refusal.level, refusal.dimension, refusal.limit), (Level::Alias, Dimension::Concurrency, 30));
        }
    }
}

#[test]
fn golden_13_saturated_by_queue_alone_then_by_class() {
    let load = ReplicaLoad { waiting: Some(20), kv: Some(0.82), active: 14, capacity: Some(16) };
    let saturation = Saturation::of_pool(&[load], &Thresholds::default());
    assert_eq!(saturation, Saturation { queue: true, kv: false, concurrency: false });
    let wait = std::time::Duration::from_secs(3);
    let situation =
        Situation { saturation, queue_has_room: true, fallback: true, room_in: wait, ..Situation::default() };
    let of = |class, situation: Situation| decide(&ClassPolicy::of(class), &situation);
    for class in [Class::Interactive, Class::General, Class::Batch] {
        assert_ne!(of(class, situation), Outcome::Accept, "{class:?}");
    }
    let seconds = std::time::Duration::from_secs;
    assert_eq!(of(Class::Interactive, situation), Outcome::Queue { at_most: seconds(10) });
    let waited = Situation { waited: seconds(10), ..situation };
    assert_eq!(of(Class::Interactive, waited), Outcome::Fallback);
    let alone = Situation { fallback: false, ..waited };
    assert_eq!(of(Class::Interactive, alone), Outcome::Refuse { retry_after: wait });
    assert_eq!(of(Class::General, situation), Outcome::Queue { at_most: seconds(60) });
    let throttled = Situation { throttle_wait: Some(wait), ..situation };
    assert_eq!(of(Class::Batch, throttled), Outcome::RateLimit { retry_after: wait });
    assert_eq!(of(Class::Batch, situation), Outcome::Refuse { retry_after: wait });
}
