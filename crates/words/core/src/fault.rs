//! Faults: everything that can go wrong with a request, as a closed set.
//!
//! A [`FaultKind`] is the metric label; a [`Case`] is one row of the refusal table (HTTP status, OpenAI `type` and
//! `code`, whether waiting helps, what caller and operator do); a [`Fault`] is one occurrence with its texts. Rendering
//! is done in exactly one function, in `wire`; `docs/errors.md` is generated from [`Case::ALL`].

use std::borrow::Cow;
use std::time::Duration;

/// The closed set of fault kinds: metric label and first sorting of every refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// No, malformed, unknown, revoked or expired credential.
    InvalidKey,
    /// The credential cannot be checked now.
    AuthUnavailable,
    /// The credential is good but not for this.
    Forbidden,
    /// The model does not exist, or the caller holds no grant for it.
    ModelNotFound,
    /// The request itself is wrong.
    BadRequest,
    /// No such path or method.
    NoRoute,
    /// A rate or concurrency limit.
    RateLimit,
    /// A daily or monthly quota.
    Quota,
    /// The platform is full, or draining.
    Overloaded,
    /// No deployment serves the model now.
    ModelUnavailable,
    /// The replica could not be reached, or closed before the first byte.
    UpstreamUnreachable,
    /// The replica sent nothing in time.
    UpstreamTimeout,
    /// The replica failed after the first byte.
    UpstreamInterrupted,
    /// The caller left; in ledger and metrics only.
    ClientGone,
    /// A fault of the gateway's own.
    Internal,
}

impl FaultKind {
    /// All kinds, in the order of the enum.
    pub const ALL: [Self; 15] = [
        Self::InvalidKey,
        Self::AuthUnavailable,
        Self::Forbidden,
        Self::ModelNotFound,
        Self::BadRequest,
        Self::NoRoute,
        Self::RateLimit,
        Self::Quota,
        Self::Overloaded,
        Self::ModelUnavailable,
        Self::UpstreamUnreachable,
        Self::UpstreamTimeout,
        Self::UpstreamInterrupted,
        Self::ClientGone,
        Self::Internal,
    ];

    /// The kind as metrics, logs and the ledger show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidKey => "invalid_key",
            Self::AuthUnavailable => "auth_unavailable",
            Self::Forbidden => "forbidden",
            Self::ModelNotFound => "model_not_found",
            Self::BadRequest => "bad_request",
            Self::NoRoute => "no_route",
            Self::RateLimit => "rate_limit",
            Self::Quota => "quota",
            Self::Overloaded => "overloaded",
            Self::ModelUnavailable => "model_unavailable",
            Self::UpstreamUnreachable => "upstream_unreachable",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::UpstreamInterrupted => "upstream_interrupted",
            Self::ClientGone => "client_gone",
            Self::Internal => "internal",
        }
    }

    /// Whose fault it is: only the replica's trips a breaker.
    #[must_use]
    pub const fn origin(self) -> Origin {
        match self {
            Self::InvalidKey | Self::ModelNotFound | Self::BadRequest | Self::NoRoute | Self::ClientGone => {
                Origin::Caller
            }
            Self::Forbidden | Self::RateLimit | Self::Quota => Origin::Policy,
            Self::UpstreamUnreachable | Self::UpstreamTimeout | Self::UpstreamInterrupted => Origin::Replica,
            Self::AuthUnavailable | Self::Overloaded | Self::ModelUnavailable | Self::Internal => Origin::Platform,
        }
    }
}

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The caller's.
    Caller,
    /// Nobody's: a rule said no.
    Policy,
    /// One replica's.
    Replica,
    /// Tidegate's, or of a part it needs.
    Platform,
}

/// One row of the refusal table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Kind: metric label.
    pub kind: FaultKind,
    /// HTTP status.
    pub status: u16,
    /// OpenAI's `error.type`.
    pub r#type: &'static str,
    /// OpenAI's `error.code`.
    pub code: Option<&'static str>,
    /// What `x-should-retry` says, where the client library would guess wrong without it.
    pub should_retry: Option<bool>,
    /// Default public text.
    pub message: &'static str,
    /// What the caller does about it.
    pub caller: &'static str,
    /// What the operator does about it.
    pub operator: &'static str,
}

