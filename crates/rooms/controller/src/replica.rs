//! Drives one replica: what its state machine asks for is done, and what came of it is told to the machine.
//!
//! In every state exactly one piece of work is under way; it is dropped when the state changes, and begun again by
//! whoever takes the replica over. All of it may be repeated without harm.

use std::mem::{Discriminant, discriminant};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tidegate_engine::backend::Backend;
use tidegate_node::{InstanceId, Proof};
use tidegate_planner::generation::{Generation, Stamped};
use tidegate_planner::instance::{Clocks, Effect, Event, Instance, State, TERM_GRACE};
use tidegate_planner::placement::ReplicaKey;
use tidegate_routing::ReplicaState;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::care::{Care, Fault, Patient};
use crate::launcher::{BootMark, Exposure, Fetched, LaunchFault, Launcher, Order};
use crate::phases::ColdStart;
use crate::sight::Eyes;

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(500);
/// Between two tries of what a node or an API server did not answer.
const AGAIN: Duration = Duration::from_secs(1);
/// How often a replica in drain is asked whether it is empty.
const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// How long an end is waited for after the last signal; then the proof decides.
const END_WITHIN: Duration = Duration::from_secs(90);
/// Between two tries to prove quarantined memory free.
const QUARANTINE_LOOK: Duration = Duration::from_secs(10);

/// The clock of a controller: the wall's, or a simulation's.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// A moment in a replica's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What began.
    pub what: &'static str,
    /// When.
    pub at: Timestamp,
}

/// A replica as others see it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Where it is in its life.
    pub state: State,
    /// Its instance, the last that was started.
    pub instance: InstanceId,
    /// How it is asked, while it can be.
    pub backend: Option<Arc<Backend>>,
    /// What is in the way, or how far it is.
    pub problem: Option<Arc<str>>,
    /// Beginnings of its states in this attempt, in order.
    pub marks: Vec<Mark>,
    /// How long the fetch of its model still takes, while it is fetched and that is known.
    pub left: Option<Duration>,
    /// Where the time of its start went, once it has been proven.
    pub cold_start: Option<ColdStart>,
}

/// What every driver needs.
#[derive(Clone)]
pub struct Hands {
    /// Starts and stops.
    pub launcher: Arc<dyn Launcher>,
    /// Speaks to engines.
    pub care: Arc<dyn Care>,
    /// What the launcher sees.
    pub eyes: Eyes,
    /// The time.
    pub clock: Clock,
    /// The controller's generation, which grows.
    pub generation: Arc<AtomicU64>,
}

impl std::fmt::Debug for Hands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hands").field("launcher", &self.launcher).finish_non_exhaustive()
    }
}

/// A driven replica, as its controller holds it. When it is dropped, its driver ends and leaves the engine as it is.
#[derive(Debug)]
pub struct ReplicaHandle {
    /// What it was made from.
    pub order: Order,
    tell: mpsc::UnboundedSender<Event>,
    snapshot: watch::Receiver<Snapshot>,
}

impl ReplicaHandle {
    /// Its number and deployment.
    #[must_use]
    pub const fn key(&self) -> &ReplicaKey {
        &self.order.key
    }

    /// As it is now.
    #[must_use]
    pub fn now(&self) -> Snapshot {
        self.snapshot.borrow().clone()
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> State {
        self.snapshot.borrow().state.clone()
    }

    /// Tells it something.
    pub fn tell(&self, event: Event) {
        // A driver that has ended has nothing left to do.
        let _ = self.tell.send(event);
    }

    /// Whether nothing is left of it, and nothing will come by itself.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.snapshot.borrow().state, State::Stopped | State::Absent)
    }
}

