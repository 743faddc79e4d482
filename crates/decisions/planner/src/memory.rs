//! GPU memory: what a deployment books, the flag its engine gets, and how full a GPU may be.
//!
//! A budget is for the whole replica; each GPU has its share. The engine is told its part of it (weights, KV cache and
//! workspace) as a fraction of the GPU's memory, rounded up to a hundredth; what is booked is the larger of share and
//! fraction. All arithmetic is in whole bytes, so that 90 % is 90 %.

use std::fmt;

use tidegate_config::site::MemoryBudget;

/// What an engine takes when nobody says anything.
pub const FLAG_DEFAULT: Hundredths = Hundredths(90);
/// Below this share of a GPU, in percent, memory is reported as unused.
pub const UNUSED_BELOW: u64 = 70;
/// Up to this share of a GPU, in percent, nothing is said.
pub const FINE_TO: u64 = 80;
/// Up to here there is a notice, beyond it a warning.
pub const NOTICE_TO: u64 = 85;
/// Beyond this share of a GPU, in percent, a plan is refused.
pub const REFUSED_ABOVE: u64 = 90;
/// The same for a sleeper's residue beside a new engine.
pub const REFUSED_ABOVE_ASLEEP: u64 = 97;
/// What a sleeper is taken to keep of each GPU until it has been measured, in bytes.
pub const RESIDUE_DEFAULT: u64 = 4_000_000_000;
/// How far a document's figure may be from the measured one, in percent.
const FACTS_PERCENT: u64 = 3;

/// A fraction in hundredths: the engine's memory flag. Printed as `0.33`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hundredths(pub u32);

impl Hundredths {
    /// Reads `0.9`, `.9`, `0.905` (rounded up) or `1`; `None` for anything else or outside 0 to 1.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if (whole.is_empty() && fraction.is_empty()) || !is_digits(whole) || !is_digits(fraction) {
            return None;
        }
        let whole: u32 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let mut digits = fraction.bytes().map(|byte| u32::from(byte - b'0'));
        let (tens, ones) = (digits.next().unwrap_or(0), digits.next().unwrap_or(0));
        let rest = u32::from(digits.any(|digit| digit > 0));
        let value = whole.checked_mul(100)?.checked_add(tens * 10 + ones + rest)?;
        (value <= 100).then_some(Self(value))
    }
}

impl fmt::Display for Hundredths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// What is known of the memory that a replica takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Footprint {
    /// A budget over the whole replica.
    Budget(MemoryBudget),
    /// None: its engine takes this fraction of each GPU, whatever it needs.
    Flag(Hundredths),
}

/// All parts of a budget, in bytes.
#[must_use]
pub const fn total(budget: &MemoryBudget) -> u64 {
    engine_part(budget).saturating_add(budget.reserve)
}

/// What the engine may take of a budget, in bytes: everything but the reserve.
#[must_use]
pub const fn engine_part(budget: &MemoryBudget) -> u64 {
    budget.weights.saturating_add(budget.kv_cache).saturating_add(budget.workspace)
}

/// One GPU's share of a budget, in bytes, rounded up; `gpus` is never 0.
#[must_use]
pub const fn share(budget: &MemoryBudget, gpus: u32) -> u64 {
    total(budget).div_ceil(if gpus == 0 { 1 } else { gpus as u64 })
}

/// The engine's memory flag for a budget on `gpus` GPUs of `gpu_memory` bytes each, rounded up. Over 1.00 when it does
/// not fit.
#[must_use]
pub fn flag(budget: &MemoryBudget, gpus: u32, gpu_memory: u64) -> Hundredths {
    let all = u128::from(gpu_memory) * u128::from(gpus);
    let hundredths = (u128::from(engine_part(budget)) * 100).div_ceil(all.max(1));
    Hundredths(u32::try_from(hundredths).unwrap_or(u32::MAX))
}

/// Bytes that a replica books on each of its GPUs: the larger of share and flag × memory.
#[must_use]
pub fn booked(footprint: &Footprint, gpus: u32, gpu_memory: u64) -> u64 {
    let of = |flag: Hundredths| {
        let bytes = u128::from(gpu_memory) * u128::from(flag.0) / 100;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    };
    match footprint {
        Footprint::Budget(budget) => share(budget, gpus).max(of(flag(budget, gpus, gpu_memory))),
        Footprint::Flag(flag) => of(*flag),
    }
}

/// How full a GPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Band {
    /// Below 70 %: some is unused.
    Unused,
    /// To 80 %.
    Fine,
    /// 80 to 85 %.
    Notice,
    /// 85 to 90 %.
    Warning,
    /// Above 90 %.
    Refused,
}

/// The band of the sum of all residents of a GPU.
#[must_use]
pub fn band(booked: u64, gpu_memory: u64) -> Band {
    if !fits(booked, gpu_memory, REFUSED_ABOVE) {
        Band::Refused
    } else if !fits(booked, gpu_memory, NOTICE_TO) {
        Band::Warning
    } else if !fits(booked, gpu_memory, FINE_TO) {
        Band::Notice
    } else if u128::from(booked) * 100 >= u128::from(gpu_memory) * u128::from(UNUSED_BELOW) {
        Band::Fine
    } else {
        Band::Unused
    }
}

/// Whether `booked` bytes are at most that many percent of a GPU.
#[must_use]
pub fn fits(booked: u64, gpu_memory: u64, percent: u64) -> bool {
    u128::from(booked) * 100 <= u128::from(gpu_memory) * u128::from(percent)
}

/// A share of a GPU for people: `34.7 %`.
#[must_use]
pub fn percent(booked: u64, gpu_memory: u64) -> String {
    let permille = (u128::from(booked) * 1_000 + u128::from(gpu_memory) / 2) / u128::from(gpu_memory.max(1));
    format!("{}.{} %", permille / 10, permille % 10)
}

/// Bytes in GB for people: `87.5 GB`, `288 GB`.
#[must_use]
pub fn gigabytes(bytes: u64) -> String {
    tenths(bytes, 1_000_000_000, "GB")
}

/// Bytes in GiB for people: `268.2 GiB`.
#[must_use]
pub fn gibibytes(bytes: u64) -> String {
    tenths(bytes, 1 << 30, "GiB")
}

fn tenths(bytes: u64, unit: u64, name: &str) -> String {
    let tenths = (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
    if tenths.is_multiple_of(10) {
        format!("{} {name}", tenths / 10)
    } else {
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    }
}

/// How a document's figure for a GPU's memory compares with the measured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Within 3 %.
    Agrees,
    /// Not, but the document's number read as GiB is: GB was written for GiB.
    AgreesAsGib,
    /// Not at all.
    Differs,
}

/// Compares the document's memory of a GPU with the measured one, both in bytes.
#[must_use]
pub fn compare(document: u64, measured: u64) -> Agreement {
    let is_near =
        |bytes: u128| bytes.abs_diff(u128::from(measured)) * 100 <= u128::from(measured) * u128::from(FACTS_PERCENT);
    let as_gib = u128::from(document) * (1 << 30) / 1_000_000_000;
    if is_near(u128::from(document)) {
        Agreement::Agrees
    } else if is_near(as_gib) {
        Agreement::AgreesAsGib
    } else {
        Agreement::Differs
    }
}
