//! The 60-second window of one subject: requests and tokens admitted in `(now − 60 s, now]`, never too few.
//!
//! ```text
//!   buckets of 250 ms, oldest first            the newest 64 admissions, exact
//!   [12 | 9k] [11 | 8k] … [3 | 2k]     <─fold─  •  •  •  •  •  •
//!   each counts whole until its last          each counts until its own instant
//!   instant has left the window                has left the window
//! ```
//!
//! Why not a rate (GCRA): it admits burst + rate × 60 s in some window, so that keeping the promise starves a steady
//! caller. Why not buckets alone: at ten a minute they refuse one in ten. Why not exact instants alone: a limit of
//! thousands a minute would need thousands of them.
//!
//! Memory: at most [`EXACT_MAX`] × 24 + [`BUCKETS_MAX`] × 32 bytes, about 9.3 KB; nothing when idle.

use std::collections::VecDeque;
use std::time::Duration;

use tidegate_core::Monotonic;

/// Length of the window.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Width of the buckets into which older admissions fold.
pub const BUCKET: Duration = Duration::from_millis(250);
/// Newest admissions kept with their exact instants.
pub const EXACT_MAX: usize = 64;
/// Buckets that a window can touch: 240 whole ones and two in part.
pub const BUCKETS_MAX: usize = 242;

const WINDOW_NS: u64 = WINDOW.as_nanos() as u64;
const BUCKET_NS: u64 = BUCKET.as_nanos() as u64;

/// Where one admission stands, so that its refund finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    sequence: u64,
    at_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exact {
    at_ns: u64,
    tokens: u64,
    /// 1, or 0 for an admission that took over another's place in the count.
    requests: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    index: u64,
    /// Latest instant folded into it: the bucket counts until this one leaves the window.
    last_ns: u64,
    tokens: u64,
    requests: u64,
}

/// What one window holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    buckets: VecDeque<Bucket>,
    exact: VecDeque<Exact>,
    /// Sequence number of the front of `exact`.
    first_sequence: u64,
    requests: u64,
    tokens: u64,
    /// Latest instant seen. Time never moves backwards in here, whatever the clock does.
    newest_ns: u64,
}

/// Which of the window's sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    Requests,
    Tokens,
}

impl Window {
    /// Moves to `now`, or stays where it is if that is earlier, and lets go of what has left. Returns where it is.
    pub(crate) fn advance(&mut self, now: Monotonic) -> u64 {
        self.newest_ns = self.newest_ns.max(now.ns);
        let now_ns = self.newest_ns;
        while let Some(bucket) = self.buckets.front().filter(|bucket| left(bucket.last_ns, now_ns)) {
            self.requests -= bucket.requests;
            self.tokens = self.tokens.saturating_sub(bucket.tokens);
            self.buckets.pop_front();
        }
        if self.buckets.is_empty() {
            while let Some(exact) = self.exact.front().filter(|exact| left(exact.at_ns, now_ns)) {
                self.requests -= exact.requests;
                self.tokens = self.tokens.saturating_sub(exact.tokens);
                self.exact.pop_front();
                self.first_sequence += 1;
            }
        }
        now_ns
    }

    /// Takes an admission in at the instant of the last [`Window::advance`].
    pub(crate) fn take(&mut self, requests: u64, tokens: u64) -> Slot {
        self.put(self.newest_ns, requests, tokens)
    }

    /// Takes in what was admitted at `at`, before a restart. Later than the newest admission or clamped to it.
    pub(crate) fn restore(&mut self, at: Monotonic, requests: u64, tokens: u64) {
        let last = self.last_ns().unwrap_or(0);
        self.put(at.ns.max(last), requests, tokens);
        self.newest_ns = self.newest_ns.max(at.ns);
    }

