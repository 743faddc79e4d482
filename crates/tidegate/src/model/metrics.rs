//! The cache's metrics.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tidegate_modelcache::counters::Counters;

use super::owner::Models;

/// Reads the cache when somebody scrapes.
#[derive(Debug)]
pub(crate) struct CacheCollector(pub(crate) Arc<Models>);

/// Where wrong bytes were.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Where {
    place: &'static str,
}

fn counters(own: &Counters) -> [(&'static str, &'static str, u64); 9] {
    [
        ("fetch_bytes", "Bytes of models that the store sent", own.fetch_bytes.get()),
        ("hits", "Requests for a model that was here whole", own.hits.get()),
        ("misses", "Requests for a model that had to be fetched", own.misses.get()),
        ("evictions", "Models removed to make room", own.evictions.get()),
        ("evicted_bytes", "Bytes freed by that", own.evicted_bytes.get()),
        ("retries", "Requests to the store that were tried again", own.retries.get()),
        ("failures", "Fetches that ended with a fault", own.failures.get()),
        ("artifact_hits", "Compile caches that were here before a load", own.artifact_hits.get()),
        ("artifact_misses", "Loads for which there was no compile cache", own.artifact_misses.get()),
    ]
}

impl Collector for CacheCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let keeper = self.0.keeper();
        let mut gauge = |name: &str, help: &str, value: f64| {
            let name = format!("tidegate_model_cache_{name}");
            ConstGauge::new(value).encode(encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?)
        };
        gauge("owned", "1 when this process is the cache's owner, else 0", f64::from(u8::from(keeper.is_some())))?;
        if let Some(disk) = self.0.disk() {
            gauge("free_bytes", "Bytes that are free on the cache's disk", disk.free_bytes as f64)?;
            gauge("size_bytes", "Size of the cache's disk", disk.total_bytes as f64)?;
        }
        let Some(keeper) = keeper else { return Ok(()) };
        gauge(
            "fetch_rate_bytes_per_second",
            "Rate of the fetches that run, all together",
            keeper.rates.total() as f64,
        )?;
        let own = keeper.cache.counters();
        for (name, help, value) in counters(own) {
            let name = format!("tidegate_model_cache_{name}");
            ConstCounter::new(value).encode(encoder.encode_descriptor(&name, help, None, MetricType::Counter)?)?;
        }
        let seconds = own.fetch_ms.get() as f64 / 1_000.0;
        let (name, help) = ("tidegate_model_cache_fetch_seconds", "Time that fetches ran, summed over all");
        ConstCounter::new(seconds).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        let (name, help) = ("tidegate_model_cache_checksum_failures", "Chunks that were not what the manifest says");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (place, failures) in [("store", &own.checksum_failures_store), ("disk", &own.checksum_failures_disk)] {
            ConstCounter::new(failures.get()).encode(family.encode_family(&Where { place })?)?;
        }
        Ok(())
    }
}
