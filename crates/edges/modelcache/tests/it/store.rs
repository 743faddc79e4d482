//! What the store promises, on real servers of two makes, in every way they are reached, and on a plain folder.

use bytes::Bytes;
use tidegate_core::Sha256Digest;
use tidegate_modelcache::CacheFault;
use tidegate_modelcache::manifest::sha256;
use tidegate_modelcache::remote::{Addressing, Credentials, Keys, Put, Remote, RemoteOptions, Written};
use tidegate_testkit::real::{ACCESS_KEY, BUCKET, RealS3, S3Options, S3Server, SECRET_KEY};

pub(crate) fn keys() -> Credentials {
    Credentials::Keys(Keys {
        access_key_id: ACCESS_KEY.to_owned(),
        secret_access_key: SECRET_KEY.to_owned(),
        session_token: None,
    })
}

/// Settings for a real server, under a prefix with what keys may hold.
pub(crate) fn settings(server: &RealS3) -> RemoteOptions {
    RemoteOptions {
        url: format!("s3://{BUCKET}/teams/a b+c"),
        endpoint: Some(server.url().to_owned()),
        ca_bundle: server.ca().map(|path| std::fs::read(path).unwrap()),
        credentials: keys(),
        ..RemoteOptions::default()
    }
}

fn bytes(length: usize) -> Bytes {
    (0..length).map(|n| (n * 31 % 251) as u8).collect::<Vec<_>>().into()
}

async fn read(
    remote: &Remote,
    object: &str,
    from: u64,
    to: u64,
    size: u64,
    etag: Option<&str>,
) -> Result<Vec<u8>, CacheFault> {
    let mut body = remote.get_range(object, from..to, size, etag).await?;
    let mut all = Vec::new();
    while let Some(part) = body.next().await {
        all.extend_from_slice(&part?);
    }
    Ok(all)
}

fn code<T: std::fmt::Debug>(result: Result<T, CacheFault>) -> &'static str {
    result.unwrap_err().code()
}

/// The whole promise.
async fn keeps_its_promises(remote: &Remote) {
    ranges_are_exact_and_bound_to_the_entity_tag(remote).await;
    one_writer_of_many_wins(remote).await;
    parts_make_an_object(remote).await;
    what_is_not_there_is_named(remote).await;
}

async fn ranges_are_exact_and_bound_to_the_entity_tag(remote: &Remote) {
    let object = "glm/1/weights/über #1%.bin";
    let content = bytes(300_000);
    assert_eq!(remote.put_small(object, content.clone(), sha256(&content), Put::Replace).await.unwrap(), Written::New);
    let head = remote.head(object).await.unwrap();
    assert_eq!(head.size, 300_000);
    let etag = head.etag.as_deref();
    assert!(etag.is_some());
    for (from, to) in [(0, 1), (0, 300_000), (299_999, 300_000), (65_536, 131_072)] {
        let found = read(remote, object, from, to, 300_000, etag).await.unwrap();
        assert!(found == content[from as usize..to as usize], "{from}..{to}");
    }
    assert_eq!(code(read(remote, object, 0, 300_001, 300_001, etag).await), "wrong_length");
    assert_eq!(code(read(remote, object, 300_005, 300_006, 300_006, etag).await), "wrong_length");
    assert_eq!(code(read(remote, object, 0, 10, 299_999, etag).await), "wrong_length");
    assert_eq!(code(read(remote, object, 5, 5, 300_000, etag).await), "bad_answer");
    assert_eq!(code(read(remote, object, 0, 10, 300_000, Some("\"another\"")).await), "changed_object");
    a_replaced_object_is_another(remote, object, &content).await;
}

async fn a_replaced_object_is_another(remote: &Remote, object: &str, content: &Bytes) {
    let head = remote.head(object).await.unwrap();
    let etag = head.etag.as_deref();
    let (whole, again) = remote.get_small(object, 300_000).await.unwrap();
    assert!(whole == *content && again.etag == head.etag);
    assert_eq!(code(remote.get_small(object, 299_999).await), "bad_answer");

    let other = bytes(300_001).slice(1..);
    remote.put_small(object, other.clone(), sha256(&other), Put::Replace).await.unwrap();
    assert_eq!(code(read(remote, object, 0, 10, 300_000, etag).await), "changed_object");
}

async fn one_writer_of_many_wins(remote: &Remote) {
    let object = "glm/1/manifest.json";
    let contents: Vec<_> = (0_u8..8).map(|n| Bytes::from(vec![n; 100])).collect();
    let puts = contents.iter().map(|content| {
        let content = content.clone();
        async move { remote.put_small(object, content.clone(), sha256(&content), Put::IfAbsent).await }
    });
    let written = futures_util::future::join_all(puts).await;
    let won: Vec<_> = written.iter().enumerate().filter(|(_, end)| matches!(end, Ok(Written::New))).collect();
    assert_eq!(won.len(), 1, "{written:?}");
    let losers = written.iter().filter(|end| !matches!(end, Ok(Written::New)));
    for end in losers {
        // a store may also say that two came at once: the loser asks again
        let fine = matches!(end, Ok(Written::WasThere) | Err(CacheFault::StoreUnavailable { .. }));
        assert!(fine, "{end:?}");
    }
    let (found, _) = remote.get_small(object, 1000).await.unwrap();
    assert_eq!(found, contents[won[0].0]);
}

