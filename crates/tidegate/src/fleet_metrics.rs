//! Gauges that are read when somebody scrapes: load of the engines, ledger and journal.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tidegate_gateway::Shared;
use tidegate_gateway::metrics::ModelLabels;
use tidegate_store::{Journals, LedgerWriter};
use tokio::time::Instant;

/// Reads the fleet through the catalogue in force, so that labels are the documents' own.
#[derive(Debug)]
pub(crate) struct FleetCollector(pub(crate) Arc<Shared>);

/// How a gauge is read; `None` leaves the series out.
type Read = fn(&Load) -> Option<f64>;

#[derive(Default)]
struct Load {
    active: i64,
    waiting: Option<f64>,
    kv_usage: Option<f64>,
    serving: i64,
    replicas: i64,
}

impl FleetCollector {
    fn loads(&self) -> BTreeMap<(String, String, u32), Load> {
        let catalogue = self.0.catalogue.load();
        let now = Instant::now();
        let mut loads = BTreeMap::<_, Load>::new();
        for (name, deployment) in &catalogue.deployments {
            let document = &catalogue.site.deployments[name];
            let precision = catalogue.site.models[&document.model].precision.to_string();
            let load = loads.entry((deployment.model.to_string(), precision, document.tp())).or_default();
            for backend in &deployment.backends {
                let signals = backend.signals(now).unwrap_or_default();
                load.active += i64::from(backend.replica().booked());
                load.replicas += 1;
                load.serving += i64::from(backend.replica().state() == tidegate_routing::ReplicaState::Serving);
                // Absent stays absent: one replica that says nothing is not a replica that has nothing.
                load.waiting = signals.waiting.map(|waiting| load.waiting.unwrap_or(0.0) + waiting).or(load.waiting);
                load.kv_usage = signals.kv_usage.map(|usage| load.kv_usage.unwrap_or(0.0).max(usage)).or(load.kv_usage);
            }
        }
        loads
    }
}

impl Collector for FleetCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let loads: Vec<_> = self
            .loads()
            .into_iter()
            .map(|((model, precision, tp), load)| (ModelLabels { model, precision, tp }, load))
            .collect();
        let families: [(&str, &str, Read); 5] = [
            ("llm_active_requests", "Requests that replicas have of us", |load| Some(load.active as f64)),
            ("llm_queue_depth", "Requests that wait in engines", |load| load.waiting),
            ("llm_kv_cache_usage_ratio", "KV cache in use, the fullest replica", |load| load.kv_usage),
            ("tidegate_replicas", "Replicas that the documents want", |load| Some(load.replicas as f64)),
            ("tidegate_replicas_serving", "Replicas that serve", |load| Some(load.serving as f64)),
        ];
        for (name, help, value) in families {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, load) in &loads {
                let Some(value) = value(load) else { continue };
                ConstGauge::new(value).encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

/// Reads journals and ledger writer.
pub(crate) struct LedgerCollector {
    pub(crate) journals: Arc<Journals>,
    pub(crate) writer: Arc<LedgerWriter>,
}

impl fmt::Debug for LedgerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LedgerCollector")
    }
}

impl Collector for LedgerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (journal, writer) = (self.journals.status(), self.writer.status());
        let counters = [
            ("tidegate_ledger_entries", "Entries brought into the store", writer.inserted),
            ("tidegate_ledger_failures", "Failures of the store", writer.failures),
            ("tidegate_journal_written_bytes", "Bytes written to the journal", journal.written_bytes),
            ("tidegate_journal_write_failures", "Writes to the journal that failed", journal.write_failures),
            (
                "tidegate_journal_dropped_entries",
                "Uncharged entries given up for want of disk",
                journal.dropped_entries,
            ),
        ];
        for (name, help, value) in counters {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        let waiting = encoder.encode_descriptor(
            "tidegate_journal_waiting_bytes",
            "Bytes in the journal that wait for the store",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(journal.waiting_bytes as f64).encode(waiting)
    }
}

/// Whether the documents on disk are the ones in force.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReloadLabels {
    /// `ok` or `refused`.
    pub(crate) outcome: &'static str,
}
