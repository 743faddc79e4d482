//! One owner of a cache folder, and how others have it do their work.
//!
//! ```text
//! perform(request) ── owner.lock is free ──> owner: does it, and serves others on owner.sock meanwhile
//!                  └─ it is taken ────────> asks over owner.sock ──> events … result
//!                                           the owner died ──> from the top: the lock is free now, whoever is first
//!                                                              becomes owner and goes on where the dead one was
//! ```
//!
//! The socket speaks lines of JSON: one request; then events, a sign of life in silence, and one result or fault. Only
//! processes of the owner's user, and root, are served.

mod client;
mod server;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_core::Sha256Digest;
use tokio::time::Instant;

pub use self::client::{Client, Lost};
pub use self::server::Server;
use crate::cache::{Cache, CacheOptions, gc};
use crate::evict::Hold;
use crate::fault::CacheFault;
use crate::layout::{Layout, ModelPath};
use crate::progress::{Event, Sink};

/// The version of the protocol on the socket.
pub const PROTOCOL: u32 = 1;
/// Longest request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Longest line of a reply, in bytes.
pub const REPLY_BYTES_MAX: usize = 16 << 20;
/// How many are served at once; more wait to be accepted.
pub const CONNECTIONS_MAX: usize = 64;
/// How long a request may take to arrive, and a line to be taken.
pub const LINE_MAX: Duration = Duration::from_secs(10);
/// How often the owner shows that it is alive while there are no events.
pub const ALIVE_EVERY: Duration = Duration::from_secs(2);
/// After how much silence the owner is taken to hang.
pub const SILENCE_MAX: Duration = Duration::from_secs(20);
/// How long a new owner may take from the lock to the socket.
pub const ENTER_MAX: Duration = Duration::from_secs(10);
/// How often it is looked for meanwhile.
pub const ENTER_EVERY: Duration = Duration::from_millis(50);
/// How long an owner whose own work is done waits for those that it serves.
pub const HANDOVER_MAX: Duration = Duration::from_secs(1);
/// How many owners in a row may die over the same request.
pub const OWNERS_MAX: u32 = 8;

/// What others ask an owner to do. What only reads, they do themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Have a model here, fetched when it is not.
    Pull {
        /// Which.
        model: ModelPath,
        /// The digest that it must have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pin: Option<Sha256Digest>,
        /// The store's address as the asker knows it; an owner with another one refuses.
        store: String,
    },
    /// Hash a model's files, and fetch again what is wrong when `repair` says so.
    Verify {
        /// Which.
        digest: Sha256Digest,
        /// Whether wrong chunks are fetched again.
        repair: bool,
        /// As of [`Request::Pull`].
        store: String,
    },
    /// Give a model a reason to stay.
    Pin {
        /// Which.
        digest: Sha256Digest,
        /// What for.
        hold: Hold,
        /// Who says so.
        by: String,
        /// Why, in words.
        note: String,
    },
    /// Take a reason back.
    Unpin {
        /// Which.
        digest: Sha256Digest,
        /// What for.
        hold: Hold,
        /// Who said so.
        by: String,
    },
    /// Remove what has no record, and spare models until enough is free.
    Gc {
        /// Whether anything is removed.
        mode: gc::Mode,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    protocol: u32,
    request: Request,
}

/// One line of the owner.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Event(Event),
    Alive,
    Result(Value),
    Fault(CacheFault),
}

