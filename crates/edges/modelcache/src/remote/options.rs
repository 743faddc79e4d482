//! What a store is opened with.

use std::fmt;
use std::path::PathBuf;

use http::Uri;

use super::connect::Place;
use super::credentials::Credentials;
use crate::fault::CacheFault;

/// The region that is signed for when none is set: servers other than AWS take any, and most are set up with this one.
pub const REGION_DEFAULT: &str = "us-east-1";

/// How a bucket appears in the address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addressing {
    /// `https://endpoint/bucket/key`: what most servers other than AWS want.
    #[default]
    Path,
    /// `https://bucket.endpoint/key`.
    VirtualHost,
}

/// Whether plain HTTP to another machine is a mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlainHttp {
    /// Only to loopback.
    #[default]
    LoopbackOnly,
    /// Said by the operator: the network is closed.
    Allowed,
}

/// Settings of a store.
#[derive(Clone, Debug, Default)]
pub struct RemoteOptions {
    /// `s3://bucket[/prefix]` or `file:///folder`.
    pub url: String,
    /// `http(s)://HOST[:PORT]`; `None` is AWS of the region.
    pub endpoint: Option<String>,
    /// `None` is [`REGION_DEFAULT`].
    pub region: Option<String>,
    pub addressing: Addressing,
    pub plain_http: PlainHttp,
    /// PEM; `None` is what the system believes.
    pub ca_bundle: Option<Vec<u8>>,
    pub credentials: Credentials,
    /// `http://HOST:PORT`. The environment's proxies are never used.
    pub proxy: Option<String>,
}

/// The same, checked.
pub(super) enum Opened {
    Folder(PathBuf),
    Bucket(Bucket),
}

pub(super) struct Bucket {
    pub(super) name: String,
    /// Without slashes at its ends; may be empty.
    pub(super) prefix: String,
    /// The address of the bucket itself.
    pub(super) address: String,
    /// The store's address without the bucket.
    pub(super) endpoint: String,
    pub(super) region: String,
    pub(super) place: Place,
    pub(super) proxy: Option<Place>,
}

fn bad(reason: impl fmt::Display) -> CacheFault {
    CacheFault::BadSettings { reason: reason.to_string() }
}

/// Checks the settings.
pub(super) fn open(options: &RemoteOptions) -> Result<Opened, CacheFault> {
    if let Some(folder) = options.url.strip_prefix("file://") {
        if !folder.starts_with('/') {
            return Err(bad("url: file:// wants an absolute folder: file:///folder"));
        }
        return Ok(Opened::Folder(PathBuf::from(folder)));
    }
    let rest = options.url.strip_prefix("s3://").ok_or_else(|| bad("url: s3://bucket/prefix or file:///folder"))?;
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    check_bucket(name)?;
    let prefix = prefix.trim_matches('/').to_owned();
    if !prefix.is_empty() {
        crate::manifest::check_path(&prefix).map_err(|error| bad(format!("url: {error}")))?;
    }
    let region = options.region.clone().unwrap_or_else(|| REGION_DEFAULT.to_owned());
    if region.is_empty() || !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(bad("region: letters, digits and '-'"));
    }
    let endpoint = match &options.endpoint {
        Some(endpoint) => endpoint.trim_end_matches('/').to_owned(),
        None => format!("https://s3.{region}.amazonaws.com"),
    };
    let place = place(&endpoint, "endpoint")?;
    if !place.tls && options.plain_http == PlainHttp::LoopbackOnly && !place.is_loopback() {
        return Err(bad("endpoint: plain http to another machine; use https, or set allowHttp on a closed network"));
    }
    let address = match options.addressing {
        Addressing::Path => format!("{endpoint}/{name}"),
        Addressing::VirtualHost => virtual_host(&endpoint, name, &place)?,
    };
    let proxy = options.proxy.as_deref().map(|proxy| self::place(proxy, "proxy")).transpose()?;
    if proxy.as_ref().is_some_and(|proxy| proxy.tls) {
        return Err(bad("proxy: http://HOST:PORT"));
    }
    Ok(Opened::Bucket(Bucket { name: name.to_owned(), prefix, address, endpoint, region, place, proxy }))
}

