//! Last room: exactly one ledger entry for each accepted request, refused ones included.
//!
//! A [`Tail`] exists from authentication on and collects what becomes known. It ends in one of its `…ed` methods; if
//! it is dropped before that, the caller has left (the connection drops the future or the body), and the drop only says so: the
//! accounting itself is [`settle`], one function for all endings.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{
    AliasName, Caller, Case, Entry, Fault, FaultKind, Monotonic, Outcome, ReplicaId, RequestId, Unix, UsageSource,
};
use tidegate_engine::dialect::AbortBound;
use tidegate_policy::estimate::Cost;
use tidegate_policy::limiter::{Admitted, RateView};
use tidegate_routing::Lease;
use tidegate_routing::breaker::Report;
use tidegate_store::failpoint;
use tidegate_wire::sse::Usage;

use crate::catalogue::DeploymentView;
use crate::core::Core;
use crate::multipart::Verdict;
use tidegate_engine::backend::Backend;

/// What was taken for a request: limits, and what was reserved.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) admitted: Admitted,
    pub(crate) cost: Cost,
}

/// The attempt that is running upstream.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) lease: Lease,
    pub(crate) backend: Arc<Backend>,
    pub(crate) abort: AbortBound,
}

/// The accounting of one accepted request.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) core: Rc<Core>,
    pub(crate) id: RequestId,
    pub(crate) request_id: Box<str>,
    pub(crate) caller: Caller,
    pub(crate) at: Unix,
    pub(crate) started: Monotonic,
    pub(crate) endpoint: &'static str,
    pub(crate) alias: Option<AliasName>,
    pub(crate) served_alias: Option<AliasName>,
    pub(crate) deployment: Option<Arc<DeploymentView>>,
    pub(crate) replica: Option<ReplicaId>,
    pub(crate) engine_id: Option<Box<str>>,
    pub(crate) streamed: bool,
    pub(crate) attempts: u32,
    pub(crate) taken: Option<Taken>,
    pub(crate) running: Option<Running>,
    /// A form that streams through asks for a stream: whether it gets one is the engine's to say.
    pub(crate) upload_streams: bool,
    /// The form that streams through, if it is one.
    pub(crate) upload: Option<Verdict>,
    pub(crate) rates: Option<RateView>,
    /// The engine's latest report.
    pub(crate) usage: Option<Usage>,
    /// Tokens that the engine delivered to us, by our own count: events with content, or of an answer that came at once
    /// its bytes, of which a token has at least one.
    pub(crate) delivered: u64,
    pub(crate) called: Option<Monotonic>,
    pub(crate) first_byte: Option<Monotonic>,
    pub(crate) last_byte: Option<Monotonic>,
    /// Status answered or about to be.
    pub(crate) status: u16,
    is_settled: bool,
}

