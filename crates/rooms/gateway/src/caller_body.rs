//! The body of a caller's request, whichever protocol it came by.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Body as _;
use hyper::body::Incoming;
use tidegate_core::{Case, Fault};

use crate::http1::PassingBody;

/// A request body that has not been read.
#[derive(Debug)]
pub(crate) enum CallerBody {
    /// It came with its head; `None` once it was handed out, or when there is none.
    Whole(Option<Bytes>),
    /// Over HTTP/1.1, piece by piece.
    Passing(PassingBody),
    /// Over HTTP/2.
    Incoming(Incoming),
}

impl CallerBody {
    /// A body that is at hand.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self::Whole(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    /// Whether nothing is left of it.
    pub(crate) fn is_end(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Passing(body) => body.is_end(),
            Self::Incoming(body) => body.is_end_stream(),
        }
    }

    /// The next piece; `None` at the end. Trailers are dropped: nothing of them is ours or the engine's.
    pub(crate) fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        match self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(Ok)),
            Self::Passing(body) => body.poll_data(context),
            Self::Incoming(body) => loop {
                let Some(frame) = ready!(Pin::new(&mut *body).poll_frame(context)) else { return Poll::Ready(None) };
                match frame.map(http_body::Frame::into_data) {
                    Ok(Ok(data)) => return Poll::Ready(Some(Ok(data))),
                    Ok(Err(_trailers)) => {}
                    Err(error) => return Poll::Ready(Some(Err(broke_off(&error)))),
                }
            },
        }
    }

    /// The next piece, as a future.
    pub(crate) async fn data(&mut self) -> Option<Result<Bytes, Fault>> {
        poll_fn(|context| self.poll_data(context)).await
    }
}

/// A body whose framing cannot be read.
pub(crate) fn broken() -> Fault {
    Fault::new(Case::Framing).saying("the request body is broken")
}

/// A body that did not come to its end: badly framed, or its caller has left.
fn broke_off(error: &hyper::Error) -> Fault {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<io::Error>()
            && matches!(io.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)
        {
            return broken();
        }
        source = cause.source();
    }
    Fault::new(Case::ClientGone)
}
