//! What can go wrong between us and an engine, by the moment at which it does.

use std::io;
use std::time::Duration;

/// Why one exchange with an engine failed.
///
/// The variants are moments, not causes: whether an attempt may be repeated depends on how far it came.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The request head holds a byte that would let it be read in two ways; nothing was sent.
    #[error("request head holds a forbidden byte in {0}")]
    RequestHead(&'static str),
    /// No connection: refused, unreachable, no such host, or the TLS handshake failed.
    #[error("connect failed")]
    Connect(#[source] io::Error),
    /// No connection within the connect deadline.
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    /// The caller's body ended with an error, or had another length than announced.
    #[error("request body failed: {0}")]
    RequestBody(Box<str>),
    /// The connection broke before the first byte of a response.
    #[error("connection broke before the response")]
    BeforeResponse(#[source] io::Error),
    /// The engine closed the connection before the first byte of a response.
    #[error("connection closed before the response")]
    ClosedBeforeResponse,
    /// The connection broke inside the response.
    #[error("connection broke inside the response")]
    Interrupted(#[source] io::Error),
    /// The response ended before its own framing said so.
    #[error("response cut short")]
    Truncated,
    /// The response breaks HTTP/1.1 in a way that could be read in two ways.
    #[error("malformed response: {0}")]
    Malformed(&'static str),
    /// A part of the response is over its bound.
    #[error("response over its bound: {0}")]
    TooLarge(&'static str),
}

impl ClientError {
    /// Whether not a single byte of a response was seen: the only state in which a request on a connection from the
    /// pool is sent again by the client itself.
    #[must_use]
    pub const fn before_response(&self) -> bool {
        match self {
            Self::RequestHead(_)
            | Self::Connect(_)
            | Self::ConnectTimeout(_)
            | Self::RequestBody(_)
            | Self::BeforeResponse(_)
            | Self::ClosedBeforeResponse => true,
            Self::Interrupted(_) | Self::Truncated | Self::Malformed(_) | Self::TooLarge(_) => false,
        }
    }

    /// Whether the fault is ours or the caller's, so that it says nothing about the engine.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        matches!(self, Self::RequestHead(_) | Self::RequestBody(_))
    }
}
