//! What goes wrong, and when.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use super::{S3Request, Verb};

/// One way in which a store misbehaves. Positions are bytes of the answer's body unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum S3Fault {
    /// The head comes only after so long.
    Slow(Duration),
    /// The body comes in pieces of so many bytes, with so long between two.
    Drip { bytes: usize, every: Duration },
    /// So many bytes, then nothing more on an open connection.
    Stall { after: u64 },
    /// So many bytes, then nothing until [`S3Double::release`](super::S3Double::release); the rest follows.
    Hold { after: u64 },
    /// So many bytes, then an orderly end of the connection, short of the length that the head promised.
    Cut { after: u64 },
    /// So many bytes, then a reset of the connection.
    Reset { after: u64 },
    /// The body ends at this byte of the *object*, on every try: a damaged part.
    ShortAt { offset: u64 },
    /// One bit of the byte at this offset of the *object* is flipped wherever it is sent; entity tag and headers as ever.
    WrongByte { offset: u64 },
    /// The body, and the length in the head, are so many bytes shorter than what was asked for.
    Shorter { by: u64 },
    /// The whole object under 200 although a range was asked for.
    WholeForRange,
    /// The right range and `Content-Range` under 200, as rclone's server does.
    RangeUnder200,
    /// 206 with the right length, but bytes and `Content-Range` of a range so much further on.
    OtherRange { shift: u64 },
    /// 206 without `Content-Range`.
    NoContentRange,
    /// An error answer of S3.
    Refuse { status: u16, code: &'static str, retry_after_s: Option<u64> },
    /// The object becomes this one before the request is answered.
    Replace { with: Bytes },
    /// The object becomes this one after so many bytes, and the connection ends.
    ReplaceAndCut { after: u64, with: Bytes },
    /// The object becomes this one after so many bytes, and the rest of the body is the new one's.
    ReplaceAndMix { after: u64, with: Bytes },
    /// A reader that takes nothing for so long is cut.
    CutWhenPaused { after: Duration },
    /// A body that never ends, without a length.
    Endless,
    /// 200 with a page for people, as a proxy or a login sends.
    Page,
    /// Something that is not HTTP.
    Garbage,
}

impl S3Fault {
    /// 429 `TooManyRequests`, as `MinIO` says it.
    #[must_use]
    pub const fn too_many_requests(retry_after_s: Option<u64>) -> Self {
        Self::Refuse { status: 429, code: "TooManyRequests", retry_after_s }
    }

    /// 503 `SlowDown`.
    #[must_use]
    pub const fn slow_down() -> Self {
        Self::Refuse { status: 503, code: "SlowDown", retry_after_s: None }
    }

    /// 503 `SlowDownRead`: what `MinIO` says for ever about an object that lost a part.
    #[must_use]
    pub const fn slow_down_read() -> Self {
        Self::Refuse { status: 503, code: "SlowDownRead", retry_after_s: None }
    }

    /// 500 `InternalError`.
    #[must_use]
    pub const fn internal_error() -> Self {
        Self::Refuse { status: 500, code: "InternalError", retry_after_s: None }
    }

    /// 404 `NoSuchKey`, though the object is listed.
    #[must_use]
    pub const fn vanished() -> Self {
        Self::Refuse { status: 404, code: "NoSuchKey", retry_after_s: None }
    }

    /// 403 `AccessDenied`.
    #[must_use]
    pub const fn access_denied() -> Self {
        Self::Refuse { status: 403, code: "AccessDenied", retry_after_s: None }
    }

    /// 400 `ExpiredToken`.
    #[must_use]
    pub const fn expired_token() -> Self {
        Self::Refuse { status: 400, code: "ExpiredToken", retry_after_s: None }
    }
}

/// Which requests a fault is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct When {
    verb: Option<Verb>,
    key: Option<String>,
    holds: Option<u64>,
    /// Numbers, from 0, of the matching requests that are hit.
    numbers: Range<u64>,
    seen: u64,
}

impl When {
    const fn new(verb: Option<Verb>, key: Option<String>) -> Self {
        Self { verb, key, holds: None, numbers: 0..u64::MAX, seen: 0 }
    }

    /// Every request.
    #[must_use]
    pub const fn any() -> Self {
        Self::new(None, None)
    }

    /// Every request of one kind.
    #[must_use]
    pub const fn verb(verb: Verb) -> Self {
        Self::new(Some(verb), None)
    }

    /// Every request of one kind for keys that end so.
    #[must_use]
    pub fn of(verb: Verb, key: impl Into<String>) -> Self {
        Self::new(Some(verb), Some(key.into()))
    }

    /// Every GET of keys that end so.
    #[must_use]
    pub fn get(key: impl Into<String>) -> Self {
        Self::of(Verb::Get, key)
    }

    /// Only GETs that ask for this byte of the object.
    #[must_use]
    pub const fn holding(mut self, offset: u64) -> Self {
        self.holds = Some(offset);
        self
    }

    /// Only the first so many.
    #[must_use]
    pub const fn first(mut self, count: u64) -> Self {
        self.numbers = 0..count;
        self
    }

    /// Only the one of this number, from 0.
    #[must_use]
    pub const fn number(mut self, number: u64) -> Self {
        self.numbers = number..number + 1;
        self
    }

    /// All but the first so many.
    #[must_use]
    pub const fn after(mut self, count: u64) -> Self {
        self.numbers = count..u64::MAX;
        self
    }

    /// Counts a request and says whether it is hit.
    pub(super) fn hits(&mut self, request: &S3Request) -> bool {
        let is_same = self.verb.is_none_or(|verb| verb == request.verb)
            && self.key.as_ref().is_none_or(|key| request.key.ends_with(key.as_str()))
            && self.holds.is_none_or(|offset| request.range.as_ref().is_none_or(|range| range.contains(&offset)));
        if !is_same {
            return false;
        }
        let number = self.seen;
        self.seen += 1;
        self.numbers.contains(&number)
    }
}
