//! Reading a request body: bounded in size, in time and in slowness.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tidegate_core::{Case, Fault};

use crate::core::Core;
use crate::deadline::Elapsed;

/// A body may be as slow as it likes for this long.
pub(crate) const BODY_GRACE: Duration = Duration::from_secs(10);
/// After the grace it must average at least this many bytes a second.
pub(crate) const BODY_RATE_MIN: u64 = 16 * 1024;

/// How long a body of `received` bytes so far may have taken.
pub(crate) fn allowed(received: u64) -> Duration {
    BODY_GRACE + Duration::from_millis(received.saturating_mul(1_000) / BODY_RATE_MIN)
}

/// A body that did not come to its end: badly framed, or its caller has left.
pub(crate) fn broke_off(error: &hyper::Error) -> Fault {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<io::Error>()
            && matches!(io.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)
        {
            return Fault::new(Case::Framing).saying("the request body is broken");
        }
        source = cause.source();
    }
    Fault::new(Case::ClientGone)
}

/// Reads the whole body.
///
/// # Errors
/// 413 past `max` bytes, 408 when it is too slow, 400 when its framing is broken; 499 when the caller left.
pub(crate) async fn read_body(core: &Rc<Core>, mut body: Incoming, max: u64) -> Result<Bytes, Fault> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let started = core.now();
    let deadline = core.deadlines.at(started.after(allowed(0)));
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    let mut received = 0_u64;
    loop {
        let frame = match deadline.bound(body.frame()).await {
            Err(Elapsed) => return Err(Fault::new(Case::SlowBody)),
            Ok(None) => break,
            Ok(Some(Err(error))) => return Err(broke_off(&error)),
            Ok(Some(Ok(frame))) => frame,
        };
        // Trailers are dropped: nothing of them is ours or the engine's.
        let Ok(data) = frame.into_data() else { continue };
        received += data.len() as u64;
        if received > max {
            return Err(Fault::new(Case::TooLarge));
        }
        if received == data.len() as u64 {
            first = data;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&data);
        }
        if body.is_end_stream() {
            break;
        }
        deadline.set(started.after(allowed(received)));
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}
