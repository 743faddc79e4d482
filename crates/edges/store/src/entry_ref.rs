//! An entry whose texts lie elsewhere: between the journal's bytes and the ledger's rows nothing of it is copied.

use tidegate_core::{Entry, FaultKind, Outcome, RequestId, Unix, UsageSource};

/// As [`Entry`], field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryRef<'a> {
    pub(crate) id: RequestId,
    pub(crate) request_id: &'a str,
    pub(crate) at: Unix,
    pub(crate) issuer: &'a str,
    pub(crate) caller: &'a str,
    pub(crate) team: &'a str,
    pub(crate) key: Option<&'a str>,
    pub(crate) endpoint: &'a str,
    pub(crate) alias: Option<&'a str>,
    pub(crate) served_alias: Option<&'a str>,
    pub(crate) model: Option<&'a str>,
    pub(crate) deployment: Option<&'a str>,
    pub(crate) replica: Option<&'a str>,
    pub(crate) engine_id: Option<&'a str>,
    pub(crate) outcome: Outcome,
    pub(crate) fault: Option<FaultKind>,
    pub(crate) code: Option<&'a str>,
    pub(crate) status: u16,
    pub(crate) streamed: bool,
    pub(crate) attempts: u32,
    pub(crate) source: UsageSource,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) reserved_tokens: u64,
    pub(crate) queue_us: u64,
    pub(crate) ttft_us: Option<u64>,
    pub(crate) total_us: u64,
}

impl<'a> From<&'a Entry> for EntryRef<'a> {
    fn from(entry: &'a Entry) -> Self {
        Self {
            id: entry.id,
            request_id: &entry.request_id,
            at: entry.at,
            issuer: &entry.issuer,
            caller: entry.caller.as_str(),
            team: entry.team.as_str(),
            key: entry.key.as_ref().map(|name| name.as_str()),
            endpoint: &entry.endpoint,
            alias: entry.alias.as_ref().map(|name| name.as_str()),
            served_alias: entry.served_alias.as_ref().map(|name| name.as_str()),
            model: entry.model.as_ref().map(|name| name.as_str()),
            deployment: entry.deployment.as_ref().map(|name| name.as_str()),
            replica: entry.replica.as_ref().map(|name| name.as_str()),
            engine_id: entry.engine_id.as_deref(),
            outcome: entry.outcome,
            fault: entry.fault,
            code: entry.code.as_deref(),
            status: entry.status,
            streamed: entry.streamed,
            attempts: entry.attempts,
            source: entry.source,
            prompt_tokens: entry.prompt_tokens,
            cached_tokens: entry.cached_tokens,
            output_tokens: entry.output_tokens,
            reserved_tokens: entry.reserved_tokens,
            queue_us: entry.queue_us,
            ttft_us: entry.ttft_us,
            total_us: entry.total_us,
        }
    }
}

impl EntryRef<'_> {
    /// The entry with texts of its own.
    pub(crate) fn to_entry(self) -> Entry {
        Entry {
            id: self.id,
            request_id: self.request_id.into(),
            at: self.at,
            issuer: self.issuer.into(),
            caller: self.caller.into(),
            team: self.team.into(),
            key: self.key.map(Into::into),
            endpoint: self.endpoint.into(),
            alias: self.alias.map(Into::into),
            served_alias: self.served_alias.map(Into::into),
            model: self.model.map(Into::into),
            deployment: self.deployment.map(Into::into),
            replica: self.replica.map(Into::into),
            engine_id: self.engine_id.map(Into::into),
            outcome: self.outcome,
            fault: self.fault,
            code: self.code.map(Into::into),
            status: self.status,
            streamed: self.streamed,
            attempts: self.attempts,
            source: self.source,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens,
            reserved_tokens: self.reserved_tokens,
            queue_us: self.queue_us,
            ttft_us: self.ttft_us,
            total_us: self.total_us,
        }
    }
}
