//! What happens to a request when the pool it is for is full: one of five outcomes, as a pure function.
//!
//! | class | default when saturated |
//! |---|---|
//! | interactive | queue up to 10 s, then the alias's fallback, then refuse |
//! | general | queue up to 60 s, then refuse |
//! | batch | rate-limit, then refuse |
//!
//! Limits of callers are another matter ([`crate::limiter`]): they are checked before and whatever the load.

use std::time::Duration;

use tidegate_config::site::Class;
use tidegate_core::Monotonic;

/// When a replica counts as saturated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Requests waiting in the engine.
    pub waiting: u64,
    /// Use of the KV cache, 0 to 1.
    pub kv: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { waiting: 5, kv: 0.85 }
    }
}

/// What is known of one replica. An unknown signal saturates nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplicaLoad {
    /// Requests waiting in the engine.
    pub waiting: Option<u64>,
    /// Use of the KV cache, 0 to 1.
    pub kv: Option<f64>,
    /// Requests of ours in flight there: always known.
    pub active: u64,
    /// Measured capacity S.
    pub capacity: Option<u64>,
}

/// Why a replica or a pool is saturated; nothing set means that it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saturation {
    /// By requests waiting.
    pub queue: bool,
    /// By use of the KV cache.
    pub kv: bool,
    /// By requests in flight.
    pub concurrency: bool,
}

impl Saturation {
    /// Whether any signal says so.
    #[must_use]
    pub const fn any(self) -> bool {
        self.queue || self.kv || self.concurrency
    }

    /// Saturation of one replica.
    #[must_use]
    pub fn of_replica(load: &ReplicaLoad, thresholds: &Thresholds) -> Self {
        Self {
            queue: load.waiting.is_some_and(|waiting| waiting >= thresholds.waiting),
            kv: load.kv.is_some_and(|kv| kv >= thresholds.kv),
            concurrency: load.capacity.is_some_and(|capacity| load.active >= capacity),
        }
    }

    /// Saturation of a pool: it is saturated when every replica is, and then by every signal that any of them names. A
    /// pool without replicas is not saturated, it is unavailable.
    #[must_use]
    pub fn of_pool(replicas: &[ReplicaLoad], thresholds: &Thresholds) -> Self {
        let mut pool = Self::default();
        for load in replicas {
            let replica = Self::of_replica(load, thresholds);
            if !replica.any() {
                return Self::default();
            }
            pool.queue |= replica.queue;
            pool.kv |= replica.kv;
            pool.concurrency |= replica.concurrency;
        }
        pool
    }
}

/// One thing to try when a pool is saturated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Wait in the queue, this long in all.
    Queue {
        /// Longest wait.
        at_most: Duration,
    },
    /// Answer 429 to teams above their fair share, and to everybody of a throttled class.
    RateLimit,
    /// Serve by the alias's fallback.
    Fallback,
}

/// What a class does when saturated: the steps in order; after the last one, refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassPolicy {
    /// Steps in the order in which they are tried.
    pub steps: Vec<Step>,
    /// Whether [`Step::RateLimit`] is for everybody of the class, rather than for teams above their share.
    pub throttle: bool,
}

impl ClassPolicy {
    /// The default of a class.
    #[must_use]
    pub fn of(class: Class) -> Self {
        let queue = |seconds| Step::Queue { at_most: Duration::from_secs(seconds) };
        match class {
            Class::Interactive => Self { steps: vec![queue(10), Step::Fallback], throttle: false },
            Class::General => Self { steps: vec![queue(60)], throttle: false },
            Class::Batch => Self { steps: vec![Step::RateLimit], throttle: true },
        }
    }
}

/// Everything that the decision looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Situation {
    /// The pool's.
    pub saturation: Saturation,
    /// Others wait in the queue already: nobody overtakes them.
    pub others_wait: bool,
    /// How long this request has waited.
    pub waited: Duration,
    /// The queue takes one more (always so for a request that is in it).
    pub queue_has_room: bool,
    /// The team has more than its fair share of the pool.
    pub over_share: bool,
    /// How long the team's throttle makes it wait; `None` when its next request is due.
    pub throttle_wait: Option<Duration>,
    /// A fallback exists, the caller holds a grant for it, and it has not been tried.
    pub fallback: bool,
    /// When the pool is expected to have room, for `Retry-After`.
    pub room_in: Duration,
}

