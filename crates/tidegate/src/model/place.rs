//! Where store and cache are: by the documents, by flags, or both.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use tidegate_config::Site;
use tidegate_config::quantity::Share;
use tidegate_config::site::{self, ModelStore, SecretRef};
use tidegate_core::Sha256Digest;
use tidegate_modelcache::cache::{self, CacheOptions, Listed};
use tidegate_modelcache::remote::{Addressing, PlainHttp, Remote, RemoteOptions};
use tidegate_modelcache::room::KeepFree;
use tidegate_modelcache::{CacheFault, Layout, ModelPath};

use super::args::Where;
use crate::known::Known;
use crate::{load, terminal};

/// The least of a digest that names a model, in hexadecimal digits.
const DIGEST_DIGITS_MIN: usize = 8;

/// How the store is reached. It is opened anew for each work, so that keys and certificates that have been renewed are
/// taken.
#[derive(Clone, Debug)]
pub(crate) enum StoreAt {
    /// As the documents say.
    Document(Box<ModelStore>),
    /// As flags say.
    Flags(Box<RemoteOptions>),
}

impl StoreAt {
    /// Opens it. Nothing is asked of it yet.
    pub(crate) fn open(&self) -> Result<Remote, CacheFault> {
        let secret = |from: &SecretRef| load::secret(from).map_err(|error| format!("{error:#}"));
        match self {
            Self::Document(store) => Remote::open(&RemoteOptions::of_site(store, &secret)?),
            Self::Flags(options) => Remote::open(options),
        }
    }

    /// What tells it from another store.
    pub(crate) fn name(&self) -> String {
        let (url, endpoint) = match self {
            Self::Document(store) => (&*store.url, store.endpoint.as_deref()),
            Self::Flags(options) => (&*options.url, options.endpoint.as_deref()),
        };
        let url = url.trim_end_matches('/');
        endpoint.map_or_else(|| url.to_owned(), |endpoint| format!("{url} at {}", endpoint.trim_end_matches('/')))
    }
}

/// Store and cache.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) store: Option<StoreAt>,
    pub(crate) layout: Layout,
    pub(crate) keep_free: KeepFree,
    state: PathBuf,
}

/// What the documents say of how much stays free, as the cache takes it.
pub(crate) fn keep_free(share: site::KeepFree) -> KeepFree {
    match share {
        site::KeepFree::Bytes(bytes) => KeepFree::Bytes(bytes),
        // a checked share has three decimals and lies in 0..=100
        site::KeepFree::Percent(percent) => KeepFree::Millipercent((percent * 1_000.0).round() as u32),
    }
}

/// The documents are wrong, and that has been said.
#[derive(Debug, thiserror::Error)]
#[error("the documents are wrong")]
pub(crate) struct WrongDocuments;

impl Place {
    /// Finds out.
    ///
    /// # Errors
    /// [`WrongDocuments`]; documents or files that cannot be read; flags that make no sense.
    pub(crate) fn of(args: &Where) -> anyhow::Result<Self> {
        let site = site(args)?;
        let store = match &args.store {
            Some(url) => Some(StoreAt::Flags(Box::new(flags(url, args)?))),
            None => {
                site.as_ref().and_then(|site| site.model_store.clone()).map(|store| StoreAt::Document(Box::new(store)))
            }
        };
        let documented = site.map(|site| site.model_cache);
        let share = match &args.keep_free {
            Some(text) => {
                let share: Share = text.parse().map_err(|error| anyhow::anyhow!("--keep-free {text}: {error}"))?;
                match share {
                    Share::Millipercent(share) => KeepFree::Millipercent(share),
                    Share::Bytes(bytes) => KeepFree::Bytes(bytes.0),
                }
            }
            None => documented.as_ref().map_or_else(KeepFree::default, |cache| keep_free(cache.keep_free)),
        };
        let state = &args.state.state;
        let root = args.cache.clone().unwrap_or_else(|| {
            let path = documented.map_or_else(|| PathBuf::from("model-cache"), |cache| cache.path);
            state.join(path)
        });
        Ok(Self { store, layout: Layout::new(std::path::absolute(root)?), keep_free: share, state: state.clone() })
    }

    /// The store, which this verb needs.
    pub(crate) fn store(&self) -> Result<&StoreAt, CacheFault> {
        let reason = "no model store is named: --documents DIR with Site.spec.modelStore, or --store URL".to_owned();
        self.store.as_ref().ok_or(CacheFault::BadSettings { reason })
    }

    /// The store's name in requests to the cache's owner; empty when there is none.
    pub(crate) fn store_name(&self) -> String {
        self.store.as_ref().map(StoreAt::name).unwrap_or_default()
    }

