//! Records and disk, compared in both directions: what has no record goes, what a record misses is said.
//!
//! | on the disk | in the records | what happens |
//! | --- | --- | --- |
//! | something in `tmp` | | removed: it was never seen by anybody |
//! | a content file | no model has it | removed |
//! | a file on its way | no model has it | removed |
//! | a model's folder | no manifest that can be read | removed, unless it is held |
//! | no folder | a manifest older than [`ABANDONED_AFTER_S`] that nobody fetches | given up: removed with its files |
//! | compile caches | not the model, for longer than [`ABANDONED_AFTER_S`] | removed |
//! | | a name or a last use without a model | removed |
//! | | a pin without a model | kept and said: a pin may come before its model |
//! | an entry is missing or is not the content file | a published model | said: verify and repair it |
//! | anything else | | said, never touched: it is not ours |

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidegate_core::Sha256Digest;

use super::index::Indexed;
use super::{Cache, Evicted, records, shelf, small};
use crate::evict::{self, Standing};
use crate::fault::CacheFault;
use crate::layout::Layout;
use crate::room::{Disk, KeepFree};

/// After how many seconds an interrupted fetch that nobody took up again is given up.
pub const ABANDONED_AFTER_S: u64 = 7 * 86_400;
/// How many findings a report names; the rest is counted and treated like them.
pub const FINDINGS_MAX: usize = 10_000;

/// Whether a collection removes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Says what it would do.
    DryRun,
    /// Does it.
    Remove,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// Left in `tmp`.
    Leftover,
    /// A content file that no model has.
    FileWithoutModel,
    /// A file on its way that no model has.
    PartialWithoutModel,
    /// A model's folder without a manifest that can be read.
    FolderWithoutManifest,
    /// A fetch that nobody took up again.
    AbandonedFetch,
    /// Compile caches of a model that has not been here for so long.
    ArtifactWithoutModel,
    /// A name of a model that is not here.
    NameWithoutModel,
    /// A last use of a model that is not here.
    UseWithoutModel,
    /// A pin of a model that is not here.
    PinWithoutModel,
    /// A published model lacks a file, or has another one in its place.
    DamagedModel,
    /// Not ours.
    Stranger,
}

/// What is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It goes.
    Remove,
    /// It stays, and somebody should look.
    Keep,
}

/// One difference between records and disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is.
    pub found: Found,
    /// Where, relative to the cache's folder.
    pub path: String,
    /// What its removal frees, in bytes.
    pub bytes: u64,
    /// What is done.
    pub action: Action,
}

/// What a collection found and did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Whether it only says so.
    pub mode: Mode,
    /// The differences between records and disk, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// How many there are in all.
    pub found: u64,
    /// Models removed to have `keepFree` free again.
    pub evicted: Vec<Evicted>,
    /// Bytes freed in all.
    pub freed_bytes: u64,
    /// Bytes of `keepFree` that are still missing, because everything else is held.
    pub missing_bytes: u64,
}

/// Compares records and disk without owning the cache and without changing anything.
///
/// # Errors
///
/// What the disk says.
pub fn dry_run(layout: &Layout, keep_free: KeepFree, now_s: u64) -> Result<Report, CacheFault> {
    let survey = Survey::take(layout, now_s, |_| false)?;
    let held = shelf::held(layout, &survey.models, |_| false, &HashMap::new())?;
    let (evict, missing_bytes) = survey.shortage(layout, keep_free, &held, survey.removed_bytes())?;
    let evicted = survey.listed(&evict);
    Ok(survey.report(Mode::DryRun, evicted, missing_bytes))
}

