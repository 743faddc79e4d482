//! Entry point for a fuzz target and for the test that runs its corpus: takes any bytes, holds what has to hold for
//! every input, and panics only when it does not. Not for use in the gate.
#![expect(clippy::panic, reason = "a broken invariant is what a fuzz target has to report")]

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{AliasName, KeyId, Level, Limits, Monotonic, RequestId, Unix};

use crate::limiter::{Admitted, Demand, MemoryCounters, Rules, SubjectKey, Subjects, WINDOW};

/// Panics when an invariant does not hold.
#[track_caller]
fn hold(holds: bool, what: &str) {
    if !holds {
        panic!("{what}");
    }
}

/// One admission, in the exact log that the limiter is compared with.
#[derive(Clone, Copy)]
struct Logged {
    at: Monotonic,
    tokens: u64,
    settled: bool,
    released: bool,
}

struct Run {
    counters: MemoryCounters,
    subjects: Arc<Subjects>,
    limits: Limits,
    now: Monotonic,
    wall: Unix,
    log: Vec<(Admitted, Logged)>,
}

/// The limiter's conservation: four bytes of limits, then pairs of an operation and its amount, against an exact log.
/// No window of 60 s, no instant and no day holds more than its limit, and nothing is lost at the end.
pub fn limiter(data: &[u8]) {
    let Some((limits, operations)) = data.split_at_checked(4) else { return };
    let limit = |byte: u8, scale: u64| (byte != 255).then(|| u64::from(byte) * scale);
    let mut run = Run::new(Limits {
        rpm: limit(limits[0], 1),
        tpm: limit(limits[1], 50),
        concurrency: limit(limits[2], 1),
        daily_tokens: limit(limits[3], 200),
        monthly_tokens: None,
    });
    for (serial, operation) in operations.chunks_exact(2).enumerate() {
        let (which, amount) = (operation[0], u64::from(operation[1]));
        match which % 5 {
            0 => run.now = run.now.after(Duration::from_millis(amount * 40)),
            1 => run.now = run.now.after(Duration::from_millis(amount * 400)),
            2 => run.admit(serial as u128, amount * 4),
            3 => run.settle(usize::from(which), amount),
            _ => run.release(usize::from(operation[1])),
        }
    }
    run.finish();
}

impl Run {
    fn new(limits: Limits) -> Self {
        let (counters, now, wall) =
            (MemoryCounters::new(), Monotonic::from_ms(100_000), Unix::from_ms(1_781_524_800_000));
        let wanted = [
            (SubjectKey::alias(&AliasName::from("a")), Rules { limits, ..Rules::default() }),
            (SubjectKey::key(&KeyId::from("k")), Rules::default()),
        ];
        let subjects = counters.subjects_now(&wanted, now, wall).unwrap_or_default();
        Self { counters, subjects, limits, now, wall, log: Vec::new() }
    }

    fn admit(&mut self, serial: u128, tokens: u64) {
        let demand = Demand { subjects: &self.subjects, tokens, now: self.now, wall: self.wall };
        let Ok(admitted) = self.counters.admit_now(RequestId::new(0, serial), demand) else { return };
        self.log.push((admitted, Logged { at: self.now, tokens, settled: false, released: false }));
        let inside = self.log.iter().map(|(_, one)| one).filter(|one| self.now.since(one.at) < WINDOW);
        let (requests, tokens) = inside.fold((0, 0), |(requests, sum), one| (requests + 1, sum + one.tokens));
        let running = self.log.iter().filter(|(_, one)| !one.released).count() as u64;
        let charged: u64 = self.log.iter().map(|(_, one)| one.tokens).sum();
        let within = |limit: Option<u64>, found: u64| limit.is_none_or(|limit| found <= limit);
        hold(within(self.limits.rpm, requests), "requests of a window are within the limit");
        hold(within(self.limits.tpm, tokens), "tokens of a window are within the limit");
        hold(within(self.limits.concurrency, running), "requests in flight are within the limit");
        hold(within(self.limits.daily_tokens, charged), "tokens of a day are within the quota");
    }

    fn settle(&mut self, which: usize, amount: u64) {
        let Some(index) = which.checked_rem(self.log.len()) else { return };
        let (admitted, logged) = &mut self.log[index];
        let used = amount.min(admitted.tokens());
        self.counters.settle_now(admitted, used);
        if !logged.settled {
            (logged.tokens, logged.settled) = (used, true);
        }
    }

    fn release(&mut self, which: usize) {
        let Some(index) = which.checked_rem(self.log.len()) else { return };
        let (admitted, logged) = &mut self.log[index];
        self.counters.release_now(admitted);
        logged.released = true;
    }

    fn finish(mut self) {
        for index in 0..self.log.len() {
            self.release(index);
            self.settle(index, 1);
        }
        let charged: u64 = self.log.iter().map(|(_, one)| one.tokens).sum();
        hold(self.counters.live() == 0, "nothing is live at the end");
        for level in [Level::Alias, Level::Key] {
            let Some(subject) = self.subjects.at(level) else { continue };
            let counts = subject.counts(self.now.after(WINDOW), self.wall);
            hold((counts.requests, counts.tokens, counts.in_flight) == (0, 0, 0), "windows and slots are empty");
            hold(counts.daily_tokens == charged && counts.monthly_tokens == charged, "what was charged is kept");
        }
    }
}
