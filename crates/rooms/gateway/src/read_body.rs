//! Reading a request body: bounded in size, in time and in slowness.

use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tidegate_core::{Case, Fault};

use crate::caller_body::CallerBody;
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

/// Reads the whole body.
///
/// # Errors
/// 413 past `max` bytes, 408 when it is too slow, 400 when its framing is broken; 499 when the caller left.
pub(crate) async fn read_body(core: &Rc<Core>, mut body: CallerBody, max: u64) -> Result<Bytes, Fault> {
    if body.is_end() {
        return Ok(Bytes::new());
    }
    if let CallerBody::Whole(bytes) = &mut body {
        let bytes = bytes.take().unwrap_or_default();
        return if bytes.len() as u64 > max { Err(Fault::new(Case::TooLarge)) } else { Ok(bytes) };
    }
    let started = core.now();
    let deadline = core.deadlines.at(started.after(allowed(0)));
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    let mut received = 0_u64;
    loop {
        let data = match deadline.bound(body.data()).await {
            Err(Elapsed) => return Err(Fault::new(Case::SlowBody)),
            Ok(None) => break,
            Ok(Some(data)) => data?,
        };
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
        if body.is_end() {
            break;
        }
        deadline.set(started.after(allowed(received)));
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}
