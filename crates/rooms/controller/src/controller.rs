//! The controller: one task that takes turns.
//!
//! Whatever happens (a replica changed, a verb, new documents, the clock) wakes it, and one turn ([`crate::cycle`]) looks
//! at everything. It alone decides; replicas, routes and records do as they are told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tidegate_config::Site;
use tidegate_core::{AliasName, DeploymentName, ShiftName};
use tidegate_engine::backend::Backend;
use tidegate_planner::hardware::Hardware;
use tidegate_planner::plan::Known;
use tidegate_planner::{Desired, Plan, desired};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::attempts::Attempts;
use crate::care::Care;
use crate::gate::watch::{Counts, ReplicaCounts, Window};
use crate::launcher::{Blueprint, Launcher};
use crate::measuring::Measuring;
use crate::records::{RecordError, Records, Said};
use crate::replica::{Clock, Hands, ReplicaHandle};
use crate::route::{RouteActuator, RouteError, RouteRow, set_on_all};
use crate::run::Run;
use crate::sight::Eyes;
use crate::status::Status;
use crate::verbs::{Accepted, Verb, VerbError};

/// The longest time between two turns.
pub const TURN_EVERY: Duration = Duration::from_millis(500);
/// How often nodes are asked what they are.
pub(crate) const HARDWARE_EVERY: Duration = Duration::from_secs(10);
/// Questions that wait for the controller; more are refused.
const INPUTS_MAX: usize = 64;

/// What a controller works with.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Where it writes.
    pub records: Arc<dyn Records>,
    /// Who carries out routes.
    pub actuators: Vec<Arc<dyn RouteActuator>>,
    /// Who starts and stops.
    pub launcher: Arc<dyn Launcher>,
    /// Who speaks to engines.
    pub care: Arc<dyn Care>,
    /// Who counts requests; `None`: the replicas themselves, as the gate of this process has booked them.
    pub counts: Option<Arc<dyn Counts>>,
}

/// What reaches the controller from outside, and from what it has sent out.
#[derive(Debug)]
pub(crate) enum Input {
    Site(Arc<Site>),
    Verb { verb: Verb, who: Arc<str>, answer: oneshot::Sender<Result<Accepted, VerbError>> },
    Routed { row: Box<RouteRow>, answer: Result<(), RouteError> },
    Regressed { deployment: DeploymentName, why: Arc<str> },
}

/// An engine that can be asked, with what it serves.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The deployment.
    pub deployment: DeploymentName,
    /// What it was started from.
    pub revision: u64,
    /// All that it was started from.
    pub blueprint: Arc<Blueprint>,
    /// How it is asked.
    pub backend: Arc<Backend>,
}

/// What the gates need to know: who can be asked, and where aliases go.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// Engines that we started.
    pub placed: Vec<Placed>,
    /// The shift of aliases without a route of their own.
    pub shift: Option<ShiftName>,
}

/// How others reach a running controller.
#[derive(Clone, Debug)]
pub struct ControllerHandle {
    inputs: mpsc::Sender<Input>,
    status: watch::Receiver<Arc<Status>>,
    traffic: watch::Receiver<Arc<Traffic>>,
}

impl ControllerHandle {
    /// Gives it new documents.
    pub async fn reload(&self, site: Arc<Site>) {
        // One that has ended needs none.
        let _ = self.inputs.send(Input::Site(site)).await;
    }

    /// Tells it that a deployment does worse than the one before it.
    pub async fn regressed(&self, deployment: DeploymentName, why: Arc<str>) {
        let _ = self.inputs.send(Input::Regressed { deployment, why }).await;
    }

    /// Says a verb.
    ///
    /// # Errors
    /// [`VerbError`].
    pub async fn say(&self, verb: Verb, who: &str) -> Result<Accepted, VerbError> {
        let (answer, answered) = oneshot::channel();
        let said = self.inputs.send(Input::Verb { verb, who: who.into(), answer }).await;
        said.map_err(|_| VerbError::NotLeading)?;
        answered.await.unwrap_or(Err(VerbError::NotLeading))
    }

    /// What it does.
    #[must_use]
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.status.borrow())
    }

    /// What it does, to be waited on.
    #[must_use]
    pub fn statuses(&self) -> watch::Receiver<Arc<Status>> {
        self.status.clone()
    }

    /// What the gates need, to be waited on.
    #[must_use]
    pub fn traffic(&self) -> watch::Receiver<Arc<Traffic>> {
        self.traffic.clone()
    }
}

