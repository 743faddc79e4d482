//! Who may use what.

use proptest::prelude::*;
use tidegate_config::site::{Class, Grant, GrantScope, Site};
use tidegate_core::{AliasName, Limits, TeamName};
use tidegate_policy::grants::{resolve, visible};

use crate::site::{alias_scope, grant, site, team};

fn may(site: &Site, team: &str, alias: &str) -> bool {
    resolve(site, &TeamName::from(team), &AliasName::from(alias)).is_some()
}

fn rpm(limit: u64) -> Limits {
    Limits { rpm: Some(limit), ..Limits::default() }
}

#[test]
fn the_most_specific_grant_supplies_the_limits_wherever_it_stands() {
    let mut site = site(&[("a", Class::Batch), ("b", Class::Batch), ("c", Class::General)]);
    let grants = [
        grant(GrantScope::All, rpm(1)),
        grant(GrantScope::Class(Class::Batch), rpm(2)),
        grant(alias_scope("a"), rpm(3)),
        grant(alias_scope("a"), rpm(4)),
    ];
    for order in [vec![0, 1, 2, 3], vec![2, 3, 1, 0], vec![1, 0, 2, 3]] {
        let grants = order.iter().map(|&n| grants[n].clone()).collect();
        team(&mut site, "t", Limits::default(), grants, &[]);
        let limits = |alias: &str| resolve(&site, &"t".into(), &alias.into()).unwrap().limits.rpm;
        assert_eq!((limits("a"), limits("b"), limits("c")), (Some(3), Some(2), Some(1)), "{order:?}");
    }
}

#[test]
fn a_denial_wins_over_every_grant() {
    let mut site = site(&[("a", Class::Batch)]);
    let grants = vec![
        grant(GrantScope::All, rpm(1)),
        grant(GrantScope::Class(Class::Batch), rpm(2)),
        grant(alias_scope("a"), rpm(3)),
    ];
    team(&mut site, "t", Limits::default(), grants, &["a"]);
    assert!(!may(&site, "t", "a"));
    assert_eq!(visible(&site, &"t".into()).count(), 0);
}

#[test]
fn names_are_compared_byte_by_byte() {
    let mut site = site(&[("glm", Class::General)]);
    team(&mut site, "t", Limits::default(), vec![grant(GrantScope::All, Limits::default())], &[]);
    assert!(may(&site, "t", "glm"));
    for near in ["GLM", "glm ", " glm", "glm\0", "gl", "glmm", "", "ɡlm"] {
        assert!(!may(&site, "t", near), "{near:?}");
    }
    assert!(!may(&site, "T", "glm") && !may(&site, "", "glm"));
}

#[test]
fn a_grant_of_an_alias_that_does_not_exist_gives_nothing() {
    let mut site = site(&[]);
    team(&mut site, "t", Limits::default(), vec![grant(alias_scope("ghost"), rpm(1))], &[]);
    assert!(!may(&site, "t", "ghost"));
}

#[test]
fn caps_come_from_the_same_grant_as_the_limits() {
    let mut site = site(&[("a", Class::General)]);
    let wide = Grant { max_input_tokens: Some(9), max_output_tokens: Some(8), ..grant(GrantScope::All, rpm(1)) };
    let narrow = Grant { max_input_tokens: Some(7), ..grant(alias_scope("a"), rpm(2)) };
    team(&mut site, "t", Limits::default(), vec![wide, narrow], &[]);
    let granted = resolve(&site, &"t".into(), &"a".into()).unwrap();
    assert_eq!((granted.max_input_tokens, granted.max_output_tokens), (Some(7), None));
}

/// Golden G 4, the part that is about grants.
#[test]
fn golden_4_class_grants_alias_grants_and_a_denial_over_a_class_grant() {
    let mut site = site(&[
        ("llama-8b", Class::General),
        ("qwen-32b", Class::General),
        ("llama-70b", Class::Interactive),
        ("deepseek-r1", Class::Interactive),
        ("gpt-oss-120b", Class::Interactive),
        ("glm", Class::General),
        ("deepseek", Class::Interactive),
        ("qwen", Class::General),
        ("nightly", Class::Batch),
    ]);
    let only =
        |names: &[&str]| names.iter().map(|name| grant(alias_scope(name), Limits::default())).collect::<Vec<_>>();
    let none = Limits::default();
    team(&mut site, "ai-platform-admin", none, vec![grant(GrantScope::All, none)], &[]);
    team(&mut site, "ai-user", none, only(&["llama-8b", "qwen-32b"]), &[]);
    team(&mut site, "batch-user", none, vec![grant(GrantScope::Class(Class::Batch), none)], &[]);
    team(&mut site, "agent-llm", none, only(&["llama-8b", "qwen-32b", "llama-70b"]), &[]);
    team(&mut site, "research-agent", none, only(&["llama-70b", "deepseek-r1", "gpt-oss-120b"]), &[]);
    let mut team_a = only(&["deepseek", "glm"]);
    team_a.push(grant(GrantScope::Class(Class::General), none));
    team(&mut site, "team-a", Limits { rpm: Some(100), tpm: Some(1_000_000), ..none }, team_a, &["qwen"]);

    let seen = |team: &str| visible(&site, &team.into()).map(|(alias, _)| alias.to_string()).collect::<Vec<_>>();
    assert_eq!(seen("ai-platform-admin").len(), 9);
    assert_eq!(seen("ai-user"), ["llama-8b", "qwen-32b"]);
    assert_eq!(seen("batch-user"), ["nightly"]);
    assert_eq!(seen("agent-llm"), ["llama-70b", "llama-8b", "qwen-32b"]);
    assert_eq!(seen("research-agent"), ["deepseek-r1", "gpt-oss-120b", "llama-70b"]);
    assert!(may(&site, "team-a", "deepseek") && may(&site, "team-a", "glm"));
    assert!(!may(&site, "team-a", "qwen"), "denied although a class grant covers it");
    assert!(may(&site, "team-a", "llama-8b"), "the class grant covers the others of the class");
    assert_eq!(seen("nobody"), Vec::<String>::new());
}

fn scopes() -> impl Strategy<Value = GrantScope> {
    prop_oneof![
        prop::sample::select(vec!["a", "b", "c"]).prop_map(alias_scope),
        prop::sample::select(vec![Class::Interactive, Class::General, Class::Batch]).prop_map(GrantScope::Class),
        Just(GrantScope::All),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// What a page lists is what a request may use; and it is what the definition says.
    #[test]
    fn the_list_of_models_and_the_check_of_a_request_agree(
        scopes in prop::collection::vec(scopes(), 0..6),
        deny in prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 0..3),
    ) {
        let names = [("a", Class::Interactive), ("b", Class::General), ("c", Class::Batch)];
        let mut site = site(&names);
        let grants = scopes.iter().map(|scope| grant(scope.clone(), Limits::default())).collect();
        team(&mut site, "t", Limits::default(), grants, &deny);
        let listed: Vec<_> = visible(&site, &"t".into()).map(|(alias, _)| alias.clone()).collect();
        for (name, class) in names {
            let covered = scopes.iter().any(|scope| match scope {
                GrantScope::Alias(alias) => alias.as_str() == name,
                GrantScope::Class(granted) => *granted == class,
                GrantScope::All => true,
            });
            let expected = covered && !deny.contains(&name);
            prop_assert_eq!(may(&site, "t", name), expected);
            prop_assert_eq!(listed.contains(&AliasName::from(name)), expected);
        }
    }
}
