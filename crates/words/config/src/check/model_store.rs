//! `Site.spec.modelStore`: where models come from.

use std::net::IpAddr;

use super::url::Url;
use super::{file, secret};
use crate::at::{At, Name, Report};
use crate::raw::{self, site as raw_site};
use crate::site::{ModelStore, StoreAddressing, StoreCredentials};

const CREDENTIALS_FORMS: &str = "accessKey with secretKey, credentialsFile, or webIdentity";
/// Where an address of the store's may only be plain http when allowHttp says so.
const PLAIN_HTTP_HINT: &str = "write https://HOST[:PORT], or allowHttp: true on a closed network";

pub(super) fn check(at: &At<'_>, raw: &raw_site::ModelStore, report: &mut Report) -> Option<ModelStore> {
    let raw_site::ModelStore {
        url,
        endpoint,
        region,
        addressing,
        allow_http,
        ca_bundle,
        access_key: _,
        secret_key: _,
        session_token: _,
        credentials_file: _,
        credentials_profile: _,
        web_identity: _,
        proxy,
    } = raw;
    let url = report.required(at, "url", url.as_ref());
    let bucket = url.and_then(|url| self::url(&at.key("url"), url, report));
    let allow_http = allow_http.unwrap_or(false);
    let addressing = match addressing {
        None | Some(raw_site::Addressing::Path) => StoreAddressing::Path,
        Some(raw_site::Addressing::VirtualHost) => StoreAddressing::VirtualHost,
    };
    if let Some(text) = endpoint {
        service(&at.key("endpoint"), text, allow_http, report);
        if addressing == StoreAddressing::VirtualHost {
            virtual_host(&at.key("addressing"), text, bucket, report);
        }
    }
    if let Some(region) = region {
        self::region(&at.key("region"), region, report);
    }
    if let Some(text) = proxy {
        self::proxy(&at.key("proxy"), text, report);
    }
    let ca_bundle = ca_bundle.as_ref().and_then(|raw| secret(&at.key("caBundle"), raw, report));
    let credentials = credentials(at, raw, allow_http, report);
    let name = |text: &String| Name::from(text.as_str());
    Some(ModelStore {
        url: name(url?),
        endpoint: endpoint.as_ref().map(|text| Name::from(text.trim_end_matches('/'))),
        region: region.as_ref().map(name),
        addressing,
        allow_http,
        ca_bundle,
        credentials,
        proxy: proxy.as_ref().map(|text| Name::from(text.trim_end_matches('/'))),
    })
}

/// The bucket of `s3://BUCKET/PREFIX`.
fn url<'a>(at: &At<'_>, text: &'a str, report: &mut Report) -> Option<&'a str> {
    if text.strip_prefix("file://").is_some_and(|path| path.starts_with('/')) {
        return None;
    }
    let Some(parts) = Url::parse(text).filter(|url| url.scheme == "s3" && url.user.is_none() && url.port.is_none())
    else {
        let hint = "write s3://BUCKET/PREFIX or file:///FOLDER".to_owned();
        report.error_hint(at, "not the URL of a model store", hint);
        return None;
    };
    let bucket = parts.host;
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = bucket.as_bytes();
    let is_good = (3..=63).contains(&bytes.len())
        && bytes.iter().all(|&byte| is_letter(byte))
        && is_end(bytes.first())
        && is_end(bytes.last())
        && !bucket.contains("..");
    if !is_good {
        let hint = "3 to 63 lower-case letters, digits, '-' and '.'".to_owned();
        report.error_hint(at, "not the name of a bucket", hint);
    }
    let prefix = parts.rest.trim_matches('/');
    if !prefix.is_empty() && prefix.split('/').any(|part| matches!(part, "" | "." | "..")) {
        report.error_hint(at, "not a prefix", "parts separated by one /, none of them . or ..".to_owned());
    }
    Some(bucket)
}

/// `http(s)://HOST[:PORT]` of a service that gets credentials and gives models.
fn service(at: &At<'_>, text: &str, allow_http: bool, report: &mut Report) {
    let bare = |url: &Url<'_>| url.user.is_none() && matches!(url.rest, "" | "/");
    let Some(url) = Url::parse(text).filter(|url| matches!(url.scheme, "https" | "http") && bare(url)) else {
        let hint = "write https://HOST[:PORT], without a path; the bucket is part of url".to_owned();
        report.error_hint(at, "expected the address of a service", hint);
        return;
    };
    if url.scheme == "http" && !is_loopback(url.host) && !allow_http {
        report.error_hint(at, "plain http to another machine", PLAIN_HTTP_HINT.to_owned());
    }
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    let host = host.trim_end_matches('.');
    let is_name = host == "localhost" || host.ends_with(".localhost");
    is_name || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn virtual_host(at: &At<'_>, endpoint: &str, bucket: Option<&str>, report: &mut Report) {
    let Some(url) = Url::parse(endpoint) else { return };
    if url.host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        let hint = "name the endpoint by host, or write addressing: path".to_owned();
        report.error_hint(at, "an IP address has no virtual hosts", hint);
    }
    if url.scheme == "https" && bucket.is_some_and(|bucket| bucket.contains('.')) {
        let hint = "write addressing: path".to_owned();
        report.error_hint(at, "no certificate covers a bucket with a '.' as a virtual host", hint);
    }
}