async fn parts_make_an_object(remote: &Remote) {
    let object = "glm/1/weights/parts.bin";
    let content = bytes(11 << 20);
    let part = 5 << 20;
    let upload = remote.put_multipart(object, sha256(&content)).await.unwrap();
    let mut parts = Vec::new();
    for (index, start) in (0..content.len()).step_by(part).enumerate() {
        let piece = content.slice(start..content.len().min(start + part));
        // the second time, as after a lost answer, counts
        drop(upload.put_part(index, start as u64, piece.clone()).await.unwrap());
        parts.push(upload.put_part(index, start as u64, piece).await.unwrap());
    }
    assert_eq!(code(remote.head(object).await), "vanished_object", "not there before the end");
    upload.complete(parts).await.unwrap();
    let head = remote.head(object).await.unwrap();
    assert_eq!(head.size, content.len() as u64);
    let (from, to) = (part as u64 - 3, part as u64 + 3);
    let found = read(remote, object, from, to, head.size, head.etag.as_deref()).await.unwrap();
    assert_eq!(found, content[part - 3..part + 3]);
    if remote.url().starts_with("s3") {
        assert_eq!(head.sha256, Some(sha256(&content)), "noted beside an object of parts too");
    }

    a_given_up_upload_leaves_no_object(remote).await;
}

async fn a_given_up_upload_leaves_no_object(remote: &Remote) {
    let upload = remote.put_multipart("glm/1/weights/given-up.bin", Sha256Digest([0; 32])).await.unwrap();
    upload.put_part(0, 0, bytes(100)).await.unwrap();
    upload.abort().await.unwrap();
    drop(upload);

    let listed = remote.list("glm/1").await.unwrap();
    let names: Vec<_> = listed.iter().map(|listed| (listed.object.as_str(), listed.size)).collect();
    let expected =
        [("glm/1/manifest.json", 100), ("glm/1/weights/parts.bin", 11 << 20), ("glm/1/weights/über #1%.bin", 300_000)];
    assert_eq!(names, expected);
    assert_eq!(remote.list("glm/2").await.unwrap(), []);
}

async fn what_is_not_there_is_named(remote: &Remote) {
    assert_eq!(code(remote.head("glm/1/none").await), "vanished_object");
    assert_eq!(code(remote.get_small("glm/1/none", 10).await), "vanished_object");
    assert_eq!(code(read(remote, "glm/1/none", 0, 1, 1, None).await), "vanished_object");
}

/// Wrong keys and no bucket, where there are such things.
async fn refusals_are_named(options: &RemoteOptions) {
    let nowhere = RemoteOptions { url: "s3://nothing-here/x".to_owned(), ..options.clone() };
    assert_eq!(code(Remote::open(&nowhere).unwrap().get_small("glm/1/none", 10).await), "no_such_bucket");
    let wrong = Credentials::Keys(Keys {
        access_key_id: ACCESS_KEY.to_owned(),
        secret_access_key: "wrong".to_owned(),
        session_token: None,
    });
    let refused = Remote::open(&RemoteOptions { credentials: wrong, ..options.clone() }).unwrap();
    assert_eq!(code(refused.get_small("glm/1/manifest.json", 10).await), "refused");
}

fn start(server: S3Server, options: S3Options) -> RealS3 {
    RealS3::start(server, options).expect("cargo xtask real s3 installs the servers")
}

#[tokio::test]
async fn versitygw_over_http_with_path_style() {
    let server = start(S3Server::Versitygw, S3Options::default());
    let options = settings(&server);
    keeps_its_promises(&Remote::open(&options).unwrap()).await;
    refusals_are_named(&options).await;
    server.stop().unwrap();
    assert_eq!(code(Remote::open(&options).unwrap().head("glm/1/none").await), "connect");
}

#[tokio::test]
async fn versitygw_over_tls_with_an_own_ca_in_both_styles() {
    let options = S3Options { tls: true, virtual_host: Some("s3.localhost".to_owned()), ..S3Options::default() };
    let server = start(S3Server::Versitygw, options);
    let options = settings(&server);
    let path = Remote::open(&options).unwrap();
    keeps_its_promises(&path).await;
    let host = RemoteOptions {
        url: format!("s3://{BUCKET}/other"),
        endpoint: Some(server.url().replace("127.0.0.1", "s3.localhost")),
        addressing: Addressing::VirtualHost,
        ..options.clone()
    };
    keeps_its_promises(&Remote::open(&host).unwrap()).await;
    refusals_are_named(&options).await;
    // the system does not know this authority
    let strange = RemoteOptions { ca_bundle: None, ..options };
    assert_eq!(code(Remote::open(&strange).unwrap().head("glm/1/none").await), "tls");
}

#[tokio::test]
async fn seaweedfs_over_http_with_path_style() {
    let server = start(S3Server::Seaweedfs, S3Options::default());
    let options = settings(&server);
    keeps_its_promises(&Remote::open(&options).unwrap()).await;
    refusals_are_named(&options).await;
}

#[tokio::test]
async fn seaweedfs_over_tls_with_an_own_ca() {
    let server = start(S3Server::Seaweedfs, S3Options { tls: true, ..S3Options::default() });
    let options = settings(&server);
    keeps_its_promises(&Remote::open(&options).unwrap()).await;
}

#[tokio::test]
async fn a_folder_as_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    keeps_its_promises(&Remote::open(&RemoteOptions { url, ..RemoteOptions::default() }).unwrap()).await;
}
