//! What a fetch does next: pure, without disk, store or clock.
//!
//! ```text
//! pending ── prepare ──┬─ chunks claimed by an earlier life ── check ──┬─ right ───────────┐
//!                      │                                              └─ wrong ─┐         ├─ all there ── seal ── done
//!                      └─ chunks missing ───────────────────────────────────── fetch ─────┘
//!                                                                    wrong bytes: fetch again, a bounded number of times
//! ```
//!
//! A file that is in the cache already is checked like any other claim: it may have been put there by another model
//! whose manifest lies about its chunks. Where it is wrong it is the start of a new file, of which only the wrong
//! chunks are fetched.

use std::collections::{BTreeMap, VecDeque};

/// How often one chunk may come with wrong bytes before it is given up.
pub(crate) const BAD_TRIES_MAX: u32 = 3;

/// Some chunks of a file in a row; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Span {
    pub(crate) const fn end(self) -> u32 {
        self.first + self.count
    }
}

/// One piece of work; files are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Open what there is of a file.
    Prepare(usize),
    /// Make a new file of a content file that is wrong, and open that.
    Replace(usize),
    /// Read chunks that are said to be on the disk.
    Check(usize, Span),
    /// Get chunks from the store.
    Fetch(usize, Span),
    /// Make a complete file durable and give it its name.
    Seal(usize),
}

/// What was found of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A content file, claimed to be right.
    Content,
    /// A file on its way, and which of its chunks are said to be there.
    Partial(Vec<bool>),
}

/// How much goes on at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Requests to the store.
    pub(crate) streams: usize,
    /// Readers of the disk.
    pub(crate) checkers: usize,
    /// Chunks of one request.
    pub(crate) range_chunks: u32,
}

impl Limits {
    const fn open_files(&self) -> usize {
        2 * self.streams
    }
}

/// A chunk that came with wrong bytes too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenUp {
    pub(crate) file: usize,
    pub(crate) chunk: u32,
}

#[derive(Debug, Default)]
struct File {
    chunks: u32,
    /// Chunks that are not proven yet.
    left: u32,
    /// It is a content file of the cache, and whether a chunk of it was wrong.
    content: Option<Wrong>,
    bad_tries: BTreeMap<u32, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    Something,
}

#[derive(Debug, Default)]
struct Running {
    prepares: usize,
    checks: usize,
    fetches: usize,
}

/// The state of a whole fetch.
#[derive(Debug)]
pub(crate) struct Plan {
    files: Vec<File>,
    pending: VecDeque<usize>,
    replaces: VecDeque<usize>,
    checks: VecDeque<(usize, Span)>,
    fetches: VecDeque<(usize, Span)>,
    seals: VecDeque<usize>,
    running: Running,
    open: usize,
    finished: usize,
    limits: Limits,
}

