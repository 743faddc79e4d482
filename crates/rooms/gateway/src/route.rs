//! Fifth room: alias to deployment, by weight; then along the alias's fallback chain.
//!
//! One attempt budget covers everything: replicas of one deployment, other deployments of the alias, fallbacks.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{AliasName, Case, DeploymentName, Fault, Unix};
use tidegate_engine::dialect::Serves;
use tidegate_routing::target::choose;

use crate::account::Tail;
use crate::admit::{self, Ticket};
use crate::authorise;
use crate::catalogue::{AliasView, DeploymentView};

/// How often a request looks whether its alias has moved. Each look follows a change of the catalogue.
const LOOKS_MAX: u8 = 4;
/// What `Retry-After` says when no replica serves and nobody knows when one will.
const UNAVAILABLE_RETRY: Duration = Duration::from_secs(5);

/// Where the request goes.
#[derive(Debug)]
pub(crate) enum Target {
    /// To an engine.
    Engine(Arc<DeploymentView>),
    /// To none: what no engine of the alias can do is done at the gate.
    Gate,
}

/// What was tried so far.
#[derive(Debug)]
pub(crate) struct Route {
    alias: Arc<AliasView>,
    fallbacks: VecDeque<AliasName>,
    tried: Vec<(Replicas, Vec<usize>)>,
    exhausted: Vec<Replicas>,
    attempts_left: u32,
    fault: Option<Fault>,
    /// The end of the gap that the alias is in which was asked for.
    back_at: Option<Unix>,
    /// How often it was looked whether the alias has moved.
    looks: u8,
}

/// Replicas that are tried one after the other: of a deployment, or of one revision of it.
type Replicas = (DeploymentName, Option<u64>);

fn replicas_of(deployment: &DeploymentView) -> Replicas {
    (deployment.name.clone(), deployment.revision)
}

impl Route {
    /// The route of a ticket.
    pub(crate) fn new(ticket: &Ticket) -> Self {
        let alias = Arc::clone(&ticket.grant.alias);
        Self {
            fallbacks: alias.fallback.iter().cloned().collect(),
            attempts_left: alias.timeouts.attempts.max(1),
            back_at: alias.gap.and_then(|gap| gap.until),
            alias,
            looks: 0,
            tried: Vec::new(),
            exhausted: Vec::new(),
            fault: None,
        }
    }

    /// The alias that serves now.
    pub(crate) fn alias(&self) -> &Arc<AliasView> {
        &self.alias
    }

    /// Replicas of a deployment that were tried.
    pub(crate) fn tried(&self, deployment: &DeploymentView) -> &[usize] {
        self.tried.iter().find(|(of, _)| is_of(of, deployment)).map_or(&[], |(_, tried)| tried)
    }

    /// Takes note of a replica that is tried now.
    pub(crate) fn try_replica(&mut self, deployment: &DeploymentView, index: usize) {
        match self.tried.iter_mut().find(|(of, _)| is_of(of, deployment)) {
            Some((_, tried)) => tried.push(index),
            None => self.tried.push((replicas_of(deployment), vec![index])),
        }
    }

    /// No replica of this deployment is left.
    pub(crate) fn exhausted(&mut self, deployment: &DeploymentView) {
        self.exhausted.push(replicas_of(deployment));
    }

    fn is_exhausted(&self, deployment: &DeploymentView) -> bool {
        self.exhausted.iter().any(|of| is_of(of, deployment))
    }

    /// An attempt failed; the last failure that says more than "none left" is what the caller hears.
    pub(crate) fn failed(&mut self, fault: Fault) {
        if self.fault.is_none() || fault.case != Case::ModelUnavailable {
            self.fault = Some(fault);
        }
    }

    /// One attempt is made now.
    pub(crate) const fn spend(&mut self) {
        self.attempts_left = self.attempts_left.saturating_sub(1);
    }

    fn verdict(&mut self, ticket: &Ticket, now: Unix) -> Fault {
        let fault = self.fault.take().unwrap_or_else(|| Fault::new(Case::ModelUnavailable).param("model"));
        if fault.case == Case::ModelUnavailable && fault.retry_after.is_none() {
            let Some(at) = self.back_at.filter(|at| *at > now) else { return fault.retry_after(UNAVAILABLE_RETRY) };
            let zone = ticket.grant.catalogue.site.time_zone.clone();
            let instant = at.to_timestamp().to_zoned(zone).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
            let text = format!("the model is being switched; it is expected back at {instant}");
            return fault.saying(text).retry_after(at.since(now));
        }
        fault
    }
}

