//! The little of URLs that documents need: scheme, host, port, and whether a password is in it.

/// A URL in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Url<'a> {
    pub(super) scheme: &'a str,
    pub(super) user: Option<&'a str>,
    pub(super) has_password: bool,
    pub(super) host: &'a str,
    pub(super) port: Option<u16>,
    /// Path, query and fragment.
    pub(super) rest: &'a str,
}

impl<'a> Url<'a> {
    /// Splits `scheme://[user[:password]@]host[:port][/…]`; `None` when it is not one.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let (scheme, after) = text.split_once("://")?;
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        let end = after.find(['/', '?', '#']).unwrap_or(after.len());
        let (authority, rest) = after.split_at(end);
        let (info, address) =
            authority.rsplit_once('@').map_or((None, authority), |(info, address)| (Some(info), address));
        let (user, has_password) = match info.map(|info| info.split_once(':').unwrap_or((info, ""))) {
            Some((user, password)) => (Some(user), !password.is_empty()),
            None => (None, false),
        };
        // Clients of databases take it from the query as well.
        let query = rest.split_once('?').map_or("", |(_, query)| query);
        let is_password =
            |pair: &str| pair.split_once('=').is_some_and(|(key, value)| key == "password" && !value.is_empty());
        let has_password = has_password || query.split('&').any(is_password);
        let (host, port) = host_port(address)?;
        Some(Self { scheme, user, has_password, host, port, rest })
    }
}

/// Splits `host[:port]`; `None` when either is malformed or the port is 0.
pub(super) fn host_port(address: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, after)) => {
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (&address[..host.len() + 2], after.strip_prefix(':').or_else(|| after.is_empty().then_some("")))
        }
        None => match address.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, Some("")),
        },
    };
    let is_host = host.starts_with('[')
        || (!host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)));
    if !is_host {
        return None;
    }
    match port? {
        "" if address.ends_with(':') => None,
        "" => Some((host, None)),
        port if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            port.parse::<u16>().ok().filter(|&port| port > 0).map(|port| (host, Some(port)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_split_and_a_malformed_one_is_refused() {
        let url = Url::parse("https://a.example:8443/x?y").unwrap();
        assert_eq!((url.scheme, url.host, url.port, url.rest), ("https", "a.example", Some(8443), "/x?y"));
        assert!(Url::parse("postgres://u:p@h/db").unwrap().has_password);
        assert_eq!(Url::parse("postgres://u@h/db").unwrap().user, Some("u"));
        assert!(Url::parse("postgres://h/db?sslmode=require&password=p").unwrap().has_password);
        assert!(!Url::parse("postgres://h/password=p?passwords=p&password=").unwrap().has_password);
        assert_eq!(Url::parse("http://[::1]:80").unwrap().host, "[::1]");
        for bad in [
            "",
            "http:",
            "http://",
            "http://h:0",
            "http://h:65536",
            "http://h:",
            "http://[::1",
            "http://a b",
            "http://[x]:1",
        ] {
            assert_eq!(Url::parse(bad), None, "{bad}");
        }
    }
}
