//! The command line of `tidegate model`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::StateDir;

/// `tidegate model`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Model {
    #[command(subcommand)]
    pub(crate) verb: ModelVerb,
}

const EXAMPLES: &str = "\
Where the store and the cache are is read from the documents: of --documents, else of the process that runs (or ran) on
the state folder. Without documents, --store and --cache say it. Keys come from AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY, a web identity or ~/.aws/credentials, unless the documents name others.

Examples:
  tidegate model push ./my-model glm/5.3-flash --documents DIR      a folder into the store, whole or not at all
  tidegate model pull glm/5.3-flash --documents DIR                 onto this machine; run it again and it resumes
  tidegate model verify --repair                                    every byte that is cached; wrong chunks anew
  tidegate model ls                                                 what is cached, and why it stays
  tidegate model pull glm/5.3-flash --store s3://models/llm --endpoint https://s3.example:9000 --ca ca.pem \\
      --cache /model-cache                                          the same without documents

Exit codes:
  0    done
  1    anything else: the message says what
  2    the command line is wrong
  3    the store, the network or the cache's owner does not answer: later it may
  4    bytes or manifest are not what they should be: nothing of them was published
  5    no room on the disk, or it cannot be written
  6    there is no such model or bucket, or the version is there with other content
  7    the store refuses: keys, certificate, rights
  64   the documents are wrong (`tidegate check` says all of it)
  130  cancelled with Ctrl-C (143 with SIGTERM): the next call goes on where this one was";

/// Verbs on models.
#[derive(Debug, Subcommand)]
pub(crate) enum ModelVerb {
    /// Put a model into the store: a folder, a model in Hugging Face's cache, or a GGUF file.
    ///
    /// A version is there whole or not at all, and never changes. The same content again moves no bytes.
    Push(Push),
    /// Bring a model from the store into this machine's cache.
    ///
    /// Every chunk is checked against the manifest before the model's folder appears. A pull that was cut off goes on
    /// where it was. Who asks for a model that is on its way already waits for it and sees its progress.
    Pull(Pull),
    /// Read cached models again and compare every byte with the manifest.
    Verify(Verify),
    /// What is cached, and why it stays.
    Ls(Look),
    /// Keep a model in the cache, whatever else needs room. It may be pinned by its digest before it is there.
    Pin(Pin),
    /// Let a pinned model go again when room is needed.
    Unpin(Unpin),
    /// Remove what belongs to no model, and models until enough of the disk is free.
    ///
    /// Models that serve, are coming, are pinned or are the way back stay; of the others the one whose next use is
    /// furthest away goes first.
    Gc(Gc),
    /// How the disk is used.
    Du(Look),
}

/// Where store and cache are.
#[derive(Debug, Args, Clone)]
pub(crate) struct Where {
    /// Directory or file of documents: Site.spec.modelStore and modelCache.
    #[arg(long, value_name = "DIR", env = "TIDEGATE_DOCUMENTS")]
    pub(crate) documents: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) state: StateDir,
    /// The store: s3://BUCKET/PREFIX or file:///FOLDER, instead of the documents' modelStore.
    #[arg(long, value_name = "URL", env = "TIDEGATE_MODEL_STORE")]
    pub(crate) store: Option<String>,
    /// Address of the S3 service, when it is not AWS: http(s)://HOST[:PORT].
    #[arg(long, value_name = "URL", requires = "store")]
    pub(crate) endpoint: Option<String>,
    /// CA certificates of that service (PEM), instead of the system's.
    #[arg(long, value_name = "FILE", requires = "store")]
    pub(crate) ca: Option<PathBuf>,
    /// Region that requests are signed for (default us-east-1).
    #[arg(long, requires = "store")]
    pub(crate) region: Option<String>,
    /// Ask https://BUCKET.HOST instead of https://HOST/BUCKET.
    #[arg(long, requires = "store")]
    pub(crate) virtual_host: bool,
    /// Plain http may leave this machine: on a closed network only.
    #[arg(long, requires = "store")]
    pub(crate) allow_http: bool,
    /// The cache's folder (default: the documents' modelCache.path, else model-cache in the state folder).
    #[arg(long, value_name = "DIR", env = "TIDEGATE_MODEL_CACHE")]
    pub(crate) cache: Option<PathBuf>,
    /// How much of the disk stays free: 10%, 200GB (default: the documents' modelCache.keepFree, else 10%).
    #[arg(long, value_name = "SHARE")]
    pub(crate) keep_free: Option<String>,
    /// Answer, and progress, as lines of JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tidegate model push`.
#[derive(Debug, Args)]
pub(crate) struct Push {
    /// The model: a folder, a folder models--… of Hugging Face's cache, or a GGUF file.
    pub(crate) source: PathBuf,
    /// Its name in the store: FAMILY/VERSION.
    pub(crate) model: String,
    /// How long the chunks of a new version are: a power of two from 64KiB to 256MiB. What is damaged is fetched again
    /// by the chunk.
    #[arg(long, value_name = "BYTES", default_value = "32MiB")]
    pub(crate) chunk_size: String,
    /// Requests at once.
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) streams: u16,
    #[command(flatten)]
    pub(crate) place: Where,
}

/// `tidegate model pull`.
#[derive(Debug, Args)]
pub(crate) struct Pull {
    /// FAMILY/VERSION.
    pub(crate) model: String,
    /// Take it only with this manifest: sha256:… or 64 hexadecimal digits.
    #[arg(long)]
    pub(crate) digest: Option<String>,
    /// Requests at once, when this command fetches itself and no running process does it.
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) streams: u16,
    #[command(flatten)]
    pub(crate) place: Where,
}

/// `tidegate model verify`.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// FAMILY/VERSION or digest, as `ls` shows them; may be repeated. Default: everything that is cached.
    pub(crate) models: Vec<String>,
    /// Fetch wrong chunks again, and nothing else.
    #[arg(long)]
    pub(crate) repair: bool,
    #[command(flatten)]
    pub(crate) place: Where,
}

/// `tidegate model ls` and `du`.
#[derive(Debug, Args)]
pub(crate) struct Look {
    #[command(flatten)]
    pub(crate) place: Where,
}

/// `tidegate model pin`.
#[derive(Debug, Args)]
pub(crate) struct Pin {
    /// FAMILY/VERSION or digest.
    pub(crate) model: String,
    /// Why, for whoever looks at `ls`.
    #[arg(long, default_value = "")]
    pub(crate) note: String,
    #[command(flatten)]
    pub(crate) place: Where,
}

/// `tidegate model unpin`.
#[derive(Debug, Args)]
pub(crate) struct Unpin {
    /// FAMILY/VERSION or digest.
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) place: Where,
}

/// `tidegate model gc`.
#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// Say what would go, and remove nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) place: Where,
}
