//! Quantities as operators write them, exact and without floats: `2M`, `128Ki`, `288GB`, `1h30m`, `10%`, `0-3,6`.
//!
//! Every type reads with [`FromStr`](std::str::FromStr), prints in a form that reads back to the same value, and has
//! its JSON Schema.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use crate::bounds::{COUNT_MAX, CPUS_MAX, DURATION_MAX};
use crate::decode::HINT;

/// Makes a type readable from a document's text and describes it in the schema.
macro_rules! written_as_text {
    ($type:ty, $schema:literal, $json:tt, $pattern:literal, $description:literal) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $schema.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": $json,
                    "pattern": $pattern,
                    "description": $description,
                })
            }
        }
    };
}
pub(crate) use written_as_text;

/// A quantity that cannot be read; the text after [`HINT`] says what to write.
pub type Unreadable = String;

fn unreadable<T>(message: &str, hint: &str) -> Result<T, Unreadable> {
    Err(format!("{message}{HINT}{hint}"))
}

/// Reads `123` or `1.25` times a unit, exactly; `None` when it is no number or no whole number of ones.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    let parts = u128::from(fraction.parse::<u64>().ok()?).checked_mul(u128::from(unit))?;
    let divisor = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    if parts % divisor != 0 {
        return None;
    }
    whole.checked_add(u64::try_from(parts / divisor).ok()?)
}

/// Splits a text into its leading number and the unit after it.
fn split_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], &text[end..])
}

/// Writes `value` with the largest unit of which it is a whole number.
fn write_scaled(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let fits = |unit: &&(&str, u64)| value > 0 && value.is_multiple_of(unit.1);
    match units.iter().filter(fits).max_by_key(|unit| unit.1) {
        Some((name, unit)) => write!(f, "{}{name}", value / unit),
        None => write!(f, "{value}"),
    }
}

/// A number of things: requests, tokens. `k`, `M`, `G` are powers of 1,000, `Ki`, `Mi`, `Gi` of 1,024; at most
/// [`COUNT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

const COUNT_UNITS: [(&str, u64); 6] =
    [("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000), ("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30)];

impl FromStr for Count {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let (number, unit) = split_unit(text);
        let factor = match COUNT_UNITS.iter().find(|(name, _)| *name == unit) {
            Some((_, factor)) => *factor,
            None if unit.is_empty() => 1,
            None => {
                return unreadable("expected a count", "write 500, 500k, 2M, 2G, or 128Ki, 1Mi for powers of 1,024");
            }
        };
        match scaled(number, factor) {
            Some(count) if count <= COUNT_MAX => Ok(Self(count)),
            Some(_) => unreadable("count is too large", "the largest is 2^53 - 1"),
            None => unreadable("expected a whole count", "write 500, 500k, 1.5M, 128Ki"),
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_scaled(f, self.0, &COUNT_UNITS)
    }
}

written_as_text!(
    Count,
    "Count",
    ["string", "integer"],
    r"^[0-9]+(\.[0-9]+)?(k|M|G|Ki|Mi|Gi)?$",
    "A count: `500`, `500k`, `2M`, `2G` in powers of 1,000, `128Ki`, `1Mi`, `1Gi` in powers of 1,024."
);

/// An amount of memory or disk in bytes, always with its unit: `288GB`, `268GiB`; at most [`COUNT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const BYTE_UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

impl FromStr for Bytes {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let (number, unit) = split_unit(text);
        let Some((_, factor)) = BYTE_UNITS.iter().find(|(name, _)| *name == unit) else {
            return unreadable("expected an amount of memory", "write it with its unit: 288GB, 268GiB, 2TB, 32MiB");
        };
        match scaled(number, *factor) {
            Some(bytes) if bytes <= COUNT_MAX => Ok(Self(bytes)),
            Some(_) => unreadable("amount is too large", "the largest is 2^53 - 1 bytes"),
            None => unreadable("expected an amount of memory", "write 288GB, 268GiB, 1.5TB"),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("0B") } else { write_scaled(f, self.0, &BYTE_UNITS) }
    }
}

written_as_text!(
    Bytes,
    "Bytes",
    "string",
    r"^[0-9]+(\.[0-9]+)?(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)$",
    "Memory or disk with its unit: `288GB`, `2TB` in powers of 1,000, `268GiB`, `32MiB` in powers of 1,024."
);

/// A length of time: `250ms`, `30s`, `5m`, `1h30m`, `7d`; at most [`DURATION_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

const TIME_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl FromStr for Span {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        const HOW: &str = "write 250ms, 30s, 5m, 1h30m, 7d";
        let mut rest = text;
        let mut total_ms: u64 = 0;
        let mut last = u64::MAX;
        while !rest.is_empty() || text.is_empty() {
            let (number, after) = split_unit(rest);
            let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
            let (unit, after) = after.split_at(end);
            let factor = TIME_UNITS.iter().find(|(name, _)| *name == unit).map_or(0, |(_, factor)| *factor);
            // Units go from large to small, each once: `5s1h` is a slip.
            let part = if factor > 0 && factor < last { scaled(number, factor) } else { None };
            let Some(sum) = part.and_then(|part| total_ms.checked_add(part)) else {
                return unreadable("expected a duration", HOW);
            };
            (total_ms, last, rest) = (sum, factor, after);
        }
        let duration = Duration::from_millis(total_ms);
        if duration > DURATION_MAX {
            return unreadable("duration is too long", "the longest is 366d");
        }
        Ok(Self(duration))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if rest == 0 {
            return f.write_str("0s");
        }
        for (name, unit) in TIME_UNITS {
            if rest >= unit {
                write!(f, "{}{name}", rest / unit)?;
                rest %= unit;
            }
        }
        Ok(())
    }
}

