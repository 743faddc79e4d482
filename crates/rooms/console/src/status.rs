//! Health, metrics, status, shift.

use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, Json, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde::{Deserialize, Serialize};
use tidegate_core::ShiftName;
use tidegate_store::store::{By, Shift};

use crate::Console;
use crate::auth::{Actor, now};
use crate::problem::{self, Problem};

/// Puts a shift in force from the next start on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetShift {
    /// The shift's name.
    pub name: String,
}

pub(crate) async fn livez() -> &'static str {
    std::future::ready("alive\n").await
}

pub(crate) async fn readyz(State(console): State<Console>) -> Response {
    let readiness = console.panel.readiness();
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    std::future::ready((status, Json(readiness)).into_response()).await
}

pub(crate) async fn metrics(State(console): State<Console>) -> Response {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    std::future::ready(([(header::CONTENT_TYPE, TYPE)], console.panel.metrics()).into_response()).await
}

pub(crate) async fn status(State(console): State<Console>) -> Json<serde_json::Value> {
    std::future::ready(Json(console.panel.status())).await
}

pub(crate) async fn set_shift(
    State(console): State<Console>,
    Extension(Actor(who)): Extension<Actor>,
    body: Result<Json<SetShift>, JsonRejection>,
) -> Result<Json<Shift>, Problem> {
    let Json(wanted) = body.map_err(|rejection| problem::body(&rejection))?;
    let shifts = console.panel.shifts();
    let name = ShiftName::from(wanted.name);
    if !shifts.contains(&name) {
        let known: Vec<_> = shifts.iter().map(ShiftName::as_str).collect();
        return Err(problem::invalid("name", format!("there is no shift {name:?}; there are: {}", known.join(", "))));
    }
    Ok(Json(console.store.set_shift(&name, None, By { who: &who, at: now() }).await?))
}
