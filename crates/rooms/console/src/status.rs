//! Health, metrics, status, shift.

use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, Json, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde::{Deserialize, Serialize};
use tidegate_store::store::{By, Shift};

use crate::Console;
use crate::auth::{Actor, now};
use crate::lifecycle::{self, Accepted, Ask, carry_out, known_shift};
use crate::problem::{self, Problem};

/// Puts a shift in force: from the next start on, or at once by a switch where a Schedule is in force.
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

pub(crate) async fn status(State(console): State<Console>) -> Result<Json<serde_json::Value>, Problem> {
    let mut status = console.panel.status();
    let lifecycle = lifecycle::now(&console).await?;
    status["lifecycle"] = serde_json::to_value(lifecycle).unwrap_or_default();
    Ok(Json(status))
}

/// What setting a shift did.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum SetAnswer {
    /// No Schedule: it is in force from the next start on.
    Set(Shift),
    /// A Schedule is in force: it is a switch.
    Switch(Accepted),
}

pub(crate) async fn set_shift(
    State(console): State<Console>,
    Extension(actor): Extension<Actor>,
    body: Result<Json<SetShift>, JsonRejection>,
) -> Result<Json<SetAnswer>, Problem> {
    let Json(wanted) = body.map_err(|rejection| problem::body(&rejection))?;
    let name = known_shift(&console, "name", wanted.name)?;
    if console.panel.has_schedule() {
        let Json(accepted) = carry_out(&console, &actor, Ask::Switch { to: name, until: None }).await?;
        return Ok(Json(SetAnswer::Switch(accepted)));
    }
    let by = By { who: &actor.0, at: now() };
    Ok(Json(SetAnswer::Set(console.store.set_shift(&name, None, by).await?)))
}
