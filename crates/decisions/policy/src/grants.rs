//! Which aliases a team may use, and with what limits. One resolution function serves requests, `/v1/models` and every
//! page, so that they cannot disagree.

use tidegate_config::site::{Grant, GrantScope, Site};
use tidegate_core::{AliasName, Limits, TeamName};

/// The proof that a team may use an alias, with what the grant that decided says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// For the team's calls to this alias: level team+alias.
    pub limits: Limits,
    /// Largest prompt in tokens.
    pub max_input_tokens: Option<u64>,
    /// Largest output in tokens.
    pub max_output_tokens: Option<u64>,
}

/// How specific a grant is, least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Specificity {
    All,
    Class,
    Alias,
}

/// What `team` may do with `alias`; `None` when the alias or the team does not exist, or nothing grants it.
///
/// A denial wins over every grant. Of several grants the most specific supplies limits and caps: alias before class
/// before all; of equally specific ones the first in the document. Names are compared byte by byte.
#[must_use]
pub fn resolve(site: &Site, team: &TeamName, alias: &AliasName) -> Option<Granted> {
    let class = site.aliases.get(alias)?.class;
    let team = site.teams.get(team)?;
    if team.deny.contains(alias) {
        return None;
    }
    let specificity = |grant: &Grant| match &grant.scope {
        GrantScope::Alias(name) => (name == alias).then_some(Specificity::Alias),
        GrantScope::Class(granted) => (*granted == class).then_some(Specificity::Class),
        GrantScope::All => Some(Specificity::All),
    };
    let mut best: Option<(Specificity, &Grant)> = None;
    for grant in &team.grants {
        if let Some(found) = specificity(grant)
            && best.is_none_or(|(known, _)| found > known)
        {
            best = Some((found, grant));
        }
    }
    best.map(|(_, grant)| Granted {
        limits: grant.limits,
        max_input_tokens: grant.max_input_tokens,
        max_output_tokens: grant.max_output_tokens,
    })
}

/// Every alias that `team` may use, by name.
pub fn visible<'a>(site: &'a Site, team: &'a TeamName) -> impl Iterator<Item = (&'a AliasName, Granted)> {
    site.aliases.keys().filter_map(move |alias| resolve(site, team, alias).map(|granted| (alias, granted)))
}
