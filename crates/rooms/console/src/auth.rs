//! Who may use the admin API.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tidegate_core::Unix;
use tidegate_identity::{Door, authenticate};

use crate::Console;
use crate::problem::Problem;

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The owner of the state folder: the socket in it has mode 0600.
    Owner,
    /// Anybody: an admin key is needed.
    AdminKey,
}

/// The name that changes are recorded under.
#[derive(Clone, Debug)]
pub(crate) struct Actor(pub(crate) Box<str>);

pub(crate) fn now() -> Unix {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Unix::from_ms(since.as_millis() as i64)
}

/// Lets through who may use the guarded routes, known paths or not.
pub(crate) async fn guard(
    State((console, trust)): State<(Console, Trust)>,
    mut request: Request,
    next: Next,
) -> Response {
    let actor = match trust {
        Trust::Owner => Actor("owner".into()),
        Trust::AdminKey => match admin(&console, &request) {
            Ok(actor) => actor,
            Err(problem) => return problem.into_response(),
        },
    };
    request.extensions_mut().insert(actor);
    next.run(request).await
}

fn admin(console: &Console, request: &Request) -> Result<Actor, Problem> {
    let headers = request.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let keyring = console.keyring.load();
    let authenticated = authenticate(headers, request.uri().query(), &**keyring, now())?;
    authenticated.may_enter(Door::Admin)?;
    Ok(Actor(authenticated.caller.subject.as_str().into()))
}
