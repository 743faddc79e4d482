//! What the gate counts. Label values come from closed enums and from the documents, never from a request.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tidegate_core::{Dimension, FaultKind, Level};
use tidegate_wire::Endpoint;

/// The labels that every `llm_*` family carries, and no others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ModelLabels {
    /// The Model's name, not the alias.
    pub model: String,
    /// The Model's precision.
    pub precision: String,
    /// Tensor-parallel size.
    pub tp: u32,
}

/// One fault kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FaultLabels {
    /// The kind.
    pub kind: KindLabel,
}

/// A fault kind as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KindLabel(pub FaultKind);

impl EncodeLabelValue for KindLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.0.as_str().encode(encoder)
    }
}

/// The limit that refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LimitLabels {
    /// Level.
    pub level: &'static str,
    /// Dimension.
    pub dimension: &'static str,
}

/// One route of the gate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EndpointLabels {
    /// The route's path as in the route table, or `other`.
    pub endpoint: &'static str,
}

/// All families of the gate.
#[derive(Debug)]
pub struct Metrics {
    requests: Family<ModelLabels, Counter>,
    ttft: Family<ModelLabels, Histogram, fn() -> Histogram>,
    itl: Family<ModelLabels, Histogram, fn() -> Histogram>,
    input_tokens: Family<ModelLabels, Counter>,
    output_tokens: Family<ModelLabels, Counter>,
    faults: Family<FaultLabels, Counter>,
    limits: Family<LimitLabels, Counter>,
    endpoints: Family<EndpointLabels, Counter>,
    /// One handle for each route, and one for every other path.
    routes: [Counter; ROUTES],
    /// Accepted requests: one ledger entry each.
    pub accepted: Counter,
    /// Refused before anybody was recognised.
    pub malformed: Counter,
    /// Callers that left before the end.
    pub disconnects: Counter,
    /// Attempts that were repeated on another replica or alias.
    pub retries: Counter,
    /// Answers whose actual use exceeded what was reserved.
    pub over_estimate: Counter,
    /// Ledger entries whose counts are estimates.
    pub estimated: Counter,
    /// Tokens charged.
    pub charged_tokens: Counter,
    /// Requests in flight.
    pub in_flight: Gauge,
    /// Open connections.
    pub connections: Gauge,
    /// From acceptance to the upstream call.
    pub queue: Histogram,
    /// From acceptance to the end of a stream.
    pub stream: Histogram,
    /// From acceptance to the end, all answers.
    pub duration: Histogram,
}

/// Handles for one deployment, looked up once.
#[derive(Clone, Debug)]
pub struct ModelMetrics {
    /// `llm_requests_total`.
    pub requests: Counter,
    /// `llm_ttft_seconds`.
    pub ttft: Histogram,
    /// `llm_itl_seconds`.
    pub itl: Histogram,
    /// `llm_input_tokens_total`.
    pub input_tokens: Counter,
    /// `llm_output_tokens_total`.
    pub output_tokens: Counter,
}

/// Bounds of `llm_ttft_seconds`: those of vLLM up to 160 s.
const TTFT_BOUNDS: [f64; 20] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
];
/// Bounds of `llm_itl_seconds`: those of OpenTelemetry, finer below 10 ms where fast decoding would hide.
const ITL_BOUNDS: [f64; 18] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0];
const DURATION_BOUNDS: [f64; 14] =
    [0.001, 0.005, 0.02, 0.05, 0.1, 0.3, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0];

const ROUTES: usize = Endpoint::ALL.len() + 1;