/// Starts driving a replica that is in `state`: [`State::Absent`] for a new one, another for one that was taken over.
/// `woken` is called whenever something changed. The future runs until the handle is dropped.
pub fn drive(
    order: Order,
    clocks: Clocks,
    state: State,
    hands: Hands,
    woken: Arc<dyn Fn() + Send + Sync>,
) -> (ReplicaHandle, impl Future<Output = ()> + Send + 'static) {
    let (tell, told) = mpsc::unbounded_channel();
    let first = Snapshot {
        state: state.clone(),
        instance: order.instance.clone(),
        backend: None,
        problem: None,
        marks: Vec::new(),
        left: None,
        cold_start: None,
    };
    let (out, snapshot) = watch::channel(first);
    let is_wanted = !matches!(state, State::Absent | State::Stopped);
    // One that was taken over has been started already: its next start has another name.
    let starts = u32::from(is_wanted);
    let instance = Instance { state, is_wanted, ..Instance::new(Generation(0), clocks) };
    let driver = Driver {
        base: order.instance.clone(),
        order: order.clone(),
        instance,
        hands,
        shared: Arc::new(Shared { out, woken }),
        starts,
        wakes: None,
        kills: false,
    };
    (ReplicaHandle { order, tell, snapshot }, driver.run(told))
}

type Work = Pin<Box<dyn Future<Output = Event> + Send>>;

/// What the work under way may change of the snapshot.
struct Shared {
    out: watch::Sender<Snapshot>,
    woken: Arc<dyn Fn() + Send + Sync>,
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Snapshot)) {
        self.out.send_modify(change);
        (self.woken)();
    }

    fn say(&self, problem: Option<Arc<str>>) {
        let changed = self.out.send_if_modified(|snapshot| {
            let is_news = snapshot.problem != problem;
            snapshot.problem.clone_from(&problem);
            is_news
        });
        if changed {
            (self.woken)();
        }
    }

    fn backend(&self) -> Option<Arc<Backend>> {
        self.out.borrow().backend.clone()
    }
}

struct Driver {
    /// The id of the first start; the others have a number behind it.
    base: InstanceId,
    order: Order,
    instance: Instance,
    hands: Hands,
    shared: Arc<Shared>,
    starts: u32,
    wakes: Option<u8>,
    kills: bool,
}