fn is_of(replicas: &Replicas, deployment: &DeploymentView) -> bool {
    replicas.1 == deployment.revision && replicas.0 == deployment.name
}

/// Chooses the next deployment; the gate itself, where it can do what is asked, comes after the engines of an alias.
///
/// # Errors
/// What the last attempt said, when nothing is left to try.
pub(crate) async fn route(ticket: &mut Ticket, route: &mut Route, tail: &mut Tail) -> Result<Target, Fault> {
    loop {
        if route.attempts_left > 0
            && let Some(deployment) = choose_target(ticket, route, tail)
        {
            return Ok(Target::Engine(deployment));
        }
        if route.attempts_left > 0 && follow(ticket, route, tail) {
            continue;
        }
        let endpoint = ticket.grant.endpoint;
        if route.alias.targets.iter().any(|target| target.deployment.serves(endpoint) == Serves::AtTheGate) {
            return Ok(Target::Gate);
        }
        if route.attempts_left == 0 {
            return Err(route.verdict(ticket, tail.core.wall()));
        }
        Box::pin(fall_back(ticket, route, tail)).await?;
    }
}

/// Whether the alias has moved since the request came, so that other replicas may have it: between two rooms, or while an
/// attempt ran, its old deployment may have been drained. Limits and costs stay those that were taken.
fn follow(ticket: &mut Ticket, route: &mut Route, tail: &Tail) -> bool {
    let now = tail.core.shared.catalogue.load();
    if now.generation == ticket.grant.catalogue.generation || route.looks >= LOOKS_MAX {
        return false;
    }
    let Some(alias) = now.aliases.get(&route.alias.name).filter(|alias| !alias.is_absent()) else { return false };
    route.looks += 1;
    route.alias = Arc::clone(alias);
    route.back_at = alias.gap.and_then(|gap| gap.until).or(route.back_at);
    // Their numbers are those of the catalogue before.
    route.tried.clear();
    route.exhausted.clear();
    ticket.grant.catalogue = Arc::clone(&now);
    true
}

/// A deployment of the alias whose engine speaks the endpoint and that still has a replica to try, by weight.
fn choose_target(ticket: &Ticket, route: &Route, tail: &Tail) -> Option<Arc<DeploymentView>> {
    let weights = route.alias.targets.iter().map(|target| {
        let is_asked = matches!(target.deployment.serves(ticket.grant.endpoint), Serves::Native(_) | Serves::AsChat(_));
        if !is_asked || route.is_exhausted(&target.deployment) { 0 } else { target.weight }
    });
    choose(weights, tail.core.random()).map(|index| Arc::clone(&route.alias.targets[index].deployment))
}

/// Goes to the next alias of the chain that the caller may use, that is present, and whose limits have room.
async fn fall_back(ticket: &mut Ticket, route: &mut Route, tail: &mut Tail) -> Result<(), Fault> {
    while let Some(name) = route.fallbacks.pop_front() {
        let catalogue = Arc::clone(&ticket.grant.catalogue);
        let Some(alias) = catalogue.aliases.get(&name).filter(|alias| !alias.is_absent() && alias.gap.is_none()) else {
            continue;
        };
        let Ok(standing) = authorise::standing(&tail.core, &catalogue, &ticket.grant.key, alias) else { continue };
        let may_fetch = authorise::check_hosts(&ticket.grant.request, alias).is_ok();
        if !may_fetch || !authorise::serves(alias, ticket.grant.endpoint) {
            continue;
        }
        if let Err(fault) = admit::transfer(ticket, alias, &standing, tail).await {
            route.failed(fault);
            continue;
        }
        tail.core.shared.metrics.retries.inc();
        tail.served_alias = Some(alias.name.clone());
        ticket.grant.standing = Rc::clone(&standing);
        route.alias = Arc::clone(alias);
        return Ok(());
    }
    Err(route.verdict(ticket, tail.core.wall()))
}