impl Plan {
    /// A plan for files of so many chunks each, in the order in which they are begun.
    pub(crate) fn new(chunks: impl IntoIterator<Item = u32>, limits: Limits) -> Self {
        let files: Vec<_> = chunks.into_iter().map(|chunks| File { chunks, left: chunks, ..File::default() }).collect();
        Self {
            pending: (0..files.len()).collect(),
            files,
            replaces: VecDeque::new(),
            checks: VecDeque::new(),
            fetches: VecDeque::new(),
            seals: VecDeque::new(),
            running: Running::default(),
            open: 0,
            finished: 0,
            limits,
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished == self.files.len()
    }

    /// The next piece of work that may begin now. Each has to be reported when it is done.
    pub(crate) fn next(&mut self) -> Option<Work> {
        if let Some(file) = self.seals.pop_front() {
            return Some(Work::Seal(file));
        }
        if self.running.checks < self.limits.checkers
            && let Some((file, span)) = self.checks.pop_front()
        {
            self.running.checks += 1;
            return Some(Work::Check(file, span));
        }
        if self.running.fetches < self.limits.streams
            && let Some((file, span)) = self.fetches.pop_front()
        {
            self.running.fetches += 1;
            return Some(Work::Fetch(file, span));
        }
        self.next_file()
    }

    /// A file is opened only when the streams have nothing else to do, so that few files are open at once.
    fn next_file(&mut self) -> Option<Work> {
        if self.running.prepares + self.running.fetches >= self.limits.streams || !self.fetches.is_empty() {
            return None;
        }
        let work = match self.replaces.pop_front() {
            Some(file) => Work::Replace(file),
            None if self.open >= self.limits.open_files() => return None,
            None => {
                let file = self.pending.pop_front()?;
                self.open += 1;
                Work::Prepare(file)
            }
        };
        self.running.prepares += 1;
        Some(work)
    }

    /// A file was opened.
    pub(crate) fn prepared(&mut self, file: usize, found: &Found) {
        self.running.prepares -= 1;
        let chunks = self.files[file].chunks;
        self.files[file].left = chunks;
        match found {
            Found::Content => {
                self.files[file].content = Some(Wrong::Nothing);
                self.queue_check(file, Span { first: 0, count: chunks });
            }
            Found::Partial(claimed) => {
                self.files[file].content = None;
                for (is_claimed, span) in runs(claimed, chunks) {
                    if is_claimed {
                        self.queue_check(file, span);
                    } else {
                        self.queue_fetch(file, span);
                    }
                }
            }
        }
        self.settle(file);
    }

    /// Chunks were read; `wrong` are those that are not right.
    pub(crate) fn checked(&mut self, file: usize, span: Span, wrong: &[u32]) {
        self.running.checks -= 1;
        self.files[file].left -= span.count;
        if self.files[file].content.is_some() {
            if !wrong.is_empty() {
                self.files[file].content = Some(Wrong::Something);
            }
        } else {
            self.files[file].left += wrong.len() as u32;
            wrong.iter().for_each(|chunk| self.fetches.push_back((file, Span { first: *chunk, count: 1 })));
        }
        self.settle(file);
    }

    /// All chunks of a request came; `wrong` are those whose bytes were not right.
    ///
    /// # Errors
    /// One of them was wrong for the last time.
    pub(crate) fn fetched(&mut self, file: usize, span: Span, wrong: &[u32]) -> Result<(), GivenUp> {
        self.running.fetches -= 1;
        self.files[file].left -= span.count - wrong.len() as u32;
        for chunk in wrong {
            let tries = self.files[file].bad_tries.entry(*chunk).or_default();
            *tries += 1;
            if *tries >= BAD_TRIES_MAX {
                return Err(GivenUp { file, chunk: *chunk });
            }
            self.fetches.push_back((file, Span { first: *chunk, count: 1 }));
        }
        self.settle(file);
        Ok(())
    }

    /// A file has its name.
    pub(crate) fn sealed(&mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        self.open -= 1;
        self.finished += 1;
    }

    fn settle(&mut self, file: usize) {
        let state = &self.files[file];
        match (state.left, state.content) {
            (0, None) => self.seals.push_back(file),
            (0, Some(Wrong::Nothing)) => self.finish(),
            (0, Some(Wrong::Something)) => self.replaces.push_back(file),
            _ => {}
        }
    }

    fn queue_check(&mut self, file: usize, span: Span) {
        self.checks.extend(pieces(span, self.limits.range_chunks).map(|piece| (file, piece)));
    }

    fn queue_fetch(&mut self, file: usize, span: Span) {
        self.fetches.extend(pieces(span, self.limits.range_chunks).map(|piece| (file, piece)));
    }
}

/// Cuts a span into pieces of at most `most` chunks.
fn pieces(span: Span, most: u32) -> impl Iterator<Item = Span> {
    let most = most.max(1);
    (0..span.count.div_ceil(most)).map(move |piece| {
        let first = span.first + piece * most;
        Span { first, count: most.min(span.end() - first) }
    })
}

/// Runs of equal claims over all chunks; what the list does not reach is not claimed.
fn runs(claimed: &[bool], chunks: u32) -> Vec<(bool, Span)> {
    let mut runs: Vec<(bool, Span)> = Vec::new();
    for chunk in 0..chunks {
        let is_claimed = claimed.get(chunk as usize).copied().unwrap_or(false);
        match runs.last_mut() {
            Some((same, span)) if *same == is_claimed => span.count += 1,
            _ => runs.push((is_claimed, Span { first: chunk, count: 1 })),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits { streams: 4, checkers: 2, range_chunks: 3 };

    #[test]
    fn missing_chunks_are_asked_for_in_ranges_of_whole_chunks_and_claimed_ones_are_read() {
        let mut plan = Plan::new([8], LIMITS);
        assert_eq!(plan.next(), Some(Work::Prepare(0)));
        let claimed = [false, true, false, false, false, false, false, false];
        plan.prepared(0, &Found::Partial(claimed.to_vec()));
        let work: Vec<_> = std::iter::from_fn(|| plan.next()).collect();
        let span = |first, count| Span { first, count };
        assert_eq!(
            work,
            [
                Work::Check(0, span(1, 1)),
                Work::Fetch(0, span(0, 1)),
                Work::Fetch(0, span(2, 3)),
                Work::Fetch(0, span(5, 3))
            ]
        );
    }

    #[test]
    fn a_chunk_that_comes_wrong_is_fetched_again_alone_and_given_up_at_the_bound() {
        let mut plan = Plan::new([3], LIMITS);
        plan.next();
        plan.prepared(0, &Found::Partial(vec![]));
        assert_eq!(plan.next(), Some(Work::Fetch(0, Span { first: 0, count: 3 })));
        plan.fetched(0, Span { first: 0, count: 3 }, &[1]).unwrap();
        for _ in 2..BAD_TRIES_MAX {
            assert_eq!(plan.next(), Some(Work::Fetch(0, Span { first: 1, count: 1 })));
            plan.fetched(0, Span { first: 1, count: 1 }, &[1]).unwrap();
        }
        plan.next();
        assert_eq!(plan.fetched(0, Span { first: 1, count: 1 }, &[1]), Err(GivenUp { file: 0, chunk: 1 }));
    }

    #[test]
    fn an_empty_file_is_sealed_at_once() {
        let mut plan = Plan::new([0], LIMITS);
        plan.next();
        plan.prepared(0, &Found::Partial(vec![]));
        assert_eq!(plan.next(), Some(Work::Seal(0)));
        plan.sealed();
        assert!(plan.is_finished());
    }

    #[test]
    fn a_thousand_small_files_are_not_open_all_at_once() {
        let mut plan = Plan::new(vec![1; 1000], LIMITS);
        let mut open = Vec::new();
        while let Some(work) = plan.next() {
            if let Work::Prepare(file) = work {
                plan.prepared(file, &Found::Content);
                open.push(file);
            }
        }
        assert_eq!(open.len(), LIMITS.open_files(), "the checks are not done");
    }

    /// A disk and a store that answer as told: `right` chunks are on the disk, `wrong_once` come wrong the first time.
    #[derive(Clone, Debug)]
    struct World {
        found: Option<Vec<bool>>,
        right: Vec<bool>,
        wrong_once: Vec<bool>,
    }

    fn world() -> impl Strategy<Value = World> {
        (0..20_usize).prop_flat_map(|chunks| {
            let bits = || prop::collection::vec(any::<bool>(), chunks);
            (prop::option::of(bits()), bits(), bits()).prop_map(|(found, right, wrong_once)| World {
                found,
                right,
                wrong_once,
            })
        })
    }

    fn span_wrong(span: Span, mut is_wrong: impl FnMut(usize) -> bool) -> Vec<u32> {
        (span.first..span.end()).filter(|chunk| is_wrong(*chunk as usize)).collect()
    }

    /// Does one piece of work and keeps the books of which chunks are proven.
    fn act(
        plan: &mut Plan,
        work: Work,
        worlds: &mut [World],
        proven: &mut [Vec<bool>],
        fetched: &mut Vec<(usize, u32)>,
    ) {
        match work {
            Work::Prepare(file) => {
                let found = worlds[file].found.clone().map_or(Found::Content, Found::Partial);
                plan.prepared(file, &found);
            }
            Work::Replace(file) => {
                proven[file].fill(false);
                plan.prepared(file, &Found::Partial(vec![true; worlds[file].right.len()]));
            }
            Work::Check(file, span) => {
                let wrong = span_wrong(span, |chunk| !worlds[file].right[chunk]);
                (span.first..span.end()).for_each(|chunk| proven[file][chunk as usize] |= !wrong.contains(&chunk));
                plan.checked(file, span, &wrong);
            }
            Work::Fetch(file, span) => {
                let once = &mut worlds[file].wrong_once;
                let wrong = span_wrong(span, |chunk| std::mem::take(&mut once[chunk]));
                for chunk in span.first..span.end() {
                    fetched.push((file, chunk));
                    if !wrong.contains(&chunk) {
                        assert!(!std::mem::replace(&mut proven[file][chunk as usize], true), "fetched though proven");
                    }
                }
                plan.fetched(file, span, &wrong).unwrap();
            }
            Work::Seal(file) => {
                assert!(proven[file].iter().all(|is| *is), "sealed with a hole");
                plan.sealed();
            }
        }
    }

    proptest! {
        #[test]
        fn in_any_order_of_completion_a_file_is_sealed_only_whole_and_nothing_proven_is_fetched(
            mut worlds in prop::collection::vec(world(), 0..8),
            order in prop::collection::vec(any::<prop::sample::Index>(), 400),
        ) {
            let before = worlds.clone();
            let mut plan = Plan::new(worlds.iter().map(|world| world.right.len() as u32), LIMITS);
            let mut proven: Vec<_> = worlds.iter().map(|world| vec![false; world.right.len()]).collect();
            let (mut running, mut fetched, mut order) = (Vec::new(), Vec::new(), order.into_iter().cycle());
            loop {
                running.extend(std::iter::from_fn(|| plan.next()));
                prop_assert!(running.iter().filter(|work| matches!(work, Work::Fetch(..))).count() <= LIMITS.streams);
                prop_assert!(running.iter().filter(|work| matches!(work, Work::Check(..))).count() <= LIMITS.checkers);
                if running.is_empty() {
                    break;
                }
                let work = running.swap_remove(order.next().unwrap().index(running.len()));
                act(&mut plan, work, &mut worlds, &mut proven, &mut fetched);
            }
            prop_assert!(plan.is_finished(), "it came to rest before the end");
            for (file, world) in before.iter().enumerate() {
                for chunk in 0..world.right.len() {
                    let is_there = world.right[chunk] && world.found.as_ref().is_none_or(|claimed| claimed[chunk]);
                    let tries = fetched.iter().filter(|one| **one == (file, chunk as u32)).count();
                    let expected = if is_there { 0 } else { 1 + usize::from(world.wrong_once[chunk]) };
                    prop_assert_eq!(tries, expected);
                }
            }
        }
    }
}