impl Cache {
    /// Removes what has no record, and spare models until `keepFree` is free again.
    ///
    /// # Errors
    ///
    /// What the disk says; what was removed before that stays removed, and the next call goes on.
    pub fn gc(&self, mode: Mode) -> Result<Report, CacheFault> {
        let _records = self.records.lock();
        let layout = &self.layout;
        let mut survey = Survey::take(layout, self.now_s(), |digest| self.models.is_running(digest))?;
        // What a running fetch makes ready lies in `tmp` too.
        if !self.models.running().is_empty() || !self.files.running().is_empty() {
            survey.findings.retain(|finding| finding.found != Found::Leftover);
        }
        let pending = match mode {
            Mode::DryRun => survey.removed_bytes(),
            Mode::Remove => {
                survey.remove(self)?;
                0
            }
        };
        let held = self.held(&survey.models)?;
        let (evict, missing_bytes) = survey.shortage(layout, self.options.keep_free, &held, pending)?;
        let evicted = match mode {
            Mode::Remove => self.evict(&survey.models, &evict)?,
            Mode::DryRun => survey.listed(&evict),
        };
        Ok(survey.report(mode, evicted, missing_bytes))
    }
}

/// Records and disk, side by side.
struct Survey {
    /// The models that stay.
    models: Vec<shelf::Model>,
    findings: Vec<Finding>,
    /// Models whose records go with their findings.
    forgotten: Vec<Sha256Digest>,
}

impl Survey {
    fn take(layout: &Layout, now_s: u64, is_running: impl Fn(Sha256Digest) -> bool) -> Result<Self, CacheFault> {
        let mut survey = Self { models: Vec::new(), findings: Vec::new(), forgotten: Vec::new() };
        let mut content = shelf::content(layout)?;
        for model in shelf::models(layout)? {
            survey.model(layout, model, &mut content, now_s, &is_running)?;
        }
        let wanted: HashSet<Sha256Digest> =
            survey.models.iter().flat_map(|model| model.files.iter().flatten()).map(|file| file.sha256).collect();
        for (digest, _) in content {
            if !wanted.contains(&digest) {
                let path = layout.file(digest);
                let bytes = path.symlink_metadata().map_or(0, |metadata| metadata.blocks() * 512);
                survey.note(layout, Found::FileWithoutModel, &path, bytes, Action::Remove);
            }
        }
        for (digest, bytes) in shelf::partials(layout)? {
            if !wanted.contains(&digest) {
                survey.note(layout, Found::PartialWithoutModel, &layout.partial(digest), bytes, Action::Remove);
            }
        }
        survey.artifacts(layout, now_s)?;
        survey.records(layout)?;
        survey.strangers(layout)?;
        Ok(survey)
    }

    fn note(&mut self, layout: &Layout, found: Found, path: &Path, bytes: u64, action: Action) {
        let path = path.strip_prefix(layout.root()).unwrap_or(path).to_string_lossy().into_owned();
        self.findings.push(Finding { found, path, bytes, action });
    }

    /// Looks at one model, and keeps it or gives it up.
    fn model(
        &mut self,
        layout: &Layout,
        model: shelf::Model,
        content: &mut HashMap<Sha256Digest, u64>,
        now_s: u64,
        is_running: &impl Fn(Sha256Digest) -> bool,
    ) -> Result<(), CacheFault> {
        let is_held = !model.pins.is_empty() || is_running(model.digest);
        match (&model.files, model.published) {
            (Ok(files), true) => {
                let folder = layout.published(model.digest);
                if !is_whole(&folder, files, content)? {
                    self.note(layout, Found::DamagedModel, &folder, 0, Action::Keep);
                }
                self.models.push(model);
            }
            (Err(_), published) => {
                let folder = layout.published(model.digest);
                let path = if published { folder.clone() } else { layout.manifest(model.digest) };
                let action = if is_held { Action::Keep } else { Action::Remove };
                self.note(layout, Found::FolderWithoutManifest, &path, 0, action);
                if is_held {
                    // Nobody knows which files it has, but the folder does: they stay with it.
                    let mut there = HashMap::new();
                    walk(&folder, String::new(), &mut there, 0)?;
                    let inodes: HashSet<u64> = there.into_values().collect();
                    content.retain(|_, inode| !inodes.contains(inode));
                    self.models.push(model);
                } else {
                    self.forgotten.push(model.digest);
                }
            }
            (Ok(_), false) => {
                let path = layout.manifest(model.digest);
                if is_held || age_s(&path, now_s) < ABANDONED_AFTER_S {
                    self.models.push(model);
                } else {
                    self.note(layout, Found::AbandonedFetch, &path, 0, Action::Remove);
                    self.forgotten.push(model.digest);
                }
            }
        }
        Ok(())
    }