/// Why a controller ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// A later one is at work.
    #[error("a later controller is at work (generation {0})")]
    Superseded(u64),
    /// It was told to, and left everything as it was.
    #[error("told to")]
    Told,
    /// Nothing can be written down.
    #[error("{0}")]
    Records(RecordError),
}

impl From<RecordError> for Ended {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Stale { highest } => Self::Superseded(highest),
            RecordError::Store(_) => Self::Records(error),
        }
    }
}

/// Carries out changes of routes in the order in which they were asked for.
async fn route(
    mut rows: mpsc::UnboundedReceiver<RouteRow>,
    actuators: Vec<Arc<dyn RouteActuator>>,
    controller: mpsc::Sender<Input>,
) {
    while let Some(row) = rows.recv().await {
        let answer = set_on_all(&actuators, &row).await;
        if controller.send(Input::Routed { row: Box::new(row), answer }).await.is_err() {
            return;
        }
    }
}

/// One controller, in its task.
pub struct Controller {
    pub(crate) site: Arc<Site>,
    pub(crate) parts: Parts,
    pub(crate) hands: Hands,
    pub(crate) hardware: Hardware,
    pub(crate) hardware_at: Option<Timestamp>,
    pub(crate) known: Known,
    pub(crate) replicas: Vec<ReplicaHandle>,
    /// How often each name of an instance was given out.
    pub(crate) used_ids: BTreeMap<String, u32>,
    pub(crate) routes: BTreeMap<AliasName, RouteRow>,
    /// Changes of routes, carried out one after the other.
    pub(crate) router: mpsc::UnboundedSender<RouteRow>,
    /// How many of them are not answered yet: until then nobody knows where those aliases go.
    pub(crate) routing: usize,
    /// The shift in force: that of the last switch which came to its hour.
    pub(crate) shift: Option<ShiftName>,
    pub(crate) said: Option<Said>,
    pub(crate) is_paused: bool,
    pub(crate) run: Option<Run>,
    pub(crate) next: Option<Plan>,
    /// The last switch that is over.
    pub(crate) last: Option<crate::records::SwitchRow>,
    pub(crate) attempts: Attempts,
    /// New deployments that are compared with those before them.
    pub(crate) window: Window,
    pub(crate) counts: Arc<dyn Counts>,
    pub(crate) measuring: Measuring,
    pub(crate) notes: Vec<crate::records::Note>,
    pub(crate) planned_at: Option<Timestamp>,
    pub(crate) is_stale: bool,
    pub(crate) wanted: Option<(Timestamp, Desired)>,
    /// The next shift that is another one, and when it starts: as of the last plan.
    pub(crate) coming: Option<(ShiftName, Timestamp)>,
    /// When failures were last looked at for a start of the timetable.
    pub(crate) forgiven_at: Option<Timestamp>,
    pub(crate) tasks: JoinSet<()>,
    pub(crate) woken: Arc<Notify>,
    inputs: mpsc::Receiver<Input>,
    pub(crate) status: watch::Sender<Arc<Status>>,
    pub(crate) traffic: watch::Sender<Arc<Traffic>>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller").field("shift", &self.shift).field("run", &self.run).finish_non_exhaustive()
    }
}

