//! How one attempt at an engine ended, in our words: what the caller may read, whether another replica may be tried,
//! and whether it speaks against this one.
//!
//! Engine texts never reach callers (E23): they hold lists of models, paths, source-language reprs and pieces of
//! prompts. They are kept, cut, in [`Fault::internal`], which only a restricted log shows.

mod error_body;
mod refused;

use tidegate_core::{Case, Fault, Origin};
use tidegate_wire::sse::{Cause, StreamFault};

pub use error_body::{ERROR_BODY_MAX, ErrorBody};
pub use refused::{QUEUE_FULL_RETRY_AFTER, error_event, refused};

use crate::client::{ClientError, ResponseHead};
use crate::dialect::Dialect;

/// Bytes of an engine's text that the log gets.
pub const INTERNAL_MAX: usize = 2 * 1024;

/// The end of an attempt that gave no good answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// Another replica may be tried, as long as nothing was sent to the caller; when the attempts are used up, the
    /// caller gets this fault.
    Retryable {
        /// What the caller reads in the end.
        fault: Fault,
        /// Whether it speaks against the replica.
        trips_breaker: bool,
    },
    /// The caller gets this fault now.
    Final(Fault),
}

impl AttemptEnd {
    fn against_replica(fault: Fault) -> Self {
        Self::Retryable { fault, trips_breaker: true }
    }

    /// What the caller reads.
    #[must_use]
    pub const fn fault(&self) -> &Fault {
        match self {
            Self::Retryable { fault, .. } | Self::Final(fault) => fault,
        }
    }

    /// The same, owned.
    #[must_use]
    pub fn into_fault(self) -> Fault {
        match self {
            Self::Retryable { fault, .. } | Self::Final(fault) => fault,
        }
    }

    /// Whether it speaks against the replica: never when the caller or a full queue is the reason.
    #[must_use]
    pub fn trips_breaker(&self) -> bool {
        match self {
            Self::Retryable { trips_breaker, .. } => *trips_breaker,
            Self::Final(fault) => fault.kind().origin() == Origin::Replica,
        }
    }

    /// What this is once a byte of the answer has reached the caller: nothing can be tried again, and a fault of the
    /// replica is an interruption.
    #[must_use]
    pub fn after_first_byte(self) -> Self {
        let fault = self.into_fault();
        if matches!(fault.case, Case::ClientGone | Case::Internal) {
            return Self::Final(fault);
        }
        let interrupted = Fault::new(Case::UpstreamInterrupted);
        Self::Final(match fault.internal {
            Some(text) => interrupted.internal(text),
            None => interrupted.internal(fault.public.into_owned()),
        })
    }
}

/// An exchange that failed before its end. [`AttemptEnd::after_first_byte`] turns it into what it is later.
#[must_use]
pub fn broken(error: &ClientError) -> AttemptEnd {
    let text = chain(error);
    match error {
        ClientError::RequestBody(_) => AttemptEnd::Final(Fault::new(Case::ClientGone).internal(text)),
        ClientError::RequestHead(_) => AttemptEnd::Final(Fault::new(Case::Internal).internal(text)),
        ClientError::ConnectTimeout(_)
        | ClientError::Connect(_)
        | ClientError::BeforeResponse(_)
        | ClientError::ClosedBeforeResponse
        | ClientError::Interrupted(_)
        | ClientError::Truncated
        | ClientError::Malformed(_)
        | ClientError::TooLarge(_) => AttemptEnd::against_replica(Fault::new(Case::UpstreamUnreachable).internal(text)),
    }
}

/// No first byte of a streamed answer in time.
#[must_use]
pub fn first_byte_timeout() -> AttemptEnd {
    AttemptEnd::against_replica(Fault::new(Case::UpstreamTimeout).internal("no first byte in time"))
}

/// Silence inside an answer, comment lines not counted (E5).
#[must_use]
pub fn gap_timeout() -> AttemptEnd {
    AttemptEnd::against_replica(Fault::new(Case::UpstreamTimeout).internal("the answer went silent"))
}

/// The whole request took too long: there is no time left for another attempt.
#[must_use]
pub fn whole_timeout() -> AttemptEnd {
    AttemptEnd::Final(Fault::new(Case::UpstreamTimeout).internal("the answer was not complete in time"))
}