    /// Compile caches of models that are not here, and did not get a new one lately.
    fn artifacts(&mut self, layout: &Layout, now_s: u64) -> Result<(), CacheFault> {
        let known: HashSet<Sha256Digest> = self.models.iter().map(|model| model.digest).collect();
        for digest in records::recorded(&layout.artifacts())? {
            let path = layout.artifacts().join(digest.to_string());
            if !known.contains(&digest) && age_s(&path, now_s) >= ABANDONED_AFTER_S {
                let bytes = super::tree_bytes(&path, 0);
                self.note(layout, Found::ArtifactWithoutModel, &path, bytes, Action::Remove);
            }
        }
        Ok(())
    }

    /// Records of models that are not here.
    fn records(&mut self, layout: &Layout) -> Result<(), CacheFault> {
        let known: HashSet<Sha256Digest> = self.models.iter().map(|model| model.digest).collect();
        for (model, digest) in records::references(layout)? {
            if !known.contains(&digest) {
                self.note(layout, Found::NameWithoutModel, &layout.reference(&model), 0, Action::Remove);
            }
        }
        for digest in records::recorded(&layout.uses())? {
            if !known.contains(&digest) {
                self.note(layout, Found::UseWithoutModel, &layout.last_use(digest), 0, Action::Remove);
            }
        }
        for digest in records::recorded(&layout.pins())? {
            if !known.contains(&digest) {
                self.note(layout, Found::PinWithoutModel, &layout.pin(digest), 0, Action::Keep);
            }
        }
        Ok(())
    }

    /// What lies in the cache's folder and is not ours, and what was left in `tmp`.
    fn strangers(&mut self, layout: &Layout) -> Result<(), CacheFault> {
        const OURS: [&str; 11] = [
            "files",
            "partial",
            "manifests",
            "refs",
            "pins",
            "uses",
            "artifacts",
            "scrubs.json",
            "tmp",
            "owner.lock",
            "owner.sock",
        ];
        for name in small::names(layout.root(), shelf::MODELS_MAX)? {
            let is_ours =
                name.text().is_some_and(|name| OURS.contains(&name) || Layout::published_digest(name).is_some());
            if !is_ours {
                self.note(layout, Found::Stranger, &layout.root().join(&name.name), 0, Action::Keep);
            }
        }
        for name in small::names(&layout.tmp(), shelf::CONTENT_MAX)? {
            let path = layout.tmp().join(&name.name);
            let bytes =
                if name.kind.is_dir() { 0 } else { path.symlink_metadata().map_or(0, |left| left.blocks() * 512) };
            self.note(layout, Found::Leftover, &path, bytes, Action::Remove);
        }
        Ok(())
    }

    /// Removes what the findings say, folders first: what nobody can load any more is then removed file by file.
    fn remove(&self, cache: &Cache) -> Result<(), CacheFault> {
        let layout = &cache.layout;
        for digest in &self.forgotten {
            let aside = small::tmp_name(layout, "forgotten");
            if std::fs::rename(layout.published(*digest), &aside).is_ok() {
                small::sync_folder(layout.root())?;
                small::remove_tree(&aside)?;
            }
            cache.forget(*digest)?;
        }
        for finding in self.findings.iter().filter(|finding| finding.action == Action::Remove) {
            let path = layout.root().join(&finding.path);
            match finding.found {
                Found::Leftover | Found::PartialWithoutModel | Found::ArtifactWithoutModel => {
                    small::remove_tree_or_file(&path)?;
                }
                Found::FileWithoutModel | Found::NameWithoutModel | Found::UseWithoutModel => {
                    small::remove_file(&path)?;
                }
                // These went with their records above, or are never removed.
                Found::FolderWithoutManifest
                | Found::AbandonedFetch
                | Found::PinWithoutModel
                | Found::DamagedModel
                | Found::Stranger => {}
            }
        }
        Ok(())
    }