impl Controller {
    /// A controller that has looked at nothing yet. It takes over whatever there is with its first turn.
    #[must_use]
    pub fn new(site: Arc<Site>, parts: Parts, clock: Clock) -> (Self, ControllerHandle) {
        let (me, inputs) = mpsc::channel(INPUTS_MAX);
        let (status, statuses) = watch::channel(Arc::new(Status::default()));
        let (traffic, traffics) = watch::channel(Arc::new(Traffic::default()));
        let counts = parts.counts.clone().unwrap_or_else(|| Arc::new(ReplicaCounts::new(traffics.clone())));
        let (eyes, looking) = Eyes::on(Arc::clone(&parts.launcher));
        let mut tasks = JoinSet::new();
        tasks.spawn(looking);
        let (router, rows) = mpsc::unbounded_channel();
        tasks.spawn(route(rows, parts.actuators.clone(), me.clone()));
        let hands = Hands {
            launcher: Arc::clone(&parts.launcher),
            care: Arc::clone(&parts.care),
            eyes,
            clock,
            generation: Arc::new(AtomicU64::new(0)),
        };
        let handle = ControllerHandle { inputs: me.clone(), status: statuses, traffic: traffics };
        let controller = Self {
            site,
            parts,
            hands,
            hardware: Hardware::default(),
            hardware_at: None,
            known: Known::default(),
            replicas: Vec::new(),
            used_ids: BTreeMap::new(),
            routes: BTreeMap::new(),
            router,
            routing: 0,
            shift: None,
            said: None,
            is_paused: false,
            run: None,
            next: None,
            last: None,
            attempts: Attempts::default(),
            window: Window::default(),
            counts,
            measuring: Measuring::default(),
            notes: Vec::new(),
            planned_at: None,
            is_stale: false,
            wanted: None,
            coming: None,
            forgiven_at: None,
            tasks,
            woken: Arc::new(Notify::new()),
            inputs,
            status,
            traffic,
        };
        (controller, handle)
    }

    /// Takes turns until a later controller is at work, nothing can be written any more, or `end` comes. Engines are left
    /// as they are.
    pub async fn run(mut self, end: impl Future<Output = ()>) -> Ended {
        tokio::pin!(end);
        let adopted = tokio::select! {
            adopted = self.take_over() => adopted,
            () = &mut end => return Ended::Told,
        };
        if let Err(error) = adopted {
            return error.into();
        }
        loop {
            if let Err(error) = self.turn().await {
                tracing::error!(%error, "the controller ends");
                return error.into();
            }
            let heard = tokio::select! {
                () = &mut end => return Ended::Told,
                woken = timeout(TURN_EVERY, self.wake()) => self.hear_all(woken.ok().flatten()).await,
            };
            if let Err(error) = heard {
                return error.into();
            }
        }
    }

    /// Hears what has come, and what else has come by then: all of it before the next look at everything.
    async fn hear_all(&mut self, first: Option<Input>) -> Result<(), RecordError> {
        let mut next = first;
        loop {
            if let Some(input) = next {
                self.hear(input).await?;
            }
            next = self.inputs.try_recv().ok();
            if next.is_none() {
                return Ok(());
            }
        }
    }

    async fn wake(&mut self) -> Option<Input> {
        tokio::select! {
            input = self.inputs.recv() => input,
            () = self.woken.notified() => None,
        }
    }

    async fn hear(&mut self, input: Input) -> Result<(), RecordError> {
        let now = self.now();
        match input {
            Input::Site(site) => {
                self.site = site;
                self.is_stale = true;
                self.hardware_at = None;
                self.attempts.forget();
            }
            Input::Verb { verb, who, answer } => {
                let said = self.verb(verb, &who, now).await;
                let failed = match &said {
                    Err(VerbError::Records(error)) => Some(error.clone()),
                    Ok(_) | Err(_) => None,
                };
                // Whoever asked may have left.
                let _ = answer.send(said);
                if let Some(error @ RecordError::Stale { .. }) = failed {
                    return Err(error);
                }
            }
            Input::Routed { row, answer } => self.routed(&row, &answer)?,
            Input::Regressed { deployment, why } => self.regressed(&deployment, &why, now),
        }
        Ok(())
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.hands.clock)()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.hands.generation.load(Ordering::Acquire)
    }

    /// A new generation: everything that carries an older one is refused from now on.
    pub(crate) async fn next_generation(&self) -> Result<u64, RecordError> {
        let generation = self.parts.records.next_generation().await?;
        self.hands.generation.store(generation, Ordering::Release);
        Ok(generation)
    }

    /// What should be loaded now; asked of the timetable only when it can be something else.
    pub(crate) fn wanted(&mut self, now: Timestamp) -> Desired {
        let known = self
            .wanted
            .take()
            .filter(|(at, wanted)| !self.is_stale && now >= *at && wanted.until.is_none_or(|until| now < until));
        let wanted = known.map_or_else(|| self.desired(now), |(_, wanted)| wanted);
        self.wanted = Some((now, wanted.clone()));
        wanted
    }

    /// What should be loaded at an instant.
    pub(crate) fn desired(&self, at: Timestamp) -> Desired {
        let over = self.said.as_ref().map(Said::to_override);
        desired(&self.site, over.as_ref(), at)
    }
}
