//! A bucket of an S3 server.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Method, header};
use object_store::aws::{AmazonS3, AmazonS3Builder, AwsAuthorizer};
use object_store::client::{ClientOptions, HttpClient, HttpConnector, HttpRequest, HttpRequestBody};
use object_store::multipart::{MultipartStore as _, PartId};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, GetResult, ObjectStore as _, PutMode, PutOptions, PutPayload, RetryConfig,
};
use tidegate_core::Sha256Digest;

use super::connect::Connector;
use super::credentials::{self, Credentials, Provider};
use super::options;
use super::transport::Transport;
use super::trouble::{self, Trouble};
use super::{LISTED_MAX, Listed, ObjectHead, Put, RangeBody, RemoteOptions, Written};
use crate::fault::CacheFault;

/// Metadata of an object (`x-amz-meta-sha256`) in which a push notes what it wrote.
const SHA256: &str = "sha256";
/// Largest answer to the beginning of an upload, in bytes.
const BEGIN_BYTES_MAX: usize = 64 << 10;

/// A bucket with a prefix.
#[derive(Debug)]
pub(super) struct Bucket {
    store: AmazonS3,
    transport: Arc<Transport>,
    provider: Provider,
    name: String,
    prefix: String,
    address: String,
    region: String,
    sign_payload: bool,
}

/// Gives object_store our transport, whatever options it has.
#[derive(Debug)]
struct Ours(Arc<Transport>);

impl HttpConnector for Ours {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Shared(Arc::clone(&self.0))))
    }
}

#[derive(Debug)]
struct Shared(Arc<Transport>);

#[async_trait::async_trait]
impl object_store::client::HttpService for Shared {
    async fn call(
        &self,
        request: HttpRequest,
    ) -> Result<object_store::client::HttpResponse, object_store::client::HttpError> {
        self.0.exchange(request).await.map_err(Trouble::into_http)
    }
}

