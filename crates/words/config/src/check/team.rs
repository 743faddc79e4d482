//! Teams: who belongs to them, what they may use, and whether their shares add up.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::{AliasName, Limits, TeamName};

use super::profile::positive;
use super::{Documents, distinct};
use crate::at::{At, Name, Report};
use crate::raw::team as raw;
use crate::raw::{Class as RawClass, Limits as RawLimits};
use crate::site::{Grant, GrantScope, Identity, Member, Priority, Site, Team};

/// Checks all Teams against the rest of the site.
pub(super) fn check(documents: &Documents, site: &Site, report: &mut Report) -> BTreeMap<TeamName, Team> {
    let mut teams = BTreeMap::new();
    for (doc, spec) in documents.teams.readable() {
        let root = At::root(&doc.origin);
        let team = team(&root.key("spec"), spec, documents, site, report);
        teams.insert(TeamName::from(&*doc.name), team);
    }
    shares(documents, site, report);
    teams
}

fn team(at: &At<'_>, spec: &raw::Team, documents: &Documents, site: &Site, report: &mut Report) -> Team {
    let raw::Team { members, limits, models, per_caller, deny, priority, time_zone } = spec;
    let list = at.key("members");
    let members = members.iter().enumerate();
    let members = members.filter_map(|(index, raw)| member(&list.index(index), raw, &site.identity, documents, report));
    let members = members.collect();
    let limits = limits.unwrap_or_default().checked();
    let deny = self::deny(&at.key("deny"), deny, documents, report);
    let grants = grants(&at.key("models"), models, &deny, limits, documents, report);
    if models.is_empty() {
        report.warning(
            &at.key("models"),
            "the team may use nothing",
            "write models: [{alias: NAME}], {class: CLASS} or {all: true}".to_owned(),
        );
    }
    Team {
        members,
        limits,
        grants,
        per_caller: per_caller.unwrap_or_default().checked(),
        deny,
        priority: match priority {
            Some(raw::Priority::Low) => Priority::Low,
            None | Some(raw::Priority::Normal) => Priority::Normal,
            Some(raw::Priority::High) => Priority::High,
        },
        time_zone: time_zone.as_ref().map_or_else(|| site.time_zone.clone(), |zone| zone.0.clone()),
    }
}

fn member(
    at: &At<'_>,
    raw: &raw::Member,
    identity: &Identity,
    documents: &Documents,
    report: &mut Report,
) -> Option<Member> {
    let raw::Member { oidc_group, issuer, service_account } = raw;
    let is_known = documents.sites.is_sound("spec.identity") && !documents.may_have("Site");
    match (oidc_group, service_account) {
        (Some(group), None) => {
            let names: Vec<&str> = identity.oidc.iter().map(|issuer| &*issuer.name).collect();
            match issuer {
                Some(issuer) if is_known && !names.contains(&issuer.as_str()) => {
                    report.unknown(&at.key("issuer"), "OIDC issuer", issuer, names.iter().copied());
                }
                None if is_known && names.is_empty() => {
                    report.error(&at.key("oidcGroup"), "the Site has no OIDC issuer");
                }
                None if is_known && names.len() > 1 => {
                    let hint = format!("one of {}", names.join(", "));
                    report.error_hint(&at.key("issuer"), "`issuer` is missing: the Site has several", hint);
                }
                Some(_) | None => {}
            }
            if group.is_empty() {
                report.error(&at.key("oidcGroup"), "expected a group");
            }
            let issuer = issuer.as_deref().map(Name::from);
            Some(Member::OidcGroup { issuer, group: Name::from(group.as_str()) })
        }
        (None, Some(account)) => {
            if issuer.is_some() {
                let hint = "a ServiceAccount names its cluster in serviceAccount.issuer".to_owned();
                report.error_hint(&at.key("issuer"), "`issuer` belongs to `oidcGroup`", hint);
            }
            service_account_member(&at.key("serviceAccount"), account, identity, is_known, report)
        }
        (Some(_), Some(_)) | (None, None) => {
            report.error(at, "expected exactly one of `oidcGroup` and `serviceAccount`");
            None
        }
    }
}

fn service_account_member(
    at: &At<'_>,
    raw: &raw::ServiceAccount,
    identity: &Identity,
    is_known: bool,
    report: &mut Report,
) -> Option<Member> {
    let raw::ServiceAccount { issuer, namespace, name } = raw;
    let issuer = report.required(at, "issuer", issuer.as_ref());
    let namespace = report.required(at, "namespace", namespace.as_ref());
    let name = report.required(at, "name", name.as_ref());
    if let Some(issuer) = issuer {
        let names: Vec<&str> = identity.kubernetes.iter().map(|issuer| &*issuer.name).collect();
        if is_known && !names.contains(&issuer.as_str()) {
            report.unknown(&at.key("issuer"), "Kubernetes cluster", issuer, names.iter().copied());
        }
    }
    Some(Member::ServiceAccount {
        issuer: Name::from(issuer?.as_str()),
        namespace: Name::from(namespace?.as_str()),
        name: Name::from(name?.as_str()),
    })
}