/// What happens to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Goes on to a replica.
    Accept,
    /// Waits, at most this much longer.
    Queue {
        /// Time left to wait.
        at_most: Duration,
    },
    /// 429 `rate_limit_exceeded`.
    RateLimit {
        /// `Retry-After`.
        retry_after: Duration,
    },
    /// Served by the alias's fallback.
    Fallback,
    /// 503 `server_is_overloaded`.
    Refuse {
        /// `Retry-After`.
        retry_after: Duration,
    },
}

/// Decides what happens to a request that its caller's limits let pass. Total and free of side effects.
#[must_use]
pub fn decide(policy: &ClassPolicy, situation: &Situation) -> Outcome {
    if !situation.saturation.any() && !situation.others_wait {
        return Outcome::Accept;
    }
    let tried = policy.steps.iter().find_map(|step| match step {
        Step::Queue { at_most } => {
            let left = at_most.saturating_sub(situation.waited);
            (situation.queue_has_room && !left.is_zero()).then_some(Outcome::Queue { at_most: left })
        }
        Step::RateLimit if policy.throttle || situation.over_share => {
            situation.throttle_wait.map(|retry_after| Outcome::RateLimit { retry_after })
        }
        Step::RateLimit => None,
        Step::Fallback => situation.fallback.then_some(Outcome::Fallback),
    });
    tried.unwrap_or(Outcome::Refuse { retry_after: situation.room_in })
}

/// The rate at which one team's requests of one class pass a saturated pool: halved per interval of saturation, given
/// back additively (AIMD, as TCP's congestion avoidance, RFC 5681).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttle {
    ceiling_rpm: u64,
    rate_rpm: u64,
    interval_ends: Monotonic,
    saturated: bool,
    next: Monotonic,
}

/// Length of the intervals by which a throttled rate changes.
pub const THROTTLE_INTERVAL: Duration = Duration::from_secs(10);
/// Intervals in which a rate of nothing would grow back to its ceiling.
pub const THROTTLE_STEPS: u64 = 10;

impl Throttle {
    /// Starts at the ceiling: the team's own limit, or the rate it was seen to have. At least 1 a minute.
    #[must_use]
    pub fn new(ceiling_rpm: u64, now: Monotonic) -> Self {
        let ceiling_rpm = ceiling_rpm.max(1);
        Self {
            ceiling_rpm,
            rate_rpm: ceiling_rpm,
            interval_ends: now.after(THROTTLE_INTERVAL),
            saturated: false,
            next: now,
        }
    }

    /// Requests per minute that pass now.
    #[must_use]
    pub const fn rate_rpm(&self) -> u64 {
        self.rate_rpm
    }

    /// Notes whether the pool is saturated, and changes the rate when an interval has ended.
    pub fn observe(&mut self, saturated: bool, now: Monotonic) {
        if now >= self.interval_ends {
            self.rate_rpm = if self.saturated {
                (self.rate_rpm / 2).max(1)
            } else {
                (self.rate_rpm + self.ceiling_rpm.div_ceil(THROTTLE_STEPS)).min(self.ceiling_rpm)
            };
            self.interval_ends = now.after(THROTTLE_INTERVAL);
            self.saturated = false;
        }
        self.saturated |= saturated;
    }

    /// How long until the next request is due; `None` when it is.
    #[must_use]
    pub fn wait(&self, now: Monotonic) -> Option<Duration> {
        (self.next > now).then(|| self.next.since(now))
    }

    /// Books a request that passes.
    pub fn pass(&mut self, now: Monotonic) {
        let spacing = Duration::from_secs(60) / u32::try_from(self.rate_rpm).unwrap_or(u32::MAX);
        self.next = self.next.max(now).after(spacing);
    }
}
