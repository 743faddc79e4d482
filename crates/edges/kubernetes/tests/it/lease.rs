//! One leader: on a paused clock with a Lease in memory, and with the real one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_kubernetes::{Fault, Leadership, LeaseClocks, LeaseRecord, LeaseStore, Term, campaign};
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::world::World;

/// A Lease in memory that can be cut off, for one candidate.
#[derive(Clone, Debug)]
struct Memory {
    record: Arc<Mutex<(u64, Option<LeaseRecord>)>>,
    is_cut: Arc<std::sync::atomic::AtomicBool>,
}

impl Memory {
    fn new() -> Self {
        Self { record: Arc::new(Mutex::new((0, None))), is_cut: Arc::default() }
    }

    /// The same Lease over another wire.
    fn wire(&self) -> Self {
        Self { record: Arc::clone(&self.record), is_cut: Arc::default() }
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, std::sync::atomic::Ordering::SeqCst);
    }

    /// Who is cut off gets no answer, and an error after three seconds as from a socket.
    async fn wait(&self) -> Result<(), Fault> {
        if self.is_cut.load(std::sync::atomic::Ordering::SeqCst) {
            sleep(Duration::from_secs(3)).await;
            return Err(Fault::Unreachable { why: "cut".into() });
        }
        Ok(())
    }
}

#[async_trait]
impl LeaseStore for Memory {
    async fn read(&self) -> Result<Option<LeaseRecord>, Fault> {
        self.wait().await?;
        Ok(self.record.lock().await.1.clone())
    }

    async fn write(&self, before: Option<&LeaseRecord>, record: &LeaseRecord) -> Result<String, Fault> {
        self.wait().await?;
        let mut kept = self.record.lock().await;
        if kept.1.as_ref().map(|kept| &kept.version) != before.map(|before| &before.version) {
            return Err(Fault::Changed { what: "lease".into(), said: "other version".into() });
        }
        kept.0 += 1;
        let version = kept.0.to_string();
        kept.1 = Some(LeaseRecord { version: version.clone(), ..record.clone() });
        Ok(version)
    }
}

struct Candidate {
    leadership: Leadership,
    resign: Option<oneshot::Sender<()>>,
    tasks: JoinSet<()>,
}

