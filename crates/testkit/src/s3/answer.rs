//! What a store answers that keeps the rules: from a request to a status, header lines and a body.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use super::objects::{NotStored, Object, Objects};
use super::{Access, S3Request, Verb};
use crate::fake::Recorded;

/// A whole answer, before anything goes wrong with it.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) lines: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
    /// Which part of the object the body is; `None` when it is no part of one.
    pub(super) range: Option<Range<u64>>,
    /// Length in the head, where it is not the body's.
    pub(super) length: Option<u64>,
}

impl Answer {
    pub(super) const fn new(status: u16, body: Bytes) -> Self {
        Self { status, lines: Vec::new(), body, range: None, length: None }
    }

    fn empty(status: u16) -> Self {
        Self::new(status, Bytes::new())
    }

    fn xml(root: &str, inside: &str) -> Self {
        let text = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{root}>{inside}</{root}>");
        Self::new(200, text.into()).line("content-type", "application/xml".to_owned())
    }

    pub(super) fn line(mut self, name: &'static str, value: String) -> Self {
        self.lines.push((name, value));
        self
    }

    /// An error as S3 words it.
    pub(super) fn refusal(status: u16, code: &str) -> Self {
        let text = format!("<Code>{code}</Code><Message>{code}</Message><RequestId>1</RequestId>");
        Self { status, ..Self::xml("Error", &text) }
    }
}

impl From<NotStored> for Answer {
    fn from(why: NotStored) -> Self {
        match why {
            NotStored::NoSuchBucket => Self::refusal(404, "NoSuchBucket"),
            NotStored::NoSuchUpload => Self::refusal(404, "NoSuchUpload"),
            NotStored::Exists => Self::refusal(412, "PreconditionFailed"),
            NotStored::InvalidPart => Self::refusal(400, "InvalidPart"),
        }
    }
}

/// The decoded query.
pub(super) fn query(target: &str) -> BTreeMap<String, String> {
    pairs(target.split_once('?').map_or("", |(_, query)| query))
}

fn pairs(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (decoded(k), decoded(v))).collect()
}

/// Without percent signs and plus signs; what is not UTF-8 is replaced.
pub(super) fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = text.get(at + 1..at + 3).and_then(|code| u8::from_str_radix(code, 16).ok());
        match (bytes[at], code) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// `bytes=FIRST-LAST`, `bytes=FIRST-` or `bytes=-COUNT` of an object of so many bytes; `None` when it holds no byte.
fn range_of(text: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        let count: u64 = last.parse().ok()?;
        return (count > 0 && size > 0).then(|| size.saturating_sub(count)..size);
    }
    let first: u64 = first.parse().ok()?;
    let end = if last.is_empty() { size } else { last.parse::<u64>().ok()?.checked_add(1)?.min(size) };
    (first < end).then_some(first..end)
}

/// The range that a request asks for, as far as it can be said without the object.
pub(super) fn asked(recorded: &Recorded) -> Option<Range<u64>> {
    range_of(recorded.header("range")?, u64::MAX)
}

/// `bytes FIRST-LAST/SIZE`.
pub(super) fn content_range(range: &Range<u64>, size: u64) -> String {
    format!("bytes {}-{}/{size}", range.start, range.end - 1)
}

/// The body of a range.
pub(super) fn slice(content: &Bytes, range: &Range<u64>) -> Bytes {
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
    content.slice(at(range.start.min(range.end))..at(range.end))
}

/// Answers a request that may be answered.
pub(super) fn answer(objects: &mut Objects, access: &mut Access, request: &S3Request, recorded: &Recorded) -> Answer {
    let query = query(&recorded.target);
    let (bucket, key) = (&*request.bucket, &*request.key);
    if request.verb == Verb::Identity {
        return identity(access, recorded);
    }
    if objects.bucket(bucket).is_none() && !(request.verb == Verb::Put && key.is_empty()) {
        return Answer::refusal(404, "NoSuchBucket");
    }
    let if_none_match = recorded.header("if-none-match") == Some("*");
    match request.verb {
        Verb::Get | Verb::Head if key.is_empty() => Answer::empty(200),
        Verb::Get | Verb::Head => match objects.get(bucket, key) {
            Some(object) => get(object, recorded),
            None => Answer::refusal(404, "NoSuchKey"),
        },
        Verb::List => list(objects, access.page, bucket, &query),
        Verb::Put if key.is_empty() => {
            objects.make_bucket(bucket);
            Answer::empty(200)
        }
        Verb::Put => stored(objects.put(bucket, key, Object::new(recorded.body.clone()), if_none_match)),
        Verb::Part => {
            let number = query.get("partNumber").and_then(|number| number.parse().ok()).unwrap_or(0);
            let id = query.get("uploadId").map_or("", String::as_str);
            stored(objects.put_part(id, number, recorded.body.clone()))
        }
        Verb::Begin => {
            let id = objects.begin_upload(key);
            let inside = format!("<Bucket>{bucket}</Bucket><Key>{}</Key><UploadId>{id}</UploadId>", escaped(key));
            Answer::xml("InitiateMultipartUploadResult", &inside)
        }
        Verb::Complete => complete(objects, request, recorded, &query, if_none_match),
        Verb::Abort => {
            let is_there = query.get("uploadId").is_some_and(|id| objects.abort(id));
            if is_there { Answer::empty(204) } else { Answer::refusal(404, "NoSuchUpload") }
        }
        Verb::Delete => {
            objects.remove(bucket, key);
            Answer::empty(204)
        }
        Verb::Identity | Verb::Other => Answer::refusal(501, "NotImplemented"),
    }
}

