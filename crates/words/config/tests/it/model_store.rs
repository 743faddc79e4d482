//! `Site.spec.modelStore`: what is taken, and what is said about the rest.

use tidegate_config::site::{ModelStore, StoreAddressing, StoreCredentials};
use tidegate_config::{Checked, Diagnostic, Source, check};

fn site(store: &str) -> Checked {
    let text = format!(
        "apiVersion: tidegate.dev/v1alpha1\nkind: Site\nmetadata: {{name: s}}\nspec: {{modelStore: {{{store}}}}}\n"
    );
    check(&[Source::new("/etc/tidegate/site.yaml", text)])
}

fn taken(store: &str) -> ModelStore {
    let checked = site(store);
    let said: Vec<String> = checked.diagnostics.iter().map(Diagnostic::render).collect();
    assert_eq!(said, Vec::<String>::new());
    checked.site.unwrap().model_store.clone().unwrap()
}

fn said(store: &str) -> String {
    let lines = site(store)
        .diagnostics
        .into_iter()
        .map(|found| format!("{}: {} ({})", found.path, found.message, found.hint.unwrap_or_default()));
    lines.collect::<Vec<_>>().join("\n")
}

const S3: &str = "url: 's3://models/prefix'";

#[test]
fn the_least_is_a_url() {
    let store = taken(S3);
    assert_eq!((store.addressing, store.allow_http, store.region), (StoreAddressing::Path, false, None));
    assert!(matches!(store.credentials, StoreCredentials::Environment));
    assert_eq!(&*taken("url: 'file:///srv/models'").url, "file:///srv/models");
}

#[test]
fn plain_http_is_for_loopback_or_for_who_says_so() {
    for endpoint in ["http://127.0.0.1:9000", "http://[::1]:9000", "http://localhost", "http://s3.localhost:1/"] {
        taken(&format!("{S3}, endpoint: '{endpoint}'"));
    }
    let far = format!("{S3}, endpoint: 'http://store.example:9000'");
    let line = said(&far);
    assert!(line.contains("spec.modelStore.endpoint: plain http to another machine"), "{line}");
    assert!(line.contains("allowHttp: true"), "{line}");
    assert!(taken(&format!("{far}, allowHttp: true")).allow_http);
    assert!(said(&format!("{S3}, endpoint: 'http://localhost.example'")).contains("plain http"));
}

#[test]
fn an_endpoint_is_scheme_host_and_port() {
    for endpoint in ["store", "https://store/path", "https://u@store", "ftp://store", "https://store?x"] {
        let line = said(&format!("{S3}, endpoint: '{endpoint}'"));
        assert!(line.contains("expected the address of a service"), "{endpoint}: {line}");
    }
    assert_eq!(
        taken(&format!("{S3}, endpoint: 'https://store:9000/'")).endpoint.as_deref(),
        Some("https://store:9000")
    );
}

#[test]
fn a_virtual_host_needs_a_name_and_a_certificate_that_covers_it() {
    let host = |url: &str, endpoint: &str| format!("url: '{url}', endpoint: '{endpoint}', addressing: virtualHost");
    assert_eq!(taken(&host("s3://models", "https://store.example")).addressing, StoreAddressing::VirtualHost);
    assert!(said(&host("s3://models", "https://10.0.0.1")).contains("no virtual hosts"));
    assert!(said(&host("s3://my.models", "https://store.example")).contains("no certificate"));
}

#[test]
fn buckets_and_prefixes_keep_to_their_letters() {
    for url in ["s3://ab", "s3://Models", "s3://a..b", "s3://-models", "s3://mod_els"] {
        assert!(said(&format!("url: '{url}'")).contains("not the name of a bucket"), "{url}");
    }
    assert!(said("url: 's3://models/a/../b'").contains("not a prefix"));
    assert!(said("url: 'https://models'").contains("not the URL of a model store"));
    assert!(said(&format!("{S3}, region: 'eu west'")).contains("not a region"));
    assert!(said(&format!("{S3}, proxy: 'https://p:1'")).contains("not the address of a proxy"));
}

#[test]
fn credentials_come_in_one_form_and_whole() {
    let keys = "accessKey: {fromEnv: A}, secretKey: {fromEnv: S}";
    assert!(matches!(taken(&format!("{S3}, {keys}")).credentials, StoreCredentials::Keys { session_token: None, .. }));
    assert!(said(&format!("{S3}, accessKey: {{fromEnv: A}}")).contains("secretKey"));
    assert!(said(&format!("{S3}, sessionToken: {{fromEnv: T}}")).contains("accessKey"));
    assert!(said(&format!("{S3}, credentialsProfile: p")).contains("credentialsFile"));
    assert!(said(&format!("{S3}, {keys}, credentialsFile: c")).contains("more than one form"));
    match taken(&format!("{S3}, credentialsFile: keys, credentialsProfile: prod")).credentials {
        StoreCredentials::File { path, profile } => {
            assert_eq!((path.to_str().unwrap(), &*profile), ("/etc/tidegate/keys", "prod"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_web_identity_names_token_and_role() {
    let identity = "webIdentity: {tokenFile: /var/run/token, roleArn: 'arn:aws:iam::1:role/r'}";
    match taken(&format!("{S3}, {identity}")).credentials {
        StoreCredentials::WebIdentity { session_name, sts_endpoint, .. } => {
            assert_eq!((&*session_name, sts_endpoint), ("tidegate", None));
        }
        other => panic!("{other:?}"),
    }
    let line = said(&format!("{S3}, webIdentity: {{roleArn: r, sessionName: 'a b', stsEndpoint: 'http://far'}}"));
    for part in ["tokenFile", "not a role", "not the name of a session", "plain http"] {
        assert!(line.contains(part), "{part}: {line}");
    }
}
