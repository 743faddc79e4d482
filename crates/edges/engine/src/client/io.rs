//! Sockets: how one is opened, and the read buffer that all of a thread's connections share.

use std::cell::Cell;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Bytes of the read buffer: one per thread, not per connection, so that an open stream that says nothing costs none.
/// A burst of a whole answer fits into one read.
pub const READ_BUFFER: usize = 64 * 1024;

/// A byte stream that is not a socket of ours: in-memory networks of tests.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection that is being opened.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send>>;

/// Opens connections that are not TCP.
pub trait Connect: Send + Sync + fmt::Debug {
    /// Opens one.
    fn connect(&self) -> Connecting;
}

/// How an engine is reached.
#[derive(Clone)]
pub(super) enum Dial {
    /// In the clear.
    Tcp { host: Arc<str>, port: u16 },
    /// Under TLS.
    Tls { host: Arc<str>, port: u16, name: ServerName<'static>, config: Arc<rustls::ClientConfig> },
    /// By something else.
    Custom(Arc<dyn Connect>),
}

impl Dial {
    /// Opens a connection. The caller sets the deadline.
    pub(super) async fn open(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp { host, port } => tcp(host, *port).await.map(Stream::Tcp),
            Self::Tls { host, port, name, config } => {
                let tcp = tcp(host, *port).await?;
                let tls = TlsConnector::from(Arc::clone(config)).connect(name.clone(), tcp).await?;
                Ok(Stream::Tls(Box::new(tls)))
            }
            Self::Custom(connect) => connect.connect().await.map(Stream::Custom),
        }
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    // An address needs no resolver, and the resolver needs a thread.
    let stream = match host.parse() {
        Ok(ip) => TcpStream::connect(SocketAddr::new(ip, port)).await?,
        Err(_) => TcpStream::connect((host, port)).await?,
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// An open connection.
pub(super) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Custom(Box<dyn Io>),
}

impl Stream {
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(io) => Pin::new(io).poll_read(cx, buf),
            Self::Tls(io) => Pin::new(&mut **io).poll_read(cx, buf),
            Self::Custom(io) => Pin::new(&mut **io).poll_read(cx, buf),
        }
    }

    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(io) => Pin::new(io).poll_write_vectored(cx, parts),
            Self::Tls(io) => Pin::new(&mut **io).poll_write_vectored(cx, parts),
            Self::Custom(io) => Pin::new(&mut **io).poll_write_vectored(cx, parts),
        }
    }

    /// Whether what was written may still lie in a buffer of ours.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) => Poll::Ready(Ok(())),
            Self::Tls(io) => Pin::new(&mut **io).poll_flush(cx),
            Self::Custom(io) => Pin::new(&mut **io).poll_flush(cx),
        }
    }

    /// Whether an idle connection has been closed, or has something to say that nobody asked for. Costs no system call
    /// as long as the poller has reported nothing.
    pub(super) fn is_stale(&self) -> bool {
        let tcp = match self {
            Self::Tcp(tcp) => tcp,
            Self::Tls(tls) => tls.get_ref().0,
            Self::Custom(_) => return false,
        };
        let mut cx = Context::from_waker(Waker::noop());
        match tcp.poll_read_ready(&mut cx) {
            Poll::Pending => false,
            // Readiness may be left over from a read that filled its buffer: ask the socket.
            Poll::Ready(_) => {
                !matches!(tcp.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
        }
    }
}

thread_local! {
    static READ: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// One read into the thread's buffer, shown to `use_it` while it lies there.
pub(super) fn poll_read_with<T>(
    stream: &mut Stream,
    cx: &mut Context<'_>,
    use_it: impl FnOnce(&[u8]) -> T,
) -> Poll<io::Result<T>> {
    // Taken out while in use: were a custom stream to read another inside, that one gets a buffer of its own.
    let mut buffer = READ.take().unwrap_or_else(|| vec![0; READ_BUFFER].into_boxed_slice());
    let mut filled = ReadBuf::new(&mut buffer);
    let polled = stream.poll_read(cx, &mut filled);
    let result = polled.map_ok(|()| use_it(filled.filled()));
    READ.set(Some(buffer));
    result
}
