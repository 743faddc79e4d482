//! What the ledger keeps: a reservation before the upstream call, one final entry after it.
//!
//! Both carry the gateway-made [`RequestId`]; the store's unique key is (id, kind), so that any record may be delivered
//! twice.

use crate::clock::Unix;
use crate::fault::FaultKind;
use crate::id::{AliasName, CallerName, DeploymentName, KeyId, ModelName, ReplicaId, RequestId, TeamName};

/// Written to the journal before the upstream call: enough to charge the request if nothing more is ever heard of it,
/// and to rebuild the limits' windows after a restart.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Reservation {
    /// The ledger's id.
    pub id: RequestId,
    /// When it was admitted.
    pub at: Unix,
    /// Who vouches for the caller.
    pub issuer: Box<str>,
    /// The caller inside its issuer.
    pub caller: CallerName,
    /// The team whose policy applies.
    pub team: TeamName,
    /// The API key, if one was used.
    pub key: Option<KeyId>,
    /// The name asked for.
    pub alias: AliasName,
    /// Estimated prompt tokens.
    pub prompt_tokens: u64,
    /// Reserved output tokens.
    pub output_tokens: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Answered in full.
    Ok,
    /// The caller left.
    Cancelled,
    /// Refused or failed; `Entry::fault` says how.
    Failed,
    /// The process died while it ran; the estimate stays.
    Orphaned,
}

impl Outcome {
    /// The outcome as the ledger shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::Orphaned => "orphaned",
        }
    }
}

/// Where the token counts of an entry come from, worst first: a better one replaces a worse one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageSource {
    /// The reservation's estimate, or our own count of what passed.
    Estimated,
    /// The engine's usage report.
    Engine,
    /// Nothing was run, so nothing is charged.
    None,
}

impl UsageSource {
    /// The source as the ledger shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Estimated => "estimated",
            Self::Engine => "engine",
            Self::None => "none",
        }
    }
}

/// The final record of one accepted request: exactly one each, refused ones included.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Entry {
    /// The ledger's id.
    pub id: RequestId,
    /// The caller's own request id, or the made one, as answered in `x-request-id`.
    pub request_id: Box<str>,
    /// When it was accepted; the period it is charged to follows from this.
    pub at: Unix,
    /// Who vouches for the caller.
    pub issuer: Box<str>,
    /// The caller inside its issuer.
    pub caller: CallerName,
    /// The team whose policy applied.
    pub team: TeamName,
    /// The API key, if one was used.
    pub key: Option<KeyId>,
    /// The endpoint, as in the route table.
    pub endpoint: Box<str>,
    /// The name asked for; `None` when the request was refused before a model was known.
    pub alias: Option<AliasName>,
    /// The alias that served, when a fallback or substitute did.
    pub served_alias: Option<AliasName>,
    /// The model's name.
    pub model: Option<ModelName>,
    /// The deployment that served.
    pub deployment: Option<DeploymentName>,
    /// The replica that served.
    pub replica: Option<ReplicaId>,
    /// The engine's own id of the answer.
    pub engine_id: Option<Box<str>>,
    /// How it ended.
    pub outcome: Outcome,
    /// What went wrong, if anything.
    pub fault: Option<FaultKind>,
    /// The code answered, if anything went wrong.
    pub code: Option<Box<str>>,
    /// HTTP status answered.
    pub status: u16,
    /// Whether the answer was streamed.
    pub streamed: bool,
    /// Attempts made upstream.
    pub attempts: u32,
    /// Where the token counts come from.
    pub source: UsageSource,
    /// Prompt tokens charged, cached ones included.
    pub prompt_tokens: u64,
    /// Of these, tokens that the engine had in its prefix cache.
    pub cached_tokens: u64,
    /// Output tokens charged.
    pub output_tokens: u64,
    /// What was reserved: prompt plus output.
    pub reserved_tokens: u64,
    /// Microseconds from acceptance to the upstream call.
    pub queue_us: u64,
    /// Microseconds from acceptance to the first byte of the answer's body; `None` if none came.
    pub ttft_us: Option<u64>,
    /// Microseconds from acceptance to the end.
    pub total_us: u64,
}

impl Entry {
    /// Tokens charged.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.output_tokens)
    }

    /// The entry of a reservation of which nothing more was heard: it keeps its estimate.
    #[must_use]
    pub fn orphan(reservation: &Reservation) -> Self {
        Self {
            id: reservation.id,
            request_id: reservation.id.to_string().into(),
            at: reservation.at,
            issuer: reservation.issuer.clone(),
            caller: reservation.caller.clone(),
            team: reservation.team.clone(),
            key: reservation.key.clone(),
            endpoint: "".into(),
            alias: Some(reservation.alias.clone()),
            served_alias: None,
            model: None,
            deployment: None,
            replica: None,
            engine_id: None,
            outcome: Outcome::Orphaned,
            fault: Some(FaultKind::Internal),
            code: None,
            status: 0,
            streamed: false,
            attempts: 0,
            source: UsageSource::Estimated,
            prompt_tokens: reservation.prompt_tokens,
            cached_tokens: 0,
            output_tokens: reservation.output_tokens,
            reserved_tokens: reservation.prompt_tokens.saturating_add(reservation.output_tokens),
            queue_us: 0,
            ttft_us: None,
            total_us: 0,
        }
    }
}
