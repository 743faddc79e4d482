//! What the request path reads: the checked site, compiled for one shift. Immutable; replaced whole on reload, so that
//! one request sees one state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use tidegate_config::Site;
use tidegate_config::site::{Class, DeploymentKind, MessagesApi, ShiftTargets, Timeouts};
use tidegate_core::{AliasName, DeploymentName, Limits, ModelName, ShiftName};
use tidegate_engine::backend::Backend;
use tidegate_engine::dialect::{Dialect, Serves};
use tidegate_engine::tokenizer::Tokenizer;
use tidegate_wire::Endpoint;

use crate::metrics::{Metrics, ModelLabels, ModelMetrics};

/// A deployment as the request path sees it.
#[derive(Debug)]
pub struct DeploymentView {
    /// Its name.
    pub name: DeploymentName,
    /// The model it serves.
    pub model: ModelName,
    /// What it does.
    pub kind: DeploymentKind,
    /// How its engine behaves.
    pub dialect: Dialect,
    /// How its engine is asked on `/v1/messages`.
    pub messages: MessagesApi,
    /// The name its engine knows it by.
    pub served_name: Arc<str>,
    /// Context window from the documents.
    pub context_tokens: Option<u64>,
    /// Largest output from the documents.
    pub max_output_tokens: Option<u64>,
    /// Tokens that one image counts as.
    pub image_tokens: u64,
    /// Its replicas.
    pub backends: Vec<Arc<Backend>>,
    /// Its tokenizer, if its folder holds one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Its metric handles.
    pub metrics: ModelMetrics,
}

impl DeploymentView {
    /// How its engine is asked on an endpoint.
    #[must_use]
    pub const fn serves(&self, endpoint: Endpoint) -> Serves {
        self.dialect.serves(endpoint, self.kind, self.messages)
    }

    /// Context window: the document's, else the smallest that a replica reported.
    #[must_use]
    pub fn context(&self) -> Option<u64> {
        self.context_tokens.or_else(|| self.backends.iter().filter_map(|backend| backend.context_tokens()).min())
    }
}

/// One target of an alias.
#[derive(Clone, Debug)]
pub struct TargetView {
    /// Share of the traffic.
    pub weight: u32,
    /// The deployment.
    pub deployment: Arc<DeploymentView>,
}

/// An alias in the shift in force.
#[derive(Debug)]
pub struct AliasView {
    /// Its name.
    pub name: AliasName,
    /// Served by these, or absent when empty.
    pub targets: Vec<TargetView>,
    /// The alias that serves while this one is absent.
    pub substitute: Option<AliasName>,
    /// Service class.
    pub class: Class,
    /// Limits for everybody together.
    pub limits: Limits,
    /// Tried in this order when it cannot serve.
    pub fallback: Vec<AliasName>,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// Hosts from which media may be fetched.
    pub media_hosts: std::collections::BTreeSet<Arc<str>>,
}

impl AliasView {
    /// Context window: the smallest over the targets.
    #[must_use]
    pub fn context(&self) -> Option<u64> {
        self.targets.iter().filter_map(|target| target.deployment.context()).min()
    }

    /// Largest output: the smallest over the targets.
    #[must_use]
    pub fn max_output(&self) -> Option<u64> {
        self.targets.iter().filter_map(|target| target.deployment.max_output_tokens).min()
    }

    /// Tokens of one image: the largest over the targets.
    #[must_use]
    pub fn image_tokens(&self) -> u64 {
        self.targets.iter().map(|target| target.deployment.image_tokens).max().unwrap_or(0)
    }

    /// Whether it is absent in the shift in force.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.targets.is_empty()
    }
}

/// The site in one shift.
#[derive(Debug)]
pub struct Catalogue {
    /// The checked documents.
    pub site: Arc<Site>,
    /// The shift in force.
    pub shift: ShiftName,
    /// Grows with every reload.
    pub generation: u64,
    /// When it was made, seconds since 1970: what `/v1/models` calls `created`.
    pub created: i64,
    /// Aliases by name.
    pub aliases: AHashMap<AliasName, Arc<AliasView>>,
    /// Deployments by name.
    pub deployments: BTreeMap<DeploymentName, Arc<DeploymentView>>,
}

/// What is needed besides the site to compile it.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The shift in force.
    pub shift: ShiftName,
    /// Grows with every reload.
    pub generation: u64,
    /// Seconds since 1970.
    pub created: i64,
    /// Replicas of each deployment, the same objects over reloads.
    pub backends: &'a BTreeMap<DeploymentName, Vec<Arc<Backend>>>,
    /// Tokenizers of the models that have one.
    pub tokenizers: &'a BTreeMap<ModelName, Arc<Tokenizer>>,
    /// Where requests are counted.
    pub metrics: &'a Metrics,
}

impl Catalogue {
    /// Compiles the site for one shift.
    #[must_use]
    pub fn new(site: Arc<Site>, parts: &Parts<'_>) -> Self {
        let deployments: BTreeMap<_, _> =
            site.deployments.keys().map(|name| (name.clone(), Arc::new(deployment(&site, name, parts)))).collect();
        let aliases =
            site.aliases.keys().map(|name| (name.clone(), Arc::new(alias(&site, name, &deployments, parts)))).collect();
        Self {
            shift: parts.shift.clone(),
            generation: parts.generation,
            created: parts.created,
            site,
            aliases,
            deployments,
        }
    }

    /// How long until the next start of a shift in which the alias is present; `None` without a Schedule that says so.
    #[must_use]
    pub fn back_in(&self, alias: &AliasName, now: jiff::Timestamp) -> Option<(Duration, jiff::Zoned)> {
        crate::shifts::next_presence(&self.site, alias, now)
    }
}

fn deployment(site: &Site, name: &DeploymentName, parts: &Parts<'_>) -> DeploymentView {
    let document = &site.deployments[name];
    let model = &site.models[&document.model];
    let labels = ModelLabels {
        model: document.model.to_string(),
        precision: model.precision.to_string(),
        tp: document.parallel.tp,
    };
    DeploymentView {
        name: name.clone(),
        model: document.model.clone(),
        kind: document.kind,
        dialect: model.dialect.into(),
        messages: model.messages,
        served_name: Arc::clone(&document.served_name),
        context_tokens: document.context_tokens,
        max_output_tokens: document.max_output_tokens,
        image_tokens: model.image_tokens,
        backends: parts.backends.get(name).cloned().unwrap_or_default(),
        tokenizer: parts.tokenizers.get(&document.model).cloned(),
        metrics: parts.metrics.model(&labels),
    }
}

fn alias(
    site: &Site,
    name: &AliasName,
    deployments: &BTreeMap<DeploymentName, Arc<DeploymentView>>,
    parts: &Parts<'_>,
) -> AliasView {
    let document = &site.aliases[name];
    let (targets, substitute) = match document.shifts.get(&parts.shift) {
        Some(ShiftTargets::Targets(targets)) => (targets.as_slice(), None),
        Some(ShiftTargets::Absent { substitute }) => (&[][..], substitute.clone()),
        None => (&[][..], None),
    };
    let targets = targets
        .iter()
        .map(|target| TargetView { weight: target.weight, deployment: Arc::clone(&deployments[&target.deployment]) })
        .collect();
    AliasView {
        name: name.clone(),
        targets,
        substitute,
        class: document.class,
        limits: document.limits_in(&parts.shift),
        fallback: document.fallback.clone(),
        timeouts: document.timeouts,
        media_hosts: document.media_hosts.clone(),
    }
}
