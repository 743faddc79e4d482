//! From an address to a connection that speaks HTTP/1.1: name, TCP, proxy, TLS, all within one clock.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use object_store::client::HttpRequestBody;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::trouble::{Trouble, printable};

/// Name, TCP, proxy and TLS together.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Largest answer of a proxy to CONNECT, in bytes.
const PROXY_HEAD_BYTES_MAX: usize = 8 << 10;

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
}

impl Place {
    pub(super) fn of(uri: &Uri) -> Result<Self, Trouble> {
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(Trouble::BadAnswer("address without http or https".to_owned())),
        };
        let host = uri.host().ok_or_else(|| Trouble::BadAnswer("address without a host".to_owned()))?;
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { tls, host: host.trim_matches(['[', ']']).to_owned(), port })
    }

    fn endpoint(&self) -> String {
        format!("{}://{}:{}", if self.tls { "https" } else { "http" }, self.host, self.port)
    }

    /// Loopback by its name or address: where plain HTTP harms nobody.
    pub(super) fn is_loopback(&self) -> bool {
        is_localhost(&self.host) || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// RFC 6761: `localhost` and everything under it is loopback, whatever a name server says.
fn is_localhost(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

/// A connection with nothing on it.
pub(super) struct Link {
    pub(super) sender: hyper::client::conn::http1::SendRequest<HttpRequestBody>,
    /// Moves bytes between socket and request; polled by whoever waits for an answer, so that it needs no task.
    pub(super) driver: Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>,
}

/// What is needed to make connections.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) tls: Option<Arc<rustls::ClientConfig>>,
    /// The only proxy there is: the environment is not asked.
    pub(super) proxy: Option<Place>,
}

impl Connector {
    /// Whether requests to that place name the whole address, as a proxy for plain HTTP needs.
    pub(super) fn absolute_form(&self, place: &Place) -> bool {
        self.proxy.is_some() && !place.tls
    }

    pub(super) async fn connect(&self, place: &Place) -> Result<Link, Trouble> {
        let late = |_| Trouble::Connect { endpoint: place.endpoint(), reason: format!("no answer in {CONNECT_MAX:?}") };
        tokio::time::timeout(CONNECT_MAX, self.connect_unclocked(place)).await.map_err(late)?
    }

    async fn connect_unclocked(&self, place: &Place) -> Result<Link, Trouble> {
        let mut stream = dial(self.proxy.as_ref().unwrap_or(place)).await?;
        if !place.tls {
            return handshake(stream, place).await;
        }
        if let Some(proxy) = &self.proxy {
            tunnel(&mut stream, proxy, place).await?;
        }
        let tls_trouble = |reason: String| Trouble::Tls { endpoint: place.endpoint(), reason: printable(&reason) };
        let config = self.tls.clone().ok_or_else(|| tls_trouble("not set up".to_owned()))?;
        let name = ServerName::try_from(place.host.clone()).map_err(|error| tls_trouble(error.to_string()))?;
        let stream = TlsConnector::from(config).connect(name, stream).await;
        handshake(stream.map_err(|error| tls_trouble(error.to_string()))?, place).await
    }
}

async fn dial(place: &Place) -> Result<TcpStream, Trouble> {
    let trouble = |reason: String| Trouble::Connect { endpoint: place.endpoint(), reason };
    let addresses = if is_localhost(&place.host) {
        vec![SocketAddr::from((Ipv4Addr::LOCALHOST, place.port))]
    } else {
        let found = tokio::net::lookup_host((place.host.as_str(), place.port)).await;
        found.map_err(|error| trouble(format!("name not resolved: {error}")))?.collect()
    };
    let mut last = "the name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(|error| trouble(error.to_string()))?;
                return Ok(stream);
            }
            Err(error) => last = error.to_string(),
        }
    }
    Err(trouble(last))
}

/// Asks a proxy for a tunnel.
async fn tunnel(stream: &mut TcpStream, proxy: &Place, place: &Place) -> Result<(), Trouble> {
    let trouble = |reason: String| Trouble::Connect { endpoint: proxy.endpoint(), reason };
    let target = match place.host.contains(':') {
        true => format!("[{}]:{}", place.host, place.port),
        false => format!("{}:{}", place.host, place.port),
    };
    let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.map_err(|error| trouble(error.to_string()))?;
    let mut answer = Vec::new();
    // byte by byte: what follows the head belongs to TLS
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() == PROXY_HEAD_BYTES_MAX {
            return Err(trouble("the proxy's answer is too large".to_owned()));
        }
        answer.push(stream.read_u8().await.map_err(|error| trouble(format!("the proxy hung up: {error}")))?);
    }
    let line = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
    match line.split(' ').nth(1) {
        Some("200") => Ok(()),
        _ => Err(trouble(format!("the proxy refuses: {}", printable(&line)))),
    }
}

async fn handshake<S>(stream: S, place: &Place) -> Result<Link, Trouble>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = hyper_util::rt::TokioIo::new(stream);
    let made = hyper::client::conn::http1::Builder::new().handshake(io).await;
    let (sender, driver) =
        made.map_err(|error| Trouble::Connect { endpoint: place.endpoint(), reason: error.to_string() })?;
    Ok(Link { sender, driver: Box::pin(driver) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_under_localhost_is_loopback() {
        let place = |uri: &str| Place::of(&uri.parse().unwrap()).unwrap();
        for loopback in
            ["http://localhost:1", "http://b.localhost", "http://127.0.0.9", "http://[::1]:9", "http://B.LocalHost."]
        {
            assert!(place(loopback).is_loopback(), "{loopback}");
        }
        for other in ["http://localhost.example", "http://10.0.0.1", "http://notlocalhost"] {
            assert!(!place(other).is_loopback(), "{other}");
        }
        assert_eq!(place("https://x").port, 443);
    }
}
