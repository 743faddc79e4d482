//! Which replicas a site wants, and how each is reached or started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_config::Site;
use tidegate_config::site::{Deployment, DeploymentKind, Engine, ModelSource, SecretRef, Serve};
use tidegate_core::{DeploymentName, ReplicaId};
use tidegate_engine::Dialect;

/// Why a replica cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// The weights are in a model store that this process does not know.
    #[error("model {0} comes from a model store, and Site.spec.modelStore named none when this process started")]
    NoStore(Box<str>),
    /// Nothing says where the weights are.
    #[error("model {0} has no source: write {{local: FOLDER}} or {{path: FAMILY/VERSION}}")]
    NoSource(Box<str>),
    /// The model's file is not there.
    #[error("model files: {0}")]
    ModelFile(Box<str>),
    /// No port of the range is free.
    #[error("no port of enginePorts is free")]
    NoPort,
    /// A secret that the documents name is not there.
    #[error("{0}")]
    Secret(Box<str>),
    /// The engine's address cannot be used.
    #[error("{0}")]
    Address(Box<str>),
}

/// How a replica is had.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    /// Run by somebody else.
    External { url: Arc<str>, api_key: Option<SecretRef> },
    /// Started by us.
    Launched(Box<Launch>),
}

/// What a start needs. Equal launches need no restart.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) engine: Option<Engine>,
    pub(crate) deployment: Deployment,
    pub(crate) model: Option<ModelSource>,
}

impl PartialEq for Launch {
    fn eq(&self, other: &Self) -> bool {
        let command = |launch: &Self| match &launch.deployment.serve {
            Serve::Launch { replicas: _, command, env } => (command.clone(), env.clone()),
            Serve::Endpoints(_) => (Vec::new(), BTreeMap::new()),
        };
        let engine = |launch: &Self| launch.engine.as_ref().map(|engine| (engine.command.clone(), engine.env.clone()));
        let limits = |launch: &Self| {
            let deployment = &launch.deployment;
            (deployment.context_tokens, deployment.parallel, deployment.memory, deployment.profile.capacity)
        };
        self.model == other.model
            && self.deployment.engine_args == other.deployment.engine_args
            && command(self) == command(other)
            && engine(self) == engine(other)
            && limits(self) == limits(other)
    }
}

/// One wanted replica.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) id: ReplicaId,
    pub(crate) deployment: DeploymentName,
    pub(crate) dialect: Dialect,
    pub(crate) kind: DeploymentKind,
    pub(crate) served_name: Arc<str>,
    pub(crate) source: Source,
}

impl Member {
    /// Whether a replica that runs as `self` is what `wanted` wants. An engine of somebody else is the same wherever
    /// it stands in the list; one of ours by its number.
    pub(crate) fn is(&self, wanted: &Self) -> bool {
        let ours = matches!(self.source, Source::Launched(_));
        (!ours || self.id == wanted.id)
            && self.deployment == wanted.deployment
            && self.dialect == wanted.dialect
            && self.kind == wanted.kind
            && self.served_name == wanted.served_name
            && self.source == wanted.source
    }
}

/// All replicas that a site wants, by deployment.
pub(crate) fn members(site: &Site) -> Vec<Member> {
    site.deployments.iter().flat_map(|(name, deployment)| of_deployment(site, name, deployment)).collect()
}

fn of_deployment<'a>(site: &'a Site, name: &'a DeploymentName, deployment: &'a Deployment) -> Vec<Member> {
    let model = &site.models[&deployment.model];
    let member = |index: usize, source| Member {
        id: ReplicaId::from(format!("{name}/{index}")),
        deployment: name.clone(),
        dialect: model.dialect.into(),
        kind: deployment.kind,
        served_name: Arc::clone(&deployment.served_name),
        source,
    };
    match &deployment.serve {
        Serve::Endpoints(endpoints) => endpoints
            .iter()
            .enumerate()
            .map(|(index, endpoint)| {
                let (url, api_key) = (Arc::clone(&endpoint.url), endpoint.api_key.clone());
                member(index, Source::External { url, api_key })
            })
            .collect(),
        Serve::Launch { replicas, .. } => (0..*replicas as usize)
            .map(|index| {
                let engine = site.engines.get(&model.engine).cloned();
                let launch = Launch { engine, deployment: deployment.clone(), model: model.source.clone() };
                member(index, Source::Launched(Box::new(launch)))
            })
            .collect(),
    }
}

/// What an engine is given of a model's folder or file.
pub(crate) fn model_path(path: &Path, dialect: Dialect) -> Result<PathBuf, MemberError> {
    match dialect {
        Dialect::LlamaCpp => tidegate_engine::launch::model_file(path)
            .map_err(|error| MemberError::ModelFile(format!("{}: {error}", path.display()).into())),
        Dialect::Vllm => Ok(path.to_owned()),
    }
}