macro_rules! cases {
    ($($(#[$doc:meta])* $case:ident = $kind:ident, $status:literal, $type:literal, $code:expr, $retry:expr,
        $message:literal, $caller:literal, $operator:literal;)*) => {
        /// Every refusal there is: one row of the table each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Case { $($(#[$doc])* $case,)* }

        impl Case {
            /// All rows, in the order in which a request can meet them.
            pub const ALL: &[Self] = &[$(Self::$case,)*];

            /// The row's name, as `docs/errors.md` shows it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$case => stringify!($case),)* }
            }

            /// The row.
            #[must_use]
            pub const fn row(self) -> Row {
                match self {
                    $(Self::$case => Row {
                        kind: FaultKind::$kind, status: $status, r#type: $type, code: $code, should_retry: $retry,
                        message: $message, caller: $caller, operator: $operator,
                    },)*
                }
            }
        }
    };
}

cases! {
    /// Two readings of one message: framing, host or path that is not clean.
    Framing = BadRequest, 400, "invalid_request_error", Some("bad_framing"), None,
        "the request is not well-formed HTTP",
        "use an HTTP client library; send one Host, one Content-Length or one Transfer-Encoding: chunked",
        "nothing; tidegate_faults_total{kind=\"bad_request\"} rising is somebody probing";
    /// The request target is over 8 KiB.
    UriTooLong = BadRequest, 414, "invalid_request_error", Some("uri_too_long"), None,
        "the request target is too long", "send parameters in the body", "nothing";
    /// More than 64 headers or 32 KiB of them.
    HeadersTooLarge = BadRequest, 431, "invalid_request_error", Some("headers_too_large"), None,
        "the request headers are too large", "send fewer or smaller headers, cookies above all", "nothing";
    /// Too many failed authentications from one peer.
    AuthThrottled = RateLimit, 429, "requests", Some("rate_limit_exceeded"), None,
        "too many failed authentications from this address",
        "check the key; wait as Retry-After says", "look for a client with an old key at the peer's address";
    /// No, malformed, unknown, revoked or expired credential.
    InvalidKey = InvalidKey, 401, "invalid_request_error", Some("invalid_api_key"), None,
        "no valid API key was given",
        "send one key as Authorization: Bearer, x-api-key or api-key; ask for a new key when it expired",
        "tidegate key ls shows the key's state; tidegate key create or rotate makes a new secret";
    /// The key store is away and the key is not in the last snapshot.
    AuthUnavailable = AuthUnavailable, 503, "service_unavailable_error", Some("auth_unavailable"), None,
        "the key cannot be checked at the moment", "retry as Retry-After says",
        "bring the store back; known keys keep working meanwhile";
    /// No such path.
    UnknownPath = NoRoute, 404, "invalid_request_error", None, None,
        "there is no such path", "check the base URL: it ends in /v1", "nothing";
    /// The path exists, the method does not.
    MethodNotAllowed = NoRoute, 405, "invalid_request_error", Some("method_not_allowed"), None,
        "this method is not allowed here", "use the method named in the allow header", "nothing";
    /// The credential is good, but not for this route.
    Forbidden = Forbidden, 403, "invalid_request_error", Some("insufficient_permissions"), None,
        "this key is not allowed to do that", "use a key made for this purpose",
        "admin keys serve the admin port only, model keys the gate only";
    /// The gate is shutting down.
    Draining = Overloaded, 503, "service_unavailable_error", Some("server_is_overloaded"), None,
        "the gate is restarting", "retry as Retry-After says", "expected during a restart";
    /// A compressed request body.
    Encoding = BadRequest, 415, "invalid_request_error", Some("unsupported_encoding"), None,
        "compressed request bodies are not accepted", "send the body without content-encoding", "nothing";
    /// The body is over the limit.
    TooLarge = BadRequest, 413, "invalid_request_error", Some("request_too_large"), None,
        "the request body is too large", "send less; images as smaller data: URLs", "raise Site.spec.gateway.maxBody";
    /// The body came too slowly.
    SlowBody = BadRequest, 408, "invalid_request_error", Some("request_timeout"), Some(false),
        "the request body did not arrive in time", "check the network; send the body at once", "nothing";
    /// Not JSON, or JSON with two readings.
    JsonParse = BadRequest, 400, "invalid_request_error", Some("json_parse_error"), None,
        "the body is not valid JSON", "mend the JSON; the message says where", "nothing";
    /// A required field is missing.
    MissingParameter = BadRequest, 400, "invalid_request_error", Some("missing_required_parameter"), None,
        "a required parameter is missing", "add the field that param names", "nothing";
    /// A field has a value that cannot be accepted.
    InvalidValue = BadRequest, 400, "invalid_request_error", Some("invalid_value"), None,
        "a parameter has an invalid value", "mend the field that param names", "nothing";
    /// Unknown model, or known and not granted: one answer for both.
    ModelNotFound = ModelNotFound, 404, "invalid_request_error", Some("model_not_found"), None,
        "the model does not exist or you do not have access to it", "GET /v1/models lists what the key may use",
        "grant the alias in the Team document; tidegate check shows grants without an alias";
    /// The alias is absent in this shift, or nothing serves it.
    ModelUnavailable = ModelUnavailable, 503, "service_unavailable_error", Some("model_unavailable"), None,
        "no replica serves this model now", "retry as Retry-After says, or use another model",
        "tidegate status shows replicas and shift; bring one up or mend its health";
    /// Prompt over the context window or over maxInputTokens.
    ContextLength = BadRequest, 400, "invalid_request_error", Some("context_length_exceeded"), None,
        "the prompt is longer than the model's context allows", "shorten the prompt",
        "raise limits.contextTokens or maxInputTokens if the model can do more";
    /// One request larger than the whole limit.
    TooLargeForLimit = RateLimit, 429, "tokens", Some("rate_limit_exceeded"), Some(false),
        "this request alone is larger than the limit", "lower max_tokens or shorten the prompt; waiting will not help",
        "raise tpm if such requests are meant to pass";
    /// A daily or monthly quota is used up.
    Quota = Quota, 429, "insufficient_quota", Some("insufficient_quota"), Some(false),
        "the token quota is used up", "wait for the next period; the message says when it starts",
        "raise dailyTokens or monthlyTokens; tidegate usage shows who used it";
    /// Requests per minute.
    RateRequests = RateLimit, 429, "requests", Some("rate_limit_exceeded"), None,
        "request rate limit reached", "retry as Retry-After says", "raise rpm; the message names the level";
    /// Tokens per minute.
    RateTokens = RateLimit, 429, "tokens", Some("rate_limit_exceeded"), None,
        "token rate limit reached", "retry as Retry-After says", "raise tpm; the message names the level";
    /// Requests in flight.
    Concurrency = RateLimit, 429, "requests", Some("rate_limit_exceeded"), None,
        "too many requests in flight", "wait for a request of yours to end, then retry",
        "raise concurrency; the message names the level";
    /// The same Idempotency-Key while the first runs or after it was charged.
    IdempotencyConflict = BadRequest, 409, "invalid_request_error", Some("idempotency_conflict"), Some(false),
        "a request with this Idempotency-Key ran already", "use a new Idempotency-Key", "nothing";
    /// The same Idempotency-Key with another body.
    IdempotencyMismatch = BadRequest, 422, "invalid_request_error", Some("idempotency_conflict"), Some(false),
        "this Idempotency-Key was used with another body", "use a new Idempotency-Key", "nothing";
    /// The pool is full and the wait is over.
    Overloaded = Overloaded, 503, "service_unavailable_error", Some("server_is_overloaded"), None,
        "the model is overloaded", "retry as Retry-After says",
        "add replicas; queue and KV use per replica are on the metrics page";
    /// The replica refused, reset or closed before the first byte, and retries are spent.
    UpstreamUnreachable = UpstreamUnreachable, 502, "server_error", Some("upstream_unreachable"), None,
        "the model server could not be reached", "retry", "look at the engine's log; tidegate status shows the replica";
    /// No first byte in time.
    UpstreamTimeout = UpstreamTimeout, 504, "server_error", Some("upstream_timeout"), None,
        "the model server did not answer in time", "retry; ask for fewer tokens",
        "raise timeouts.firstByte or whole, or add replicas";
    /// The replica's own 4xx about the request.
    UpstreamRejected = BadRequest, 400, "invalid_request_error", Some("invalid_value"), None,
        "the model server refused the request", "mend the field that param names",
        "the engine's own text is in the log under the request id";
    /// The replica failed after the first byte.
    UpstreamInterrupted = UpstreamInterrupted, 502, "server_error", Some("upstream_interrupted"), None,
        "the model server stopped in the middle of the answer", "retry; what arrived is incomplete",
        "look at the engine's log at that time";
    /// The caller left.
    ClientGone = ClientGone, 499, "server_error", Some("client_gone"), None,
        "the caller closed the connection", "nothing", "nothing; many of them hint at client time-outs";
    /// A fault of the gateway's own.
    Internal = Internal, 500, "server_error", Some("internal_error"), None,
        "internal error", "retry; report the request id if it stays",
        "search the log for the request id and report the text";
}

