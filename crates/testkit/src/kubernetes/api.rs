//! An API client that knows no types: JSON in, status and JSON out. One connection a call.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The user whose token it has asks an API server.
#[derive(Clone)]
pub struct KubeApi {
    address: SocketAddr,
    tls: TlsConnector,
    token: Arc<str>,
}

impl std::fmt::Debug for KubeApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeApi").field("address", &self.address).finish_non_exhaustive()
    }
}

impl KubeApi {
    pub(crate) fn new(address: SocketAddr, ca: &Path, token: &str) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(ca).map_err(io::Error::other)? {
            roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
        }
        let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { address, tls: TlsConnector::from(Arc::new(config)), token: token.into() })
    }

    /// The same server for somebody else.
    #[must_use]
    pub fn as_user(&self, token: &str) -> Self {
        Self { token: token.into(), ..self.clone() }
    }

    /// One call. `content_type` decides how a patch is meant.
    ///
    /// # Errors
    /// The server does not answer, or not in JSON.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> io::Result<(u16, Value)> {
        let (status, body) = self.send(method, path, content_type, body).await?;
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let value = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
        Ok((status, value))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> io::Result<(u16, Incoming)> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::IpAddress(self.address.ip().into());
        let stream = self.tls.connect(name, stream).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string())
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", content_type)
            .header("accept", "application/json")
            .body(Full::new(body))
            .map_err(io::Error::other)?;
        // the connection lives as long as the answer's body is read: it is polled by a task that ends with it
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(connection);
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        tasks.detach_all();
        let status = answer.status().as_u16();
        Ok((status, answer.into_body()))
    }

    /// Reads an object.
    ///
    /// # Errors
    /// As [`KubeApi::ask`], and any status but 2xx.
    pub async fn get(&self, path: &str) -> io::Result<Value> {
        good(self.ask(Method::GET, path, "application/json", None).await?, path)
    }

    /// Makes an object.
    ///
    /// # Errors
    /// As [`KubeApi::get`].
    pub async fn create(&self, path: &str, object: &Value) -> io::Result<Value> {
        good(self.ask(Method::POST, path, "application/json", Some(object)).await?, path)
    }

    /// Changes an object by a merge patch.
    ///
    /// # Errors
    /// As [`KubeApi::get`].
    pub async fn patch(&self, path: &str, patch: &Value) -> io::Result<Value> {
        good(self.ask(Method::PATCH, path, "application/merge-patch+json", Some(patch)).await?, path)
    }

    /// Changes an object by a patch that merges lists by their keys.
    ///
    /// # Errors
    /// As [`KubeApi::get`].
    pub async fn patch_lists(&self, path: &str, patch: &Value) -> io::Result<Value> {
        good(self.ask(Method::PATCH, path, "application/strategic-merge-patch+json", Some(patch)).await?, path)
    }

    /// Applies an object as `manager`, by force.
    ///
    /// # Errors
    /// As [`KubeApi::get`].
    pub async fn apply(&self, path: &str, manager: &str, object: &Value) -> io::Result<Value> {
        let path = format!("{path}?fieldManager={manager}&force=true");
        good(self.ask(Method::PATCH, &path, "application/apply-patch+yaml", Some(object)).await?, &path)
    }

    /// Deletes an object, with so many seconds for a Pod. One that is not there is fine.
    ///
    /// # Errors
    /// As [`KubeApi::get`].
    pub async fn delete(&self, path: &str, grace_seconds: Option<u32>) -> io::Result<()> {
        let mut options = json!({ "kind": "DeleteOptions", "apiVersion": "v1" });
        if let Some(seconds) = grace_seconds {
            options["gracePeriodSeconds"] = json!(seconds);
        }
        match self.ask(Method::DELETE, path, "application/json", Some(&options)).await? {
            (404, _) => Ok(()),
            answer => good(answer, path).map(drop),
        }
    }

    /// Follows a list from its beginning: each event's type and object, until the receiver is dropped or the server ends
    /// it.
    ///
    /// # Errors
    /// As [`KubeApi::get`].
    pub async fn watch(&self, path: &str, events: &mpsc::Sender<(String, Value)>) -> io::Result<()> {
        let join = if path.contains('?') { '&' } else { '?' };
        let (status, mut body) =
            self.send(Method::GET, &format!("{path}{join}watch=true"), "application/json", None).await?;
        if status != 200 {
            return Err(io::Error::other(format!("watch {path}: status {status}")));
        }
        let mut kept = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
            kept.extend_from_slice(&data);
            while let Some(end) = memchr::memchr(b'\n', &kept) {
                let line: Vec<u8> = kept.drain(..=end).collect();
                let mut event: Value = serde_json::from_slice(&line).map_err(io::Error::other)?;
                let kind = event["type"].as_str().unwrap_or_default().to_owned();
                if events.send((kind, event["object"].take())).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Follows a list until an object of it satisfies `found`, and gives it back. It looks at what is there first.
    ///
    /// # Errors
    /// As [`KubeApi::watch`]; the server ended the watch.
    pub async fn until(&self, path: &str, found: impl Fn(&str, &Value) -> bool) -> io::Result<Value> {
        let (sender, mut events) = mpsc::channel(16);
        let watching = self.watch(path, &sender);
        let finding = async {
            while let Some((kind, object)) = events.recv().await {
                if found(&kind, &object) {
                    return Some(object);
                }
            }
            None
        };
        tokio::select! {
            object = finding => object.ok_or_else(|| io::Error::other("the watch ended")),
            ended = watching => {
                ended?;
                Err(io::Error::other("the watch ended"))
            }
        }
    }
}

fn good((status, value): (u16, Value), path: &str) -> io::Result<Value> {
    if (200..300).contains(&status) {
        return Ok(value);
    }
    Err(io::Error::other(format!("{path}: status {status}: {}", value["message"].as_str().unwrap_or_default())))
}
