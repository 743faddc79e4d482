//! Every way in which an answer of a store can be wrong, and the name that each gets, asked once.

use std::time::Duration;

use bytes::Bytes;
use tidegate_modelcache::manifest::sha256;
use tidegate_modelcache::remote::{
    Addressing, Credentials, FIRST_BYTE_MAX, GAP_MAX, Keys, Put, Remote, RemoteOptions, WebIdentity, Written,
};
use tidegate_modelcache::{CacheFault, StallPhase};
use tidegate_testkit::real::{ACCESS_KEY, BUCKET, SECRET_KEY};
use tidegate_testkit::{S3Double, S3Fault, Verb, When};

use super::store::keys;

const OBJECT: &str = "glm/1/weights/x";
const SIZE: u64 = 200_000;

fn content() -> Bytes {
    (0..SIZE).map(|n| (n % 253) as u8).collect::<Vec<_>>().into()
}

fn options(double: &S3Double) -> RemoteOptions {
    RemoteOptions {
        url: format!("s3://{BUCKET}"),
        endpoint: Some(double.url()),
        ca_bundle: double.ca_pem().map(|pem| pem.as_bytes().to_vec()),
        credentials: keys(),
        ..RemoteOptions::default()
    }
}

fn store() -> (S3Double, Remote) {
    let double = S3Double::start().unwrap();
    double.put(OBJECT, content());
    let remote = Remote::open(&options(&double)).unwrap();
    (double, remote)
}

/// Reads a range in the middle.
async fn range(remote: &Remote) -> Result<Vec<u8>, CacheFault> {
    let mut body = remote.get_range(OBJECT, 1000..151_000, SIZE, None).await?;
    let mut all = Vec::new();
    while let Some(part) = body.next().await {
        all.extend_from_slice(&part?);
    }
    assert_eq!(all.len(), 150_000, "a range ends without an error only when it is whole");
    Ok(all)
}

/// What a fault of the double makes of a range, and that the next range is right without it.
async fn named(fault: S3Fault) -> CacheFault {
    let (double, remote) = store();
    double.fault(When::get(OBJECT), fault.clone());
    let named = range(&remote).await.expect_err(&format!("{fault:?}"));
    double.heal();
    assert!(range(&remote).await.unwrap() == content()[1000..151_000], "{fault:?}: a clean state after it");
    let asked = double.log().of(Verb::Get, OBJECT).count();
    assert_eq!(asked, 2, "{fault:?}: nothing is tried again here");
    named
}

#[tokio::test]
async fn each_wrong_answer_has_its_name() {
    let cases = [
        (S3Fault::WholeForRange, "range_ignored"),
        (S3Fault::RangeUnder200, "range_ignored"),
        (S3Fault::OtherRange { shift: 7 }, "wrong_content_range"),
        (S3Fault::NoContentRange, "wrong_content_range"),
        (S3Fault::Shorter { by: 10 }, "wrong_length"),
        (S3Fault::Cut { after: 70_000 }, "interrupted"),
        (S3Fault::Reset { after: 70_000 }, "interrupted"),
        (S3Fault::ShortAt { offset: 100_000 }, "interrupted"),
        (S3Fault::Page, "range_ignored"),
        (S3Fault::Garbage, "bad_answer"),
        (S3Fault::slow_down(), "throttled"),
        (S3Fault::slow_down_read(), "throttled"),
        (S3Fault::too_many_requests(Some(60)), "throttled"),
        (S3Fault::internal_error(), "store_unavailable"),
        (S3Fault::vanished(), "vanished_object"),
        (S3Fault::access_denied(), "refused"),
        (S3Fault::expired_token(), "expired_credentials"),
        (S3Fault::Refuse { status: 301, code: "PermanentRedirect", retry_after_s: None }, "bad_settings"),
    ];
    for (fault, code) in cases {
        let found = named(fault.clone()).await;
        assert_eq!(found.code(), code, "{fault:?}: {found}");
    }
}

#[tokio::test]
async fn what_the_store_asks_to_wait_is_passed_on() {
    let found = named(S3Fault::too_many_requests(Some(60))).await;
    assert_eq!(found.retry_after(), Some(Duration::from_secs(60)));
    assert_eq!(named(S3Fault::too_many_requests(None)).await.retry_after(), None);
}

