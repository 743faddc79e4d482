//! The S3 double keeps the rules until it is told not to, and then breaks the one that it was told to break.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;
use tidegate_testkit::real::{ACCESS_KEY, BUCKET};
use tidegate_testkit::s3::{S3Double, S3Fault, Verb, When};

/// An answer as it came, however it ended.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
    /// All that the head promised came.
    is_whole: bool,
}

impl Answer {
    fn line(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

fn ask_as(double: &S3Double, credential: &str, method: &str, target: &str, lines: &str, body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(double.addr()).unwrap();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nhost: x\r\nauthorization: AWS4-HMAC-SHA256 Credential={credential}/day\r\n\
         content-length: {}\r\n{lines}\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    let end = loop {
        if let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "no head: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..count]);
    };
    let body = seen.split_off(end + 4);
    let head = String::from_utf8(seen).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut answer = Answer { status, head, body, is_whole: true };
    // the head of an object tells the length of a body that does not come
    let length = answer.line("content-length").filter(|_| method != "HEAD");
    let length = length.map_or(0, |length| length.parse().unwrap());
    while answer.body.len() < length {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => {
                answer.is_whole = false;
                break;
            }
            Ok(count) => answer.body.extend_from_slice(&buffer[..count]),
        }
    }
    answer
}

fn ask(double: &S3Double, method: &str, key: &str, lines: &str, body: &[u8]) -> Answer {
    ask_as(double, ACCESS_KEY, method, &format!("/{BUCKET}/{key}"), lines, body)
}

/// A range of `k`.
fn range(double: &S3Double, lines: &str) -> Answer {
    ask(double, "GET", "k", &format!("range: bytes=2-5\r\n{lines}"), b"")
}

fn digits() -> S3Double {
    let double = S3Double::start().unwrap();
    double.put("k", "0123456789");
    double
}

#[test]
fn without_faults_it_keeps_the_rules_of_get() {
    let double = digits();
    let whole = ask(&double, "GET", "k", "", b"");
    assert_eq!((whole.status, &*whole.body), (200, b"0123456789".as_slice()));
    let etag = whole.line("etag").unwrap().to_owned();
    let part = range(&double, &format!("if-match: {etag}\r\n"));
    assert_eq!((part.status, &*part.body), (206, b"2345".as_slice()));
    assert_eq!(part.line("content-range"), Some("bytes 2-5/10"));
    assert_eq!(range(&double, "if-match: \"other\"\r\n").status, 412);
    assert_eq!(ask(&double, "GET", "k", "range: bytes=10-12\r\n", b"").status, 416);
    assert_eq!(ask(&double, "GET", "k", "range: bytes=8-\r\n", b"").body, b"89");
    assert_eq!(ask(&double, "GET", "k", "range: bytes=-3\r\n", b"").body, b"789");
    let head = ask(&double, "HEAD", "k", "", b"");
    assert_eq!((head.status, head.line("content-length")), (200, Some("10")));
    assert_eq!(ask(&double, "GET", "none", "", b"").status, 404);
    assert!(String::from_utf8(ask(&double, "GET", "none", "", b"").body).unwrap().contains("NoSuchKey"));
    let other = ask_as(&double, ACCESS_KEY, "GET", "/nowhere/k", "", b"");
    assert!(String::from_utf8(other.body).unwrap().contains("NoSuchBucket"));
    let log = double.log();
    assert_eq!(log.sent("k"), 10 + 4 + 2 + 3);
    assert_eq!(log.requests[1].range, Some(2..6));
    assert_eq!(log.requests[1].if_match, Some(etag));
}

#[test]
fn an_object_is_stored_once_and_in_parts() {
    let double = digits();
    assert_eq!(ask(&double, "PUT", "new", "if-none-match: *\r\n", b"one").status, 200);
    assert_eq!(ask(&double, "PUT", "new", "if-none-match: *\r\n", b"two").status, 412);
    assert_eq!(double.object("new").unwrap(), "one");
    let begun = String::from_utf8(ask(&double, "POST", "big?uploads", "", b"").body).unwrap();
    let id = begun.split("<UploadId>").nth(1).unwrap().split('<').next().unwrap();
    for (number, part) in [(2, "world"), (1, "hello ")] {
        let target = format!("big?partNumber={number}&uploadId={id}");
        assert_eq!(ask(&double, "PUT", &target, "", part.as_bytes()).status, 200);
    }
    assert_eq!((double.uploads_open(), double.object("big")), (1, None));
    let list = "<x><Part><PartNumber>1</PartNumber></Part><Part><PartNumber>2</PartNumber></Part></x>";
    let target = format!("big?uploadId={id}");
    assert_eq!(ask(&double, "POST", &target, "", list.replace('2', "7").as_bytes()).status, 400);
    assert_eq!(ask(&double, "POST", &target, "", list.as_bytes()).status, 200);
    assert_eq!((double.uploads_open(), double.object("big")), (0, Some(Bytes::from("hello world"))));
    // the entity tag of what came in parts says so, and is nobody's hash
    assert!(ask(&double, "HEAD", "big", "", b"").line("etag").unwrap().ends_with("-2\""));
    assert_eq!(ask(&double, "DELETE", "big", "", b"").status, 204);
    assert_eq!(double.keys(), ["k", "new"]);
}

#[test]
fn a_listing_comes_in_pages_and_folders() {
    let double = S3Double::start().unwrap();
    for key in ["a/1", "a/2", "a&b", "b/1", "c"] {
        double.put(key, key);
    }
    double.page(2);
    let list = |query: &str| {
        let target = format!("/{BUCKET}?list-type=2&{query}");
        String::from_utf8(ask_as(&double, ACCESS_KEY, "GET", &target, "", b"").body).unwrap()
    };
    let first = list("");
    assert!(first.contains("<Key>a&amp;b</Key>") && first.contains("<Key>a/1</Key>"), "{first}");
    assert!(first.contains("<NextContinuationToken>a/1</NextContinuationToken>"), "{first}");
    let second = list("continuation-token=a%2F1");
    assert!(second.contains("<Key>a/2</Key>") && second.contains("<Key>b/1</Key>"), "{second}");
    double.page(1000);
    let folders = list("delimiter=%2F");
    assert!(folders.contains("<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>"), "{folders}");
    assert!(!folders.contains("<Key>a/1</Key>") && folders.contains("<Key>c</Key>"), "{folders}");
    assert!(list("prefix=a%2F").contains("<KeyCount>2</KeyCount>"));
}

#[test]
fn who_may_not_is_told_why() {
    let double = digits();
    let refusal = |credential: &str, lines: &str| {
        let answer = ask_as(&double, credential, "GET", &format!("/{BUCKET}/k"), lines, b"");
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    assert!(matches!(refusal("somebody", ""), (403, text) if text.contains("InvalidAccessKeyId")));
    double.set_key("temporary", Some("token"));
    assert_eq!(refusal(ACCESS_KEY, "").0, 403);
    assert!(matches!(refusal("temporary", ""), (403, text) if text.contains("InvalidToken")));
    assert_eq!(refusal("temporary", "x-amz-security-token: token\r\n").0, 200);
    double.expire("temporary");
    assert!(
        matches!(refusal("temporary", "x-amz-security-token: token\r\n"), (400, text) if text.contains("ExpiredToken"))
    );
    let form = b"Action=AssumeRoleWithWebIdentity&WebIdentityToken=abc%2Bd";
    assert_eq!(ask_as(&double, "", "POST", "/", "", form).status, 400);
    double.trade("abc+d", "2999-01-01T00:00:00Z");
    let issued = String::from_utf8(ask_as(&double, "", "POST", "/", "", form).body).unwrap();
    assert!(issued.contains("<AccessKeyId>ISSUED1</AccessKeyId>"), "{issued}");
    assert_eq!(refusal("ISSUED1", "x-amz-security-token: session-1\r\n").0, 200);
}

#[test]
fn a_policy_may_allow_to_read_and_not_to_list() {
    let double = digits();
    double.deny(Verb::List);
    assert_eq!(ask_as(&double, ACCESS_KEY, "GET", &format!("/{BUCKET}?list-type=2"), "", b"").status, 403);
    assert_eq!(range(&double, "").status, 206);
}

#[test]
fn the_host_may_name_the_bucket() {
    let double = digits();
    double.virtual_host(BUCKET);
    assert_eq!(ask_as(&double, ACCESS_KEY, "GET", "/k", "", b"").body, b"0123456789");
}

#[test]
fn a_fault_hits_the_requests_it_is_for_and_no_others() {
    let double = digits();
    double.put("other", "other");
    double.fault(When::get("k").number(1), S3Fault::slow_down());
    let statuses: Vec<u16> = (0..3).map(|_| range(&double, "").status).collect();
    assert_eq!(statuses, [206, 503, 206]);
    double.fault(When::get("k").holding(7), S3Fault::vanished());
    assert_eq!(range(&double, "").status, 206);
    assert_eq!(ask(&double, "GET", "k", "range: bytes=7-7\r\n", b"").status, 404);
    assert_eq!(ask(&double, "GET", "other", "", b"").status, 200);
    double.heal();
    double.fault(When::any().after(1), S3Fault::too_many_requests(Some(60)));
    assert_eq!(range(&double, "").status, 206);
    let held_off = range(&double, "");
    assert_eq!((held_off.status, held_off.line("retry-after")), (429, Some("60")));
}

#[test]
fn wrong_answers_are_wrong_as_told() {
    let double = digits();
    let with = |fault: S3Fault| {
        double.heal();
        double.fault(When::get("k"), fault);
        let answer = range(&double, "");
        (answer.status, answer.line("content-range").map(ToOwned::to_owned), answer.body)
    };
    let right = Some("bytes 2-5/10".to_owned());
    assert_eq!(with(S3Fault::WrongByte { offset: 4 }), (206, right.clone(), b"2355".to_vec()));
    assert_eq!(with(S3Fault::WrongByte { offset: 8 }), (206, right.clone(), b"2345".to_vec()));
    assert_eq!(with(S3Fault::Shorter { by: 1 }), (206, right.clone(), b"234".to_vec()));
    assert_eq!(with(S3Fault::WholeForRange), (200, None, b"0123456789".to_vec()));
    assert_eq!(with(S3Fault::RangeUnder200), (200, right, b"2345".to_vec()));
    assert_eq!(with(S3Fault::OtherRange { shift: 3 }), (206, Some("bytes 5-8/10".to_owned()), b"5678".to_vec()));
    assert_eq!(with(S3Fault::NoContentRange), (206, None, b"2345".to_vec()));
    assert!(String::from_utf8(with(S3Fault::Page).2).unwrap().contains("Log in"));
}

#[test]
fn a_body_ends_early_as_told() {
    let double = digits();
    let with = |fault: S3Fault| {
        double.heal();
        double.fault(When::get("k"), fault);
        let answer = range(&double, "");
        (answer.body, answer.is_whole)
    };
    assert_eq!(with(S3Fault::Cut { after: 3 }), (b"234".to_vec(), false));
    assert!(!with(S3Fault::Reset { after: 3 }).1);
    assert_eq!(with(S3Fault::ShortAt { offset: 4 }), (b"23".to_vec(), false));
    assert_eq!(with(S3Fault::ShortAt { offset: 9 }), (b"2345".to_vec(), true));
    assert_eq!(with(S3Fault::Drip { bytes: 1, every: Duration::from_millis(1) }), (b"2345".to_vec(), true));
    assert_eq!(with(S3Fault::Slow(Duration::from_millis(1))), (b"2345".to_vec(), true));
}

#[test]
fn an_object_is_replaced_under_its_reader() {
    let double = digits();
    let etag = range(&double, "").line("etag").unwrap().to_owned();
    double.fault(When::get("k").number(0), S3Fault::ReplaceAndCut { after: 2, with: "abcdefghij".into() });
    let cut = range(&double, "");
    assert_eq!((&*cut.body, cut.is_whole), (b"23".as_slice(), false));
    assert_eq!(range(&double, &format!("if-match: {etag}\r\n")).status, 412);
    double.heal();
    double.put("k", "0123456789");
    double.fault(When::get("k").number(0), S3Fault::ReplaceAndMix { after: 2, with: "abcdefghij".into() });
    assert_eq!(range(&double, "").body, b"23ef");
    assert_eq!(range(&double, "").body, b"cdef");
    double.heal();
    double.fault(When::get("k").number(0), S3Fault::Replace { with: "ABCDEFGHIJ".into() });
    assert_eq!(range(&double, "").body, b"CDEF");
}

#[tokio::test]
async fn what_holds_goes_on_when_released() {
    let double = std::sync::Arc::new(digits());
    double.fault(When::get("k"), S3Fault::Hold { after: 2 });
    let asker = std::sync::Arc::clone(&double);
    let answer = tokio::task::spawn_blocking(move || range(&asker, ""));
    let log = double.wait_for(|log| log.holding == 1 && log.sent("k") == 2).await;
    assert_eq!((log.gets_running, log.gets_running_max), (1, 1));
    double.release();
    assert_eq!(answer.await.unwrap().body, b"2345");
    double.wait_for(|log| log.gets_running == 0 && log.holding == 0).await;
}

#[tokio::test]
async fn one_that_stalls_is_freed_by_its_reader_and_by_the_end_of_the_connection() {
    let double = digits();
    double.fault(When::get("k"), S3Fault::Stall { after: 2 });
    let mut stream = TcpStream::connect(double.addr()).unwrap();
    let head = format!("GET /{BUCKET}/k HTTP/1.1\r\nauthorization: Credential={ACCESS_KEY}/\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    double.wait_for(|log| log.sent("k") == 2).await;
    drop(stream);
    double.wait_for(|log| log.gets_running == 0).await;
    let mut stream = TcpStream::connect(double.addr()).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    double.wait_for(|log| log.sent("k") == 4).await;
    double.stop_listening().unwrap();
    double.disconnect().unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(b"\r\n\r\n01"));
    assert!(TcpStream::connect(double.addr()).is_err());
    double.listen_again().unwrap();
    assert_eq!(ask(&double, "HEAD", "k", "", b"").status, 200);
}

#[tokio::test]
async fn a_reader_that_pauses_is_cut() {
    let double = S3Double::start().unwrap();
    // more than the kernel keeps for a reader that does not read
    double.put("k", vec![7; 32 << 20]);
    double.fault(When::get("k"), S3Fault::CutWhenPaused { after: Duration::from_millis(20) });
    let mut stream = TcpStream::connect(double.addr()).unwrap();
    let head = format!("GET /{BUCKET}/k HTTP/1.1\r\nauthorization: Credential={ACCESS_KEY}/\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let log = double.wait_for(|log| log.requests.len() == 1 && log.gets_running == 0).await;
    assert!(log.sent("k") < 32 << 20);
}

#[test]
fn what_is_no_http_is_sent_as_told() {
    let double = digits();
    double.fault(When::any(), S3Fault::Garbage);
    let mut stream = TcpStream::connect(double.addr()).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    assert!(!all.starts_with("HTTP"));
}
