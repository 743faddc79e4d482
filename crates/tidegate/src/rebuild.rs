//! Limits after a restart: what the journals and the ledger know is counted before the first request comes, or a kill
//! and a start would admit everything twice.

use tidegate_config::Site;
use tidegate_core::{AliasName, CallerName, KeyId, Monotonic, TeamName, Unix};
use tidegate_policy::limiter::{AdmitError, MemoryCounters, Names, Rebuild};
use tidegate_store::store::PeriodSum;
use tidegate_store::{Recovery, Store};

/// Counts the last minute's admissions and the current days' and months' charges.
pub(crate) async fn rebuild(
    counters: &MemoryCounters,
    site: &Site,
    store: &Store,
    recovery: &Recovery,
    (now, wall): (Monotonic, Unix),
) -> anyhow::Result<()> {
    let rebuild = Rebuild { counters, site, now, wall };
    for admission in &recovery.admissions {
        rebuild.admission(&admission.reservation, admission.tokens(), admission.age).map_err(|error| full(&error))?;
    }
    for span in rebuild.spans() {
        for sum in store.period_sums(span.level, span.since).await? {
            rebuild.sum(span, &names(&sum), sum.tokens).map_err(|error| full(&error))?;
        }
    }
    Ok(())
}

fn full(error: &AdmitError) -> anyhow::Error {
    anyhow::anyhow!("the limits cannot be rebuilt: {error:?}")
}

fn names(sum: &PeriodSum) -> Names<'_> {
    Names {
        team: sum.team.as_ref().map(TeamName::as_str),
        alias: sum.alias.as_ref().map(AliasName::as_str),
        issuer: sum.issuer.as_deref(),
        caller: sum.caller.as_ref().map(CallerName::as_str),
        key: sum.key.as_ref().map(KeyId::as_str),
    }
}
