//! Real servers are started, damaged beneath, cut off and ended.

use std::io::{Read as _, Write as _};
use std::process::Command;

use serde_json::{Value, json};
use tidegate_testkit::real::{BUCKET, ControlPlane, REGION, RealKubernetes, RealS3, S3Options, S3Server};
use tidegate_testkit::{Failure, Kubelet, NodePlan};

/// One signed request by curl; gives back status and body.
fn ask(real: &RealS3, method: &str, key: &str, more: &[&str]) -> (u16, Vec<u8>) {
    let [(_, access), (_, secret), _] = real.env();
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", "--request", method, "--write-out", "%{http_code}"]);
    curl.args(["--aws-sigv4", &format!("aws:amz:{REGION}:s3"), "--user", &format!("{access}:{secret}")]);
    curl.args(["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]).args(more);
    if let Some(ca) = real.ca() {
        curl.arg("--cacert").arg(ca);
    }
    let output = curl.arg(format!("{}/{BUCKET}/{key}", real.url())).output().unwrap();
    let mut body = output.stdout;
    let status = body.split_off(body.len() - 3);
    (String::from_utf8(status).unwrap().parse().unwrap(), body)
}

fn put(real: &RealS3, key: &str, content: &str) {
    let (status, body) = ask(real, "PUT", key, &["--data-binary", content]);
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
}

#[test]
fn versitygw_serves_what_lies_beneath_it_and_comes_back_with_it() {
    let real = RealS3::start(S3Server::Versitygw, S3Options::default()).unwrap();
    put(&real, "a/b", "0123456789");
    real.flip_byte("a/b", 4).unwrap();
    assert_eq!(ask(&real, "GET", "a/b", &["--range", "2-5"]), (206, b"2355".to_vec()));
    real.truncate("a/b", 3).unwrap();
    assert_eq!(ask(&real, "GET", "a/b", &["--range", "5-6"]).0, 416);
    real.stop().unwrap();
    assert!(std::net::TcpStream::connect(real.url().trim_start_matches("http://")).is_err());
    real.start_again().unwrap();
    assert_eq!(ask(&real, "GET", "a/b", &[]), (200, b"012".to_vec()));
    std::fs::remove_file(real.object_file("a/b")).unwrap();
    assert_eq!(ask(&real, "GET", "a/b", &[]).0, 404);
}

#[test]
fn versitygw_speaks_tls_with_a_ca_of_its_own() {
    let real = RealS3::start(S3Server::Versitygw, S3Options { tls: true, ..S3Options::default() }).unwrap();
    assert!(real.url().starts_with("https://"));
    put(&real, "k", "secret in transit");
    assert_eq!(ask(&real, "GET", "k", &[]), (200, b"secret in transit".to_vec()));
}

#[test]
fn seaweedfs_serves_and_ends() {
    let real = RealS3::start(S3Server::Seaweedfs, S3Options::default()).unwrap();
    put(&real, "a/b", "0123456789");
    assert_eq!(ask(&real, "GET", "a/b", &["--range", "2-5"]), (206, b"2345".to_vec()));
    let address = real.url().trim_start_matches("http://").to_owned();
    assert!(answers_as_seaweedfs(&address));
    drop(real);
    // Its port may be another test's by now.
    assert!(!answers_as_seaweedfs(&address));
}

fn answers_as_seaweedfs(address: &str) -> bool {
    let Ok(mut stream) = std::net::TcpStream::connect(address) else { return false };
    stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // Whoever says nothing is not the one.
    let _ = stream.take(64 << 10).read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).to_lowercase().contains("seaweedfs")
}

#[tokio::test]
async fn a_control_plane_runs_a_pod_on_a_played_node_and_keeps_its_data_over_a_kill() {
    let start = || RealKubernetes::start(ControlPlane::Whole);
    let real = tokio::task::spawn_blocking(start).await.unwrap().unwrap();
    let api = real.api().unwrap();
    let node = Kubelet::start(&api, NodePlan::new("node-a", 2)).await.unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" },
        "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "limits": { "nvidia.com/gpu": "2" } } }] },
    });
    let pods = "/api/v1/namespaces/default/pods";
    api.create(pods, &pod).await.unwrap();
    let runs = |_: &str, pod: &Value| pod["status"]["phase"] == "Running";
    let seen = api.until(pods, runs).await.unwrap();
    assert_eq!(seen["spec"]["nodeName"], "node-a", "by the real scheduler");
    node.fail("default", "p", Failure::OomKilled).await.unwrap();
    let status = api.get(&format!("{pods}/p")).await.unwrap();
    assert_eq!(status["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"], "OOMKilled");
    real.kill("apiserver").unwrap();
    assert!(api.get(pods).await.is_err());
    real.start_again().unwrap();
    assert_eq!(api.get(&format!("{pods}/p")).await.unwrap()["metadata"]["uid"], seen["metadata"]["uid"]);
    let nobody = api.as_user("wrong");
    assert_eq!(nobody.ask(http::Method::GET, pods, "application/json", None).await.unwrap().0, 401);
    let folder = real.kubeconfig().parent().unwrap().to_owned();
    drop(real);
    assert!(!folder.exists());
    assert!(api.get(pods).await.is_err());
}