impl Driver {
    async fn run(mut self, mut told: mpsc::UnboundedReceiver<Event>) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut work = self.work();
        loop {
            let event = tokio::select! {
                biased;
                event = told.recv() => match event {
                    Some(event) => event,
                    None => return,
                },
                event = &mut work => {
                    work = Box::pin(std::future::pending());
                    event
                }
                _ = tick.tick() => Event::Tick,
            };
            if self.step(event) {
                work = self.work();
            }
        }
    }

    /// Whether other work is to be done now.
    fn step(&mut self, event: Event) -> bool {
        let now = (self.hands.clock)();
        let before = discriminant(&self.instance.state);
        let fault = match &event {
            Event::Fault(fault) => Some(Arc::clone(fault)),
            _ => None,
        };
        let stamped = Stamped { generation: self.instance.generation, what: event };
        let (instance, effects) = self.instance.clone().step(stamped, now);
        let is_same = instance == self.instance;
        self.instance = instance;
        let mut is_new = false;
        for effect in effects {
            is_new |= self.take(effect.what);
        }
        if !is_same {
            self.publish(before, fault, now);
        }
        is_new || discriminant(&self.instance.state) != before
    }

    /// Takes note of what is asked for. Whether it is work that the state alone does not show.
    fn take(&mut self, effect: Effect) -> bool {
        match effect {
            Effect::Launch => {
                self.starts += 1;
                if self.starts > 1 {
                    self.order.instance = again(&self.base, self.starts);
                }
                self.kills = false;
                true
            }
            Effect::Wake { level } => {
                self.wakes = Some(level);
                false
            }
            Effect::Kill => {
                self.kills = true;
                true
            }
            Effect::EndStreams => {
                if let Some(backend) = self.shared.backend() {
                    backend.replica().cut();
                }
                false
            }
            Effect::Alarm(text) => {
                tracing::warn!(replica = %self.order.key, instance = %self.order.instance, reason = &*text, "replica");
                false
            }
            Effect::Terminate => {
                self.kills = false;
                false
            }
            Effect::Fetch
            | Effect::RunGate
            | Effect::Drain
            | Effect::Undrain
            | Effect::Sleep { .. }
            | Effect::ProveMemory
            | Effect::FreeGpus
            | Effect::Quarantine => false,
        }
    }

    fn publish(&self, before: Discriminant<State>, fault: Option<Arc<str>>, now: Timestamp) {
        let state = self.instance.state.clone();
        let is_entered = discriminant(&state) != before;
        if is_entered {
            tracing::info!(replica = %self.order.key, state = state_name(&state), "replica");
        }
        let replica_state = to_replica_state(&state);
        self.shared.change(|snapshot| {
            if let Some(backend) = snapshot.backend.as_ref().filter(|_| is_entered) {
                backend.replica().set_state(replica_state);
            }
            if is_entered && matches!(state, State::Fetching { .. }) {
                snapshot.marks.clear();
                snapshot.cold_start = None;
                snapshot.backend = None;
            }
            if is_entered {
                snapshot.left = None;
                snapshot.marks.push(Mark { what: state_name(&state), at: now });
            }
            if is_entered && matches!(state, State::Serving) && snapshot.cold_start.is_none() {
                snapshot.cold_start = ColdStart::of(&snapshot.marks, &self.boot());
            }
            if let Some(fault) = fault {
                snapshot.problem = Some(fault);
            } else if is_entered && matches!(state, State::Serving | State::Stopped) {
                snapshot.problem = None;
            }
            if matches!(state, State::Stopped) {
                snapshot.backend = None;
            }
            snapshot.instance = self.order.instance.clone();
            snapshot.state = state;
        });
    }

    /// What the engine's log has told of its start.
    fn boot(&self) -> Vec<BootMark> {
        let sight = self.hands.eyes.now();
        sight.seen.get(&self.order.instance).map(|seen| seen.boot.clone()).unwrap_or_default()
    }

    /// The work of the state.
    fn work(&mut self) -> Work {
        let job = Job { order: self.order.clone(), hands: self.hands.clone(), shared: Arc::clone(&self.shared) };
        match &self.instance.state {
            State::Fetching { .. } => Box::pin(job.fetch()),
            State::Loading { .. } => Box::pin(job.load()),
            State::Warming { .. } => Box::pin(job.prove(self.wakes.take())),
            State::Serving => Box::pin(job.serve()),
            State::Draining { .. } => Box::pin(job.drain()),
            State::FallingAsleep { level, .. } => Box::pin(job.fall_asleep(*level)),
            State::Drained | State::Asleep { .. } => Box::pin(job.rest()),
            State::Stopping { .. } => Box::pin(job.stop(self.kills)),
            State::Proving { .. } => Box::pin(job.prove_memory(AGAIN)),
            State::Quarantined { .. } => Box::pin(job.prove_quarantined()),
            State::Stopped | State::Failed { .. } => Box::pin(job.forget()),
            State::Absent | State::Verified { .. } => Box::pin(std::future::pending()),
        }
    }
}

/// The id of a further start of a replica.
fn again(base: &InstanceId, number: u32) -> InstanceId {
    InstanceId::new(&format!("{base}-{number}")).unwrap_or_else(|_| base.clone())
}

/// The state's name, for people and metrics.
#[must_use]
pub const fn state_name(state: &State) -> &'static str {
    match state {
        State::Absent => "absent",
        State::Fetching { .. } => "fetching",
        State::Verified { .. } => "verified",
        State::Loading { .. } => "loading",
        State::Warming { .. } => "warming",
        State::Serving => "serving",
        State::Draining { .. } => "draining",
        State::Drained => "drained",
        State::FallingAsleep { .. } => "falling_asleep",
        State::Asleep { .. } => "asleep",
        State::Stopping { .. } => "stopping",
        State::Proving { .. } => "proving",
        State::Stopped => "stopped",
        State::Quarantined { .. } => "quarantined",
        State::Failed { .. } => "failed",
    }
}

const fn to_replica_state(state: &State) -> ReplicaState {
    match state {
        State::Absent
        | State::Fetching { .. }
        | State::Verified { .. }
        | State::Loading { .. }
        | State::Warming { .. } => ReplicaState::Starting,
        State::Serving => ReplicaState::Serving,
        State::Draining { .. } | State::Drained | State::FallingAsleep { .. } | State::Asleep { .. } => {
            ReplicaState::Draining
        }
        State::Stopping { .. } | State::Proving { .. } | State::Quarantined { .. } | State::Failed { .. } => {
            ReplicaState::Failing
        }
        State::Stopped => ReplicaState::Stopped,
    }
}

