//! Entries, reservations and keys to test with. Everything follows from a number, so that a failure can be repeated.

use tidegate_core::{Entry, FaultKind, KeyId, Limits, Outcome, RequestId, Reservation, Unix, UsageSource};
use tidegate_identity::{KeyRecord, LastUsed, Mac};

/// A reservation of its own id, at `at`.
#[must_use]
pub fn reservation(number: u64, at: Unix) -> Reservation {
    Reservation {
        id: RequestId::new(at.ms.unsigned_abs(), u128::from(number)),
        at,
        issuer: "keyring".into(),
        caller: format!("caller-{}", number % 5).as_str().into(),
        team: format!("team-{}", number % 3).as_str().into(),
        key: (!number.is_multiple_of(7)).then(|| format!("key{:05}", number % 5).as_str().into()),
        alias: format!("alias-{}", number % 4).as_str().into(),
        prompt_tokens: 10 + number % 90,
        output_tokens: 100,
    }
}

/// The entry of [`reservation`], with every outcome among the numbers.
#[must_use]
pub fn entry(number: u64, at: Unix) -> Entry {
    let outcome = match number % 8 {
        0 => Outcome::Failed,
        1 => Outcome::Cancelled,
        2 => Outcome::Orphaned,
        _ => Outcome::Ok,
    };
    let is_failed = outcome == Outcome::Failed;
    Entry {
        request_id: format!("req-{number}").into(),
        endpoint: "/v1/chat/completions".into(),
        served_alias: number.is_multiple_of(11).then(|| "alias-fallback".into()),
        model: (!is_failed).then(|| format!("model-{}", number % 2).as_str().into()),
        deployment: (!is_failed).then(|| "deployment".into()),
        replica: (!is_failed).then(|| "deployment/0".into()),
        engine_id: (!is_failed).then(|| format!("chatcmpl-{number}").into()),
        outcome,
        fault: is_failed.then_some(FaultKind::UpstreamUnreachable),
        code: is_failed.then(|| "upstream_unreachable".into()),
        status: if is_failed { 502 } else { 200 },
        streamed: number.is_multiple_of(2),
        attempts: 1,
        source: if is_failed { UsageSource::None } else { UsageSource::Engine },
        prompt_tokens: if is_failed { 0 } else { 10 + number % 90 },
        cached_tokens: if is_failed { 0 } else { number % 10 },
        output_tokens: if is_failed { 0 } else { number % 100 },
        queue_us: number,
        ttft_us: (!is_failed).then_some(number * 10),
        total_us: number * 100,
        ..Entry::orphan(&reservation(number, at))
    }
}

/// A key of this id.
#[must_use]
pub fn record(id: &str, created: Unix) -> KeyRecord {
    KeyRecord {
        id: KeyId::from(id),
        mac: Some(Mac::from_bytes([7; 32])),
        previous: None,
        sha256: None,
        team: "team".into(),
        caller: "caller".into(),
        aliases: Some(["alias-a", "alias-b"].map(Into::into).into()),
        limits: Limits { rpm: Some(60), monthly_tokens: Some(1_000_000), ..Limits::default() },
        admin: false,
        created,
        expires: Some(Unix::from_ms(created.ms + 1_000)),
        revoked: None,
        last4: "wxyz".into(),
        last_used: LastUsed::default(),
    }
}

/// The same numbers in another order, decided by `seed` (an LCG; Knuth, MMIX).
pub(super) fn shuffled<T: Clone>(items: &[T], seed: u64) -> Vec<T> {
    let mut state = seed;
    let mut shuffled = items.to_vec();
    for end in (1..shuffled.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        shuffled.swap(end, (state >> 33) as usize % (end + 1));
    }
    shuffled
}