#[tokio::test]
async fn a_body_that_never_ends_ends_here() {
    let (double, remote) = store();
    double.fault(When::get(OBJECT), S3Fault::Endless);
    let fault = remote.get_small(OBJECT, 1 << 20).await.unwrap_err();
    assert!(matches!(fault.code(), "bad_answer" | "wrong_length"), "{fault}");
    let fault = range(&remote).await.unwrap_err();
    assert!(matches!(fault.code(), "range_ignored" | "wrong_length" | "wrong_content_range"), "{fault}");
}

#[tokio::test]
async fn a_store_that_does_not_know_if_match_is_seen_through() {
    let (double, remote) = store();
    let etag = remote.head(OBJECT).await.unwrap().etag;
    let mut body = remote.get_range(OBJECT, 0..10, SIZE, etag.as_deref()).await.unwrap();
    assert_eq!(body.etag(), etag.as_deref());
    assert_eq!(body.next().await.unwrap().unwrap(), content()[..10]);
    double.fault(When::get(OBJECT), S3Fault::Replace { with: content().slice(1..) });
    let fault = remote.get_range(OBJECT, 0..10, SIZE, etag.as_deref()).await.unwrap_err();
    assert_eq!(fault.code(), "changed_object");
    let asked = double.log().of(Verb::Get, OBJECT).map(|request| request.if_match.clone()).collect::<Vec<_>>();
    assert_eq!(asked, [etag.clone(), etag]);
}

#[tokio::test]
async fn a_head_that_does_not_come_and_a_body_that_stops_are_stalls() {
    let (double, remote) = store();
    double.fault(When::get(OBJECT).first(1), S3Fault::Stall { after: 5000 });
    let mut body = remote.get_range(OBJECT, 0..SIZE, SIZE, None).await.unwrap();
    let mut came = 0;
    while came < 5000 {
        came += body.next().await.unwrap().unwrap().len();
    }
    // from here on only the clock can go on
    tokio::time::pause();
    let fault = body.next().await.unwrap().unwrap_err();
    let after_ms = u64::try_from(GAP_MAX.as_millis()).unwrap();
    assert_eq!(fault, CacheFault::Stalled { object: OBJECT.to_owned(), phase: StallPhase::Gap, after_ms });
    tokio::time::resume();

    double.heal();
    double.fault(When::get(OBJECT), S3Fault::Slow(Duration::from_secs(3600)));
    let asked = async {
        double.wait_for(|log| log.of(Verb::Get, OBJECT).count() == 2).await;
        tokio::time::pause();
    };
    let (answer, ()) = tokio::join!(remote.get_range(OBJECT, 0..SIZE, SIZE, None), asked);
    let after_ms = u64::try_from(FIRST_BYTE_MAX.as_millis()).unwrap();
    let expected = CacheFault::Stalled { object: OBJECT.to_owned(), phase: StallPhase::FirstByte, after_ms };
    assert_eq!(answer.unwrap_err(), expected);
}

#[tokio::test]
async fn connections_are_used_again_and_a_closed_one_is_replaced_unseen() {
    let (double, remote) = store();
    for _ in 0..5 {
        range(&remote).await.unwrap();
    }
    assert_eq!(double.log().connections, 1);
    double.disconnect().unwrap();
    range(&remote).await.unwrap();
    assert_eq!(double.log().connections, 2);
}

#[tokio::test]
async fn a_lost_answer_to_the_manifest_is_found_to_be_our_own() {
    let (double, remote) = store();
    let bytes = Bytes::from_static(b"m");
    let put = || remote.put_small("glm/1/manifest.json", bytes.clone(), sha256(&bytes), Put::IfAbsent);
    assert_eq!(put().await.unwrap(), Written::New);
    assert_eq!(put().await.unwrap(), Written::WasThere);
    let log = double.log();
    let asked: Vec<_> = log.of(Verb::Put, "manifest.json").map(|put| put.if_none_match.as_deref()).collect();
    assert_eq!(asked, [Some("*"), Some("*")]);
}

