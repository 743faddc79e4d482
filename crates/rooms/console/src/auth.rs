//! Who may use the admin API.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tidegate_core::{Monotonic, Unix};
use tidegate_identity::{Door, PeerThrottle, authenticate};

use crate::Console;
use crate::problem::Problem;
use crate::serve::PeerIp;

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

/// What the guard knows: one for all connections of a router.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    console: Console,
    trust: Trust,
    throttle: Arc<PeerThrottle>,
    start: Instant,
}

impl Guard {
    pub(crate) fn new(console: Console, trust: Trust) -> Self {
        Self { console, trust, throttle: Arc::default(), start: Instant::now() }
    }

    fn admin(&self, request: &Request) -> Result<Actor, Problem> {
        let headers = request.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let keyring = self.console.keyring.load();
        let authenticated = authenticate(headers, request.uri().query(), &**keyring, now())
            .map_err(|fault| self.throttle.answer(peer(request), fault, self.now()))?;
        authenticated.may_enter(Door::Admin)?;
        Ok(Actor(authenticated.caller.subject.as_str().into()))
    }

    fn now(&self) -> Monotonic {
        Monotonic::default().after(self.start.elapsed())
    }
}

/// Whoever has no address is one peer.
fn peer(request: &Request) -> IpAddr {
    request.extensions().get::<PeerIp>().map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |peer| peer.0)
}

pub(crate) fn now() -> Unix {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Unix::from_ms(since.as_millis() as i64)
}

/// Lets through who may use the guarded routes, known paths or not.
pub(crate) async fn guard(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    let actor = match guard.trust {
        Trust::Owner => Actor("owner".into()),
        Trust::AdminKey => match guard.admin(&request) {
            Ok(actor) => actor,
            Err(problem) => return problem.into_response(),
        },
    };
    request.extensions_mut().insert(actor);
    next.run(request).await
}
