//! What the request path reads: the checked site and where the controller sends each alias, compiled. Immutable;
//! replaced whole, so that one request sees one state.
//!
//! An alias with a route goes where the route says, whatever the documents say by now: a reload moves no alias by
//! itself. One without is served as the documents say of the shift in force.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use tidegate_config::Site;
use tidegate_config::site::{Class, Deployment, DeploymentKind, MessagesApi, ShiftTargets, Target, Timeouts};
use tidegate_core::{AliasName, DeploymentName, Limits, ModelName, ShiftName, Unix};
use tidegate_engine::backend::{Backend, BackendSet, Group};
use tidegate_engine::dialect::{Dialect, Serves};
use tidegate_engine::tokenizer::Tokenizer;
use tidegate_store::store::{RouteRow, RouteTarget};
use tidegate_wire::Endpoint;

use crate::metrics::{Metrics, ModelLabels, ModelMetrics};

/// A deployment, or its replicas of one revision, as the request path sees it.
#[derive(Debug)]
pub struct DeploymentView {
    /// Its name.
    pub name: DeploymentName,
    /// The revision of its replicas; `None`: all of them.
    pub revision: Option<u64>,
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

/// A time in which a present alias has no deployment of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Its expected end, if that is known.
    pub until: Option<Unix>,
}

/// An alias as it is served now.
#[derive(Debug)]
pub struct AliasView {
    /// Its name.
    pub name: AliasName,
    /// Served by these, or absent when empty.
    pub targets: Vec<TargetView>,
    /// The alias that serves while this one is absent.
    pub substitute: Option<AliasName>,
    /// Set while it is present, but nothing of it is loaded.
    pub gap: Option<Gap>,
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

/// The site as it is served now.
#[derive(Debug)]
pub struct Catalogue {
    /// The checked documents.
    pub site: Arc<Site>,
    /// The shift of aliases without a route.
    pub shift: ShiftName,
    /// Differs from that of every other catalogue of the process.
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
    /// The shift of aliases without a route.
    pub shift: ShiftName,
    /// Higher than that of the catalogue before.
    pub generation: u64,
    /// Seconds since 1970.
    pub created: i64,
    /// Replicas of each deployment, the same objects over reloads.
    pub backends: &'a BackendSet,
    /// Where the controller sends aliases.
    pub routes: &'a BTreeMap<AliasName, RouteRow>,
    /// Tokenizers of the models that have one.
    pub tokenizers: &'a BTreeMap<ModelName, Arc<Tokenizer>>,
    /// Where requests are counted.
    pub metrics: &'a Metrics,
}

impl Catalogue {
    /// Compiles site and routes.
    #[must_use]
    pub fn new(site: Arc<Site>, parts: &Parts<'_>) -> Self {
        let mut compiler = Compiler { site: &site, parts, views: BTreeMap::new() };
        let deployments: BTreeMap<_, _> =
            site.deployments.keys().filter_map(|name| Some((name.clone(), compiler.view(name, Part::All)?))).collect();
        let aliases = site.aliases.keys().map(|name| (name.clone(), Arc::new(compiler.alias(name)))).collect();
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

/// Which replicas of a deployment are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// All.
    All,
    /// Those of one revision.
    Revision(u64),
    /// None: it is not loaded, only what it would be is known.
    Nothing,
}

/// Makes one view of whatever is meant more than once.
struct Compiler<'a> {
    site: &'a Site,
    parts: &'a Parts<'a>,
    views: BTreeMap<(DeploymentName, Part), Option<Arc<DeploymentView>>>,
}

impl Compiler<'_> {
    /// A deployment; `None` when neither the documents nor its replicas say what it is.
    fn view(&mut self, name: &DeploymentName, part: Part) -> Option<Arc<DeploymentView>> {
        if let Some(known) = self.views.get(&(name.clone(), part)) {
            return known.clone();
        }
        let made = self.make(name, part).map(Arc::new);
        self.views.insert((name.clone(), part), made.clone());
        made
    }

    fn make(&self, name: &DeploymentName, part: Part) -> Option<DeploymentView> {
        let Parts { backends, tokenizers, metrics, .. } = self.parts;
        let group = match part {
            Part::Revision(revision) => backends.group(name, revision),
            Part::All | Part::Nothing => None,
        };
        let made = group.and_then(|group| group.made.as_ref());
        // Of replicas that still run from earlier documents, those count.
        let document: &Deployment = match made {
            Some(made) => &made.document,
            None => self.site.deployments.get(name)?,
        };
        let model = self.site.models.get(&document.model)?;
        let labels = ModelLabels {
            model: document.model.to_string(),
            precision: model.precision.to_string(),
            tp: document.parallel.tp,
        };
        Some(DeploymentView {
            name: name.clone(),
            revision: match part {
                Part::Revision(revision) => Some(revision),
                Part::All | Part::Nothing => None,
            },
            model: document.model.clone(),
            kind: document.kind,
            dialect: made.map_or_else(|| model.dialect.into(), |made| made.dialect),
            messages: model.messages,
            served_name: Arc::clone(&document.served_name),
            context_tokens: document.context_tokens,
            max_output_tokens: document.max_output_tokens,
            image_tokens: model.image_tokens,
            backends: match part {
                Part::All => backends.all(name).cloned().collect(),
                Part::Revision(_) => group.map(|group: &Group| group.backends.clone()).unwrap_or_default(),
                Part::Nothing => Vec::new(),
            },
            tokenizer: tokenizers.get(&document.model).cloned(),
            metrics: metrics.model(&labels),
        })
    }

    fn alias(&mut self, name: &AliasName) -> AliasView {
        let document = &self.site.aliases[name];
        let route = self.parts.routes.get(name);
        let shift = route.map_or(&self.parts.shift, |route| &route.shift);
        let (declared, substitute) = match document.shifts.get(shift) {
            Some(ShiftTargets::Targets(targets)) => (targets.as_slice(), None),
            Some(ShiftTargets::Absent { substitute }) => (&[][..], substitute.clone()),
            None => (&[][..], None),
        };
        let mut gap = None;
        let mut targets = match route {
            Some(route) => self.routed(&route.targets),
            None => self.declared(declared, Part::All),
        };
        if let Some(route) = route.filter(|_| targets.is_empty()) {
            // What its limits and checks go by is what it will be.
            targets = self.declared(declared, Part::Nothing);
            gap = (!targets.is_empty()).then_some(Gap { until: route.until });
        }
        AliasView {
            name: name.clone(),
            targets,
            substitute,
            gap,
            class: document.class,
            limits: document.limits_in(shift),
            fallback: document.fallback.clone(),
            timeouts: document.timeouts,
            media_hosts: document.media_hosts.clone(),
        }
    }

    fn routed(&mut self, targets: &[RouteTarget]) -> Vec<TargetView> {
        let view = |target: &RouteTarget| {
            let part = target.revision.map_or(Part::All, Part::Revision);
            Some(TargetView { weight: target.weight, deployment: self.view(&target.deployment, part)? })
        };
        targets.iter().filter_map(view).collect()
    }

    fn declared(&mut self, targets: &[Target], part: Part) -> Vec<TargetView> {
        let view = |target: &Target| {
            Some(TargetView { weight: target.weight, deployment: self.view(&target.deployment, part)? })
        };
        targets.iter().filter_map(view).collect()
    }
}