fn virtual_host(endpoint: &str, bucket: &str, place: &Place) -> Result<String, CacheFault> {
    if place.host.parse::<std::net::IpAddr>().is_ok() {
        return Err(bad("endpoint: an address has no virtual hosts; use a name, or path style"));
    }
    if place.tls && bucket.contains('.') {
        return Err(bad("url: a bucket with a '.' has no certificate as a virtual host; use path style"));
    }
    Ok(endpoint.replacen("://", &format!("://{bucket}."), 1))
}

/// An address with scheme, host and port and nothing else.
fn place(text: &str, what: &str) -> Result<Place, CacheFault> {
    let uri: Uri = text.parse().map_err(|error| bad(format!("{what}: {error}")))?;
    let bare = uri.path_and_query().is_none_or(|path| path.as_str() == "/");
    let user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    if !bare || user || text.contains('#') {
        return Err(bad(format!("{what}: only http(s)://HOST[:PORT]")));
    }
    Place::of(&uri).map_err(|_| bad(format!("{what}: http(s)://HOST[:PORT]")))
}

/// The rules that S3 has for buckets.
fn check_bucket(name: &str) -> Result<(), CacheFault> {
    let letters = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte));
    let ends = name.starts_with(['.', '-']) || name.ends_with(['.', '-']) || name.contains("..");
    match (3..=63).contains(&name.len()) && letters && !ends {
        true => Ok(()),
        false => Err(bad("url: a bucket's name has 3 to 63 lower-case letters, digits, '.' and '-'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str, endpoint: Option<&str>, addressing: Addressing) -> Result<String, CacheFault> {
        let endpoint = endpoint.map(str::to_owned);
        let options = RemoteOptions { url: url.to_owned(), endpoint, addressing, ..RemoteOptions::default() };
        open(&options).map(|opened| match opened {
            Opened::Bucket(bucket) => bucket.address,
            Opened::Folder(folder) => folder.display().to_string(),
        })
    }

    #[test]
    fn a_bucket_stands_in_the_path_or_in_the_host() {
        let path = address("s3://models/a/b/", Some("https://store.example:9000/"), Addressing::Path);
        assert_eq!(path.unwrap(), "https://store.example:9000/models");
        let host = address("s3://models", Some("https://store.example:9000"), Addressing::VirtualHost);
        assert_eq!(host.unwrap(), "https://models.store.example:9000");
        let aws = address("s3://models", None, Addressing::VirtualHost);
        assert_eq!(aws.unwrap(), "https://models.s3.us-east-1.amazonaws.com");
        assert!(address("s3://models", Some("https://10.0.0.1"), Addressing::VirtualHost).is_err());
        assert_eq!(address("file:///srv/models", None, Addressing::Path).unwrap(), "/srv/models");
    }

    #[test]
    fn plain_http_is_for_loopback_unless_the_operator_says_otherwise() {
        for fine in ["http://127.0.0.1:9000", "http://localhost:9000", "http://[::1]:9000"] {
            assert!(address("s3://models", Some(fine), Addressing::Path).is_ok(), "{fine}");
        }
        let refused = address("s3://models", Some("http://store.example"), Addressing::Path).unwrap_err();
        assert!(refused.to_string().contains("allowHttp"), "{refused}");
        let mut options = RemoteOptions {
            url: "s3://models".into(),
            endpoint: Some("http://store.example".into()),
            ..Default::default()
        };
        options.plain_http = PlainHttp::Allowed;
        assert!(open(&options).is_ok());
    }

    #[test]
    fn what_is_no_address_or_no_bucket_is_refused() {
        for url in ["models", "s3://", "s3://Up", "s3://ab", "s3://a..b", "s3://models/../x", "file://x", "http://x"] {
            assert!(address(url, None, Addressing::Path).is_err(), "{url}");
        }
        for endpoint in ["store", "ftp://x", "https://x/path", "https://u:p@x", "https://x?y", "https://"] {
            assert!(address("s3://models", Some(endpoint), Addressing::Path).is_err(), "{endpoint}");
        }
    }
}
