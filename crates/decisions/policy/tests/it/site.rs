//! Sites for tests, built by hand: no documents are read here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use jiff::tz::TimeZone;
use tidegate_config::site::{
    Admin, Alias, Class, Counters, Gateway, Grant, GrantScope, Identity, KeepFree, Launcher, ModelCache, Priority,
    Scrub, Site, Stage, Store, Team, Timeouts,
};
use tidegate_core::{AliasName, Limits, TeamName};

/// A site with these aliases and no teams.
pub(crate) fn site(aliases: &[(&str, Class)]) -> Site {
    let address = "127.0.0.1:0".parse().unwrap();
    let aliases = aliases.iter().map(|(name, class)| (AliasName::from(*name), alias(*class))).collect();
    Site {
        name: "test".into(),
        time_zone: TimeZone::UTC,
        stage: Stage::Direct,
        gateway: Gateway {
            listen: address,
            tls: None,
            max_body_bytes: 1 << 25,
            workers: None,
            drain: Duration::from_secs(30),
        },
        admin: Admin { listen: address },
        engine_ports: 8_001..=8_099,
        store: Store::Sqlite(PathBuf::from("test.db")),
        counters: Counters::Memory,
        identity: Identity::default(),
        model_store: None,
        model_cache: ModelCache {
            path: PathBuf::from("cache"),
            keep_free: KeepFree::Percent(10.0),
            scrub: Scrub::default(),
        },
        launcher: Launcher::Processes,
        engines: BTreeMap::new(),
        agents: None,
        timeouts: Timeouts::default(),
        nodes: BTreeMap::new(),
        reservations: BTreeMap::new(),
        models: BTreeMap::new(),
        deployments: BTreeMap::new(),
        aliases,
        schedules: BTreeMap::new(),
        teams: BTreeMap::new(),
    }
}

fn alias(class: Class) -> Alias {
    Alias {
        shifts: BTreeMap::new(),
        class,
        limits: Limits::default(),
        shift_limits: BTreeMap::new(),
        fallback: Vec::new(),
        timeouts: Timeouts::default(),
        media_hosts: BTreeSet::new(),
    }
}

/// Adds a team.
pub(crate) fn team(site: &mut Site, name: &str, limits: Limits, grants: Vec<Grant>, deny: &[&str]) {
    let team = Team {
        members: Vec::new(),
        limits,
        grants,
        per_caller: Limits::default(),
        deny: deny.iter().map(|name| AliasName::from(*name)).collect(),
        priority: Priority::Normal,
        time_zone: TimeZone::UTC,
    };
    site.teams.insert(TeamName::from(name), team);
}

/// A grant without caps.
pub(crate) fn grant(scope: GrantScope, limits: Limits) -> Grant {
    Grant { scope, limits, max_input_tokens: None, max_output_tokens: None }
}

/// The scope of one alias.
pub(crate) fn alias_scope(name: &str) -> GrantScope {
    GrantScope::Alias(AliasName::from(name))
}