fn faulty(fault: &Fault) -> Event {
    Event::Fault(fault.to_string().into())
}

fn unreachable() -> Event {
    Event::Fault("unreachable: nobody knows where it listens".into())
}

/// One piece of work on a replica.
struct Job {
    order: Order,
    hands: Hands,
    shared: Arc<Shared>,
}

impl Job {
    fn generation(&self) -> u64 {
        self.hands.generation.load(Ordering::Acquire)
    }

    /// Lets it into what chooses among replicas besides us, or takes it out; goes on until that is done.
    async fn exposed(&self, exposure: Exposure) {
        while let Err(fault) = self.hands.launcher.expose(self.generation(), &self.order.instance, exposure).await {
            self.shared.say(Some(fault.to_string().into()));
            sleep(AGAIN).await;
        }
    }

    /// Waits before the next try of something that nobody answered; any other fault is final.
    async fn or_again(&self, fault: LaunchFault) -> Result<(), Event> {
        if !fault.is_away() {
            return Err(Event::Fault(fault.to_string().into()));
        }
        self.shared.say(Some(fault.to_string().into()));
        sleep(AGAIN).await;
        Ok(())
    }

    async fn fetch(self) -> Event {
        let mut is_verifying = false;
        loop {
            match self.hands.launcher.fetch(self.generation(), &self.order).await {
                Ok(Fetched::Verified) => {
                    self.shared.say(None);
                    return Event::Verified;
                }
                Ok(Fetched::Waiting { what, left, is_verifying: now, bytes: _, total: _ }) => {
                    self.shared.say(Some(what));
                    self.shared.out.send_if_modified(|snapshot| {
                        snapshot.left = left;
                        false
                    });
                    if now && !std::mem::replace(&mut is_verifying, true) {
                        let at = (self.hands.clock)();
                        self.shared.change(|snapshot| snapshot.marks.push(Mark { what: "verifying", at }));
                    }
                    sleep(TICK).await;
                }
                Err(fault) => {
                    if let Err(event) = self.or_again(fault).await {
                        return event;
                    }
                }
            }
        }
    }

    async fn load(self) -> Event {
        while let Err(fault) = self.hands.launcher.start(self.generation(), &self.order).await {
            if let Err(event) = self.or_again(fault).await {
                return event;
            }
        }
        let shared = Arc::clone(&self.shared);
        let tell = move |why: Arc<str>| shared.say(Some(why));
        let address = match self.hands.eyes.running(&self.order.instance, &tell).await {
            Ok(address) => address,
            Err(cause) => return Event::Fault(cause),
        };
        let blueprint = &self.order.blueprint;
        let backend = match self.hands.care.backend(&self.order.key, address, blueprint) {
            Ok(backend) => backend,
            Err(fault) => return faulty(&fault),
        };
        self.shared.change(|snapshot| snapshot.backend = Some(backend));
        let Some(patient) = self.patient().await else { return unreachable() };
        let load = async {
            let loaded = self.hands.care.load(&patient).await;
            loaded.map_or_else(|fault| faulty(&fault), |()| Event::Loaded)
        };
        self.while_it_runs(load).await
    }

    /// What comes first: the end of the work, or of the engine.
    async fn while_it_runs(&self, work: impl Future<Output = Event> + Send) -> Event {
        tokio::select! {
            event = work => event,
            cause = self.hands.eyes.ended(&self.order.instance) => Event::Fault(cause),
        }
    }

    /// The engine, with the backend made anew when this controller has taken it over.
    async fn patient(&self) -> Option<Patient> {
        let backend = match self.shared.backend() {
            Some(backend) => backend,
            None => self.take_over().await?,
        };
        let shared = Arc::clone(&self.shared);
        let (marked, clock) = (Arc::clone(&self.shared), Arc::clone(&self.hands.clock));
        Some(Patient {
            key: self.order.key.clone(),
            blueprint: Arc::clone(&self.order.blueprint),
            backend,
            is_first: self.order.is_first,
            tell: Arc::new(move |problem| shared.say(problem.map(Arc::from))),
            mark: Arc::new(move |what, ago| {
                let ago = SignedDuration::try_from(ago).unwrap_or_default();
                let at = clock().checked_sub(ago).unwrap_or(Timestamp::MIN);
                marked.change(|snapshot| snapshot.marks.push(Mark { what, at }));
            }),
        })
    }