impl Metrics {
    /// Registers all families; every label value that is known beforehand starts at 0, so that `rate()` works from the
    /// first scrape.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::unregistered();
        metrics.register_models(registry);
        metrics.register_gate(registry);
        for kind in FaultKind::ALL {
            drop(metrics.faults.get_or_create(&FaultLabels { kind: KindLabel(kind) }));
        }
        for level in Level::ALL {
            for dimension in Dimension::ALL {
                drop(metrics.limits.get_or_create(&limit_labels(level, dimension)));
            }
        }
        metrics
    }

    fn unregistered() -> Self {
        let endpoints = Family::default();
        let routes = std::array::from_fn(|index| {
            let endpoint = Endpoint::ALL.get(index).map_or("other", |endpoint| endpoint.path());
            endpoints.get_or_create_owned(&EndpointLabels { endpoint })
        });
        Self {
            requests: Family::default(),
            ttft: Family::new_with_constructor(|| Histogram::new(TTFT_BOUNDS)),
            itl: Family::new_with_constructor(|| Histogram::new(ITL_BOUNDS)),
            input_tokens: Family::default(),
            output_tokens: Family::default(),
            faults: Family::default(),
            limits: Family::default(),
            endpoints,
            routes,
            accepted: Counter::default(),
            malformed: Counter::default(),
            disconnects: Counter::default(),
            retries: Counter::default(),
            over_estimate: Counter::default(),
            estimated: Counter::default(),
            charged_tokens: Counter::default(),
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            queue: Histogram::new(DURATION_BOUNDS),
            stream: Histogram::new(DURATION_BOUNDS),
            duration: Histogram::new(DURATION_BOUNDS),
        }
    }

    fn register_models(&self, registry: &mut Registry) {
        registry.register("llm_requests", "Requests answered by a model", self.requests.clone());
        registry.register(
            "llm_ttft_seconds",
            "Time from acceptance to the first byte of the answer",
            self.ttft.clone(),
        );
        registry.register("llm_itl_seconds", "Time between two reads of a stream", self.itl.clone());
        registry.register("llm_input_tokens", "Prompt tokens charged", self.input_tokens.clone());
        registry.register("llm_output_tokens", "Output tokens charged", self.output_tokens.clone());
    }

    fn register_gate(&self, registry: &mut Registry) {
        let gate = registry.sub_registry_with_prefix("tidegate");
        gate.register("faults", "Refusals and failures by kind", self.faults.clone());
        gate.register("limit_refusals", "Refusals by limit", self.limits.clone());
        gate.register("requests", "Accepted requests by route", self.endpoints.clone());
        gate.register("accepted", "Accepted requests: one ledger entry each", self.accepted.clone());
        gate.register("malformed", "Requests refused before a credential was looked at", self.malformed.clone());
        gate.register("disconnects", "Callers that left before the end", self.disconnects.clone());
        gate.register("retries", "Attempts repeated on another replica or alias", self.retries.clone());
        gate.register("over_estimate", "Answers that used more than was reserved", self.over_estimate.clone());
        gate.register("estimated_entries", "Ledger entries whose counts are estimates", self.estimated.clone());
        gate.register("charged_tokens", "Tokens charged", self.charged_tokens.clone());
        gate.register("requests_in_flight", "Requests in flight", self.in_flight.clone());
        gate.register("connections", "Open connections", self.connections.clone());
        gate.register("queue_seconds", "Time from acceptance to the upstream call", self.queue.clone());
        gate.register("stream_seconds", "Time from acceptance to the end of a stream", self.stream.clone());
        gate.register("duration_seconds", "Time from acceptance to the end", self.duration.clone());
    }

    /// Handles for one deployment.
    #[must_use]
    pub fn model(&self, labels: &ModelLabels) -> ModelMetrics {
        ModelMetrics {
            requests: self.requests.get_or_create_owned(labels),
            ttft: self.ttft.get_or_create_owned(labels),
            itl: self.itl.get_or_create_owned(labels),
            input_tokens: self.input_tokens.get_or_create_owned(labels),
            output_tokens: self.output_tokens.get_or_create_owned(labels),
        }
    }

    /// Counts a fault.
    pub fn fault(&self, kind: FaultKind) {
        self.faults.get_or_create(&FaultLabels { kind: KindLabel(kind) }).inc();
    }

    /// Counts a limit's refusal.
    pub fn limit(&self, level: Level, dimension: Dimension) {
        self.limits.get_or_create(&limit_labels(level, dimension)).inc();
    }

    /// Counts an accepted request by its route; `None` is a path that does not exist.
    pub fn route(&self, endpoint: Option<Endpoint>) {
        let other = ROUTES - 1;
        let index = endpoint.and_then(|endpoint| Endpoint::ALL.iter().position(|known| *known == endpoint));
        self.routes[index.unwrap_or(other)].inc();
    }
}

const fn limit_labels(level: Level, dimension: Dimension) -> LimitLabels {
    LimitLabels { level: level.as_str(), dimension: dimension.as_str() }
}