/// The replica is stopped at the end of its drain: nothing is wrong with it, and another may answer.
#[must_use]
pub fn taken_out() -> AttemptEnd {
    let text = "the replica that had this request was stopped: its model is being switched";
    let fault = Fault::new(Case::UpstreamUnreachable).saying(text).internal("cut at the end of the replica's drain");
    AttemptEnd::Retryable { fault, trips_breaker: false }
}

/// Whether a 2xx head is what was asked for: events for a stream, JSON otherwise.
///
/// # Errors
/// An end that speaks against the replica: whatever it is, it is not the engine that should be there.
pub fn check_success(head: &ResponseHead, wants_stream: bool) -> Result<(), AttemptEnd> {
    let is_right = if wants_stream { head.is_event_stream() } else { head.is_json() };
    if is_right {
        return Ok(());
    }
    let got = head
        .content_type
        .as_ref()
        .map_or_else(|| "no content type".into(), |value| String::from_utf8_lossy(value.as_bytes()));
    let text = cut(&format!("status {} with an unexpected content type: {got}", head.status));
    Err(AttemptEnd::against_replica(Fault::new(Case::UpstreamUnreachable).internal(text)))
}

/// A stream that its reader found broken.
#[must_use]
pub fn stream_broke(dialect: Dialect, fault: &StreamFault) -> AttemptEnd {
    match &fault.cause {
        Cause::EngineError(text) => error_event(dialect, text.as_bytes()),
        Cause::Aborted => aborted(),
        Cause::TooLarge | Cause::Malformed | Cause::Truncated => {
            AttemptEnd::against_replica(Fault::new(Case::UpstreamUnreachable).internal(cut(&fault.to_string())))
        }
    }
}

/// An answer that ended in an engine's `finish_reason: "abort"`: the replica was paused, put to sleep or told to stop
/// (E3). HTTP 200, usage and `[DONE]` notwithstanding.
#[must_use]
pub fn aborted() -> AttemptEnd {
    AttemptEnd::against_replica(Fault::new(Case::UpstreamUnreachable).internal("finish_reason abort"))
}

/// A 2xx answer whose body is not what its head says.
#[must_use]
pub fn malformed_answer() -> AttemptEnd {
    AttemptEnd::against_replica(Fault::new(Case::UpstreamUnreachable).internal("the answer is not JSON"))
}

/// At most [`INTERNAL_MAX`] bytes, cut at a character.
fn cut(text: &str) -> Box<str> {
    let mut end = text.len().min(INTERNAL_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].into()
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> Box<str> {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    cut(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_replica_faults_are_tried_again_and_only_they_speak_against_it() {
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        for error in [
            ClientError::Connect(refused()),
            ClientError::ConnectTimeout(Duration::from_secs(2)),
            ClientError::BeforeResponse(refused()),
            ClientError::ClosedBeforeResponse,
            ClientError::Interrupted(refused()),
            ClientError::Truncated,
            ClientError::Malformed("x"),
            ClientError::TooLarge("x"),
        ] {
            let end = broken(&error);
            assert!(matches!(end, AttemptEnd::Retryable { trips_breaker: true, .. }), "{error}");
            assert_eq!(end.fault().case, Case::UpstreamUnreachable);
            let later = end.after_first_byte();
            assert!(matches!(&later, AttemptEnd::Final(fault) if fault.case == Case::UpstreamInterrupted), "{error}");
            assert!(later.trips_breaker());
        }
        let gone = broken(&ClientError::RequestBody("left".into()));
        assert!(matches!(&gone, AttemptEnd::Final(fault) if fault.case == Case::ClientGone));
        assert!(!gone.trips_breaker());
        assert!(!gone.after_first_byte().trips_breaker());
    }

    #[test]
    fn what_the_log_gets_is_bounded() {
        assert_eq!(cut(&"x".repeat(INTERNAL_MAX)).len(), INTERNAL_MAX);
        assert_eq!(cut(&"x".repeat(INTERNAL_MAX + 1)).len(), INTERNAL_MAX);
        assert_eq!(cut(&"é".repeat(INTERNAL_MAX)).len(), INTERNAL_MAX);
        assert_eq!(cut(&format!("x{}", "é".repeat(INTERNAL_MAX))).len(), INTERNAL_MAX - 1);
    }
}