fn region(at: &At<'_>, text: &str, report: &mut Report) {
    let is_region =
        (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !is_region {
        report.error_hint(at, "not a region", "write one like eu-central-1".to_owned());
    }
}

fn proxy(at: &At<'_>, text: &str, report: &mut Report) {
    let bare = |url: &Url<'_>| url.scheme == "http" && url.user.is_none() && matches!(url.rest, "" | "/");
    if !Url::parse(text).is_some_and(|url| bare(&url)) {
        report.error_hint(at, "not the address of a proxy", "write http://HOST:PORT".to_owned());
    }
}

fn credentials(at: &At<'_>, raw: &raw_site::ModelStore, allow_http: bool, report: &mut Report) -> StoreCredentials {
    let has_keys = [&raw.access_key, &raw.secret_key, &raw.session_token].iter().any(|key| key.is_some());
    let has_file = raw.credentials_file.is_some() || raw.credentials_profile.is_some();
    let forms = [has_keys, has_file, raw.web_identity.is_some()];
    if forms.iter().filter(|form| **form).count() > 1 {
        report.error_without_value(at, "credentials in more than one form", CREDENTIALS_FORMS);
    }
    let found = if has_keys {
        keys(at, raw, report)
    } else if has_file {
        credentials_file(at, raw, report)
    } else {
        raw.web_identity.as_ref().and_then(|raw| web_identity(&at.key("webIdentity"), raw, allow_http, report))
    };
    // what is incomplete has been reported
    found.unwrap_or_default()
}

fn keys(at: &At<'_>, raw: &raw_site::ModelStore, report: &mut Report) -> Option<StoreCredentials> {
    let mut secret = |key: &str, raw: Option<&raw::SecretRef>| raw.and_then(|raw| secret(&at.key(key), raw, report));
    let access_key = secret("accessKey", raw.access_key.as_ref());
    let secret_key = secret("secretKey", raw.secret_key.as_ref());
    let session_token = secret("sessionToken", raw.session_token.as_ref());
    report.required(at, "accessKey", raw.access_key.as_ref());
    report.required(at, "secretKey", raw.secret_key.as_ref());
    Some(StoreCredentials::Keys { access_key: access_key?, secret_key: secret_key?, session_token })
}

fn credentials_file(at: &At<'_>, raw: &raw_site::ModelStore, report: &mut Report) -> Option<StoreCredentials> {
    let path = report.required(at, "credentialsFile", raw.credentials_file.as_ref())?;
    let path = file(&at.key("credentialsFile"), path, report)?;
    let profile = Name::from(raw.credentials_profile.as_deref().unwrap_or("default"));
    Some(StoreCredentials::File { path, profile })
}

fn web_identity(
    at: &At<'_>,
    raw: &raw_site::WebIdentity,
    allow_http: bool,
    report: &mut Report,
) -> Option<StoreCredentials> {
    let raw_site::WebIdentity { token_file, role_arn, session_name, sts_endpoint } = raw;
    let token_file = report.required(at, "tokenFile", token_file.as_ref());
    let token_file = token_file.and_then(|path| file(&at.key("tokenFile"), path, report));
    let role_arn = report.required(at, "roleArn", role_arn.as_ref());
    if role_arn.is_some_and(|arn| !arn.starts_with("arn:")) {
        report.error_hint(&at.key("roleArn"), "not a role", "write arn:aws:iam::ACCOUNT:role/NAME".to_owned());
    }
    let session_name = session_name.as_deref().unwrap_or("tidegate");
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_=,.@-".contains(&byte);
    if !(2..=64).contains(&session_name.len()) || !session_name.bytes().all(is_letter) {
        let hint = "2 to 64 letters, digits and any of _=,.@-".to_owned();
        report.error_hint(&at.key("sessionName"), "not the name of a session", hint);
    }
    if let Some(text) = sts_endpoint {
        service(&at.key("stsEndpoint"), text, allow_http, report);
    }
    Some(StoreCredentials::WebIdentity {
        token_file: token_file?,
        role_arn: Name::from(role_arn?.as_str()),
        session_name: Name::from(session_name),
        sts_endpoint: sts_endpoint.as_ref().map(|text| Name::from(text.trim_end_matches('/'))),
    })
}