/// One occurrence: a row of the table, what the caller may read, and what only the log says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which row.
    pub case: Case,
    /// HTTP status; the row's unless a replica's own 4xx is passed on.
    pub status: u16,
    /// Plain text for the caller: no addresses, no engine text, no lists of models.
    pub public: Cow<'static, str>,
    /// The field at fault.
    pub param: Option<Cow<'static, str>>,
    /// For the log only.
    pub internal: Option<Box<str>>,
    /// How long to wait; `None` when waiting does not help or no time can be said.
    pub retry_after: Option<Duration>,
    /// `x-should-retry`; the row's unless one occurrence knows better.
    pub should_retry: Option<bool>,
}

impl Fault {
    /// A fault with the row's own text.
    #[must_use]
    pub const fn new(case: Case) -> Self {
        let row = case.row();
        Self {
            case,
            status: row.status,
            public: Cow::Borrowed(row.message),
            param: None,
            internal: None,
            retry_after: None,
            should_retry: row.should_retry,
        }
    }

    /// Replaces the public text.
    #[must_use]
    pub fn saying(mut self, public: impl Into<Cow<'static, str>>) -> Self {
        self.public = public.into();
        self
    }

    /// Names the field at fault.
    #[must_use]
    pub fn param(mut self, param: impl Into<Cow<'static, str>>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Adds what only the log says.
    #[must_use]
    pub fn internal(mut self, text: impl Into<Box<str>>) -> Self {
        self.internal = Some(text.into());
        self
    }

    /// Says how long to wait.
    #[must_use]
    pub const fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Another HTTP status than the row's.
    #[must_use]
    pub const fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// The metric label.
    #[must_use]
    pub const fn kind(&self) -> FaultKind {
        self.case.row().kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_permanent_refusal_that_a_client_library_would_retry_says_so() {
        // The OpenAI library retries 408, 409, 429 and 5xx unless told otherwise.
        for case in [Case::SlowBody, Case::IdempotencyConflict, Case::Quota, Case::TooLargeForLimit] {
            assert_eq!(case.row().should_retry, Some(false), "{case:?}");
        }
    }

    #[test]
    fn kinds_are_at_most_fifteen_and_each_has_a_row() {
        assert_eq!(FaultKind::ALL.len(), 15);
        for kind in FaultKind::ALL {
            assert!(Case::ALL.iter().any(|case| case.row().kind == kind), "{kind:?}");
        }
    }
}
