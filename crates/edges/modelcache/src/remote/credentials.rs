//! Where the keys to the store come from: given, environment, a file, or a web identity.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::Mutex;

use super::transport::Transport;
use super::trouble::Trouble;
use super::web_identity::{WebIdentity, WebIdentityProvider};
use crate::fault::CacheFault;

/// Largest credentials file, in bytes.
pub const CREDENTIALS_BYTES_MAX: u64 = 256 << 10;

/// A key pair, with a session token where it is a temporary one.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

/// Where the keys come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Credentials {
    /// `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` (with `AWS_SESSION_TOKEN`); else `AWS_WEB_IDENTITY_TOKEN_FILE`
    /// with `AWS_ROLE_ARN`; else the file `AWS_SHARED_CREDENTIALS_FILE` or `~/.aws/credentials`, profile `AWS_PROFILE`.
    #[default]
    Environment,
    Keys(Keys),
    /// A file in the format of the AWS tools. It is read again when it changes, so that it can be renewed.
    File {
        path: PathBuf,
        profile: String,
    },
    /// A token file that the platform renews, traded for temporary keys.
    WebIdentity(WebIdentity),
}

impl Credentials {
    /// Settles what [`Credentials::Environment`] stands for. `variable` gives an environment variable's value.
    ///
    /// # Errors
    /// [`CacheFault::NoCredentials`]: nothing is there, or only half of a pair.
    pub fn settle(self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, CacheFault> {
        if self != Self::Environment {
            return Ok(self);
        }
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        match (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")) {
            (Some(access_key_id), Some(secret_access_key)) => {
                let session_token = variable("AWS_SESSION_TOKEN");
                return Ok(Self::Keys(Keys { access_key_id, secret_access_key, session_token }));
            }
            (None, None) => {}
            (Some(_), None) => return Err(none("AWS_ACCESS_KEY_ID is set, AWS_SECRET_ACCESS_KEY is not")),
            (None, Some(_)) => return Err(none("AWS_SECRET_ACCESS_KEY is set, AWS_ACCESS_KEY_ID is not")),
        }
        if let Some(token_file) = variable("AWS_WEB_IDENTITY_TOKEN_FILE") {
            let role_arn = variable("AWS_ROLE_ARN").ok_or_else(|| none("AWS_ROLE_ARN is not set"))?;
            return Ok(Self::WebIdentity(WebIdentity {
                token_file: token_file.into(),
                role_arn,
                session_name: variable("AWS_ROLE_SESSION_NAME").unwrap_or_else(|| "tidegate".to_owned()),
                sts_endpoint: variable("AWS_ENDPOINT_URL_STS"),
            }));
        }
        let named = variable("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
        let usual = || Some(PathBuf::from(variable("HOME")?).join(".aws/credentials")).filter(|path| path.exists());
        let path = named.or_else(usual).ok_or_else(|| none("neither environment variables nor a credentials file"))?;
        Ok(Self::File { path, profile: variable("AWS_PROFILE").unwrap_or_else(|| "default".to_owned()) })
    }
}

fn none(reason: &str) -> CacheFault {
    CacheFault::NoCredentials { reason: reason.to_owned() }
}

/// Makes what object_store asks before each request. Files and keys are looked at once now, so that what is wrong is said
/// at the opening.
pub(super) fn provider(credentials: Credentials, transport: &Arc<Transport>) -> Result<Provider, CacheFault> {
    match credentials {
        Credentials::Environment => provider(credentials.settle(&|name| std::env::var(name).ok())?, transport),
        Credentials::Keys(keys) => Ok(Arc::new(Fixed(credential(keys)?))),
        Credentials::File { path, profile } => {
            let file = FileProvider { path, profile, kept: Mutex::default() };
            file.current()?;
            Ok(Arc::new(file))
        }
        Credentials::WebIdentity(identity) => Ok(Arc::new(WebIdentityProvider::new(identity, Arc::clone(transport)))),
    }
}

pub(super) type Provider = Arc<dyn CredentialProvider<Credential = AwsCredential>>;

#[derive(Debug)]
struct Fixed(Arc<AwsCredential>);

#[async_trait::async_trait]
impl CredentialProvider for Fixed {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        Ok(Arc::clone(&self.0))
    }
}

/// Keys as object_store wants them: what cannot stand in a header is refused here, since it panics over it.
pub(super) fn credential(keys: Keys) -> Result<Arc<AwsCredential>, CacheFault> {
    let Keys { access_key_id, secret_access_key, session_token } = keys;
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if !plain(&access_key_id) || !plain(&secret_access_key) || !session_token.as_deref().is_none_or(plain) {
        return Err(none("a key is empty or holds spaces or control characters"));
    }
    Ok(Arc::new(AwsCredential { key_id: access_key_id, secret_key: secret_access_key, token: session_token }))
}

/// Keys in a file that may change.
struct FileProvider {
    path: PathBuf,
    profile: String,
    kept: Mutex<Option<(Stamp, Arc<AwsCredential>)>>,
}

/// What tells one state of a file from the next.
type Stamp = (Option<SystemTime>, u64);

impl FileProvider {
    fn current(&self) -> Result<Arc<AwsCredential>, CacheFault> {
        let unreadable = |error: std::io::Error| none(&format!("cannot read {}: {error}", self.path.display()));
        let stat = std::fs::metadata(&self.path).map_err(unreadable)?;
        let stamp = (stat.modified().ok(), stat.len());
        if let Some((kept, credential)) = &*self.kept.lock()
            && *kept == stamp
        {
            return Ok(Arc::clone(credential));
        }
        let text = read_bounded(&self.path, CREDENTIALS_BYTES_MAX).map_err(unreadable)?;
        let keys = profile(&text, &self.profile)
            .ok_or_else(|| none(&format!("no complete profile [{}] in {}", self.profile, self.path.display())))?;
        let credential = credential(keys)?;
        *self.kept.lock() = Some((stamp, Arc::clone(&credential)));
        Ok(credential)
    }
}

impl fmt::Debug for FileProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileProvider").field("path", &self.path).finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl CredentialProvider for FileProvider {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.current().map_err(|fault| Trouble::Named(fault).into_store())
    }
}

