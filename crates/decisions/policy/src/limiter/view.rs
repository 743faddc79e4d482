//! What the `x-ratelimit-*` headers say.

use std::time::Duration;

use super::subject::State;
use super::window::{Sum, Window};

/// Limits in requests and tokens per minute: of each the one with the smallest remaining share over all levels.
///
/// Values include the reservation just made. A caller who sends at most `remaining` before `reset` has passed is never
/// refused for that limit; after `reset` the whole limit is there again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateView {
    /// Requests per minute; `None` when no level limits them.
    pub requests: Option<Rate>,
    /// Tokens per minute; `None` when no level limits them.
    pub tokens: Option<Rate>,
}

/// One limit as a header trio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The limit.
    pub limit: u64,
    /// What is left of it.
    pub remaining: u64,
    /// When all of it is there again.
    pub reset: Duration,
}

impl RateView {
    /// Looks at one more subject, whose window stands at now.
    pub(super) fn note(&mut self, state: &State) {
        let limits = &state.rules.limits;
        narrow(&mut self.requests, limits.rpm, &state.window, Sum::Requests);
        narrow(&mut self.tokens, limits.tpm, &state.window, Sum::Tokens);
    }
}

fn narrow(known: &mut Option<Rate>, limit: Option<u64>, window: &Window, which: Sum) {
    let Some(limit) = limit else { return };
    let remaining = limit.saturating_sub(window.sum(which));
    let smaller = known.is_none_or(|known| share_is_smaller((remaining, limit), (known.remaining, known.limit)));
    if smaller {
        *known = Some(Rate { limit, remaining, reset: window.reset() });
    }
}

/// Whether a/b < c/d; a limit of 0 has no share left. Of equal shares the smaller remainder is the tighter.
fn share_is_smaller(a: (u64, u64), b: (u64, u64)) -> bool {
    let left = u128::from(a.0) * u128::from(b.1.max(1));
    let right = u128::from(b.0) * u128::from(a.1.max(1));
    left < right || (left == right && a.0 < b.0)
}
