//! Progress for logs: a line at the beginning, one every few seconds, and what went wrong.

use std::time::{Duration, Instant};

use tidegate_modelcache::progress::Event;

use super::tally::{Tally, notice};
use crate::model::units;

/// The shortest time between two lines of progress, and between two of retries.
pub(crate) const LINE_EVERY: Duration = Duration::from_secs(5);
/// How many wrong chunks have a line of their own; `verify` lists them all at its end.
const CHUNKS_SAID_MAX: u64 = 20;

/// Turns events into lines.
#[derive(Debug)]
pub(crate) struct Lines {
    tally: Tally,
    progress: Option<Instant>,
    retry: Option<Instant>,
    chunks: u64,
}

impl Lines {
    pub(crate) const fn new(tally: Tally) -> Self {
        Self { tally, progress: None, retry: None, chunks: 0 }
    }

    pub(crate) fn event(&mut self, event: &Event, now: Instant) -> Vec<String> {
        let changed = self.tally.take(event, now);
        match event {
            Event::Resolved { model, digest, files, bytes, cached_bytes } => {
                self.progress = Some(now);
                let missing = units::bytes(bytes.saturating_sub(*cached_bytes));
                vec![format!(
                    "{model}: sha256-{}…, {}, {}, of which {missing} to move",
                    digest.get(..12).unwrap_or(digest),
                    units::count(*files, "file"),
                    units::bytes(*bytes),
                )]
            }
            Event::ChunkBad { .. } => {
                self.chunks += 1;
                if self.chunks <= CHUNKS_SAID_MAX { notice(event).into_iter().collect() } else { Vec::new() }
            }
            Event::Retry { .. } if due(&mut self.retry, now) => notice(event).into_iter().collect(),
            _ if changed && self.progress.is_none() => {
                self.progress = Some(now);
                Vec::new()
            }
            _ if changed && due(&mut self.progress, now) => vec![self.tally.line()],
            _ => Vec::new(),
        }
    }
}

/// Whether [`LINE_EVERY`] has passed since the last time that this said so.
pub(crate) fn due(last: &mut Option<Instant>, now: Instant) -> bool {
    let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= LINE_EVERY);
    if is_due {
        *last = Some(now);
    }
    is_due
}

#[cfg(test)]
mod tests {
    use tidegate_modelcache::progress::Place;

    use super::super::tally::Doing;
    use super::*;

    fn progress(done: u64) -> Event {
        Event::Progress {
            file: "weights/a".into(),
            bytes: done,
            total: 1_000_000,
            fetched_total: done,
            model_total: 1_000_000,
            rate_bytes_per_s: 200_000,
            left_ms: Some((1_000_000 - done) / 200),
        }
    }

    #[test]
    fn a_log_gets_a_line_every_few_seconds_and_not_one_for_each_event() {
        let mut lines = Lines::new(Tally::new(Doing::Pulling, "glm/5", 0));
        let start = Instant::now();
        let resolved = Event::Resolved {
            model: "glm/5".into(),
            digest: "ab".repeat(32),
            files: 1,
            bytes: 1_000_000,
            cached_bytes: 250_000,
        };
        let said = lines.event(&resolved, start);
        assert_eq!(said, ["glm/5: sha256-abababababab…, 1 file, 1.0 MB, of which 750 kB to move"]);
        let mut said = Vec::new();
        for tenth in 1..=100 {
            said.extend(lines.event(&progress(tenth * 10_000), start + Duration::from_millis(tenth * 100)));
        }
        assert_eq!(
            said,
            [
                "pulling glm/5: 50.0 % of 1.0 MB, 200 kB/s, 2 s left",
                "pulling glm/5: 100.0 % of 1.0 MB, 200 kB/s, 0 s left",
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_said_at_once_but_not_for_ever() {
        let mut lines = Lines::new(Tally::new(Doing::Verifying, "glm/5", 10));
        let start = Instant::now();
        let bad = |chunk| Event::ChunkBad { file: "weights/a".into(), chunk, place: Place::Disk };
        let said: Vec<_> = (0..1_000).flat_map(|chunk| lines.event(&bad(chunk), start)).collect();
        assert_eq!(said.len() as u64, CHUNKS_SAID_MAX);
        assert_eq!(said[7], "wrong bytes on the disk: weights/a, chunk 7");
        let retry = Event::Retry { file: None, fault: "connect".into(), attempt: 2, after_ms: 1_250 };
        let said: Vec<_> = (0..100).flat_map(|_| lines.event(&retry, start)).collect();
        assert_eq!(said, ["connect: the manifest again in 1.2 s (try 2)"]);
    }
}