fn stored(result: Result<String, NotStored>) -> Answer {
    match result {
        Ok(etag) => Answer::empty(200).line("etag", etag),
        Err(why) => why.into(),
    }
}

fn get(object: &Object, recorded: &Recorded) -> Answer {
    let size = object.content.len() as u64;
    let wanted = recorded.header("if-match");
    if wanted.is_some_and(|wanted| wanted != "*" && wanted != object.etag) {
        return Answer::refusal(412, "PreconditionFailed");
    }
    let common = |answer: Answer| {
        answer
            .line("etag", object.etag.clone())
            .line("accept-ranges", "bytes".to_owned())
            .line("last-modified", LONG_AGO.to_owned())
    };
    let Some(text) = recorded.header("range") else {
        let mut answer = common(Answer::new(200, object.content.clone()));
        answer.range = Some(0..size);
        return answer;
    };
    let Some(range) = range_of(text, size) else {
        return Answer::refusal(416, "InvalidRange").line("content-range", format!("bytes */{size}"));
    };
    let answer = Answer::new(206, slice(&object.content, &range)).line("content-range", content_range(&range, size));
    Answer { range: Some(range), ..common(answer) }
}

const LONG_AGO: &str = "Tue, 01 Jan 2030 00:00:00 GMT";

fn complete(
    objects: &mut Objects,
    request: &S3Request,
    recorded: &Recorded,
    query: &BTreeMap<String, String>,
    if_none_match: bool,
) -> Answer {
    let text = String::from_utf8_lossy(&recorded.body);
    let numbers = text.split("<PartNumber>").skip(1).filter_map(|rest| rest.split('<').next()?.trim().parse().ok());
    let id = query.get("uploadId").map_or("", String::as_str);
    match objects.complete(&request.bucket, id, &numbers.collect::<Vec<_>>(), if_none_match) {
        Ok(etag) => {
            let inside = format!(
                "<Bucket>{}</Bucket><Key>{}</Key><ETag>{}</ETag>",
                request.bucket,
                escaped(&request.key),
                escaped(&etag)
            );
            Answer::xml("CompleteMultipartUploadResult", &inside)
        }
        Err(why) => why.into(),
    }
}

/// `ListObjectsV2`, a page of it.
fn list(objects: &Objects, page: usize, bucket: &str, query: &BTreeMap<String, String>) -> Answer {
    let text = |name: &str| query.get(name).map_or("", String::as_str);
    let (prefix, delimiter) = (text("prefix"), text("delimiter"));
    let after = text("continuation-token").max(text("start-after"));
    let most = text("max-keys").parse().unwrap_or(1000).min(page);
    let mut inside = format!("<Name>{bucket}</Name><Prefix>{}</Prefix><MaxKeys>{most}</MaxKeys>", escaped(prefix));
    let (mut count, mut last) = (0, String::new());
    let mut is_truncated = false;
    for (key, object) in objects.bucket(bucket).into_iter().flatten() {
        let Some(rest) = key.strip_prefix(prefix) else { continue };
        let folder = (!delimiter.is_empty()).then(|| rest.find(delimiter)).flatten();
        let name = folder.map_or(&**key, |end| &key[..prefix.len() + end + delimiter.len()]);
        if name <= after || name == last {
            continue;
        }
        if count == most {
            is_truncated = true;
            break;
        }
        (count, last) = (count + 1, name.to_owned());
        if folder.is_some() {
            inside.push_str(&format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", escaped(name)));
        } else {
            inside.push_str(&format!(
                "<Contents><Key>{}</Key><LastModified>2030-01-01T00:00:00.000Z</LastModified><ETag>{}</ETag>\
                 <Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
                escaped(name),
                escaped(&object.etag),
                object.content.len()
            ));
        }
    }
    inside.push_str(&format!("<KeyCount>{count}</KeyCount><IsTruncated>{is_truncated}</IsTruncated>"));
    if is_truncated {
        inside.push_str(&format!("<NextContinuationToken>{}</NextContinuationToken>", escaped(&last)));
    }
    Answer::xml("ListBucketResult", &inside)
}

/// `AssumeRoleWithWebIdentity`: the right token is traded for keys of its own.
fn identity(access: &mut Access, recorded: &Recorded) -> Answer {
    let form = pairs(&String::from_utf8_lossy(&recorded.body));
    let token = form.get("WebIdentityToken").map_or("", String::as_str);
    if access.identity_token.as_deref() != Some(token) {
        return Answer::refusal(400, "InvalidIdentityToken");
    }
    access.issued += 1;
    let (key, session) = (format!("ISSUED{}", access.issued), format!("session-{}", access.issued));
    let inside = format!(
        "<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{key}</AccessKeyId>\
         <SecretAccessKey>issued-secret</SecretAccessKey><SessionToken>{session}</SessionToken>\
         <Expiration>{}</Expiration></Credentials></AssumeRoleWithWebIdentityResult>",
        access.issued_until
    );
    access.keys.insert(key, Some(session));
    Answer::xml("AssumeRoleWithWebIdentityResponse", &inside)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
