//! Finding the one credential of a request.
//!
//! Three forms count, under one policy: `Authorization: Bearer`, `x-api-key`, `api-key`. Everything else that carries a
//! credential (query, cookie, Basic) refuses the request, because a secret in such a place ends up in logs, and because
//! a second credential that is silently ignored makes two readings of one request.

use subtle::ConstantTimeEq;

use crate::key::KeyKind;

/// Longest credential that is looked at, in bytes. Ours have 54, imported ones about 50.
pub const CREDENTIAL_LEN_MAX: usize = 512;

/// Query parameters that carry credentials elsewhere; compared without case, `-` and `_`.
const QUERY_NAMES: [&str; 9] =
    ["key", "apikey", "xapikey", "accesstoken", "token", "authorization", "bearer", "authtoken", "password"];

/// Why a request has no usable credential. For the log; the caller reads one text for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCredential {
    /// None was given.
    #[error("no credential")]
    Missing,
    /// `Authorization` with a scheme that is not accepted, Basic above all.
    #[error("authorization scheme is not bearer")]
    Scheme,
    /// Two that differ.
    #[error("two different credentials")]
    Conflict,
    /// In the query.
    #[error("credential in the query")]
    Query,
    /// In a cookie.
    #[error("credential in a cookie")]
    Cookie,
    /// Over [`CREDENTIAL_LEN_MAX`], or empty.
    #[error("credential of impossible length")]
    Length,
}

/// The one credential of a request, from its headers (names in any case) and raw query.
///
/// The same credential in several of the accepted forms is one credential.
///
/// # Errors
/// Says why there is none that may be used.
pub fn find<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    query: Option<&str>,
) -> Result<&'a [u8], NoCredential> {
    if query.is_some_and(query_has_credential) {
        return Err(NoCredential::Query);
    }
    let mut found: Option<&'a [u8]> = None;
    for (name, value) in headers {
        let credential = match name.len() {
            13 if name.eq_ignore_ascii_case("authorization") => bearer(value)?,
            9 if name.eq_ignore_ascii_case("x-api-key") => value.trim_ascii(),
            7 if name.eq_ignore_ascii_case("api-key") => value.trim_ascii(),
            6 if name.eq_ignore_ascii_case("cookie") => {
                if cookie_has_key(value) {
                    return Err(NoCredential::Cookie);
                }
                continue;
            }
            _ => continue,
        };
        if credential.is_empty() || credential.len() > CREDENTIAL_LEN_MAX {
            return Err(NoCredential::Length);
        }
        match found {
            Some(first) if !bool::from(first.ct_eq(credential)) => return Err(NoCredential::Conflict),
            Some(_) => {}
            None => found = Some(credential),
        }
    }
    found.ok_or(NoCredential::Missing)
}

fn bearer(value: &[u8]) -> Result<&[u8], NoCredential> {
    let (scheme, rest) = value.split_at_checked(7).ok_or(NoCredential::Scheme)?;
    if scheme.eq_ignore_ascii_case(b"bearer ") { Ok(rest.trim_ascii()) } else { Err(NoCredential::Scheme) }
}

fn query_has_credential(query: &str) -> bool {
    query.split('&').any(|pair| {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name);
        QUERY_NAMES.iter().any(|known| same_name(name, known))
    })
}

/// Compares without case, separators and percent-encoding tricks: an encoded name is decoded as it is compared.
fn same_name(name: &str, known: &str) -> bool {
    let mut known = known.bytes();
    let mut rest = name.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let (byte, tail) = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, tail),
                _ => (first, tail),
            },
            _ => (first, tail),
        };
        rest = tail;
        if matches!(byte, b'-' | b'_' | b'+' | b' ') {
            continue;
        }
        if known.next() != Some(byte.to_ascii_lowercase()) {
            return false;
        }
    }
    known.next().is_none()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

/// Other cookies are none of our business: a load balancer in front may set some.
fn cookie_has_key(value: &[u8]) -> bool {
    [KeyKind::Live, KeyKind::Test].iter().any(|kind| memchr::memmem::find(value, kind.prefix().as_bytes()).is_some())
}
