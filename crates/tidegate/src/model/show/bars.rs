//! Progress for people at a terminal: one bar for the whole, one for each file that moves, a line for trouble.

use std::collections::BTreeMap;
use std::time::Instant;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidegate_modelcache::progress::Event;

use super::tally::{Tally, notice};
use crate::model::units;

/// How many files have a bar; with the bar of the whole and the line for trouble that makes eight lines.
const FILES_MAX: usize = 6;
/// How often the terminal is drawn at most, per second.
const DRAWS_PER_S: u8 = 10;
/// Columns of a file's name.
const NAME_COLUMNS: usize = 28;

/// The bars.
#[derive(Debug)]
pub(crate) struct Bars {
    tally: Tally,
    bars: MultiProgress,
    whole: ProgressBar,
    files: BTreeMap<String, ProgressBar>,
    trouble: Option<ProgressBar>,
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("━╸─")
}

impl Bars {
    pub(crate) fn new(tally: Tally) -> Self {
        Self::on(ProgressDrawTarget::stderr_with_hz(DRAWS_PER_S), tally)
    }

    fn on(target: ProgressDrawTarget, tally: Tally) -> Self {
        let bars = MultiProgress::with_draw_target(target);
        let whole = bars.add(ProgressBar::new(tally.whole.total));
        whole.set_style(style("{prefix} {wide_bar} {percent:>3} % {msg}"));
        Self { tally, bars, whole, files: BTreeMap::new(), trouble: None }
    }

    pub(crate) fn event(&mut self, event: &Event, now: Instant) {
        if self.tally.take(event, now) {
            self.whole.set_prefix(self.tally.title());
            self.whole.set_length(self.tally.whole.total);
            self.whole.set_position(self.tally.whole.bytes);
            self.whole.set_message(format!("of {}, {}", units::bytes(self.tally.whole.total), self.tally.speed()));
        }
        match event {
            Event::Progress { file, bytes, total, .. } | Event::Hashing { file, bytes, total } => {
                self.file(file, *bytes, *total);
            }
            Event::FileDone { file, .. } => self.done(file),
            // What was read is now sent: the files begin anew.
            Event::Resolved { .. } => self.clear_files(),
            Event::ChunkBad { .. } | Event::Retry { .. } => self.trouble(event),
            Event::FileStarted { .. } | Event::Published { .. } | Event::Failed { .. } | Event::Missed { .. } => {}
        }
    }

    fn file(&mut self, file: &str, bytes: u64, total: u64) {
        if bytes >= total {
            return self.done(file);
        }
        if !self.files.contains_key(file) && self.files.len() < FILES_MAX {
            let bar = ProgressBar::new(total);
            bar.set_style(style("  {prefix} {wide_bar} {percent:>3} % {msg}"));
            bar.set_prefix(shortened(file));
            bar.set_message(format!("of {}", units::bytes(total)));
            self.files.insert(file.to_owned(), self.bars.insert_after(&self.whole, bar));
        }
        if let Some(bar) = self.files.get(file) {
            bar.set_position(bytes);
        }
    }

    fn done(&mut self, file: &str) {
        if let Some(bar) = self.files.remove(file) {
            self.remove(&bar);
        }
    }

    fn clear_files(&mut self) {
        for bar in std::mem::take(&mut self.files).into_values() {
            self.remove(&bar);
        }
    }

    fn remove(&self, bar: &ProgressBar) {
        bar.finish_and_clear();
        self.bars.remove(bar);
    }

    fn trouble(&mut self, event: &Event) {
        let Some(text) = notice(event) else { return };
        let bars = &self.bars;
        let line = self.trouble.get_or_insert_with(|| {
            let line = bars.add(ProgressBar::new_spinner());
            line.set_style(style("  {wide_msg}"));
            line
        });
        line.set_message(text);
    }

    /// Takes everything away again: the answer says how it ended.
    pub(crate) fn end(&mut self) {
        self.clear_files();
        if let Some(line) = self.trouble.take() {
            self.remove(&line);
        }
        self.whole.finish_and_clear();
    }

    #[cfg(test)]
    fn lines(&self) -> usize {
        1 + self.files.len() + usize::from(self.trouble.is_some())
    }
}

/// A path in [`NAME_COLUMNS`]: its end says more than its beginning.
fn shortened(path: &str) -> String {
    let letters: Vec<char> = path.chars().collect();
    match letters.len().checked_sub(NAME_COLUMNS) {
        Some(over) if over > 0 => std::iter::once('…').chain(letters.into_iter().skip(over + 1)).collect(),
        Some(_) | None => format!("{path:<NAME_COLUMNS$}"),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_modelcache::progress::Place;

    use super::super::tally::Doing;
    use super::*;

    #[test]
    fn however_many_files_move_there_are_eight_lines() {
        let mut bars = Bars::on(ProgressDrawTarget::hidden(), Tally::new(Doing::Pulling, "glm/5", 0));
        let now = Instant::now();
        let progress = |file: usize, bytes| Event::Progress {
            file: format!("weights/{file}"),
            bytes,
            total: 100,
            fetched_total: bytes,
            model_total: 10_000,
            rate_bytes_per_s: 1,
            left_ms: None,
        };
        bars.event(&Event::ChunkBad { file: "weights/1".into(), chunk: 0, place: Place::Store }, now);
        for file in 0..100 {
            bars.event(&progress(file, 50), now);
            assert!(bars.lines() <= 8);
        }
        assert_eq!(bars.lines(), 8);
        for file in 0..100 {
            bars.event(&progress(file, 100), now);
            bars.event(&Event::FileDone { file: format!("weights/{file}"), bytes: 100 }, now);
        }
        assert_eq!(bars.lines(), 2);
        assert_eq!(bars.whole.position(), 100);
        bars.end();
        assert!(bars.whole.is_finished());
    }

    #[test]
    fn a_long_path_shows_its_end() {
        assert_eq!(shortened("weights/a"), format!("{:<28}", "weights/a"));
        let long = shortened("weights/a-very-long-folder/model-00001-of-00064.safetensors");
        assert_eq!((long.chars().count(), long.ends_with("-of-00064.safetensors")), (NAME_COLUMNS, true));
    }
}
