//! Who changed what, when.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Json, Query, State};
use serde::{Deserialize, Serialize};
use tidegate_store::store::AuditRow;

use crate::Console;
use crate::problem::{self, Problem};

/// Rows that are shown when nobody says how many.
pub const AUDIT_DEFAULT: u32 = 50;

/// Which rows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    /// Only those behind this number; left out: the last ones.
    after: Option<u64>,
    #[serde(default = "default_limit")]
    limit: u32,
}

const fn default_limit() -> u32 {
    AUDIT_DEFAULT
}

/// Rows of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditAnswer {
    /// Oldest first.
    pub rows: Vec<AuditRow>,
}

pub(crate) async fn audit(
    State(console): State<Console>,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<AuditAnswer>, Problem> {
    let Query(page) = page.map_err(|rejection| problem::invalid("query", rejection.body_text()))?;
    let rows = match page.after {
        Some(after) => console.store.audit(after, page.limit).await?,
        None => console.store.audit_last(page.limit).await?,
    };
    Ok(Json(AuditAnswer { rows }))
}
