//! What the running process says of itself to the admin API.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use parking_lot::Mutex;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tidegate_config::site::{Deployment, Serve};
use tidegate_console::lifecycle::{Accepted, Ask, LifecycleStatus, Refused};
use tidegate_console::{Panel, Readiness};
use tidegate_controller::controller::ControllerHandle;
use tidegate_controller::externals::Externals;
use tidegate_core::{ShiftName, TeamName};
use tidegate_engine::backend::Backend;
use tidegate_gateway::Shared;
use tidegate_routing::ReplicaState;
use tidegate_store::{Journals, LedgerWriter};

use crate::lifecycle::{self, replicas};
use crate::model::Models;

/// How long a settled request may stay in a core's buffer before its tick writes it.
const TICK_AND_A_BIT: Duration = Duration::from_millis(40);

/// How the last load of the documents went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Documents {
    /// Grows with every load that was taken.
    pub(crate) generation: u64,
    /// When that was.
    pub(crate) loaded_at: jiff::Timestamp,
    /// Why what is on disk now is not in force, if it is not.
    pub(crate) refused: Option<String>,
}

/// The running process.
pub(crate) struct Desk {
    pub(crate) shared: Arc<Shared>,
    pub(crate) lifecycle: ControllerHandle,
    pub(crate) externals: Arc<Externals>,
    pub(crate) registry: Registry,
    pub(crate) writer: Arc<LedgerWriter>,
    pub(crate) journals: Arc<Journals>,
    pub(crate) documents: Arc<Mutex<Documents>>,
    pub(crate) gate: String,
    pub(crate) started: jiff::Timestamp,
    pub(crate) models: Option<Arc<Models>>,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl Desk {
    fn shift(&self) -> Value {
        let status = self.lifecycle.status();
        let name = self.shared.catalogue.load().shift.clone();
        match status.said.as_ref().filter(|said| said.shift == name) {
            Some(said) => json!({"name": name, "source": "set", "by": said.who, "at": said.made.to_string()}),
            None => json!({"name": name, "source": "schedule"}),
        }
    }

    /// Whether somebody serves, or nobody is to.
    /// Whether a caller of some alias would find a replica by the way that requests take, or none is to be found now.
    fn serves(&self) -> bool {
        let catalogue = self.shared.catalogue.load();
        let is_serving = |backend: &Arc<Backend>| backend.replica().state() == ReplicaState::Serving;
        let mut targets = catalogue.aliases.values().flat_map(|alias| &alias.targets);
        if targets.any(|target| target.deployment.backends.iter().any(is_serving)) {
            return true;
        }
        let wanted = tidegate_planner::desired::set_of(&catalogue.site, &catalogue.shift);
        !wanted.iter().filter_map(|name| catalogue.site.deployments.get(name)).any(has_replicas)
    }

    fn aliases(&self) -> Value {
        let catalogue = self.shared.catalogue.load();
        let mut names: Vec<_> = catalogue.aliases.values().collect();
        names.sort_by(|a, b| a.name.cmp(&b.name));
        names
            .into_iter()
            .map(|alias| {
                let targets: Vec<_> = alias
                    .targets
                    .iter()
                    .map(|target| json!({"deployment": target.deployment.name, "weight": target.weight}))
                    .collect();
                json!({
                    "alias": alias.name, "class": alias.class.as_str(), "targets": targets,
                    "absent": alias.is_absent(), "substitute": alias.substitute, "fallback": alias.fallback,
                    "contextTokens": alias.context(), "maxOutputTokens": alias.max_output(), "limits": alias.limits,
                })
            })
            .collect()
    }
}

fn has_replicas(deployment: &Deployment) -> bool {
    match &deployment.serve {
        Serve::Launch { replicas, .. } => *replicas > 0,
        Serve::Endpoints(endpoints) => !endpoints.is_empty(),
    }
}

impl Panel for Desk {
    fn readiness(&self) -> Readiness {
        let mut waiting_for = Vec::new();
        if self.shared.draining.load(std::sync::atomic::Ordering::Relaxed) {
            waiting_for.push("the gate is draining".to_owned());
        }
        if !self.serves() {
            waiting_for.push("no alias is served yet".to_owned());
        }
        if self.journals.is_pressed() {
            waiting_for.push("the journal is nearly full or cannot be written".to_owned());
        }
        Readiness { ready: waiting_for.is_empty(), waiting_for }
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        let lifecycle = crate::lifecycle_metrics::registry(self.lifecycle());
        // Writing to a String does not fail.
        let _ = text::encode_registry(&mut text, &self.registry)
            .and_then(|()| text::encode_registry(&mut text, &lifecycle))
            .and_then(|()| text::encode_eof(&mut text));
        text
    }

    fn status(&self) -> Value {
        let catalogue = self.shared.catalogue.load();
        let documents = self.documents.lock().clone();
        let (writer, journal) = (self.writer.status(), self.journals.status());
        json!({
            "site": catalogue.site.name,
            "version": env!("CARGO_PKG_VERSION"),
            "started": self.started.to_string(),
            "gate": self.gate,
            "inFlight": self.shared.metrics.in_flight.get(),
            "shift": self.shift(),
            "documents": {
                "generation": documents.generation,
                "loadedAt": documents.loaded_at.to_string(),
                "refused": documents.refused,
            },
            "replicas": replicas(&self.lifecycle.status(), &self.externals),
            "aliases": self.aliases(),
            "modelCache": self.models.as_ref().map(|models| models.status()),
            "keys": self.shared.keyring.load().len(),
            "ledger": {
                "entries": writer.inserted, "failures": writer.failures, "failing": writer.failing,
                "journalWaitingBytes": journal.waiting_bytes, "journalFailing": journal.failing,
            },
        })
    }

    fn has_team(&self, team: &TeamName) -> bool {
        self.shared.catalogue.load().site.teams.contains_key(team)
    }

    fn shifts(&self) -> Vec<ShiftName> {
        self.shared.catalogue.load().site.shifts().into_iter().collect()
    }

    fn time_zone(&self) -> TimeZone {
        self.shared.catalogue.load().site.time_zone.clone()
    }

    fn has_schedule(&self) -> bool {
        !self.shared.catalogue.load().site.schedules.is_empty()
    }

    fn lifecycle(&self) -> Option<LifecycleStatus> {
        let zone = self.time_zone();
        Some(lifecycle::lifecycle(&self.lifecycle.status(), zone.iana_name().unwrap_or("UTC")))
    }

    fn ask<'a>(
        &'a self,
        ask: Ask,
        who: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<Accepted, Refused>> + Send + 'a>> {
        Box::pin(lifecycle::asked(self.lifecycle.clone(), ask, who.to_owned()))
    }

    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            tokio::time::sleep(TICK_AND_A_BIT).await;
            if let Err(error) = self.writer.drain().await {
                tracing::warn!(error, "usage is shown without what waits in the journal");
            }
        })
    }
}
