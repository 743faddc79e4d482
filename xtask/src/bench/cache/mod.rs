//! The model cache: what a fetch costs beside other downloaders, what limits it, and what the small commands take.

mod clients;
mod fetch;
mod limits;
mod small;
mod stand;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::figures::{Column, Figure};
use stand::Stand;

/// `cargo xtask bench cache`.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// Also write the table as JSON.
    #[arg(long)]
    pub(super) json: Option<PathBuf>,
    /// Also write the table into docs/benchmarks-cache.md.
    #[arg(long)]
    pub(super) doc: bool,
    /// Rounds; each figure is the median over them.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Sizes of the models that are fetched, in MiB. Disk: three times the largest, given back at the end.
    #[arg(long, value_delimiter = ',', default_value = "1024,4096")]
    mib: Vec<u64>,
    /// Files of the model for `ls`, `du` and `gc`.
    #[arg(long, default_value_t = 10_000)]
    files: usize,
    /// Cargo profile of what is measured.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Measure this program instead of building one.
    #[arg(long)]
    program: Option<PathBuf>,
    /// Folder for store and caches (default target/bench/cache).
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Leave out these peers.
    #[arg(long, value_enum, value_delimiter = ',')]
    without: Vec<Client>,
}

/// Parts of the cache's bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Fetches beside the peers, and what limits them.
    Fetch,
    /// What is fetched again after kill -9.
    Kill,
    /// Verification.
    Verify,
    /// A second pull, and `ls`, `du`, `gc` with many files.
    Small,
}

/// What fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Client {
    /// Tidegate: 16 streams, every chunk hashed, durable when it ends.
    Tidegate,
    /// rclone with 8 streams; it does not hash.
    Rclone8,
    /// rclone with 16 streams.
    Rclone16,
    /// rclone with 32 streams.
    Rclone32,
    /// s5cmd with 16 streams, then `openssl dgst -sha256` over the files.
    S5cmd,
    /// The AWS command line as it comes; it does not hash.
    Aws,
}

impl Column for Client {
    const ALL: &'static [Self] =
        &[Self::Tidegate, Self::Rclone8, Self::Rclone16, Self::Rclone32, Self::S5cmd, Self::Aws];
    const OWN: Self = Self::Tidegate;
    const BESIDE: Self = Self::Rclone16;
    const BENCH: &'static str = "cache";

    fn name(self) -> &'static str {
        match self {
            Self::Tidegate => "tidegate",
            Self::Rclone8 => "rclone 8",
            Self::Rclone16 => "rclone 16",
            Self::Rclone32 => "rclone 32",
            Self::S5cmd => "s5cmd + openssl",
            Self::Aws => "aws",
        }
    }
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    fn clients(&self) -> impl Iterator<Item = Client> {
        Client::ALL.iter().copied().filter(|client| !self.without.contains(client))
    }

    /// How it was measured.
    pub(super) fn in_words(&self) -> String {
        format!("profile {}, {} rounds", self.profile, self.rounds)
    }
}

/// Measures all that is wanted.
///
/// # Errors
/// Something could not be built, installed, started or fetched.
pub(super) fn run(options: &Options) -> Result<Vec<Figure<Client>>> {
    let stand = Stand::start(options)?;
    let mut figures = Vec::new();
    let limits = limits::measure(&stand.folder)?;
    figures.extend(limits.figures());
    for mib in &options.mib {
        let model = stand.model(*mib)?;
        if options.wants(Part::Fetch) {
            figures.extend(fetch::run(&stand, options, &model, &limits)?);
        }
        if options.wants(Part::Kill) {
            figures.push(fetch::killed(&stand, &model, options.rounds)?);
        }
        if options.wants(Part::Verify) {
            figures.extend(small::verify(&stand, &model, options.rounds, &limits)?);
        }
        if options.wants(Part::Small) {
            figures.extend(small::second(&stand, &model)?);
        }
        stand.forget(&model)?;
    }
    if options.wants(Part::Small) {
        figures.extend(small::commands(&stand, options.files)?);
    }
    Ok(figures)
}