fn known_alias(at: &At<'_>, name: &str, documents: &Documents, report: &mut Report) {
    if !documents.aliases.contains(name) && !documents.may_have(name) {
        report.unknown(at, "Alias", name, documents.aliases.names());
    }
}

fn deny(at: &At<'_>, raw: &[String], documents: &Documents, report: &mut Report) -> BTreeSet<AliasName> {
    let names = distinct(at, raw, report);
    for (index, name) in &names {
        known_alias(&at.index(*index), name, documents, report);
    }
    names.into_iter().map(|(_, name)| AliasName::from(name)).collect()
}

fn grants(
    at: &At<'_>,
    raw: &[raw::Grant],
    deny: &BTreeSet<AliasName>,
    team: Limits,
    documents: &Documents,
    report: &mut Report,
) -> Vec<Grant> {
    let mut grants: Vec<Grant> = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, raw) in raw.iter().enumerate() {
        let at = at.index(index);
        let Some(grant) = grant(&at, raw, documents, report) else { continue };
        let scope = (raw.alias.as_deref(), grant.scope == GrantScope::All, raw.class.map(RawClass::checked));
        if !seen.insert(scope) {
            report.error(&at, "the same thing is granted twice");
        }
        if let GrantScope::Alias(name) = &grant.scope
            && deny.contains(name)
        {
            report.warning(&at.key("alias"), format!("`{name}` is denied: a denial wins over every grant"), None);
        }
        inside(&at, grant.limits, team, report);
        grants.push(grant);
    }
    grants
}

fn grant(at: &At<'_>, raw: &raw::Grant, documents: &Documents, report: &mut Report) -> Option<Grant> {
    let raw::Grant {
        alias,
        class,
        all,
        rpm,
        tpm,
        concurrency,
        daily_tokens,
        monthly_tokens,
        max_input_tokens,
        max_output_tokens,
    } = raw;
    let scope = match (alias, class, all) {
        (Some(alias), None, None) => {
            known_alias(&at.key("alias"), alias, documents, report);
            Some(GrantScope::Alias(AliasName::from(alias.as_str())))
        }
        (None, Some(class), None) => Some(GrantScope::Class(RawClass::checked(*class))),
        (None, None, Some(true)) => Some(GrantScope::All),
        _ => {
            let hint = "write {alias: NAME}, {class: CLASS} or {all: true}".to_owned();
            report.error_hint(at, "expected exactly one of `alias`, `class` and `all: true`", hint);
            None
        }
    };
    let limits = RawLimits {
        rpm: *rpm,
        tpm: *tpm,
        concurrency: *concurrency,
        daily_tokens: *daily_tokens,
        monthly_tokens: *monthly_tokens,
    };
    Some(Grant {
        max_input_tokens: positive(at, "maxInputTokens", *max_input_tokens, report),
        max_output_tokens: positive(at, "maxOutputTokens", *max_output_tokens, report),
        scope: scope?,
        limits: limits.checked(),
    })
}

/// A grant's limit above the team's own is never reached.
fn inside(at: &At<'_>, grant: Limits, team: Limits, report: &mut Report) {
    let pairs = [
        ("rpm", grant.rpm, team.rpm),
        ("tpm", grant.tpm, team.tpm),
        ("concurrency", grant.concurrency, team.concurrency),
        ("dailyTokens", grant.daily_tokens, team.daily_tokens),
        ("monthlyTokens", grant.monthly_tokens, team.monthly_tokens),
    ];
    for (key, grant, team) in pairs {
        if let (Some(grant), Some(team)) = (grant, team)
            && grant > team
        {
            report.warning(&at.key(key), format!("never reached: the team's own limit is {team}"), None);
        }
    }
}

/// The shares of an alias, `concurrency` of the teams' grants that name it, add up to at most the alias's own limit.
fn shares(documents: &Documents, site: &Site, report: &mut Report) {
    let mut sums: BTreeMap<&str, Vec<(&Name, u64)>> = BTreeMap::new();
    for (doc, spec) in documents.teams.readable() {
        let root = At::root(&doc.origin);
        let at = root.key("spec");
        let at = at.key("models");
        for (index, grant) in spec.models.iter().enumerate() {
            let (Some(alias), Some(share)) = (&grant.alias, grant.concurrency) else { continue };
            let limit = site.aliases.get(alias.as_str()).and_then(|alias| alias.limits.concurrency);
            let Some(limit) = limit.filter(|_| !spec.deny.contains(alias)) else { continue };
            let shares = sums.entry(alias).or_default();
            let before = shares.iter().fold(0, |sum: u64, (_, share)| sum.saturating_add(*share));
            shares.push((&doc.name, share.0));
            let sum = before.saturating_add(share.0);
            // Reported where the sum passes the limit, not at every share after that.
            if sum > limit && before <= limit {
                let parts: Vec<String> = shares.iter().map(|(team, share)| format!("{team} {share}")).collect();
                let message = format!("shares of alias `{alias}` add up to {sum}, its limit is {limit}");
                report.error_hint(&at.index(index).key("concurrency"), message, parts.join(" + "));
            }
        }
    }
}