#[tokio::test]
async fn no_name_no_port_and_no_tls_are_told_apart() {
    let (double, remote) = store();
    double.stop_listening().unwrap();
    double.disconnect().unwrap();
    assert_eq!(remote.head(OBJECT).await.unwrap_err().code(), "connect");
    let nowhere = RemoteOptions { endpoint: Some("https://store.invalid".to_owned()), ..options(&double) };
    assert_eq!(Remote::open(&nowhere).unwrap().head(OBJECT).await.unwrap_err().code(), "connect");
    double.listen_again().unwrap();
    let plain = RemoteOptions { endpoint: Some(double.url().replace("http:", "https:")), ..options(&double) };
    assert_eq!(Remote::open(&plain).unwrap().head(OBJECT).await.unwrap_err().code(), "tls");
    let bundle = RemoteOptions { ca_bundle: Some(b"no certificate".to_vec()), ..plain };
    assert_eq!(Remote::open(&bundle).unwrap_err().code(), "bad_settings");
}

#[tokio::test]
async fn a_name_that_the_certificate_does_not_have_is_refused() {
    let double = S3Double::start_tls().unwrap();
    double.put(OBJECT, content());
    range(&Remote::open(&options(&double)).unwrap()).await.unwrap();
    let name = format!("https://other.sub.localhost:{}", double.addr().port());
    let options = RemoteOptions { endpoint: Some(name), ..options(&double) };
    assert_eq!(Remote::open(&options).unwrap().head(OBJECT).await.unwrap_err().code(), "tls");
}

#[tokio::test]
async fn the_bucket_stands_in_the_host_where_it_is_asked_for() {
    let (double, _) = store();
    double.virtual_host(BUCKET);
    let endpoint = Some(format!("http://s3.localhost:{}", double.addr().port()));
    let options = RemoteOptions { endpoint, addressing: Addressing::VirtualHost, ..options(&double) };
    range(&Remote::open(&options).unwrap()).await.unwrap();
    let log = double.log();
    let request = log.of(Verb::Get, OBJECT).next().unwrap();
    let host = request.headers.iter().find(|(name, _)| name == "host").map(|(_, value)| value.as_str());
    assert_eq!(host, Some(format!("{BUCKET}.s3.localhost:{}", double.addr().port()).as_str()));
}

fn identity(token_file: &std::path::Path, sts_endpoint: Option<String>) -> Credentials {
    Credentials::WebIdentity(WebIdentity {
        token_file: token_file.to_path_buf(),
        role_arn: "arn:aws:iam::1:role/reader".to_owned(),
        session_name: "tidegate".to_owned(),
        sts_endpoint,
    })
}

#[tokio::test]
async fn a_web_identity_is_traded_at_the_store_once_and_again_before_its_keys_end() {
    let (double, _) = store();
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "the-token\n").unwrap();
    double.trade("the-token", "2999-01-01T00:00:00Z");
    let open = || Remote::open(&RemoteOptions { credentials: identity(&token, None), ..options(&double) }).unwrap();
    let remote = open();
    let (one, two, three) = tokio::join!(range(&remote), range(&remote), range(&remote));
    assert!(one.is_ok() && two.is_ok() && three.is_ok(), "{one:?} {two:?} {three:?}");
    assert_eq!(double.log().of(Verb::Identity, "").count(), 1, "one trade for all who ask at once");

    // keys that end too soon are renewed at the next request
    double.trade("the-token", "2000-01-01T00:00:00Z");
    let remote = open();
    range(&remote).await.unwrap();
    range(&remote).await.unwrap();
    assert_eq!(double.log().of(Verb::Identity, "").count(), 3);

    std::fs::write(&token, "another").unwrap();
    let fault = range(&open()).await.unwrap_err();
    assert!(matches!(fault.code(), "no_credentials" | "expired_credentials"), "{fault}");
    std::fs::remove_file(&token).unwrap();
    assert_eq!(range(&open()).await.unwrap_err().code(), "no_credentials");
}