    fn put(&mut self, at_ns: u64, requests: u64, tokens: u64) -> Slot {
        if self.exact.len() >= EXACT_MAX {
            self.fold();
        }
        let sequence = self.first_sequence + self.exact.len() as u64;
        self.exact.push_back(Exact { at_ns, tokens, requests });
        self.requests += requests;
        self.tokens = self.tokens.saturating_add(tokens);
        Slot { sequence, at_ns }
    }

    fn fold(&mut self) {
        let Some(exact) = self.exact.pop_front() else { return };
        self.first_sequence += 1;
        let index = exact.at_ns / BUCKET_NS;
        match self.buckets.back_mut().filter(|bucket| bucket.index == index) {
            Some(bucket) => {
                bucket.last_ns = exact.at_ns;
                bucket.tokens = bucket.tokens.saturating_add(exact.tokens);
                bucket.requests += exact.requests;
            }
            None => self.buckets.push_back(Bucket {
                index,
                last_ns: exact.at_ns,
                tokens: exact.tokens,
                requests: exact.requests,
            }),
        }
    }

    /// Replaces what an admission reserved by what it used, in its own place; nothing happens once that place has left
    /// the window. Never below zero.
    pub(crate) fn settle(&mut self, slot: Slot, reserved: u64, used: u64) {
        let Some(tokens) = self.place(slot) else { return };
        let before = *tokens;
        let after = before.saturating_sub(reserved).saturating_add(used);
        *tokens = after;
        self.tokens = self.tokens.saturating_sub(before).saturating_add(after);
    }

    /// Whether an admission still counts.
    pub(crate) fn holds(&mut self, slot: Slot) -> bool {
        self.place(slot).is_some()
    }

    fn place(&mut self, slot: Slot) -> Option<&mut u64> {
        if let Some(index) = slot.sequence.checked_sub(self.first_sequence) {
            return self.exact.get_mut(index as usize).map(|exact| &mut exact.tokens);
        }
        let at = self.buckets.binary_search_by_key(&(slot.at_ns / BUCKET_NS), |bucket| bucket.index).ok()?;
        self.buckets.get_mut(at).map(|bucket| &mut bucket.tokens)
    }

    pub(crate) fn sum(&self, which: Sum) -> u64 {
        match which {
            Sum::Requests => self.requests,
            Sum::Tokens => self.tokens,
        }
    }

    /// How long from the last [`Window::advance`] until the sum has fallen to `target` if nothing else is admitted.
    pub(crate) fn wait_until(&self, which: Sum, target: u64) -> Duration {
        let mut sum = self.sum(which);
        let buckets = self.buckets.iter().map(|b| (b.last_ns, b.requests, b.tokens));
        let exact = self.exact.iter().map(|e| (e.at_ns, e.requests, e.tokens));
        for (at_ns, requests, tokens) in buckets.chain(exact) {
            if sum <= target {
                break;
            }
            sum = sum.saturating_sub(match which {
                Sum::Requests => requests,
                Sum::Tokens => tokens,
            });
            if sum <= target {
                return Duration::from_nanos(at_ns.saturating_add(WINDOW_NS).saturating_sub(self.newest_ns));
            }
        }
        Duration::ZERO
    }

    /// How long until everything that counts now has left: after that the whole limit is there again.
    pub(crate) fn reset(&self) -> Duration {
        let last = self.last_ns().map_or(0, |last| last.saturating_add(WINDOW_NS));
        Duration::from_nanos(last.saturating_sub(self.newest_ns))
    }

    fn last_ns(&self) -> Option<u64> {
        self.exact.back().map(|exact| exact.at_ns)
    }

    /// Whether nothing counts; then its memory is given back.
    pub(crate) fn rest(&mut self, now: Monotonic) -> bool {
        self.advance(now);
        let empty = self.exact.is_empty() && self.buckets.is_empty();
        if empty {
            self.exact.shrink_to_fit();
            self.buckets.shrink_to_fit();
        }
        empty
    }
}

fn left(at_ns: u64, now_ns: u64) -> bool {
    at_ns.saturating_add(WINDOW_NS) <= now_ns
}
