//! Media in prompts: inline as `data:` URLs, or by URL from hosts that an alias allows.
//!
//! Whoever resolves a URL is the engine, so a URL passes only in a form in which no two parsers can disagree about its
//! host: scheme, plain host name, optional port, and the rest. No user information, no escapes, no brackets.

use tidegate_core::{Case, Fault};

use super::checks::invalid;
use crate::json::Value;

/// Longest inline medium, in bytes of its `data:` URL.
pub const DATA_URL_MAX: usize = 32 * 1024 * 1024;

/// What a media URL is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Medium {
    Inline,
    Remote(Box<str>),
}

/// Whether a member of this name holds a URL, as a string or inside an object.
pub(super) fn is_url_key(key: &[u8]) -> bool {
    key == b"url" || key.ends_with(b"_url")
}

/// Whether a member of this name holds a medium whose text may be a URL, a path or the bytes themselves.
pub(super) fn is_medium_key(key: &[u8]) -> bool {
    matches!(key, b"image" | b"video" | b"audio")
}

/// Whether the text of a medium is an address rather than the bytes themselves.
pub(super) fn is_address(content: &[u8]) -> bool {
    // Base 64 has no colon, dot or backslash, and inline bytes of a useful length do not start with a slash: JPEG does
    // (`/9j/`), so a leading slash alone does not make a path.
    let head = &content[..content.len().min(512)];
    head.iter().any(|byte| matches!(byte, b':' | b'.' | b'\\'))
}

/// Reads a media URL.
pub(super) fn medium(param: &'static str, value: &Value<'_>) -> Result<Medium, Fault> {
    bounded(param, value)?;
    let content = value.content().unwrap_or_default();
    if starts_with_ignoring_case(content, b"data:") {
        return Ok(Medium::Inline);
    }
    let url = value.as_str().unwrap_or_default();
    if starts_with_ignoring_case(url.as_bytes(), b"data:") {
        return Ok(Medium::Inline);
    }
    host(&url).map(Medium::Remote).ok_or_else(|| invalid(param, "media must be data: URLs, or URLs of an allowed host"))
}

/// Refuses a medium that is too long.
pub(super) fn bounded(param: &'static str, value: &Value<'_>) -> Result<(), Fault> {
    if value.raw.len() <= DATA_URL_MAX {
        return Ok(());
    }
    Err(Fault::new(Case::TooLarge).param(param).saying("an inline medium is too large"))
}

fn starts_with_ignoring_case(text: &[u8], prefix: &[u8]) -> bool {
    text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
}

/// The host of an http or https URL, with its port unless that is the scheme's own.
fn host(url: &str) -> Option<Box<str>> {
    let (rest, default_port) = if starts_with_ignoring_case(url.as_bytes(), b"https://") {
        (&url[8..], "443")
    } else if starts_with_ignoring_case(url.as_bytes(), b"http://") {
        (&url[7..], "80")
    } else {
        return None;
    };
    // Printable ASCII only, and no backslash, which some parsers read as a slash.
    if !rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') {
        return None;
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority = &rest[..end];
    let (name, port) = match authority.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (authority, None),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if name.is_empty() || !name.bytes().all(plain) {
        return None;
    }
    let name = name.to_ascii_lowercase();
    match port {
        None => Some(name.into()),
        Some(port) if port.is_empty() || port.len() > 5 || !port.bytes().all(|byte| byte.is_ascii_digit()) => None,
        Some(port) if port == default_port => Some(name.into()),
        Some(port) => Some(format!("{name}:{port}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_read_only_where_no_two_parsers_can_disagree() {
        assert_eq!(host("https://Media.Example/a.png?x=http://b#c").as_deref(), Some("media.example"));
        assert_eq!(host("http://media.example:80").as_deref(), Some("media.example"));
        assert_eq!(host("http://media.example:8080/x").as_deref(), Some("media.example:8080"));
        assert_eq!(host("http://2852039166/").as_deref(), Some("2852039166"), "a decimal address is a host of its own");
        for url in [
            "file:///etc/passwd",
            "ftp://a/b",
            "http:/a",
            "http://",
            "http://user@a/",
            "http://a@b:c/",
            "http://[::ffff:169.254.169.254]/",
            "http://a%2eb/",
            "http://a\\@b/",
            "http://a b/",
            "http://a/\n",
            " http://a/",
            "http://a:/",
            "http://a:123456/",
            "http://ä/",
            "//a/b",
            "/etc/passwd",
        ] {
            assert_eq!(host(url), None, "{url}");
        }
    }
}