/// A text file of at most that many bytes.
pub(super) fn read_bounded(path: &Path, max: u64) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(max + 1).read_to_string(&mut text)?;
    match text.len() as u64 > max {
        true => Err(std::io::Error::other(format!("larger than {max} bytes"))),
        false => Ok(text),
    }
}

/// A profile of a credentials file.
fn profile(text: &str, name: &str) -> Option<Keys> {
    let mut inside = false;
    let (mut id, mut secret, mut token) = (None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            inside = section.trim() == name;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| inside && !line.starts_with(['#', ';'])) {
            let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
            match key.trim().to_ascii_lowercase().as_str() {
                "aws_access_key_id" => id = value,
                "aws_secret_access_key" => secret = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
    }
    Some(Keys { access_key_id: id?, secret_access_key: secret?, session_token: token })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(pairs: &[(&str, &str)]) -> Result<Credentials, CacheFault> {
        let find = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Credentials::Environment.settle(&find)
    }

    #[test]
    fn the_environment_is_read_in_the_order_of_the_aws_tools() {
        let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_WEB_IDENTITY_TOKEN_FILE", "/t")];
        assert!(matches!(settle(&keys), Ok(Credentials::Keys(Keys { session_token: None, .. }))));
        assert_eq!(settle(&keys[..1]).unwrap_err().code(), "no_credentials");
        assert_eq!(settle(&keys[2..]).unwrap_err().code(), "no_credentials");
        let identity = [("AWS_WEB_IDENTITY_TOKEN_FILE", "/t"), ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")];
        assert!(matches!(settle(&identity), Ok(Credentials::WebIdentity(_))));
        let file = [("AWS_SHARED_CREDENTIALS_FILE", "/f"), ("AWS_PROFILE", "p")];
        let expected = Credentials::File { path: "/f".into(), profile: "p".into() };
        assert_eq!(settle(&file).unwrap(), expected);
        assert_eq!(settle(&[("HOME", "/nowhere"), ("AWS_ACCESS_KEY_ID", "")]).unwrap_err().code(), "no_credentials");
    }

    #[test]
    fn a_profile_is_read_from_its_own_section_only() {
        let text = "[default]\naws_access_key_id = a\n# aws_secret_access_key = no\n[other]\naws_access_key_id=b\n\
                    AWS_SECRET_ACCESS_KEY = s=1\naws_session_token=t\n";
        assert_eq!(profile(text, "default"), None);
        let keys = profile(text, "other").unwrap();
        assert_eq!((keys.access_key_id.as_str(), keys.secret_access_key.as_str()), ("b", "s=1"));
        assert_eq!(keys.session_token.as_deref(), Some("t"));
    }

    #[test]
    fn a_renewed_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials");
        let write = |id: &str| {
            std::fs::write(&path, format!("[default]\naws_access_key_id={id}\naws_secret_access_key=s\n")).unwrap();
        };
        write("one");
        let file = FileProvider { path: path.clone(), profile: "default".into(), kept: Mutex::default() };
        assert_eq!(file.current().unwrap().key_id, "one");
        write("second");
        assert_eq!(file.current().unwrap().key_id, "second");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.current().unwrap_err().code(), "no_credentials");
    }

    #[test]
    fn keys_that_cannot_stand_in_a_header_are_refused_and_never_printed() {
        let keys = |token: &str| Keys {
            access_key_id: "id".into(),
            secret_access_key: "hush".into(),
            session_token: Some(token.into()),
        };
        assert!(credential(keys("to\nken")).is_err());
        assert!(!format!("{:?}", keys("token")).contains("hush"));
        assert!(credential(keys("token")).is_ok());
    }
}