/// Does what is asked.
#[async_trait]
pub trait Serve: Send + Sync {
    /// Does it, telling `sink` how it goes. Dropping the future cancels it and leaves a state from which the next
    /// goes on.
    async fn serve(&self, request: Request, sink: Sink<'_>) -> Result<Value, CacheFault>;
}

/// Who has the cache.
#[derive(Debug)]
pub enum Entered {
    /// We do.
    Owner(Box<Cache>),
    /// Another process, which answers.
    Other(Client),
}

/// Becomes the owner of the cache at `root`, or reaches who is.
///
/// # Errors
///
/// `owner_busy` when it is owned by a process that does not answer; else what the disk says.
pub async fn enter(root: &Path, options: CacheOptions) -> Result<Entered, CacheFault> {
    let layout = Layout::new(root);
    let deadline = Instant::now() + ENTER_MAX;
    loop {
        let root = root.to_path_buf();
        let opened = tokio::task::spawn_blocking(move || Cache::open(&root, options)).await;
        let pid = match opened.unwrap_or(Err(CacheFault::Cancelled)) {
            Ok(cache) => return Ok(Entered::Owner(Box::new(cache))),
            Err(CacheFault::OwnerBusy { pid, .. }) => pid,
            Err(fault) => return Err(fault),
        };
        // Between its lock and its socket an owner cannot be reached yet, and after its end not any more.
        let reason = match Client::connect(&layout).await {
            Ok(client) => return Ok(Entered::Other(client)),
            Err(error) => error.to_string(),
        };
        if Instant::now() >= deadline {
            return Err(CacheFault::OwnerBusy { pid, reason: format!("cannot connect to owner.sock: {reason}") });
        }
        tokio::time::sleep(ENTER_EVERY).await;
    }
}

/// Has `request` done: by the owner of the cache at `root`, or as its owner, with what `serve` makes of it. An owner
/// serves others as long as its own request runs.
///
/// # Errors
///
/// The fault of the request; `owner_busy` when the owner does not answer, or one after the other dies over it.
pub async fn perform<S: Serve + 'static>(
    root: &Path,
    options: CacheOptions,
    request: &Request,
    sink: Sink<'_>,
    serve: impl Fn(Arc<Cache>) -> Result<S, CacheFault>,
) -> Result<Value, CacheFault> {
    for _ in 0..OWNERS_MAX {
        match enter(root, options).await? {
            Entered::Other(client) => match client.ask(request, sink).await {
                Ok(value) => return Ok(value),
                Err(Lost::Fault(fault)) => return Err(fault),
                Err(Lost::Gone) => {}
            },
            Entered::Owner(cache) => {
                let cache: Arc<Cache> = Arc::from(cache);
                let server = Server::bind(&cache)?;
                let serve = Arc::new(serve(cache)?);
                let own = serve.serve(request.clone(), sink);
                return server.run_beside(Arc::clone(&serve), own).await;
            }
        }
    }
    let pid = crate::cache::owner_pid(&Layout::new(root));
    Err(CacheFault::OwnerBusy { pid, reason: format!("{OWNERS_MAX} owners in a row died over this request") })
}

/// Whether a process of user `peer` is served by an owner of user `own`.
const fn may_ask(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owners_user_and_root_may_ask_and_nobody_else() {
        assert!(may_ask(1000, 1000) && may_ask(0, 1000) && may_ask(0, 0));
        assert!(!may_ask(1001, 1000) && !may_ask(1000, 0));
    }

    #[test]
    fn requests_and_replies_are_one_line_each() {
        let asked = Asked { protocol: PROTOCOL, request: Request::Gc { mode: gc::Mode::DryRun } };
        let text = serde_json::to_string(&asked).unwrap();
        assert_eq!(text, r#"{"protocol":1,"request":{"verb":"gc","mode":"dry_run"}}"#);
        let replies = [
            (Reply::Alive, r#""alive""#),
            (Reply::Event(Event::Missed { events: 3 }), r#"{"event":{"event":"missed","events":3}}"#),
            (Reply::Result(Value::Null), r#"{"result":null}"#),
            (Reply::Fault(CacheFault::Cancelled), r#"{"fault":{"code":"cancelled"}}"#),
        ];
        for (reply, expected) in replies {
            assert_eq!(serde_json::to_string(&reply).unwrap(), expected);
            serde_json::from_str::<Reply>(expected).unwrap();
        }
        let unknown = r#"{"protocol":1,"request":{"verb":"gc","mode":"dry_run","more":1}}"#;
        assert!(serde_json::from_str::<Asked>(unknown).is_err());
    }
}
