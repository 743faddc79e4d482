//! Web identity: a token that the platform renews in a file is traded for temporary keys, by `AssumeRoleWithWebIdentity`
//! of STS. object_store's own does so over https only; MinIO and AIStor serve it under the store's endpoint, which on a
//! closed network or loopback may be plain HTTP, so it is done here, over the same transport as everything else.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Method, header};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use object_store::client::{HttpRequest, HttpRequestBody};
use tokio::sync::Mutex;

use super::credentials::{Keys, credential, read_bounded};
use super::transport::Transport;
use super::trouble::Trouble;
use super::xml::element;
use crate::fault::CacheFault;

/// Largest token file, in bytes.
pub const TOKEN_BYTES_MAX: u64 = 64 << 10;
/// Largest answer of STS, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Keys are renewed this long before they end.
pub const RENEW_BEFORE: Duration = Duration::from_secs(300);
/// How long keys are asked for, in seconds.
const DURATION_S: u32 = 3600;

/// Which token is traded where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebIdentity {
    pub token_file: PathBuf,
    /// `arn:aws:iam::…:role/…`. MinIO takes any text of that form when its policy comes from the token.
    pub role_arn: String,
    /// Appears in the store's audit log.
    pub session_name: String,
    /// `http(s)://HOST[:PORT]`; `None` is the store's own endpoint, or AWS's STS of the region without one.
    pub sts_endpoint: Option<String>,
}

/// Trades tokens, once for all who ask at the same time, and again before the keys end.
#[derive(Debug)]
pub(super) struct WebIdentityProvider {
    identity: WebIdentity,
    transport: Arc<Transport>,
    kept: Mutex<Option<(SystemTime, Arc<AwsCredential>)>>,
}

impl WebIdentityProvider {
    pub(super) fn new(identity: WebIdentity, transport: Arc<Transport>) -> Self {
        Self { identity, transport, kept: Mutex::default() }
    }

    async fn trade(&self) -> Result<(SystemTime, Arc<AwsCredential>), Trouble> {
        let named = |reason: String| Trouble::Named(CacheFault::NoCredentials { reason });
        let path = &self.identity.token_file;
        let token = read_bounded(path, TOKEN_BYTES_MAX)
            .map_err(|error| named(format!("cannot read {}: {error}", path.display())))?;
        let form = form(&[
            ("Action", "AssumeRoleWithWebIdentity"),
            ("Version", "2011-06-15"),
            ("RoleArn", &self.identity.role_arn),
            ("RoleSessionName", &self.identity.session_name),
            ("DurationSeconds", &DURATION_S.to_string()),
            ("WebIdentityToken", token.trim()),
        ]);
        let endpoint = self.identity.sts_endpoint.as_deref().unwrap_or_default();
        let request = http::Request::builder()
            .method(Method::POST)
            .uri(format!("{}/", endpoint.trim_end_matches('/')))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(header::CONTENT_LENGTH, form.len())
            .body(HttpRequestBody::from(form));
        let request: HttpRequest = request.map_err(|error| named(format!("stsEndpoint: {error}")))?;
        let answer = self.transport.exchange(request).await.map_err(refused)?;
        let body = super::collect(answer.into_body().bytes_stream(), ANSWER_BYTES_MAX).await?;
        read_answer(&body).ok_or_else(|| named("the answer of STS holds no credentials".to_owned()))
    }
}

/// A refusal of STS concerns the token, not an object.
fn refused(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Status { status, code, message, .. } if (400..500).contains(&status) && status != 429 => {
            let reason = format!("STS refuses the web identity token: status {status} {code} ({message})");
            Trouble::Named(match code.starts_with("ExpiredToken") || message.contains("expired") {
                true => CacheFault::ExpiredCredentials { reason },
                false => CacheFault::NoCredentials { reason },
            })
        }
        other => other,
    }
}

fn read_answer(body: &Bytes) -> Option<(SystemTime, Arc<AwsCredential>)> {
    let text = std::str::from_utf8(body).ok()?;
    let ends: jiff::Timestamp = element(text, "Expiration")?.parse().ok()?;
    let ends = SystemTime::from(ends);
    let keys = Keys {
        access_key_id: element(text, "AccessKeyId")?,
        secret_access_key: element(text, "SecretAccessKey")?,
        session_token: element(text, "SessionToken"),
    };
    Some((ends, credential(keys).ok()?))
}

/// `application/x-www-form-urlencoded`.
fn form(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (key, value) in pairs {
        if !text.is_empty() {
            text.push('&');
        }
        text.push_str(key);
        text.push('=');
        for byte in value.bytes() {
            match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                true => text.push(char::from(byte)),
                false => text.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    text
}

#[async_trait::async_trait]
impl CredentialProvider for WebIdentityProvider {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut kept = self.kept.lock().await;
        if let Some((ends, credential)) = &*kept
            && *ends > SystemTime::now() + RENEW_BEFORE
        {
            return Ok(Arc::clone(credential));
        }
        match self.trade().await {
            Ok((ends, credential)) => {
                *kept = Some((ends, Arc::clone(&credential)));
                Ok(credential)
            }
            // those at hand may still do: STS may be back before they end
            Err(trouble) => match &*kept {
                Some((ends, credential)) if *ends > SystemTime::now() => Ok(Arc::clone(credential)),
                _ => Err(trouble.into_store()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_sts_is_read() {
        let body = "<R><Credentials><AccessKeyId>A</AccessKeyId><SecretAccessKey>S</SecretAccessKey>\
                    <Expiration>2030-01-01T00:00:00Z</Expiration><SessionToken>T</SessionToken></Credentials></R>";
        let (_, credential) = read_answer(&Bytes::from(body)).unwrap();
        assert_eq!((credential.key_id.as_str(), credential.token.as_deref()), ("A", Some("T")));
        assert!(read_answer(&Bytes::from("<R/>")).is_none());
    }

    #[test]
    fn a_form_is_escaped() {
        assert_eq!(form(&[("A", "x y"), ("B", "é/+")]), "A=x%20y&B=%C3%A9%2F%2B");
    }
}
