//! What is on the disk, as records and folders say it: no file of a model is looked up one by one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::fs::MetadataExt as _;

use serde::{Deserialize, Serialize};
use tidegate_core::Sha256Digest;

use super::index::{self, Indexed};
use super::records::{self, Pin};
use super::small;
use crate::evict::{Held, HeldFile, Hold, Standing};
use crate::fault::CacheFault;
use crate::layout::Layout;

/// How many models one cache holds.
pub const MODELS_MAX: usize = 16_384;
/// How many content files one cache holds.
pub const CONTENT_MAX: usize = 4_000_000;

/// A model that the cache has a record of.
#[derive(Clone, Debug)]
pub struct Model {
    /// The digest of its manifest.
    pub digest: Sha256Digest,
    /// Its files; the fault when neither index nor manifest can be read.
    pub files: Result<Vec<Indexed>, CacheFault>,
    /// Whether its folder is there; else it is on its way, or was given up.
    pub published: bool,
    /// The names under which it was seen.
    pub names: Vec<String>,
    /// Why it stays.
    pub pins: Vec<Pin>,
    /// When it was used last, in seconds since 1970.
    pub last_use_s: Option<u64>,
}

/// A model as `ls` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The digest of its manifest.
    pub digest: String,
    /// The names under which it was seen, `family/version`.
    pub models: Vec<String>,
    /// Published and loadable, on its way, or without a manifest that can be read.
    pub state: ListedState,
    /// Files in it.
    pub files: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// Bytes that no other model has.
    pub own_bytes: u64,
    /// Why it stays.
    pub pins: Vec<Pin>,
    /// When it was used last, in seconds since 1970.
    pub last_use_s: Option<u64>,
}

/// See [`Listed::state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListedState {
    /// Its folder can be loaded.
    Published,
    /// It is on its way, or its fetch was interrupted.
    Partial,
    /// Its manifest cannot be read.
    Damaged,
}

/// The models that the cache has a record or a folder of, by digest.
///
/// # Errors
///
/// What the disk says.
pub fn models(layout: &Layout) -> Result<Vec<Model>, CacheFault> {
    let recorded: HashSet<Sha256Digest> = manifests(layout)?.into_iter().collect();
    let folders: HashSet<Sha256Digest> = published(layout)?.into_iter().collect();
    let mut names: HashMap<Sha256Digest, Vec<String>> = HashMap::new();
    for (model, digest) in records::references(layout)? {
        names.entry(digest).or_default().push(model.to_string());
    }
    let pinned: HashSet<Sha256Digest> = records::recorded(&layout.pins())?.into_iter().collect();
    let used: HashSet<Sha256Digest> = records::recorded(&layout.uses())?.into_iter().collect();
    let mut digests: Vec<_> = recorded.union(&folders).copied().collect();
    digests.sort_unstable();
    let model = |digest: Sha256Digest| {
        Ok(Model {
            digest,
            files: index::files(layout, digest),
            published: folders.contains(&digest),
            names: names.remove(&digest).unwrap_or_default(),
            pins: if pinned.contains(&digest) { pins(layout, digest)? } else { Vec::new() },
            last_use_s: if used.contains(&digest) { records::last_use(layout, digest)? } else { None },
        })
    };
    digests.into_iter().map(model).collect()
}

/// A record of pins that cannot be read still keeps its model.
fn pins(layout: &Layout, digest: Sha256Digest) -> Result<Vec<Pin>, CacheFault> {
    match records::pins(layout, digest) {
        Err(CacheFault::Damaged { reason, .. }) => {
            let note = reason.chars().take(records::PIN_TEXT_MAX / 4).collect();
            Ok(vec![Pin { hold: Hold::Pinned, by: "a damaged record".to_owned(), note, since_s: 0 }])
        }
        read => read,
    }
}

/// The digests of the recorded manifests.
pub(crate) fn manifests(layout: &Layout) -> Result<Vec<Sha256Digest>, CacheFault> {
    let names = small::names(&layout.manifests(), 2 * MODELS_MAX)?;
    let digest = |name: &small::Name| name.text()?.strip_suffix(".json").and_then(Sha256Digest::parse);
    Ok(names.iter().filter_map(digest).collect())
}

