//! Who used how much.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Json, Query, State};
use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};
use serde::{Deserialize, Serialize};
use tidegate_core::{AliasName, CallerName, KeyId, ModelName, TeamName, Unix};
use tidegate_store::store::{Bucket, GroupBy, UsageFilter, UsageQuery, UsageRow};

use crate::Console;
use crate::auth::now;
use crate::problem::{self, Problem};

/// A question about usage, as text.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UsageQueryText {
    /// Comma-separated: team, caller, key, alias, model.
    pub by: String,
    /// hour, day, month or total.
    pub per: Bucket,
    /// Instant or civil date, inclusive; default the first of the month that ends with or contains `until`: of its last
    /// instant, so that `until` 2026-12-01 alone means November.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Instant or civil date, exclusive; default now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// IANA zone; default the site's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Only this team's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// Only this caller's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// Only this key's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Only this alias's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Only this model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// The answer.
#[derive(Debug, Serialize)]
pub struct UsageAnswer {
    /// First instant, inclusive.
    pub from: Timestamp,
    /// Last instant, exclusive.
    pub until: Timestamp,
    /// Whose calendar the periods follow.
    pub zone: String,
    /// Sums.
    pub rows: Vec<UsageRow>,
}

pub(crate) async fn usage(
    State(console): State<Console>,
    query: Result<Query<UsageQueryText>, QueryRejection>,
) -> Result<Json<UsageAnswer>, Problem> {
    let Query(text) = query.map_err(|rejection| problem::invalid("query", rejection.body_text()))?;
    let query = read(text, console.panel.time_zone())?;
    console.panel.settle().await;
    let rows = console.store.usage(&query).await?;
    let zone = query.zone.iana_name().unwrap_or("UTC").to_owned();
    Ok(Json(UsageAnswer { from: query.from.to_timestamp(), until: query.until.to_timestamp(), zone, rows }))
}

fn read(text: UsageQueryText, site_zone: TimeZone) -> Result<UsageQuery, Problem> {
    let zone = match &text.zone {
        None => site_zone,
        Some(name) => TimeZone::get(name).map_err(|_| problem::invalid("zone", format!("no such zone: {name}")))?,
    };
    let instant = |param, text: &Option<String>, default| match text {
        None => Ok(default),
        Some(text) => parse_instant(text, &zone).ok_or_else(|| {
            problem::invalid(param, format!("{text:?} is neither 2026-12-31 nor 2026-12-31T08:00 nor an instant"))
        }),
    };
    let until = instant("until", &text.until, now())?;
    let from = instant("from", &text.from, first_of_month_before(until, &zone))?;
    if from > until {
        return Err(problem::invalid("from", "from is after until"));
    }
    Ok(UsageQuery {
        from,
        until,
        group_by: group_by(&text.by)?,
        bucket: text.per,
        filter: UsageFilter {
            team: text.team.map(TeamName::from),
            caller: text.caller.map(CallerName::from),
            key: text.key.map(KeyId::from),
            alias: text.alias.map(AliasName::from),
            model: text.model.map(ModelName::from),
        },
        zone,
    })
}

fn group_by(text: &str) -> Result<GroupBy, Problem> {
    let mut by = GroupBy::default();
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match name {
            "team" => by.team = true,
            "caller" => by.caller = true,
            "key" => by.key = true,
            "alias" => by.alias = true,
            "model" => by.model = true,
            other => {
                let text = format!("cannot group by {other:?}; there are: team, caller, key, alias, model");
                return Err(problem::invalid("by", text));
            }
        }
    }
    Ok(by)
}

fn parse_instant(text: &str, zone: &TimeZone) -> Option<Unix> {
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Some(Unix::from_ms(instant.as_millisecond()));
    }
    let civil = match text.parse::<civil::Date>() {
        Ok(date) if !text.contains('T') => date.at(0, 0, 0, 0),
        _ => text.parse::<civil::DateTime>().ok()?,
    };
    Some(Unix::from_ms(zone.to_zoned(civil).ok()?.timestamp().as_millisecond()))
}

/// The first of the month of the instant just before `until`, which is the last one asked for.
fn first_of_month_before(until: Unix, zone: &TimeZone) -> Unix {
    let last = Unix::from_ms(until.ms.saturating_sub(1));
    let date = last.to_timestamp().to_zoned(zone.clone()).date().first_of_month();
    zone.to_zoned(date.at(0, 0, 0, 0)).map_or(until, |start| Unix::from_ms(start.timestamp().as_millisecond()))
}
