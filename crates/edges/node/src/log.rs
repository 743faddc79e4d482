//! Logs of engines: read in parts, kept within bounds.
//!
//! The engine writes to one file for its whole life, appending, and nobody can make it open another. What is too old is
//! taken out of the middle of the file as a hole: the disk gets its blocks back, offsets stay what they were, and no line
//! that is being written is lost. The beginning is kept, since it has the boot in it and its first exception.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom as StdFrom};
use std::path::Path;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstat, seek};
use rustix::io::Errno;

use crate::report::LogPart;
use crate::seam::LOG_PART_MAX;

/// Unit of what a file system can take out.
const BLOCK: u64 = 4_096;

/// How much of a log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// Bytes of its beginning.
    pub head_bytes: u64,
    /// Bytes of its end.
    pub tail_bytes: u64,
}

impl Default for LogBounds {
    fn default() -> Self {
        Self { head_bytes: 4 * 1024 * 1024, tail_bytes: 64 * 1024 * 1024 }
    }
}

/// Takes out of a log what is beyond its bounds, when that has become a quarter of what is kept. Where the file system
/// cannot make holes the log is emptied when it is twice as long as what is kept.
pub(crate) fn trim(path: &Path, bounds: LogBounds) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let stat = fstat(&file)?;
    let length = u64::try_from(stat.st_size).unwrap_or(0);
    let kept = bounds.head_bytes.saturating_add(bounds.tail_bytes);
    // In units of 512 bytes.
    let on_disk = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    if on_disk <= kept.saturating_add(kept / 4) || length <= kept {
        return Ok(());
    }
    let from = bounds.head_bytes.next_multiple_of(BLOCK);
    let to = (length - bounds.tail_bytes) / BLOCK * BLOCK;
    if to <= from {
        return Ok(());
    }
    match fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, to - from) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) if length > kept.saturating_mul(2) => file.set_len(0),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A part of a log. Where nothing is kept any more, the part begins later; where a log was emptied, at its beginning.
pub(crate) fn part(path: &Path, from: u64, bytes_max: u32) -> io::Result<LogPart> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(LogPart { from: 0, text: String::new(), next: 0, log_bytes: 0 });
        }
        Err(error) => return Err(error),
    };
    let log_bytes = file.metadata()?.len();
    let from = if from > log_bytes { 0 } else { from };
    let from = match seek(&file, SeekFrom::Data(from)) {
        Ok(at) => at,
        // Behind the last byte, or a file system that knows no holes.
        Err(_) => from,
    };
    file.seek(StdFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(u64::from(bytes_max.min(LOG_PART_MAX))).read_to_end(&mut bytes)?;
    let whole = whole_characters(&bytes);
    let next = from + whole as u64;
    Ok(LogPart { from, text: String::from_utf8_lossy(&bytes[..whole]).into_owned(), next, log_bytes })
}

/// How many bytes to take so that no character is cut at the end: all of them, unless more may follow its beginning.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        Ok(_) | Err(_) => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_long_log_loses_its_middle_and_keeps_its_offsets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let bounds = LogBounds { head_bytes: 8 * BLOCK, tail_bytes: 16 * BLOCK };
        let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let line = |number: usize| format!("{number:015}\n");
        let lines = 64 * BLOCK as usize / 16;
        for number in 0..lines {
            file.write_all(line(number).as_bytes()).unwrap();
        }
        trim(&path, bounds).unwrap();
        file.write_all(b"after\n").unwrap();
        let stat = fstat(&file).unwrap();
        assert_eq!(stat.st_size.cast_unsigned(), 64 * BLOCK + 6);
        assert!(stat.st_blocks.cast_unsigned() * 512 <= (8 + 16 + 2) * BLOCK, "{} blocks", stat.st_blocks);
        let first = part(&path, 0, 16).unwrap();
        assert_eq!((first.text, first.next, first.log_bytes), (line(0), 16, 64 * BLOCK + 6));
        let later = part(&path, 9 * BLOCK, 16).unwrap();
        assert_eq!((later.from, later.text), (48 * BLOCK, line(48 * BLOCK as usize / 16)));
        let last = part(&path, 64 * BLOCK, 100).unwrap();
        assert_eq!((last.text.as_str(), last.next), ("after\n", last.log_bytes));
        // Within its bounds nothing is touched.
        trim(&path, bounds).unwrap();
        assert_eq!(part(&path, 48 * BLOCK, 16).unwrap().from, 48 * BLOCK);
    }

    #[test]
    fn a_part_cuts_no_character_and_asks_for_no_more_than_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        assert_eq!(part(&path, 7, 10).unwrap().next, 0, "no log yet");
        std::fs::write(&path, "aé\u{20ac}b").unwrap();
        let text = |from, max| {
            let part = part(&path, from, max).unwrap();
            (part.text, part.next)
        };
        assert_eq!(text(0, 2), ("a".to_owned(), 1));
        assert_eq!(text(1, 2), ("é".to_owned(), 3));
        assert_eq!(text(3, u32::MAX), ("€b".to_owned(), 7));
        assert_eq!(text(7, 10), (String::new(), 7));
        assert_eq!(text(8, 2), ("a".to_owned(), 1), "a log that was emptied begins anew");
        std::fs::write(&path, [b'a', 0xff, b'b']).unwrap();
        assert_eq!(text(0, 10), ("a\u{fffd}b".to_owned(), 3));
        let long = vec![b'x'; LOG_PART_MAX as usize + 1];
        std::fs::write(&path, &long).unwrap();
        assert_eq!(text(0, u32::MAX).1, u64::from(LOG_PART_MAX));
    }
}
