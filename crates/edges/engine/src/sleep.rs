//! Engines that sleep: their weights leave the GPU while their processes stay.
//!
//! ```text
//! level 1: weights go to host memory   wake: /wake_up
//! level 2: weights are discarded       wake: /wake_up?tags=weights, reload them, /wake_up?tags=kv_cache
//! ```
//!
//! A level-2 engine that is woken without a reload answers with garbage and no error anywhere, so the three steps are
//! one function here. No answer is proof of anything: without sleep mode `/sleep` says `sleeping` and frees nothing, and
//! a sleeping engine is the healthiest and emptiest of its pool by every signal. Whoever calls takes it out of the pick
//! first (E1), drains it (E2), proves the memory free, and proves real tokens after the wake.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::attempt;
use crate::client::{ClientError, Head, Pool};
use crate::dialect::Dialect;

/// How long running requests are waited for before an engine falls asleep; it was drained before.
pub const DRAINED_WITHIN: Duration = Duration::from_secs(10);
/// Longest time to fall asleep: level 1 of 22 GB took 11 s, and goes at the speed of the host's memory.
pub const SLEEP_WITHIN: Duration = Duration::from_secs(60);
/// Longest time to be asked whether it sleeps.
pub const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read; the metrics page is the largest.
pub const ANSWER_MAX: usize = crate::scrape::PAGE_MAX;

/// How deep an engine sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Its weights are in host memory.
    One,
    /// Its weights are gone.
    Two,
}

impl Level {
    /// The level of this number.
    #[must_use]
    pub const fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::One),
            2 => Some(Self::Two),
            _ => None,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// Why an engine did not fall asleep or wake.
#[derive(Debug, thiserror::Error)]
pub enum SleepFault {
    /// It has no such routes.
    #[error("the engine has no {path}: it was started without VLLM_SERVER_DEV_MODE=1, or cannot sleep at all")]
    Unsupported {
        /// The route.
        path: &'static str,
    },
    /// It refused.
    #[error("{path} was answered with status {status}: {text}")]
    Refused {
        /// The route.
        path: &'static str,
        /// The status.
        status: u16,
        /// What it said.
        text: Box<str>,
    },
    /// No answer in time.
    #[error("no answer to {path} in time")]
    Timeout {
        /// The route.
        path: &'static str,
    },
    /// The exchange failed.
    #[error("{path} failed: {error}")]
    Client {
        /// The route.
        path: &'static str,
        /// How.
        error: ClientError,
    },
    /// It said that it would, and does not.
    #[error("the engine says that it {}", if *.is_sleeping { "still sleeps" } else { "does not sleep" })]
    Unchanged {
        /// What it says now.
        is_sleeping: bool,
    },
}

/// An engine that can sleep, over the connections of probes.
#[derive(Clone, Debug)]
pub struct Sleeper {
    dialect: Dialect,
    pool: Arc<Pool>,
}

impl Sleeper {
    /// `None` for engines that cannot sleep.
    #[must_use]
    pub fn new(dialect: Dialect, pool: &Arc<Pool>) -> Option<Self> {
        dialect.can_sleep().then(|| Self { dialect, pool: Arc::clone(pool) })
    }

    /// Puts it to sleep. What still runs is waited for, and frozen (not aborted) when it does not end: the engine's own
    /// default would end it as if it were whole (E2).
    ///
    /// # Errors
    /// [`SleepFault`]; where the engine is then, only [`Self::level`] tells.
    pub async fn sleep(&self, level: Level) -> Result<(), SleepFault> {
        let (wait, keep) = match level {
            Level::One => ("/sleep?level=1&mode=wait", "/sleep?level=1&mode=keep"),
            Level::Two => ("/sleep?level=2&mode=wait", "/sleep?level=2&mode=keep"),
        };
        let until = Instant::now() + SLEEP_WITHIN;
        // Its running requests, then its weights: the second takes its time too.
        match self.post(wait, Bytes::new(), Instant::now() + DRAINED_WITHIN).await {
            Err(SleepFault::Timeout { .. }) if !self.is_sleeping().await? => {
                self.post(keep, Bytes::new(), until).await?;
            }
            Err(SleepFault::Timeout { .. }) | Ok(()) => {}
            Err(fault) => return Err(fault),
        }
        self.expect(true).await
    }