written_as_text!(
    Span,
    "Duration",
    "string",
    r"^([0-9]+(\.[0-9]+)?d)?([0-9]+(\.[0-9]+)?h)?([0-9]+(\.[0-9]+)?m)?([0-9]+(\.[0-9]+)?s)?([0-9]+ms)?$",
    "A duration: `250ms`, `30s`, `5m`, `1h30m`, `7d`."
);

/// A share of a disk (`10%`) or an amount of it (`500GB`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Thousandths of a percent, 0 to 100,000: exact, unlike a float.
    Millipercent(u32),
    /// Bytes.
    Bytes(Bytes),
}

impl FromStr for Share {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let Some(number) = text.strip_suffix('%') else {
            return match text.parse() {
                Ok(bytes) => Ok(Self::Bytes(bytes)),
                Err(_) => unreadable("expected a share or an amount of the disk", "write 10% or 500GB"),
            };
        };
        match scaled(number, 1_000).and_then(|share| u32::try_from(share).ok()) {
            Some(share) if share <= 100_000 => Ok(Self::Millipercent(share)),
            Some(_) | None => unreadable("expected a percentage from 0% to 100%", "write 10% or 0.5%"),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Millipercent(share) if share % 1_000 == 0 => write!(f, "{}%", share / 1_000),
            Self::Millipercent(share) => write!(f, "{}.{:03}%", share / 1_000, share % 1_000),
            Self::Bytes(bytes) => bytes.fmt(f),
        }
    }
}

written_as_text!(
    Share,
    "Share",
    "string",
    r"^[0-9]+(\.[0-9]+)?(%|B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)$",
    "A share of a disk, `10%`, or an amount of it, `500GB`."
);

/// A set of GPUs or CPUs by index: `0-3,6`; indices below [`CPUS_MAX`], never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indices(pub BTreeSet<u32>);

impl FromStr for Indices {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        const HOW: &str = "write 0-3 or 0-3,6";
        let mut set = BTreeSet::new();
        for part in text.split(',') {
            let Some(range) = range::<u32>(part.trim()) else {
                return unreadable("expected a set of indices", HOW);
            };
            if *range.end() >= CPUS_MAX {
                return unreadable("index is too large", "the largest index is 8191");
            }
            for index in range {
                if !set.insert(index) {
                    return unreadable(&format!("index {index} stands twice"), HOW);
                }
            }
        }
        Ok(Self(set))
    }
}

/// Reads `a` or `a-b` with `a` ≤ `b`.
fn range<T: FromStr + PartialOrd + Copy>(text: &str) -> Option<RangeInclusive<T>> {
    let number = |text: &str| {
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_plain.then(|| text.parse::<T>().ok()).flatten()
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then_some(first..=last)
}

impl fmt::Display for Indices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut indices = self.0.iter().copied().peekable();
        let mut is_first = true;
        while let Some(first) = indices.next() {
            let mut last = first;
            while let Some(next) = indices.next_if(|next| *next == last + 1) {
                last = next;
            }
            f.write_str(if is_first { "" } else { "," })?;
            is_first = false;
            if last > first { write!(f, "{first}-{last}")? } else { write!(f, "{first}")? }
        }
        Ok(())
    }
}

written_as_text!(
    Indices,
    "Indices",
    ["string", "integer"],
    r"^[0-9]+(-[0-9]+)?(, ?[0-9]+(-[0-9]+)?)*$",
    "A set of GPUs or CPUs by index: `0-3`, `0-3,6`."
);

/// A range of TCP ports: `8001-8099`, never port 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports(pub RangeInclusive<u16>);

impl FromStr for Ports {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        match range::<u16>(text) {
            Some(ports) if *ports.start() > 0 => Ok(Self(ports)),
            Some(_) | None => unreadable("expected a range of ports", "write 8001-8099"),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.start(), self.0.end())
    }
}

written_as_text!(
    Ports,
    "PortRange",
    ["string", "integer"],
    r"^[0-9]+(-[0-9]+)?$",
    "A range of TCP ports: `8001-8099`."
);

/// CPUs in thousandths: `4`, `0.5`, `500m`; never 0, at most [`CPUS_MAX`] CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus {
    /// Thousandths of a CPU.
    pub milli: u32,
}

impl FromStr for Cpus {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let milli = match text.strip_suffix('m') {
            Some(milli) => scaled(milli, 1),
            None => scaled(text, 1_000),
        };
        match milli.and_then(|milli| u32::try_from(milli).ok()) {
            Some(milli) if milli > 0 && milli <= CPUS_MAX * 1_000 => Ok(Self { milli }),
            Some(_) | None => unreadable("expected a number of CPUs", "write 4, 0.5 or 500m"),
        }
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.milli.is_multiple_of(1_000) {
            write!(f, "{}", self.milli / 1_000)
        } else {
            write!(f, "{}m", self.milli)
        }
    }
}

written_as_text!(Cpus, "Cpus", ["string", "number"], r"^[0-9]+(\.[0-9]+)?m?$", "A number of CPUs: `4`, `0.5`, `500m`.");
