//! Reading an engine's whole answer, bounded.

use std::future::poll_fn;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use tidegate_engine::client::{ClientError, ResponseBody};

/// Largest unstreamed answer: a batch of long embeddings has tens of megabytes.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Largest error body that is looked at.
pub(crate) const ERROR_BYTES_MAX: usize = 64 * 1024;

/// Reads a body to its end.
///
/// # Errors
/// The engine broke off, or the body is over `max` bytes.
pub(crate) async fn collect(mut body: ResponseBody, max: usize) -> Result<Bytes, ClientError> {
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame?.into_data() else { continue };
        if first.len() + all.len() + data.len() > max {
            return Err(ClientError::TooLarge("body"));
        }
        if first.is_empty() && all.is_empty() {
            first = data;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&std::mem::take(&mut first));
            }
            all.extend_from_slice(&data);
        }
        if body.is_end_stream() {
            break;
        }
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}