    async fn take_over(&self) -> Option<Arc<Backend>> {
        let address = self.hands.eyes.running(&self.order.instance, &|_| {}).await.ok()?;
        let backend = self.hands.care.backend(&self.order.key, address, &self.order.blueprint).ok()?;
        let state = to_replica_state(&self.shared.out.borrow().state);
        backend.replica().set_state(state);
        self.shared.change(|snapshot| snapshot.backend = Some(Arc::clone(&backend)));
        Some(backend)
    }

    async fn prove(self, wakes: Option<u8>) -> Event {
        let Some(patient) = self.patient().await else { return unreachable() };
        let care = &self.hands.care;
        let prove = async {
            if let Some(level) = wakes
                && let Err(fault) = care.wake(&patient, level).await
            {
                return faulty(&fault);
            }
            care.prove(&patient).await.map_or_else(|fault| faulty(&fault), |()| Event::Proven)
        };
        self.while_it_runs(prove).await
    }

    async fn serve(self) -> Event {
        let Some(patient) = self.patient().await else { return unreachable() };
        let exposing = async {
            self.exposed(Exposure::In).await;
            std::future::pending().await
        };
        let watching = async {
            tokio::select! {
                fault = self.hands.care.watch(&patient) => faulty(&fault),
                event = exposing => event,
            }
        };
        self.while_it_runs(watching).await
    }

    async fn drain(self) -> Event {
        let Some(patient) = self.patient().await else { return unreachable() };
        let empty = async {
            self.exposed(Exposure::Out).await;
            while patient.backend.replica().booked() > 0 {
                sleep(DRAIN_LOOK).await;
            }
            Event::Drained
        };
        self.while_it_runs(empty).await
    }

    async fn fall_asleep(self, level: u8) -> Event {
        let Some(patient) = self.patient().await else { return unreachable() };
        let sleep = async {
            let slept = self.hands.care.sleep(&patient, level).await;
            slept.map_or_else(|fault| faulty(&fault), |()| Event::Slept)
        };
        self.while_it_runs(sleep).await
    }

    async fn rest(self) -> Event {
        Event::Fault(self.hands.eyes.ended(&self.order.instance).await)
    }

    async fn stop(self, kills: bool) -> Event {
        if let Some(backend) = self.shared.backend() {
            backend.close_idle();
        }
        let patience = if kills { Duration::ZERO } else { TERM_GRACE };
        let until = Instant::now() + END_WITHIN;
        while Instant::now() < until {
            match self.hands.launcher.stop(self.generation(), &self.order.instance, patience).await {
                Ok(()) => {
                    let ended = self.hands.eyes.gone(&self.order.instance);
                    let _ = tokio::time::timeout_at(until, ended).await;
                    break;
                }
                Err(fault) => {
                    self.shared.say(Some(fault.to_string().into()));
                    sleep(AGAIN).await;
                }
            }
        }
        // Whether it is gone, the proof says.
        Event::Ended
    }

    async fn prove_memory(self, between: Duration) -> Event {
        loop {
            match self.hands.launcher.prove(self.generation(), &self.order.instance).await {
                Ok(Proof::Free { .. }) => return Event::MemoryFree,
                Ok(Proof::NotFree { why, since }) => self.shared.say(Some(format!("{why} (since {since})").into())),
                Err(fault) => self.shared.say(Some(fault.to_string().into())),
            }
            sleep(between).await;
        }
    }

    async fn prove_quarantined(self) -> Event {
        // What may still run is ended first; that it cannot be reached is what the quarantine is for.
        let _ = self.hands.launcher.stop(self.generation(), &self.order.instance, Duration::ZERO).await;
        self.prove_memory(QUARANTINE_LOOK).await
    }

    async fn forget(self) -> Event {
        if let Err(error) = self.hands.launcher.forget(self.generation(), &self.order.instance).await {
            tracing::debug!(instance = %self.order.instance, %error, "not forgotten");
        }
        std::future::pending().await
    }
}