/// How a request ended.
#[derive(Debug)]
enum End<'a> {
    /// Answered in full.
    Answered,
    /// Refused, or failed before the first byte: nothing was delivered.
    Refused(&'a Fault),
    /// Failed after the first byte.
    Interrupted(&'a Fault),
    /// The caller left.
    Cancelled,
}

impl Tail {
    /// Opens the accounting of an accepted request.
    pub(crate) fn open(core: &Rc<Core>, at: Unix, caller: Caller, request_id: &str) -> Self {
        core.shared.metrics.accepted.inc();
        core.shared.metrics.in_flight.inc();
        Self {
            id: core.new_id(at),
            request_id: request_id.into(),
            caller,
            at,
            started: core.now(),
            core: Rc::clone(core),
            endpoint: "other",
            alias: None,
            served_alias: None,
            deployment: None,
            replica: None,
            engine_id: None,
            streamed: false,
            attempts: 0,
            taken: None,
            running: None,
            upload_streams: false,
            upload: None,
            rates: None,
            usage: None,
            delivered: 0,
            called: None,
            first_byte: None,
            last_byte: None,
            status: 0,
            is_settled: false,
        }
    }

    /// The answer was given in full.
    pub(crate) fn answered(&mut self, status: u16) {
        self.status = status;
        settle(self, &End::Answered);
    }

    /// The request was refused or failed before anything was delivered.
    pub(crate) fn refused(mut self, fault: &Fault) {
        self.status = fault.status;
        let has_left = fault.kind() == FaultKind::ClientGone;
        let end = if has_left { End::Cancelled } else { End::Refused(fault) };
        settle(&mut self, &end);
    }

    /// The answer broke off.
    pub(crate) fn interrupted(&mut self, fault: &Fault) {
        settle(self, &End::Interrupted(fault));
    }

    /// A read of the answer's body arrived at `now`.
    pub(crate) fn note_byte(&mut self, now: Monotonic) {
        if let (Some(last), Some(deployment)) = (self.last_byte, &self.deployment) {
            deployment.metrics.itl.observe(now.since(last).as_secs_f64());
        } else if self.first_byte.is_none() {
            self.first_byte = Some(now);
            if let Some(deployment) = &self.deployment {
                deployment.metrics.ttft.observe(now.since(self.started).as_secs_f64());
            }
            if let (Some(running), Some(called)) = (&self.running, self.called) {
                running.lease.first_token(now.since(called));
            }
        }
        self.last_byte = Some(now);
    }

    /// An attempt begins: what an earlier one said of itself counts no more.
    pub(crate) fn begin_attempt(&mut self, running: Running, now: Monotonic) {
        self.called.get_or_insert(now);
        self.attempts += 1;
        self.running = Some(running);
        self.engine_id = None;
        self.usage = None;
        self.delivered = 0;
        self.first_byte = None;
        self.last_byte = None;
    }

    /// The gate itself has counted: engines that were asked before and failed have no part in it.
    pub(crate) fn counted_at_the_gate(&mut self) {
        self.deployment = None;
        self.replica = None;
        self.engine_id = None;
        self.usage = Some(Usage::default());
    }

    /// Ends the running attempt before the first byte: the replica is told apart from the caller by `report`.
    pub(crate) fn end_attempt(&mut self, report: Report) {
        if let Some(running) = self.running.take() {
            running.lease.release(report, self.core.now());
        }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        if !self.is_settled {
            settle(self, &End::Cancelled);
        }
        self.core.shared.metrics.in_flight.dec();
    }
}

/// Charges the request, frees what it held, and writes its entry.
fn settle(tail: &mut Tail, end: &End<'_>) {
    if std::mem::replace(&mut tail.is_settled, true) {
        return;
    }
    failpoint::passed("relay.before_settle");
    let now = tail.core.now();
    let charge = charge(tail, end);
    let entry = entry(tail, end, &charge, now);
    free(tail, end, &charge, now);
    count(tail, end, &entry, now);
    log(tail, end, &entry);
    tail.core.finish(&entry);
    failpoint::passed("relay.after_settle");
}

/// What a request is charged, and where the figure comes from.
#[derive(Clone, Copy, Debug)]
struct Charge {
    prompt: u64,
    cached: u64,
    output: u64,
    source: UsageSource,
}

const NOTHING: Charge = Charge { prompt: 0, cached: 0, output: 0, source: UsageSource::None };

fn charge(tail: &Tail, end: &End<'_>) -> Charge {
    let Some(taken) = &tail.taken else { return NOTHING };
    let reserved = taken.cost;
    let is_half = tail.upload.as_ref().is_some_and(|upload| !upload.is_whole());
    if tail.called.is_none() || (is_half && matches!(end, End::Cancelled)) {
        // The engine had nothing to run.
        return NOTHING;
    }
    match (end, tail.usage) {
        (End::Refused(_), _) => NOTHING,
        (End::Answered, Some(usage)) => reported(usage),
        // A report that lags behind what the engine delivered is raised to it: Anthropic's events give the output only
        // at their end.
        (End::Interrupted(_) | End::Cancelled, Some(usage)) if tail.delivered > usage.output => {
            Charge { output: tail.delivered, source: UsageSource::Estimated, ..reported(usage) }
        }
        (End::Interrupted(_) | End::Cancelled, Some(usage)) => reported(usage),
        // Nobody knows how far an unstreamed answer got before the engine noticed: the estimate stays.
        (End::Cancelled, None) if !tail.streamed => estimated(reserved.prompt_tokens, reserved.output_tokens),
        (End::Answered | End::Interrupted(_) | End::Cancelled, None) => {
            let output = if tail.streamed { tail.delivered } else { tail.delivered.min(reserved.output_tokens) };
            estimated(reserved.prompt_tokens, output)
        }
    }
}

fn reported(usage: Usage) -> Charge {
    Charge {
        prompt: usage.prompt,
        cached: usage.cached.min(usage.prompt),
        output: usage.output,
        source: UsageSource::Engine,
    }
}

const fn estimated(prompt: u64, output: u64) -> Charge {
    Charge { prompt, cached: 0, output, source: UsageSource::Estimated }
}

/// Gives back what the request held. A slot whose engine may still be generating stays taken until it has let go.
fn free(tail: &mut Tail, end: &End<'_>, charge: &Charge, now: Monotonic) {
    let core = Rc::clone(&tail.core);
    let Some(taken) = tail.taken.take() else {
        tail.end_attempt(Report::Unknown);
        return;
    };
    let used = charge.prompt.saturating_add(charge.output);
    core.shared.counters.settle_now(&taken.admitted, used);
    let Some(running) = tail.running.take() else {
        core.shared.counters.release_now(&taken.admitted);
        return;
    };
    match end {
        End::Answered => {
            running.lease.release(Report::Good, now);
            core.shared.counters.release_now(&taken.admitted);
        }
        // A refusal with an attempt still open is one that we gave up waiting for; the breaker knows of it.
        End::Refused(_) | End::Interrupted(_) | End::Cancelled => {
            let report = if matches!(end, End::Interrupted(_)) { Report::Bad } else { Report::Unknown };
            running.lease.report(report, now);
            core.holds.hold(taken.admitted, running.lease, running.backend, running.abort, now);
        }
    }
}

fn entry(tail: &mut Tail, end: &End<'_>, charge: &Charge, now: Monotonic) -> Entry {
    let (outcome, fault) = match end {
        End::Answered => (Outcome::Ok, None),
        End::Refused(fault) | End::Interrupted(fault) => (Outcome::Failed, Some((*fault).clone())),
        End::Cancelled => (Outcome::Cancelled, None),
    };
    let kind = match (&fault, outcome) {
        (Some(fault), _) => Some(fault.kind()),
        (None, Outcome::Cancelled) => Some(FaultKind::ClientGone),
        (None, _) => None,
    };
    let reserved = tail.taken.as_ref().map_or(0, |taken| taken.cost.tokens());
    Entry {
        id: tail.id,
        request_id: tail.request_id.clone(),
        at: tail.at,
        issuer: tail.caller.issuer.as_str().into(),
        caller: tail.caller.subject.clone(),
        team: tail.caller.team.clone(),
        key: tail.caller.key.clone(),
        endpoint: tail.endpoint.into(),
        alias: tail.alias.clone(),
        served_alias: tail.served_alias.take().filter(|served| Some(served) != tail.alias.as_ref()),
        model: tail.deployment.as_ref().map(|deployment| deployment.model.clone()),
        deployment: tail.deployment.as_ref().map(|deployment| deployment.name.clone()),
        replica: tail.replica.take(),
        engine_id: tail.engine_id.take(),
        outcome,
        fault: kind,
        code: fault.and_then(|fault| fault.case.row().code).map(Box::from),
        status: if tail.status == 0 { Case::ClientGone.row().status } else { tail.status },
        streamed: tail.streamed,
        attempts: tail.attempts,
        source: charge.source,
        prompt_tokens: charge.prompt,
        cached_tokens: charge.cached,
        output_tokens: charge.output,
        reserved_tokens: reserved,
        queue_us: tail.called.map_or(0, |called| micros(called.since(tail.started))),
        ttft_us: tail.first_byte.map(|first| micros(first.since(tail.started))),
        total_us: micros(now.since(tail.started)),
    }
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

fn count(tail: &Tail, end: &End<'_>, entry: &Entry, now: Monotonic) {
    let metrics = &tail.core.shared.metrics;
    if let Some(kind) = entry.fault {
        metrics.fault(kind);
    }
    if matches!(end, End::Cancelled) {
        metrics.disconnects.inc();
    }
    if entry.source == UsageSource::Estimated {
        metrics.estimated.inc();
    }
    if entry.tokens() > entry.reserved_tokens {
        metrics.over_estimate.inc();
    }
    let lasted = now.since(tail.started).as_secs_f64();
    metrics.duration.observe(lasted);
    if tail.streamed {
        metrics.stream.observe(lasted);
    }
    if let Some(called) = tail.called {
        metrics.queue.observe(called.since(tail.started).as_secs_f64());
        metrics.charged_tokens.inc_by(entry.tokens());
    }
    if let (Some(deployment), Some(_)) = (&tail.deployment, tail.called) {
        deployment.metrics.requests.inc();
        deployment.metrics.input_tokens.inc_by(entry.prompt_tokens);
        deployment.metrics.output_tokens.inc_by(entry.output_tokens);
    }
}

/// One line for each request that went wrong, at a level that says whose fault it was; none for good ones, which are
/// in the ledger.
fn log(tail: &Tail, end: &End<'_>, entry: &Entry) {
    let (End::Refused(fault) | End::Interrupted(fault)) = end else { return };
    let internal = fault.internal.as_deref().unwrap_or("");
    let replica = entry.replica.as_ref().map_or("", |replica| replica.as_str());
    let kind = fault.kind().as_str();
    match fault.kind().origin() {
        tidegate_core::Origin::Caller | tidegate_core::Origin::Policy => tracing::debug!(
            id = %tail.id, request_id = %tail.request_id, team = %entry.team, kind, status = entry.status, internal,
            "refused"
        ),
        tidegate_core::Origin::Replica | tidegate_core::Origin::Platform => tracing::warn!(
            id = %tail.id, request_id = %tail.request_id, team = %entry.team, kind, status = entry.status, replica,
            attempts = entry.attempts, internal, "failed"
        ),
    }
}