    /// Wakes it, and reloads what it discarded. That it says sensible things then is for others to prove.
    ///
    /// # Errors
    /// [`SleepFault`]; it may be repeated.
    pub async fn wake(&self, level: Level, within: Duration) -> Result<(), SleepFault> {
        const RELOAD: &[u8] = br#"{"method":"reload_weights"}"#;
        let until = Instant::now() + within;
        match level {
            Level::One => self.post("/wake_up", Bytes::new(), until).await?,
            Level::Two => {
                self.post("/wake_up?tags=weights", Bytes::new(), until).await?;
                self.post("/collective_rpc", Bytes::from_static(RELOAD), until).await?;
                self.post("/wake_up?tags=kv_cache", Bytes::new(), until).await?;
            }
        }
        self.expect(false).await
    }

    /// Whether it says that it sleeps; a paused one says so too.
    ///
    /// # Errors
    /// [`SleepFault`] when it does not say.
    pub async fn is_sleeping(&self) -> Result<bool, SleepFault> {
        const PATH: &str = "/is_sleeping";
        let body = self.exchange(Head::get(PATH), PATH, Bytes::new(), Instant::now() + ASK_WITHIN).await?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        answer["is_sleeping"].as_bool().ok_or_else(|| SleepFault::Refused {
            path: PATH,
            status: 200,
            text: "an answer without is_sleeping".into(),
        })
    }

    /// How deep it sleeps, by its own word; `None`: it is awake. One that does not say how deep is taken for the
    /// deepest, whose wake mends the others too.
    ///
    /// # Errors
    /// [`SleepFault`] when it does not say.
    pub async fn level(&self) -> Result<Option<Level>, SleepFault> {
        const PATH: &str = "/metrics";
        if !self.is_sleeping().await? {
            return Ok(None);
        }
        let page = self.exchange(Head::get(PATH), PATH, Bytes::new(), Instant::now() + ASK_WITHIN).await;
        let is_offloaded = page.is_ok_and(|page| {
            let text = String::from_utf8_lossy(&page);
            let mut lines = text.lines().filter(|line| line.starts_with("vllm:engine_sleep_state{"));
            lines.any(|line| line.contains(r#"sleep_state="weights_offloaded""#) && is_one(line))
        });
        Ok(Some(if is_offloaded { Level::One } else { Level::Two }))
    }

    async fn expect(&self, wanted: bool) -> Result<(), SleepFault> {
        let is_sleeping = self.is_sleeping().await?;
        if is_sleeping == wanted { Ok(()) } else { Err(SleepFault::Unchanged { is_sleeping }) }
    }

    async fn post(&self, path: &'static str, body: Bytes, until: Instant) -> Result<(), SleepFault> {
        self.exchange(Head::post_json(path), path, body, until).await.map(drop)
    }

    async fn exchange(
        &self,
        head: Head<'_>,
        path: &'static str,
        body: Bytes,
        until: Instant,
    ) -> Result<Bytes, SleepFault> {
        let client = |error| SleepFault::Client { path, error };
        let exchange = async {
            let response = self.pool.send(head, body).await.map_err(client)?;
            let status = response.head.status;
            Ok((status, response.body.collect(ANSWER_MAX).await.map_err(client)?))
        };
        let (status, answer) = timeout_at(until, exchange).await.map_err(|_| SleepFault::Timeout { path })??;
        match status {
            200 => Ok(answer),
            404 | 405 => Err(SleepFault::Unsupported { path }),
            _ => {
                let end = attempt::refused(self.dialect, status, &answer);
                let text = end.fault().internal.clone().unwrap_or_default();
                Err(SleepFault::Refused { path, status, text })
            }
        }
    }
}

fn is_one(line: &str) -> bool {
    line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok()).is_some_and(|value| value > 0.0)
}