impl Candidate {
    fn of(store: Arc<dyn LeaseStore>, name: &str, clocks: LeaseClocks) -> Self {
        let (resign, resigned) = oneshot::channel::<()>();
        let resigned = async {
            // one that is dropped does not resign: it crashed
            if resigned.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let (leadership, campaign) = campaign(store, name.to_owned(), clocks, resigned);
        let mut tasks = JoinSet::new();
        tasks.spawn(campaign);
        Self { leadership, resign: Some(resign), tasks }
    }

    fn start(store: &Memory, name: &str) -> Self {
        Self::of(Arc::new(store.clone()), name, LeaseClocks::default())
    }

    async fn resign(mut self) {
        self.resign.take().unwrap().send(()).unwrap();
        self.tasks.join_all().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_leads_and_the_second_waits_until_it_has_been_silent_for_the_whole_duration() {
    let memory = Memory::new();
    let first = Candidate::start(&memory, "a");
    let term = first.leadership.held().await;
    assert_eq!(term, Term(1));
    let second = Candidate::start(&memory.wire(), "b");
    sleep(Duration::from_secs(300)).await;
    assert_eq!(second.leadership.term(), None);
    assert_eq!(first.leadership.term(), Some(term));
    let died = Instant::now();
    drop(first);
    assert_eq!(second.leadership.held().await, Term(2));
    let waited = died.elapsed();
    assert!(waited >= Duration::from_secs(13) && waited <= Duration::from_secs(19), "{waited:?}");
    assert!(Term(2).first_generation() > Term(1).first_generation() + u64::from(u32::MAX) / 2);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_cut_off_stops_leading_before_another_begins() {
    let memory = Memory::new();
    let (wire, other) = (memory.wire(), memory.wire());
    let first = Candidate::start(&wire, "a");
    let term = first.leadership.held().await;
    let second = Candidate::start(&other, "b");
    sleep(Duration::from_secs(30)).await;
    wire.cut(true);
    let begun = Instant::now();
    first.leadership.lost(term).await;
    assert!(begun.elapsed() <= Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(second.leadership.term(), None, "the new one begins only after the old one has stopped");
    assert_eq!(second.leadership.held().await, Term(2));
    wire.cut(false);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(first.leadership.term(), None);
}

#[tokio::test(start_paused = true)]
async fn a_short_silence_of_the_server_does_not_end_a_term() {
    let memory = Memory::new();
    let leader = Candidate::start(&memory, "a");
    let term = leader.leadership.held().await;
    memory.cut(true);
    sleep(Duration::from_secs(5)).await;
    memory.cut(false);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(leader.leadership.term(), Some(term));
}

#[tokio::test(start_paused = true)]
async fn a_lease_taken_by_another_ends_the_term_at_the_next_renewal() {
    let memory = Memory::new();
    let leader = Candidate::start(&memory, "a");
    let term = leader.leadership.held().await;
    let found = memory.read().await.unwrap();
    let thief = LeaseRecord { holder: Some("b".to_owned()), transitions: 2, ..found.clone().unwrap() };
    memory.write(found.as_ref(), &thief).await.unwrap();
    let begun = Instant::now();
    leader.leadership.lost(term).await;
    assert!(begun.elapsed() <= Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_restarted_holder_of_the_same_name_waits_too_and_gets_a_later_term() {
    let memory = Memory::new();
    let first = Candidate::start(&memory, "a");
    first.leadership.held().await;
    drop(first);
    let begun = Instant::now();
    let again = Candidate::start(&memory, "a");
    assert_eq!(again.leadership.held().await, Term(2));
    assert!(begun.elapsed() >= Duration::from_secs(15), "what the first one still does is not known");
}

#[tokio::test(start_paused = true)]
async fn one_that_resigns_hands_over_at_once() {
    let memory = Memory::new();
    let first = Candidate::start(&memory, "a");
    first.leadership.held().await;
    let second = Candidate::start(&memory, "b");
    sleep(Duration::from_secs(10)).await;
    let begun = Instant::now();
    first.resign().await;
    assert_eq!(second.leadership.held().await, Term(2));
    assert!(begun.elapsed() <= Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn never_two_at_a_time_however_often_wires_are_cut() {
    let memory = Memory::new();
    let wires = [memory.wire(), memory.wire(), memory.wire()];
    let candidates: Vec<Candidate> =
        wires.iter().zip(["a", "b", "c"]).map(|(wire, name)| Candidate::start(wire, name)).collect();
    let mut latest = Term(0);
    let mut seed = 7_u64;
    for _ in 0..2_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        wires[(seed >> 33) as usize % 3].cut((seed >> 40) & 1 == 1);
        sleep(Duration::from_millis(seed >> 52)).await;
        let leading: Vec<Term> = candidates.iter().filter_map(|one| one.leadership.term()).collect();
        assert!(leading.len() <= 1, "{leading:?}");
        if let [term] = leading[..] {
            assert!(term >= latest);
            latest = term;
        }
    }
    assert!(latest > Term(1), "the Lease never changed hands");
}

#[tokio::test]
async fn with_the_real_server_the_lease_is_taken_renewed_lost_and_counted() {
    let world = World::new("lease").await;
    let clocks = LeaseClocks {
        duration: Duration::from_secs(2),
        renew_deadline: Duration::from_millis(1_500),
        retry: Duration::from_millis(200),
    };
    let first = Candidate::of(world.cluster.lease("controller"), "a", clocks);
    let term = first.leadership.held().await;
    let path = world.path("/apis/coordination.k8s.io/v1", "leases", "controller");
    let taken = world.api.get(&path).await.unwrap();
    assert_eq!(taken["spec"]["holderIdentity"], "a");
    assert_eq!(taken["spec"]["leaseTransitions"].as_u64(), Some(term.0));
    let list = world.path("/apis/coordination.k8s.io/v1", "leases", "");
    let list = list.trim_end_matches('/');
    let renewed = |_: &str, now: &serde_json::Value| now["spec"]["renewTime"] != taken["spec"]["renewTime"];
    let renewed = world.api.until(list, renewed).await.unwrap();
    assert_eq!(renewed["spec"]["acquireTime"], taken["spec"]["acquireTime"]);
    let second = Candidate::of(world.cluster.lease("controller"), "b", clocks);
    first.resign().await;
    assert_eq!(second.leadership.held().await, Term(term.0 + 1));
    // two that write from the same version: one is told
    let store = world.cluster.lease("controller");
    let before = store.read().await.unwrap().unwrap();
    drop(second);
    let mine = LeaseRecord { holder: Some("c".to_owned()), ..before.clone() };
    let (one, two) = tokio::join!(store.write(Some(&before), &mine), store.write(Some(&before), &mine));
    let losers: Vec<&Fault> = [&one, &two].into_iter().filter_map(|written| written.as_ref().err()).collect();
    assert!(!losers.is_empty() && losers.iter().all(|fault| fault.is_race()), "{one:?} {two:?}");
    let none = store.write(None, &mine).await.unwrap_err();
    assert!(none.is_race(), "{none:?}");
}
