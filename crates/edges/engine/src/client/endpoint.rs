//! Where an engine is, and with which credential it is asked.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::ServerName;

use super::head::write_line;
use super::io::{Connect, Dial};

/// Longest engine URL in bytes.
pub const URL_MAX: usize = 2_048;

/// Why an engine URL cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Neither `http://` nor `https://`.
    #[error("engine url must begin with http:// or https://")]
    Scheme,
    /// No host, user information, a path, a query, or a port that is no number.
    #[error("engine url must be scheme://host:port without a path")]
    Authority,
    /// `https://` without a TLS configuration.
    #[error("engine url needs TLS, and no certificate authorities were given")]
    NoTls,
    /// The credential holds bytes that no header may hold.
    #[error("engine api key holds a forbidden byte")]
    ApiKey,
}

/// One engine's address and credential.
#[derive(Clone)]
pub struct Endpoint {
    pub(super) dial: Dial,
    /// The head lines that are the same in every request: host and credential.
    pub(super) fixed: Arc<[u8]>,
    authority: Arc<str>,
}

impl Endpoint {
    /// Reads `http://host:port` or `https://host:port`, as documents name engines. `tls` is needed for the second.
    ///
    /// # Errors
    /// [`EndpointError`] says what is wrong with it.
    pub fn parse(
        url: &str,
        api_key: Option<&str>,
        tls: Option<&Arc<rustls::ClientConfig>>,
    ) -> Result<Self, EndpointError> {
        if url.len() > URL_MAX {
            return Err(EndpointError::Authority);
        }
        let (authority, default_port, is_tls) = if let Some(rest) = url.strip_prefix("http://") {
            (rest, 80, false)
        } else if let Some(rest) = url.strip_prefix("https://") {
            (rest, 443, true)
        } else {
            return Err(EndpointError::Scheme);
        };
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let (host, port) = split_authority(authority, default_port).ok_or(EndpointError::Authority)?;
        let host: Arc<str> = host.into();
        let dial = if is_tls {
            let config = Arc::clone(tls.ok_or(EndpointError::NoTls)?);
            let name = ServerName::try_from(&*host).map_err(|_| EndpointError::Authority)?.to_owned();
            Dial::Tls { host, port, name, config }
        } else {
            Dial::Tcp { host, port }
        };
        Self::new(dial, authority, api_key)
    }

    /// An engine that is reached by something else than TCP; `authority` goes into the Host line.
    ///
    /// # Errors
    /// [`EndpointError::Authority`] and [`EndpointError::ApiKey`] for forbidden bytes.
    pub fn custom(connect: Arc<dyn Connect>, authority: &str, api_key: Option<&str>) -> Result<Self, EndpointError> {
        Self::new(Dial::Custom(connect), authority, api_key)
    }

    fn new(dial: Dial, authority: &str, api_key: Option<&str>) -> Result<Self, EndpointError> {
        let mut fixed = Vec::with_capacity(128);
        write_line(&mut fixed, "host", authority).map_err(|_| EndpointError::Authority)?;
        if let Some(key) = api_key {
            write_line(&mut fixed, "authorization", &format!("Bearer {key}")).map_err(|_| EndpointError::ApiKey)?;
        }
        Ok(Self { dial, fixed: fixed.into(), authority: authority.into() })
    }

    /// `host:port`, for logs and status; never for callers.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

impl fmt::Debug for Endpoint {
    // Without the credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.authority).finish()
    }
}

/// Host (without the brackets of an IPv6 address) and port.
fn split_authority(authority: &str, default_port: u16) -> Option<(&str, u16)> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    let is_host = |b: u8| b.is_ascii_alphanumeric() || b"-._:".contains(&b);
    if host.is_empty() || !host.bytes().all(is_host) {
        return None;
    }
    let port = match port {
        None => default_port,
        // `parse` would take a sign.
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().ok().filter(|&port| port != 0)?,
        Some(_) => return None,
    };
    Some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_urls_are_hosts_and_ports_only() {
        let host_of = |url: &str| match Endpoint::parse(url, None, None).unwrap().dial {
            Dial::Tcp { host, port } => (host.to_string(), port),
            Dial::Tls { .. } | Dial::Custom(_) => panic!("not tcp"),
        };
        assert_eq!(host_of("http://10.0.0.5:8000"), ("10.0.0.5".into(), 8000));
        assert_eq!(host_of("http://engine-1.ai_serving.svc/"), ("engine-1.ai_serving.svc".into(), 80));
        assert_eq!(host_of("http://[::1]:8000"), ("::1".into(), 8000));
        for url in [
            "http://",
            "http://:80",
            "http://a:",
            "http://a:+1",
            "http://a:0",
            "http://a:65536",
            "http://a:1:2",
            "http://u@a:1",
            "http://a:1/v1",
            "http://a:1?x",
            "http://a\r\nx: y:1",
            "http://[::1",
            "http://[::1]x",
        ] {
            assert_eq!(Endpoint::parse(url, None, None).unwrap_err(), EndpointError::Authority, "{url}");
        }
        assert_eq!(Endpoint::parse("ftp://a", None, None).unwrap_err(), EndpointError::Scheme);
        assert_eq!(Endpoint::parse("https://a", None, None).unwrap_err(), EndpointError::NoTls);
    }

    #[test]
    fn the_engine_key_is_sent_and_never_shown() {
        let endpoint = Endpoint::parse("http://a:1", Some("sk-engine"), None).unwrap();
        assert_eq!(&*endpoint.fixed, b"host: a:1\r\nauthorization: Bearer sk-engine\r\n");
        assert!(!format!("{endpoint:?}").contains("sk-engine"));
        assert_eq!(Endpoint::parse("http://a:1", Some("a\r\nb"), None).unwrap_err(), EndpointError::ApiKey);
    }
}
