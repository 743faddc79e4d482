//! The body of a response: one frame per socket read.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};

use super::error::ClientError;
use super::exchange::Found;
use super::framing::Framing;
use super::head::KeepAlive;
use super::io::{Stream, poll_read_with};
use super::pool::{Connection, Pool};

/// A response body. Dropping it before its end closes the connection, which is how an engine is told to stop.
///
/// The connection goes back to its pool at the very read that ends the body, before the last frame is given out; never
/// after a fault, and never when the engine sent a byte more than the body.
pub struct ResponseBody {
    connection: Option<Connection>,
    framing: Framing,
    keep_alive: KeepAlive,
    /// What came in the same read as the head.
    first: Option<Bytes>,
    pool: Arc<Pool>,
}

impl ResponseBody {
    pub(super) fn new(connection: Connection, pool: Arc<Pool>, found: &Found, keep_alive: KeepAlive) -> Self {
        let first = (!found.payload.is_empty()).then(|| found.payload.clone());
        let mut body = Self { connection: Some(connection), framing: found.framing, keep_alive, first, pool };
        if body.framing.is_end() {
            body.finish(found.surplus == 0);
        }
        body
    }

    /// Whether every byte of the body was given out.
    #[must_use]
    pub const fn is_end(&self) -> bool {
        self.first.is_none() && self.connection.is_none()
    }

    /// The next bytes of the body, as they arrived: what came together leaves together, what came alone leaves at
    /// once, and the chunk framing is gone. Never an empty frame. After an error there is only `None`.
    ///
    /// # Errors
    /// Everything but [`ClientError`]s of earlier moments.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, ClientError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        loop {
            let Some(connection) = &mut self.connection else { return Poll::Ready(None) };
            let read = ready!(read_payload(&mut connection.stream, &mut self.framing, cx));
            match read {
                Ok(Read::Payload(payload, is_clean)) => {
                    if self.framing.is_end() {
                        self.finish(is_clean);
                    }
                    if !payload.is_empty() {
                        return Poll::Ready(Some(Ok(payload)));
                    }
                    // Only framing came: there is nothing to give out yet, or nothing more at all.
                }
                Ok(Read::Eof) => {
                    self.connection = None;
                    let end = self.framing.at_eof();
                    return Poll::Ready(end.err().map(Err));
                }
                Err(error) => {
                    self.connection = None;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }

    /// The next frame, as a future.
    ///
    /// # Errors
    /// As [`ResponseBody::poll_frame`].
    pub async fn frame(&mut self) -> Option<Result<Bytes, ClientError>> {
        std::future::poll_fn(|cx| self.poll_frame(cx)).await
    }

    /// The whole body, when it is at most `bytes_max` long.
    ///
    /// # Errors
    /// [`ClientError::TooLarge`] over the bound, else as [`ResponseBody::poll_frame`].
    pub async fn collect(mut self, bytes_max: usize) -> Result<Bytes, ClientError> {
        let Some(first) = self.frame().await.transpose()? else { return Ok(Bytes::new()) };
        if first.len() > bytes_max {
            return Err(ClientError::TooLarge("response body"));
        }
        if self.is_end() {
            return Ok(first);
        }
        let mut whole = BytesMut::from(first);
        while let Some(frame) = self.frame().await.transpose()? {
            if frame.len() > bytes_max - whole.len() {
                return Err(ClientError::TooLarge("response body"));
            }
            whole.extend_from_slice(&frame);
        }
        Ok(whole.freeze())
    }

    /// The body is complete: the connection is pooled, or closed.
    fn finish(&mut self, is_clean: bool) {
        if let (Some(connection), true) = (self.connection.take(), is_clean) {
            self.pool.put_back(connection, self.keep_alive);
        }
    }
}

enum Read {
    /// The payload of one read, and whether all of it belonged to the body.
    Payload(Bytes, bool),
    Eof,
}

fn read_payload(stream: &mut Stream, framing: &mut Framing, cx: &mut Context<'_>) -> Poll<Result<Read, ClientError>> {
    let read = ready!(poll_read_with(stream, cx, |input| {
        if input.is_empty() {
            return Ok(Read::Eof);
        }
        let mut payload = BytesMut::with_capacity(input.len());
        let used = framing.push(input, &mut payload)?;
        Ok(Read::Payload(payload.freeze(), used == input.len()))
    }));
    Poll::Ready(read.map_err(ClientError::Interrupted).flatten())
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = ClientError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ClientError>>> {
        Self::poll_frame(self.get_mut(), cx).map_ok(Frame::data)
    }

    fn is_end_stream(&self) -> bool {
        self.is_end()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, Bytes::len) as u64;
        match self.framing {
            Framing::Length(left) => SizeHint::with_exact(first.saturating_add(left)),
            _ if self.connection.is_none() => SizeHint::with_exact(first),
            Framing::Chunked(_) | Framing::UntilClose => SizeHint::default(),
        }
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").field("framing", &self.framing).field("end", &self.is_end()).finish()
    }
}
