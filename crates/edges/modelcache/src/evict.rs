//! Which models leave the disk when room is needed: pure, no clock, no I/O.
//!
//! ```text
//! kept, whatever the need                        spare, in the order in which they go
//! serving · coming · rollback target ·           no next use, least recently used first
//! pinned · in progress                           then the furthest next use first
//! ```
//!
//! Models share files by content, so a model's removal frees only the files that no kept model has. Going greedily from
//! the furthest use would remove models for nothing (a small one before the large one that is enough alone; one whose
//! files are all shared), so the question is asked from the other end: the model that is used next is spared when all
//! the others suffice, then the one after it, and so on. Freed space only grows with the set of removed models, so one
//! pass gives the best set: among all sets that suffice, the one that keeps the soonest use; among those, the one that
//! keeps the second; and no model in it is needless.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use tidegate_core::Sha256Digest;

/// Why a model is never removed to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// An engine has it open.
    Serving,
    /// The next set of the timetable needs it.
    Coming,
    /// The way back from the last switch.
    RollbackTarget,
    /// An operator pinned it.
    Pinned,
    /// It is being fetched, verified, repaired or published.
    InProgress,
}

impl Hold {
    /// All reasons, in the order of the enum.
    pub const ALL: [Self; 5] = [Self::Serving, Self::Coming, Self::RollbackTarget, Self::Pinned, Self::InProgress];

    /// The reason as records, logs and tables show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Coming => "coming",
            Self::RollbackTarget => "rollback_target",
            Self::Pinned => "pinned",
            Self::InProgress => "in_progress",
        }
    }
}

/// What keeps a model, or in which order it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Never removed to make room.
    Kept(Hold),
    /// May go.
    Spare {
        /// When the timetable needs it next, in seconds since 1970; `None`: never, or there is no timetable.
        next_use_s: Option<u64>,
        /// When it was used last, in seconds since 1970; `None`: never.
        last_use_s: Option<u64>,
    },
}

/// A content file on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldFile {
    /// The digest of its content: two models with the same one share the file.
    pub sha256: Sha256Digest,
    /// Its length.
    pub bytes: u64,
}

/// A model on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The digest of its manifest.
    pub digest: Sha256Digest,
    /// Its content files, as far as they are on the disk.
    pub files: Vec<HeldFile>,
    /// What keeps it, or in which order it goes.
    pub standing: Standing,
}

/// Room on a disk: bytes and inodes. Where a file system has no fixed number of inodes, the need for them is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

impl Room {
    /// Nothing.
    pub const NONE: Self = Self { bytes: 0, inodes: 0 };

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), inodes: self.inodes.saturating_add(other.inodes) }
    }

    /// What of `self` is not in `other`.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(other.bytes), inodes: self.inodes.saturating_sub(other.inodes) }
    }

    /// Whether `need` fits.
    #[must_use]
    pub const fn holds(self, need: Self) -> bool {
        self.bytes >= need.bytes && self.inodes >= need.inodes
    }
}

/// What to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The models, the furthest next use first.
    pub evict: Vec<Sha256Digest>,
    /// What their removal frees, shared files counted once.
    pub frees: Room,
}

/// Not even the removal of every spare model would free enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// What was asked for.
    pub need: Room,
    /// What the removal of every spare model would free.
    pub evictable: Room,
    /// The kept models with what holds them and what their removal would free when all spare ones were gone too: the
    /// largest first.
    pub kept: Vec<(Sha256Digest, Hold, u64)>,
}

/// The models whose removal frees at least `need`, or why there are none.
///
/// # Errors
///
/// [`NoRoom`] when all spare models together do not free enough.
pub fn plan(models: &[Held], need: Room) -> Result<Plan, NoRoom> {
    if need == Room::NONE {
        return Ok(Plan::default());
    }
    let mut stays: HashSet<Sha256Digest> = HashSet::new();
    let mut spare: Vec<(Order, &Held)> = Vec::new();
    for model in models {
        match model.standing {
            Standing::Kept(_) => stays.extend(model.files.iter().map(|file| file.sha256)),
            Standing::Spare { next_use_s, last_use_s } => spare.push((order(model, next_use_s, last_use_s), model)),
        }
    }
    let mut frees = freed(spare.iter().flat_map(|(_, model)| &model.files), &stays);
    if !frees.holds(need) {
        return Err(NoRoom { need, evictable: frees, kept: kept(models) });
    }
    spare.sort_unstable_by_key(|(order, _)| *order);
    let mut evict = Vec::new();
    for (_, model) in spare.into_iter().rev() {
        let without = frees.minus(freed(&model.files, &stays));
        if without.holds(need) {
            stays.extend(model.files.iter().map(|file| file.sha256));
            frees = without;
        } else {
            evict.push(model.digest);
        }
    }
    evict.reverse();
    Ok(Plan { evict, frees })
}

/// The sort key of a spare model: what goes first is least. No next use is further than any; then the least recently
/// used, and the digest so that the answer does not depend on the order of the input.
type Order = (Reverse<u64>, u64, Sha256Digest);

fn order(model: &Held, next_use_s: Option<u64>, last_use_s: Option<u64>) -> Order {
    (Reverse(next_use_s.unwrap_or(u64::MAX)), last_use_s.unwrap_or(0), model.digest)
}

/// What these files hold of the disk beside those that stay, each content once.
fn freed<'a>(files: impl IntoIterator<Item = &'a HeldFile>, stays: &HashSet<Sha256Digest>) -> Room {
    let mut seen = HashSet::new();
    files
        .into_iter()
        .filter(|file| !stays.contains(&file.sha256) && seen.insert(file.sha256))
        .fold(Room::NONE, |room, file| room.plus(Room { bytes: file.bytes, inodes: 1 }))
}

/// The kept models by what the removal of each alone would add, the largest first.
fn kept(models: &[Held]) -> Vec<(Sha256Digest, Hold, u64)> {
    let held = || {
        models.iter().filter_map(|model| match model.standing {
            Standing::Kept(hold) => Some((model, hold)),
            Standing::Spare { .. } => None,
        })
    };
    let mut users: HashMap<Sha256Digest, u32> = HashMap::new();
    for (model, _) in held() {
        for file in model.files.iter().map(|file| file.sha256).collect::<HashSet<_>>() {
            *users.entry(file).or_default() += 1;
        }
    }
    let shared = users.into_iter().filter(|(_, users)| *users > 1).map(|(file, _)| file).collect();
    let mut kept: Vec<_> =
        held().map(|(model, hold)| (model.digest, hold, freed(&model.files, &shared).bytes)).collect();
    kept.sort_unstable_by_key(|&(digest, _, bytes)| (Reverse(bytes), digest));
    kept
}