#[tokio::test]
async fn expired_keys_are_named_and_a_renewed_file_is_enough() {
    let (double, _) = store();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("credentials");
    let write = |id: &str| {
        let text = format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = {SECRET_KEY}\n");
        std::fs::write(&path, text).unwrap();
    };
    write(ACCESS_KEY);
    let credentials = Credentials::File { path: path.clone(), profile: "default".to_owned() };
    let remote = Remote::open(&RemoteOptions { credentials, ..options(&double) }).unwrap();
    range(&remote).await.unwrap();
    double.expire(ACCESS_KEY);
    assert_eq!(range(&remote).await.unwrap_err().code(), "expired_credentials");
    double.set_key("RENEWED", None);
    write("RENEWED");
    range(&remote).await.unwrap();
}

#[tokio::test]
async fn a_session_token_goes_with_its_keys() {
    let (double, _) = store();
    double.set_key("TEMPORARY", Some("session"));
    let keys = |session_token: Option<&str>| {
        Credentials::Keys(Keys {
            access_key_id: "TEMPORARY".to_owned(),
            secret_access_key: "s".to_owned(),
            session_token: session_token.map(str::to_owned),
        })
    };
    let open = |token| Remote::open(&RemoteOptions { credentials: keys(token), ..options(&double) }).unwrap();
    range(&open(Some("session"))).await.unwrap();
    assert_eq!(range(&open(None)).await.unwrap_err().code(), "refused");
}

#[tokio::test]
async fn a_listing_comes_in_pages_and_a_reader_needs_none() {
    let (double, remote) = store();
    for n in 0..25 {
        double.put(&format!("glm/1/many/{n:02}"), "x");
    }
    double.page(10);
    assert_eq!(remote.list("glm/1/many").await.unwrap().len(), 25);
    assert_eq!(double.log().of(Verb::List, "").count(), 3);
    double.deny(Verb::List);
    assert_eq!(remote.list("glm/1").await.unwrap_err().code(), "refused");
    range(&remote).await.unwrap();
}

/// A proxy that records the first line of each connection, and for CONNECT goes between.
async fn proxy(
    lines: std::sync::Arc<parking_lot::Mutex<Vec<String>>>,
    to: std::net::SocketAddr,
) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut running = tokio::task::JoinSet::new();
    let accept = async move {
        loop {
            let (mut caller, _) = listener.accept().await.unwrap();
            let lines = std::sync::Arc::clone(&lines);
            running.spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(caller.read_u8().await.unwrap());
                }
                lines.lock().push(String::from_utf8_lossy(&head).lines().next().unwrap().to_owned());
                let mut store = tokio::net::TcpStream::connect(to).await.unwrap();
                if head.starts_with(b"CONNECT") {
                    caller.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
                } else {
                    // a server is asked in origin form
                    let head = String::from_utf8(head).unwrap().replacen(&format!("http://{to}"), "", 1);
                    store.write_all(head.as_bytes()).await.unwrap();
                }
                drop(tokio::io::copy_bidirectional(&mut caller, &mut store).await);
            });
        }
    };
    // it ends with the test's runtime
    tokio::task::spawn_local(accept);
    address
}

#[tokio::test]
async fn a_proxy_is_used_where_it_is_configured_and_nowhere_else() {
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let lines = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
            let double = S3Double::start_tls().unwrap();
            double.put(OBJECT, content());
            let address = format!("http://{}", proxy(std::sync::Arc::clone(&lines), double.addr()).await);
            let secure = RemoteOptions { proxy: Some(address), ..options(&double) };
            range(&Remote::open(&secure).unwrap()).await.unwrap();
            assert_eq!(lines.lock().clone(), [format!("CONNECT {} HTTP/1.1", double.addr())]);

            let (plain, _) = store();
            lines.lock().clear();
            let through = proxy(std::sync::Arc::clone(&lines), plain.addr()).await;
            let options = RemoteOptions { proxy: Some(format!("http://{through}")), ..options(&plain) };
            range(&Remote::open(&options).unwrap()).await.unwrap();
            let expected = format!("GET http://{}/{BUCKET}/{OBJECT} HTTP/1.1", plain.addr());
            assert_eq!(lines.lock().clone(), [expected]);

            lines.lock().clear();
            let refused = RemoteOptions { proxy: Some(format!("http://{}", plain.addr())), ..secure };
            assert_eq!(Remote::open(&refused).unwrap().head(OBJECT).await.unwrap_err().code(), "connect");
            assert_eq!(lines.lock().len(), 0);
        })
        .await;
}