impl Bucket {
    pub(super) fn open(opened: options::Bucket, options: &RemoteOptions) -> Result<Self, CacheFault> {
        let options::Bucket { name, prefix, address, endpoint, region, place, proxy } = opened;
        let bad = |reason: String| CacheFault::BadSettings { reason };
        let mut credentials = options.credentials.clone().settle(&|name| std::env::var(name).ok())?;
        if let Credentials::WebIdentity(identity) = &mut credentials {
            let own = options.endpoint.as_ref().map(|_| endpoint.clone());
            let sts = identity.sts_endpoint.take().or(own);
            identity.sts_endpoint = Some(sts.unwrap_or_else(|| format!("https://sts.{region}.amazonaws.com")));
        }
        let sts_tls = match &credentials {
            Credentials::WebIdentity(identity) => identity.sts_endpoint.iter().any(|sts| sts.starts_with("https")),
            _ => false,
        };
        let tls = match place.tls || sts_tls {
            true => Some(super::tls::config(options.ca_bundle.as_deref()).map_err(bad)?),
            false => None,
        };
        let transport = Arc::new(Transport::new(Connector { tls, proxy }));
        let provider = credentials::provider(credentials, &transport)?;
        // TLS proves the bytes on the way; without it the signature does, for another hash of each
        let sign_payload = !place.tls;
        let retry = RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() };
        let store = AmazonS3Builder::new()
            .with_bucket_name(&name)
            .with_region(&region)
            // with the bucket in it already, in either style
            .with_endpoint(&address)
            .with_virtual_hosted_style_request(true)
            .with_allow_http(true)
            .with_unsigned_payload(!sign_payload)
            .with_credentials(Arc::clone(&provider))
            .with_retry(retry)
            .with_client_options(ClientOptions::new().with_timeout_disabled().with_connect_timeout_disabled())
            .with_http_connector(Ours(Arc::clone(&transport)))
            .build()
            .map_err(|error| bad(error.to_string()))?;
        Ok(Self { store, transport, provider, name, prefix, address, region, sign_payload })
    }

    fn key(&self, object: &str) -> String {
        if self.prefix.is_empty() { object.to_owned() } else { format!("{}/{object}", self.prefix) }
    }

    fn path(&self, object: &str) -> Result<Path, CacheFault> {
        let reason = |error: object_store::path::Error| error.to_string();
        Path::parse(self.key(object))
            .map_err(|error| CacheFault::BadAnswer { object: object.to_owned(), reason: reason(error) })
    }

    fn fault(&self, object: &str, error: &object_store::Error) -> CacheFault {
        trouble::fault(error, object, &self.name)
    }

    pub(super) async fn head(&self, object: &str) -> Result<ObjectHead, CacheFault> {
        let options = GetOptions::new().with_head(true);
        let result = self.store.get_opts(&self.path(object)?, options).await;
        result.map(|result| head_of(&result)).map_err(|error| self.fault(object, &error))
    }

    pub(super) async fn get_range(
        &self,
        object: &str,
        range: Range<u64>,
        size: u64,
        if_match: Option<&str>,
    ) -> Result<RangeBody, CacheFault> {
        let options = GetOptions::new().with_range(Some(range)).with_if_match(if_match.map(str::to_owned));
        let result = self.store.get_opts(&self.path(object)?, options).await;
        let result = result.map_err(|error| self.range_fault(object, size, &error))?;
        let head = head_of(&result);
        if head.size != size {
            return Err(CacheFault::WrongLength { object: object.to_owned(), expected: size, found: head.size });
        }
        // a server that does not know If-Match is seen through its answer
        if let (Some(wanted), Some(found)) = (if_match, &head.etag)
            && wanted != found
        {
            return Err(CacheFault::ChangedObject { object: object.to_owned() });
        }
        let (object, bucket) = (object.to_owned(), self.name.clone());
        let stream =
            result.into_stream().map(move |part| part.map_err(|error| trouble::fault(&error, &object, &bucket)));
        Ok(RangeBody { stream: stream.boxed(), etag: head.etag })
    }

    /// A range that does not fit is a question of length when the answer tells the object's size.
    fn range_fault(&self, object: &str, size: u64, error: &object_store::Error) -> CacheFault {
        match trouble::found(error) {
            Some(Trouble::NotSatisfiable { size: found }) => {
                CacheFault::WrongLength { object: object.to_owned(), expected: size, found: found.unwrap_or(0) }
            }
            Some(Trouble::WrongRange { size: Some(found), .. }) if found != size => {
                CacheFault::WrongLength { object: object.to_owned(), expected: size, found }
            }
            _ => self.fault(object, error),
        }
    }

    pub(super) async fn get_small(&self, object: &str, max: usize) -> Result<(Bytes, ObjectHead), CacheFault> {
        let result = self.store.get_opts(&self.path(object)?, GetOptions::new()).await;
        let result = result.map_err(|error| self.fault(object, &error))?;
        let head = head_of(&result);
        let large = || CacheFault::BadAnswer { object: object.to_owned(), reason: format!("more than {max} bytes") };
        if head.size > max as u64 {
            return Err(large());
        }
        let mut bytes = Vec::new();
        let mut stream = result.into_stream();
        while let Some(part) = stream.next().await {
            bytes.extend_from_slice(&part.map_err(|error| self.fault(object, &error))?);
            if bytes.len() > max {
                return Err(large());
            }
        }
        if bytes.len() as u64 != head.size {
            let found = bytes.len() as u64;
            return Err(CacheFault::WrongLength { object: object.to_owned(), expected: head.size, found });
        }
        Ok((bytes.into(), head))
    }

    pub(super) async fn put(
        &self,
        object: &str,
        bytes: Bytes,
        sha256: Sha256Digest,
        put: Put,
    ) -> Result<Written, CacheFault> {
        let mut attributes = Attributes::new();
        attributes.insert(Attribute::Metadata(SHA256.into()), sha256.to_string().into());
        let mode = match put {
            Put::Replace => PutMode::Overwrite,
            Put::IfAbsent => PutMode::Create,
        };
        let options = PutOptions { mode, attributes, ..PutOptions::default() };
        match self.store.put_opts(&self.path(object)?, PutPayload::from(bytes), options).await {
            Ok(_) => Ok(Written::New),
            Err(error) => match self.fault(object, &error) {
                CacheFault::ChangedObject { .. } if put == Put::IfAbsent => Ok(Written::WasThere),
                fault => Err(fault),
            },
        }
    }

    /// Begins an upload. object_store's own beginning takes no metadata where parts can be sent again one by one.
    pub(super) async fn begin(&self, object: &str, sha256: Sha256Digest) -> Result<super::upload::Begun, CacheFault> {
        let uri = format!("{}/{}?uploads=", self.address, escape(&self.key(object)));
        let request = http::Request::builder()
            .method(Method::POST)
            .uri(uri)
            .header(format!("x-amz-meta-{SHA256}"), sha256.to_string())
            .header(header::CONTENT_LENGTH, 0)
            .body(HttpRequestBody::empty());
        let bad = |reason: String| CacheFault::BadAnswer { object: object.to_owned(), reason };
        let mut request: HttpRequest = request.map_err(|error| bad(error.to_string()))?;
        let credential = self.provider.get_credential().await.map_err(|error| self.fault(object, &error))?;
        AwsAuthorizer::new(&credential, "s3", &self.region)
            .with_sign_payload(self.sign_payload)
            .try_authorize(&mut request, None)
            .map_err(|error| bad(error.to_string()))?;
        let named = |trouble: Trouble| trouble.name(object, &self.name);
        let answer = self.transport.exchange(request).await.map_err(named)?;
        let body = super::collect(answer.into_body().bytes_stream(), BEGIN_BYTES_MAX).await.map_err(named)?;
        let id = super::xml::element(&String::from_utf8_lossy(&body), "UploadId").filter(|id| !id.is_empty());
        id.map(super::upload::Begun::Bucket).ok_or_else(|| bad("an upload without an id".to_owned()))
    }

    pub(super) async fn put_part(
        &self,
        object: &str,
        id: &str,
        index: usize,
        bytes: Bytes,
    ) -> Result<PartId, CacheFault> {
        let part = self.store.put_part(&self.path(object)?, &id.to_owned(), index, PutPayload::from(bytes)).await;
        part.map_err(|error| self.fault(object, &error))
    }

    pub(super) async fn complete(&self, object: &str, id: &str, parts: Vec<PartId>) -> Result<(), CacheFault> {
        let done = self.store.complete_multipart(&self.path(object)?, &id.to_owned(), parts).await;
        done.map(drop).map_err(|error| self.fault(object, &error))
    }

    pub(super) async fn abort(&self, object: &str, id: &str) -> Result<(), CacheFault> {
        let done = self.store.abort_multipart(&self.path(object)?, &id.to_owned()).await;
        done.map_err(|error| self.fault(object, &error))
    }

    pub(super) async fn list(&self, folder: &str) -> Result<Vec<Listed>, CacheFault> {
        let mut listed = HashMap::new();
        let mut stream = self.store.list(Some(&self.path(folder)?));
        let cut = if self.prefix.is_empty() { 0 } else { self.prefix.len() + 1 };
        while let Some(object) = stream.next().await {
            let object = object.map_err(|error| self.fault(folder, &error))?;
            let key = object.location.as_ref().get(cut..).unwrap_or_default().to_owned();
            listed.insert(key, object.size);
            if listed.len() > LISTED_MAX {
                let reason = format!("more than {LISTED_MAX} objects");
                return Err(CacheFault::BadAnswer { object: folder.to_owned(), reason });
            }
        }
        let mut listed: Vec<_> = listed.into_iter().map(|(object, size)| Listed { object, size }).collect();
        listed.sort_by(|one, other| one.object.cmp(&other.object));
        Ok(listed)
    }
}

fn head_of(result: &GetResult) -> ObjectHead {
    let sha256 = result.attributes.get(&Attribute::Metadata(SHA256.into()));
    ObjectHead {
        size: result.meta.size,
        etag: result.meta.e_tag.clone(),
        sha256: sha256.and_then(|text| Sha256Digest::parse(text)),
    }
}

/// A key in an address as signatures want it: everything escaped but letters, digits and `-._~/`.
fn escape(key: &str) -> String {
    let mut text = String::new();
    for byte in key.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            true => text.push(char::from(byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}