    pub(crate) fn options(&self) -> CacheOptions {
        CacheOptions { keep_free: self.keep_free, ..CacheOptions::default() }
    }

    /// Makes the state folder when the cache lies in it: it holds secrets later, and is its owner's alone from the start.
    pub(crate) fn prepare(&self) -> Result<(), CacheFault> {
        let state = std::path::absolute(&self.state).unwrap_or_else(|_| self.state.clone());
        if !self.layout.root().starts_with(&state) {
            return Ok(());
        }
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&state);
        made.map_err(|error| CacheFault::disk("make", &state, &error))
    }

    /// There is something to look at.
    pub(crate) fn must_exist(&self) -> anyhow::Result<()> {
        let root = self.layout.root();
        if !root.is_dir() {
            bail!("there is no model cache at {}: pull a model first, or say with --cache where it is", root.display());
        }
        Ok(())
    }

    /// The cached model that a text names: FAMILY/VERSION, `sha256-…`, or at least eight digits of its digest.
    pub(crate) fn find(&self, text: &str) -> anyhow::Result<Listed> {
        let models = cache::ls(&self.layout).map_err(hinted)?;
        let digits = text.strip_prefix("sha256-").or_else(|| text.strip_prefix("sha256:")).unwrap_or(text);
        let is_digest = digits.len() >= DIGEST_DIGITS_MIN && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let digits = digits.to_ascii_lowercase();
        let is_named = |model: &Listed| {
            model.models.iter().any(|name| name == text) || (is_digest && model.digest.starts_with(&digits))
        };
        let mut found = models.into_iter().filter(is_named);
        match (found.next(), found.next()) {
            (Some(model), None) => Ok(model),
            (Some(_), Some(_)) => bail!("{text} names more than one cached model: give more digits of the digest"),
            (None, _) => bail!("{text} is not cached at {}: see `tidegate model ls`", self.layout.root().display()),
        }
    }

    /// As of [`Place::find`], or a whole digest of a model that is not here yet.
    pub(crate) fn digest(&self, text: &str) -> anyhow::Result<Sha256Digest> {
        if let Some(digest) = digest(text) {
            return Ok(digest);
        }
        self.must_exist()?;
        Sha256Digest::parse(&self.find(text)?.digest).context("the cache names a digest that is none")
    }
}

/// A whole digest: `sha256:…`, `sha256-…` or 64 hexadecimal digits.
pub(crate) fn digest(text: &str) -> Option<Sha256Digest> {
    Sha256Digest::parse(text.strip_prefix("sha256:").or_else(|| text.strip_prefix("sha256-")).unwrap_or(text))
}

/// FAMILY/VERSION.
pub(crate) fn model(text: &str) -> anyhow::Result<ModelPath> {
    ModelPath::parse(text).map_err(Into::into)
}

/// A fault as an error of a verb that only looks.
pub(crate) fn hinted(fault: CacheFault) -> anyhow::Error {
    let hint = fault.hint();
    anyhow::Error::new(fault).context(hint)
}

/// The documents that are named, else those of the process that runs, or ran, on the state folder.
fn site(args: &Where) -> anyhow::Result<Option<Site>> {
    let known = || Known::read(&args.state.state).ok().map(|known| known.documents).filter(|path| path.exists());
    let Some(path) = args.documents.clone().or_else(known) else { return Ok(None) };
    let checked = load::documents(&path)?;
    if checked.site.is_none() {
        for diagnostic in &checked.diagnostics {
            terminal::note(&diagnostic.render());
        }
        return Err(WrongDocuments.into());
    }
    Ok(checked.site)
}

fn flags(url: &str, args: &Where) -> anyhow::Result<RemoteOptions> {
    let bundle = |path: &PathBuf| load::secret(&SecretRef::File(path.clone())).context("--ca");
    Ok(RemoteOptions {
        url: absolute(url)?,
        endpoint: args.endpoint.clone(),
        region: args.region.clone(),
        addressing: if args.virtual_host { Addressing::VirtualHost } else { Addressing::Path },
        plain_http: if args.allow_http { PlainHttp::Allowed } else { PlainHttp::LoopbackOnly },
        ca_bundle: args.ca.as_ref().map(bundle).transpose()?,
        ..RemoteOptions::default()
    })
}

/// A folder may be named as people name folders.
fn absolute(url: &str) -> anyhow::Result<String> {
    if url.contains("://") {
        return Ok(url.to_owned());
    }
    if !Path::new(url).is_dir() {
        bail!("--store takes s3://BUCKET/PREFIX or a folder, and {url} is neither");
    }
    Ok(format!("file://{}", std::path::absolute(url)?.display()))
}
