//! Disk admission: a fetch begins only when what it will write fits beside what has to stay free.
//!
//! ```text
//! need + booked by others + keepFree <= free      fits
//! else: evict::plan for what is missing           fits after an eviction
//! else: refused, with what would have helped
//! ```
//!
//! A full disk found in the middle of a 700 GB fetch costs the night; a refusal before its first byte costs nothing.
//! Quotas of a user are not visible before the write that breaks them: they stay a fault of that write.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::StatVfsMountFlags;

use crate::evict::{self, Held, Plan, Room};
use crate::fault::{CacheFault, NoRoom};

/// Inodes that one fetch takes beside those of its files: 256 folders of content files, and data, journal and folder of
/// each file on its way.
pub const INODES_BESIDE: u64 = 384;
/// Inodes of one file: its content and its link in the published folder, which some file systems count like a file.
pub const INODES_OF_FILE: u64 = 2;
/// How many kept models a refusal names.
pub const NAMED_MAX: usize = 16;

/// How much of a disk stays free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepFree {
    /// Bytes.
    Bytes(u64),
    /// Thousandths of a percent of the disk, 0 to 100,000.
    Millipercent(u32),
}

impl KeepFree {
    /// The bytes that stay free of a disk of `total` bytes, rounded up.
    #[must_use]
    pub fn bytes(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Millipercent(share) => {
                let bytes = (u128::from(total) * u128::from(share.min(100_000))).div_ceil(100_000);
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }
}

impl Default for KeepFree {
    /// A tenth of the disk.
    fn default() -> Self {
        Self::Millipercent(10_000)
    }
}

/// What a file system says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its size.
    pub total_bytes: u64,
    /// What this user may still write.
    pub free_bytes: u64,
    /// How many files this user may still make; `None` where inodes are made as they are needed.
    pub free_inodes: Option<u64>,
    /// The unit in which files take room, in bytes.
    pub block_bytes: u64,
    /// Mounted read-only.
    pub read_only: bool,
}

impl Disk {
    /// Asks the file system that holds `path`.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub fn of(path: &Path) -> Result<Self, CacheFault> {
        let stat =
            rustix::fs::statvfs(path).map_err(|error| CacheFault::disk("ask the size of", path, &error.into()))?;
        let block_bytes = stat.f_frsize.max(1);
        Ok(Self {
            total_bytes: stat.f_blocks.saturating_mul(block_bytes),
            free_bytes: stat.f_bavail.saturating_mul(block_bytes),
            free_inodes: (stat.f_files > 0).then_some(stat.f_favail),
            block_bytes,
            read_only: stat.f_flag.contains(StatVfsMountFlags::RDONLY),
        })
    }

    /// The room that files of these lengths take: whole blocks, and [`INODES_OF_FILE`] each.
    pub fn room_of(&self, lengths: impl IntoIterator<Item = u64>) -> Room {
        lengths.into_iter().fold(Room::NONE, |room, length| {
            room.plus(Room {
                bytes: length.div_ceil(self.block_bytes).saturating_mul(self.block_bytes),
                inodes: INODES_OF_FILE,
            })
        })
    }

    /// What is missing for `need` when `keep_free` bytes stay free.
    #[must_use]
    pub fn missing(&self, need: Room, keep_free: u64) -> Room {
        let have = Room { bytes: self.free_bytes, inodes: self.free_inodes.unwrap_or(u64::MAX) };
        // Nothing to write needs no room, even on a disk that is fuller than it should be.
        let keep = if need == Room::NONE { Room::NONE } else { Room { bytes: keep_free, inodes: 0 } };
        need.plus(keep).minus(have)
    }
}

/// Whether `need` fits, and what has to go for it; [`Plan::default`] when nothing has to.
///
/// # Errors
///
/// `read_only`; `no_room` with what would have helped; `inodes_full` when bytes would do.
pub fn admit(path: &Path, disk: &Disk, keep_free: KeepFree, need: Room, models: &[Held]) -> Result<Plan, CacheFault> {
    if need == Room::NONE {
        return Ok(Plan::default());
    }
    if disk.read_only {
        return Err(CacheFault::ReadOnly { path: path.to_path_buf() });
    }
    let keep_free_bytes = keep_free.bytes(disk.total_bytes);
    let missing = disk.missing(need, keep_free_bytes);
    evict::plan(models, missing).map_err(|refused| {
        if refused.evictable.bytes >= missing.bytes {
            return CacheFault::InodesFull { path: path.to_path_buf() };
        }
        let spare = models.iter().filter(|model| matches!(model.standing, evict::Standing::Spare { .. }));
        CacheFault::NoRoom(NoRoom {
            need_bytes: need.bytes,
            free_bytes: disk.free_bytes,
            keep_free_bytes,
            evictable_bytes: refused.evictable.bytes,
            would_evict: spare.map(|model| model.digest).take(NAMED_MAX).collect(),
            kept: refused
                .kept
                .iter()
                .filter(|(_, _, bytes)| *bytes > 0)
                .take(NAMED_MAX)
                .map(|(digest, hold, bytes)| format!("sha256-{digest} {} ({bytes} bytes)", hold.as_str()))
                .collect(),
        })
    })
}

/// Room that running fetches were granted and have not yet taken: the disk still shows it as free.
#[derive(Clone, Debug, Default)]
pub struct Bookings {
    booked: Arc<Mutex<Room>>,
}

impl Bookings {
    /// All that is booked.
    #[must_use]
    pub fn total(&self) -> Room {
        *self.booked.lock()
    }