    /// The spare models that have to go for `keepFree`, and how many bytes of it stay missing even then.
    fn shortage(
        &self,
        layout: &Layout,
        keep_free: KeepFree,
        held: &[evict::Held],
        pending: u64,
    ) -> Result<(Vec<Sha256Digest>, u64), CacheFault> {
        let disk = Disk::of(layout.root())?;
        let keep = keep_free.bytes(disk.total_bytes);
        let missing = evict::Room { bytes: keep.saturating_sub(disk.free_bytes.saturating_add(pending)), inodes: 0 };
        Ok(match evict::plan(held, missing) {
            Ok(plan) => (plan.evict, 0),
            Err(refused) => {
                let spare = held.iter().filter(|model| matches!(model.standing, Standing::Spare { .. }));
                (spare.map(|model| model.digest).collect(), missing.minus(refused.evictable).bytes)
            }
        })
    }

    fn removed_bytes(&self) -> u64 {
        self.findings.iter().filter(|finding| finding.action == Action::Remove).map(|finding| finding.bytes).sum()
    }

    /// What their eviction would say.
    fn listed(&self, evict: &[Sha256Digest]) -> Vec<Evicted> {
        let gone: HashSet<_> = evict.iter().copied().collect();
        let files = |model: &shelf::Model| model.files.clone().unwrap_or_default();
        let (going, staying): (Vec<_>, Vec<_>) = self.models.iter().partition(|model| gone.contains(&model.digest));
        let mut stays: HashSet<_> = staying.into_iter().flat_map(files).map(|file| file.sha256).collect();
        going
            .into_iter()
            .map(|model| Evicted {
                digest: model.digest.to_string(),
                models: model.names.clone(),
                bytes: files(model).into_iter().filter(|file| stays.insert(file.sha256)).map(|file| file.size).sum(),
            })
            .collect()
    }

    fn report(self, mode: Mode, evicted: Vec<Evicted>, missing_bytes: u64) -> Report {
        let freed_bytes = self.removed_bytes() + evicted.iter().map(|model| model.bytes).sum::<u64>();
        let found = self.findings.len() as u64;
        let mut findings = self.findings;
        findings.sort_by(|one, other| (one.found, &one.path).cmp(&(other.found, &other.path)));
        findings.truncate(FINDINGS_MAX);
        Report { mode, findings, found, evicted, freed_bytes, missing_bytes }
    }
}

/// How many seconds ago something was changed last; 0 when that cannot be told, so that it counts as new.
fn age_s(path: &Path, now_s: u64) -> u64 {
    let changed_s = path.symlink_metadata().ok().and_then(|metadata| u64::try_from(metadata.mtime()).ok());
    changed_s.map_or(0, |changed_s| now_s.saturating_sub(changed_s))
}

/// Whether a published folder has every file of the model and nothing else, each being the content file itself. Folders
/// say the inodes of what is in them, so no file is looked up.
fn is_whole(folder: &Path, files: &[Indexed], content: &HashMap<Sha256Digest, u64>) -> Result<bool, CacheFault> {
    let mut there = HashMap::new();
    walk(folder, String::new(), &mut there, 0)?;
    let same = |file: &Indexed| {
        let inode = there.get(file.flat_name());
        inode.is_some() && inode == content.get(&file.sha256)
    };
    Ok(there.len() == files.len() && files.iter().all(same))
}

/// How deep a published folder can be: its paths have 1024 bytes.
const DEPTH_MAX: usize = 513;

/// The inodes of all that is no folder, by path.
fn walk(folder: &Path, prefix: String, there: &mut HashMap<String, u64>, depth: usize) -> Result<(), CacheFault> {
    for name in small::names(folder, shelf::CONTENT_MAX)? {
        let path = format!("{prefix}{}", name.name.to_string_lossy());
        if name.kind.is_dir() && depth < DEPTH_MAX {
            walk(&folder.join(&name.name), path + "/", there, depth + 1)?;
        } else {
            // A link or a device has an inode that is no content file's.
            there.insert(path, name.inode);
        }
    }
    Ok(())
}
