//! Ranges: what was asked for, and whether that is what came.

use http::{HeaderMap, StatusCode, header};
use object_store::client::HttpRequest;

use super::trouble::{Trouble, printable};

/// `bytes=first-last` of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    first: u64,
    last: u64,
}

impl Asked {
    /// The range that a GET asks for, if any.
    pub(super) fn of(request: &HttpRequest) -> Result<Option<Self>, Trouble> {
        let Some(value) = request.headers().get(header::RANGE).filter(|_| request.method() == http::Method::GET) else {
            return Ok(None);
        };
        let parsed = value.to_str().ok().and_then(|text| text.strip_prefix("bytes=")).and_then(pair);
        parsed
            .map(|(first, last)| Some(Self { first, last }))
            .ok_or_else(|| Trouble::BadAnswer("only one range with both ends is asked for".to_owned()))
    }

    /// Length of the range, once the answer's head says exactly that range.
    pub(super) fn check(self, status: StatusCode, headers: &HeaderMap) -> Result<u64, Trouble> {
        if status == StatusCode::OK {
            return Err(Trouble::RangeIgnored);
        }
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let found = text(header::CONTENT_RANGE).unwrap_or("none");
        let wrong = |size| {
            let asked = format!("bytes {}-{}", self.first, self.last);
            Err(Trouble::WrongRange { asked, found: printable(found), size })
        };
        let Some((first, last, size)) = content_range(found).filter(|_| status == StatusCode::PARTIAL_CONTENT) else {
            return wrong(None);
        };
        if (first, last) != (self.first, self.last) || size <= last {
            return wrong(Some(size));
        }
        let expected = last - first + 1;
        match text(header::CONTENT_LENGTH).map(str::parse::<u64>) {
            None => Ok(expected),
            Some(Ok(length)) if length == expected => Ok(expected),
            Some(found) => Err(Trouble::Length { expected, found: found.unwrap_or(0) }),
        }
    }
}

/// The object's size that a 416 tells: `bytes */123`.
pub(super) fn size_after_refusal(headers: &HeaderMap) -> Option<u64> {
    number(headers.get(header::CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes */")?)
}

/// `bytes 0-99/1234` as first, last and size.
pub(super) fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = pair(range)?;
    Some((first, last, number(size)?))
}

fn pair(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = (number(first)?, number(last)?);
    (first <= last && last < u64::MAX).then_some((first, last))
}

/// Digits and nothing else: `parse` alone takes a sign too.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, range: &str, length: &str) -> Result<u64, Trouble> {
        let mut headers = HeaderMap::new();
        if !range.is_empty() {
            headers.insert(header::CONTENT_RANGE, range.parse().unwrap());
        }
        if !length.is_empty() {
            headers.insert(header::CONTENT_LENGTH, length.parse().unwrap());
        }
        Asked { first: 10, last: 19 }.check(StatusCode::from_u16(status).unwrap(), &headers)
    }

    #[test]
    fn only_the_very_range_under_206_is_let_through() {
        assert_eq!(answer(206, "bytes 10-19/20", "10"), Ok(10));
        assert_eq!(answer(206, "bytes 10-19/20", ""), Ok(10));
        assert_eq!(answer(200, "bytes 10-19/20", "10"), Err(Trouble::RangeIgnored));
        for wrong in
            ["", "bytes 0-9/20", "bytes 10-18/19", "bytes 10-19/19", "bytes 10-19/*", "bytes +10-19/20", "10-19/20"]
        {
            assert!(matches!(answer(206, wrong, "10"), Err(Trouble::WrongRange { .. })), "{wrong}");
        }
        assert!(matches!(answer(204, "bytes 10-19/20", ""), Err(Trouble::WrongRange { .. })));
        assert_eq!(answer(206, "bytes 10-19/20", "9"), Err(Trouble::Length { expected: 10, found: 9 }));
    }
}
