//! A stream that remembers why TLS refused it: HTTP/2 keeps only the text of what its stream says.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Why TLS ended a connection, once it has.
pub(super) type Seen = Arc<OnceLock<rustls::Error>>;

/// A TLS stream and what was seen of its end.
#[derive(Debug)]
pub(super) struct Witness {
    pub(super) inner: TlsStream<TcpStream>,
    pub(super) seen: Seen,
}

/// The TLS error inside of an I/O error.
pub(super) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

impl Witness {
    fn note<T>(&self, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &outcome
            && let Some(tls) = tls_error(error)
        {
            self.seen.get_or_init(|| tls.clone());
        }
        outcome
    }
}

impl AsyncRead for Witness {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_read(cx, into);
        self.note(outcome)
    }
}

impl AsyncWrite for Witness {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.note(outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_flush(cx);
        self.note(outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.note(outcome)
    }
}