/// The digests of the published folders.
pub(crate) fn published(layout: &Layout) -> Result<Vec<Sha256Digest>, CacheFault> {
    let names = small::names(layout.root(), MODELS_MAX)?;
    let is_folder = |name: &&small::Name| name.kind.is_dir();
    Ok(names.iter().filter(is_folder).filter_map(|name| Layout::published_digest(name.text()?)).collect())
}

/// The content files with their inodes.
pub(crate) fn content(layout: &Layout) -> Result<HashMap<Sha256Digest, u64>, CacheFault> {
    let mut content = HashMap::new();
    for folder in small::names(&layout.files(), 4096)? {
        if !folder.kind.is_dir() {
            continue;
        }
        for file in small::names(&layout.files().join(&folder.name), CONTENT_MAX)? {
            let digest = file.text().and_then(Sha256Digest::parse).filter(|_| file.kind.is_file());
            content.extend(digest.map(|digest| (digest, file.inode)));
        }
        if content.len() > CONTENT_MAX {
            return Err(small::damaged(&layout.files(), "there are more files in it than there can be"));
        }
    }
    Ok(content)
}

/// Files on their way with the bytes that they take on the disk.
pub(crate) fn partials(layout: &Layout) -> Result<BTreeMap<Sha256Digest, u64>, CacheFault> {
    let names = small::names(&layout.partials(), CONTENT_MAX)?;
    let digests =
        names.iter().filter(|name| name.kind.is_dir()).filter_map(|name| name.text().and_then(Sha256Digest::parse));
    Ok(digests.map(|digest| (digest, taken(layout, digest))).collect())
}

fn taken(layout: &Layout, digest: Sha256Digest) -> u64 {
    let bytes = |path: std::path::PathBuf| path.symlink_metadata().map_or(0, |metadata| metadata.blocks() * 512);
    bytes(layout.partial_data(digest)) + bytes(layout.partial_journal(digest))
}

/// How many of the models have each content.
fn users(models: &[Model]) -> HashMap<Sha256Digest, u32> {
    let mut users = HashMap::new();
    for model in models {
        let distinct: HashSet<_> = model.files.iter().flatten().map(|file| file.sha256).collect();
        for sha256 in distinct {
            *users.entry(sha256).or_default() += 1;
        }
    }
    users
}

/// The models as `ls` shows them.
#[must_use]
pub fn listed(models: &[Model]) -> Vec<Listed> {
    let users = users(models);
    models
        .iter()
        .map(|model| {
            let files = model.files.as_deref().unwrap_or_default();
            let mut seen = HashSet::new();
            let own = files.iter().filter(|file| users.get(&file.sha256) == Some(&1) && seen.insert(file.sha256));
            Listed {
                digest: model.digest.to_string(),
                models: model.names.clone(),
                state: match (&model.files, model.published) {
                    (Err(_), _) => ListedState::Damaged,
                    (Ok(_), true) => ListedState::Published,
                    (Ok(_), false) => ListedState::Partial,
                },
                files: files.len() as u64,
                own_bytes: own.map(|file| file.size).sum(),
                bytes: files.iter().map(|file| file.size).sum(),
                pins: model.pins.clone(),
                last_use_s: model.last_use_s,
            }
        })
        .collect()
}

/// The models as eviction sees them: what of each is on the disk, and what keeps it.
///
/// # Errors
///
/// What the disk says.
pub(crate) fn held(
    layout: &Layout,
    models: &[Model],
    is_running: impl Fn(Sha256Digest) -> bool,
    next_use: &HashMap<Sha256Digest, u64>,
) -> Result<Vec<Held>, CacheFault> {
    let content = content(layout)?;
    let partials = partials(layout)?;
    let on_disk = |file: &Indexed| {
        let bytes =
            if content.contains_key(&file.sha256) { Some(file.size) } else { partials.get(&file.sha256).copied() };
        bytes.map(|bytes| HeldFile { sha256: file.sha256, bytes })
    };
    let standing = |model: &Model| {
        let running = is_running(model.digest).then_some(Hold::InProgress);
        match model.pins.iter().map(|pin| pin.hold).chain(running).min() {
            Some(hold) => Standing::Kept(hold),
            None => Standing::Spare { next_use_s: next_use.get(&model.digest).copied(), last_use_s: model.last_use_s },
        }
    };
    Ok(models
        .iter()
        .map(|model| Held {
            digest: model.digest,
            files: model.files.iter().flatten().filter_map(on_disk).collect(),
            standing: standing(model),
        })
        .collect())
}