    /// Books room. It is given back when the booking is dropped.
    #[must_use]
    pub fn book(&self, room: Room) -> Booking {
        let mut booked = self.booked.lock();
        *booked = booked.plus(room);
        Booking { bookings: self.clone(), left: Mutex::new(room) }
    }
}

/// Room granted to one fetch.
#[derive(Debug)]
pub struct Booking {
    bookings: Bookings,
    left: Mutex<Room>,
}

impl Booking {
    /// So much of it is on the disk now, allocated: the disk itself counts it from here on.
    pub fn taken(&self, room: Room) {
        let mut left = self.left.lock();
        let taken = Room { bytes: room.bytes.min(left.bytes), inodes: room.inodes.min(left.inodes) };
        *left = left.minus(taken);
        let mut booked = self.bookings.booked.lock();
        *booked = booked.minus(taken);
    }

    /// What is not yet taken.
    #[must_use]
    pub fn left(&self) -> Room {
        *self.left.lock()
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        let left = *self.left.get_mut();
        let mut booked = self.bookings.booked.lock();
        *booked = booked.minus(left);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Sha256Digest;

    use super::*;
    use crate::evict::{HeldFile, Hold, Standing};

    const DISK: Disk =
        Disk { total_bytes: 1000, free_bytes: 300, free_inodes: Some(10), block_bytes: 10, read_only: false };

    fn held(number: u8, bytes: u64, standing: Standing) -> Held {
        let sha256 = Sha256Digest([number; 32]);
        Held { digest: sha256, files: vec![HeldFile { sha256, bytes }], standing }
    }

    fn bytes(bytes: u64) -> Room {
        Room { bytes, inodes: 1 }
    }

    fn spare() -> Standing {
        Standing::Spare { next_use_s: None, last_use_s: None }
    }

    #[test]
    fn size_and_reserve_fit_exactly_and_one_byte_more_does_not() {
        let keep = KeepFree::default();
        let path = Path::new("/cache");
        assert_eq!(admit(path, &DISK, keep, bytes(200), &[]).unwrap(), Plan::default());
        let models = [held(1, 50, spare())];
        let evict = vec![Sha256Digest([1; 32])];
        for need in [201, 250] {
            let plan = admit(path, &DISK, keep, bytes(need), &models).unwrap();
            assert_eq!((&plan.evict, plan.frees), (&evict, bytes(50)), "{need}");
        }
        assert_eq!(admit(path, &DISK, keep, bytes(251), &models).unwrap_err().code(), "no_room");
    }

    #[test]
    fn a_refusal_says_what_holds_the_room() {
        let models = [held(1, 50, spare()), held(2, 400, Standing::Kept(Hold::RollbackTarget))];
        let error = admit(Path::new("/cache"), &DISK, KeepFree::Bytes(100), bytes(500), &models).unwrap_err();
        let text = error.to_string();
        for part in ["500 bytes needed", "100 kept free", "300 free", "50 could be", "rollback_target (400 bytes)"] {
            assert!(text.contains(part), "{text}: {part}");
        }
        let CacheFault::NoRoom(refused) = error else { panic!("{error}") };
        assert_eq!(refused.would_evict, [Sha256Digest([1; 32])]);
    }

    #[test]
    fn missing_inodes_are_freed_or_named() {
        let need = Room { bytes: 1, inodes: 11 };
        let models = [held(1, 0, spare())];
        let plan = admit(Path::new("/cache"), &DISK, KeepFree::default(), need, &models).unwrap();
        assert_eq!(plan.evict.len(), 1);
        let error = admit(Path::new("/cache"), &DISK, KeepFree::default(), need, &[]).unwrap_err();
        assert_eq!(error.code(), "inodes_full");
        let dynamic = Disk { free_inodes: None, ..DISK };
        assert_eq!(admit(Path::new("/cache"), &dynamic, KeepFree::default(), need, &[]).unwrap(), Plan::default());
    }

    #[test]
    fn a_cached_model_is_admitted_on_a_disk_that_is_too_full_and_read_only() {
        let full = Disk { free_bytes: 0, free_inodes: Some(0), read_only: true, ..DISK };
        assert_eq!(admit(Path::new("/c"), &full, KeepFree::default(), Room::NONE, &[]).unwrap(), Plan::default());
        assert_eq!(admit(Path::new("/c"), &full, KeepFree::default(), bytes(1), &[]).unwrap_err().code(), "read_only");
    }

    #[test]
    fn shares_are_rounded_up_and_bounded() {
        assert_eq!(KeepFree::Millipercent(10_000).bytes(1001), 101);
        assert_eq!(KeepFree::Millipercent(100_000).bytes(u64::MAX), u64::MAX);
        assert_eq!(KeepFree::Millipercent(100_001).bytes(10), 10);
        assert_eq!(KeepFree::Millipercent(0).bytes(10), 0);
        assert_eq!(DISK.room_of([0, 1, 10, 11]), Room { bytes: 40, inodes: 8 });
    }

    #[test]
    fn what_is_booked_is_given_back_once() {
        let bookings = Bookings::default();
        let first = bookings.book(Room { bytes: 100, inodes: 5 });
        let second = bookings.book(Room { bytes: 10, inodes: 1 });
        first.taken(Room { bytes: 60, inodes: 9 });
        assert_eq!(bookings.total(), Room { bytes: 50, inodes: 1 });
        first.taken(Room { bytes: 60, inodes: 9 });
        assert_eq!((first.left(), bookings.total()), (Room::NONE, Room { bytes: 10, inodes: 1 }));
        drop(first);
        assert_eq!(bookings.total(), Room { bytes: 10, inodes: 1 });
        drop(second);
        assert_eq!(bookings.total(), Room::NONE);
    }
}
