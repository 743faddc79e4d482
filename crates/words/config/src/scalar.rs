//! Civil times and zones as operators write them.

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::decode::HINT;
use crate::quantity::{Unreadable, written_as_text};

fn shaped(text: &str, shape: &str) -> bool {
    text.len() == shape.len()
        && text.bytes().zip(shape.bytes()).all(|(byte, wanted)| match wanted {
            b'0' => byte.is_ascii_digit(),
            _ => byte == wanted,
        })
}

/// A time of day, `08:00` or `08:00:30`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClockTime(pub Time);

impl FromStr for ClockTime {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let is_shaped = shaped(text, "00:00") || shaped(text, "00:00:00");
        let time = is_shaped.then(|| text.parse().ok()).flatten();
        time.map(Self)
            .ok_or_else(|| format!("expected a time of day{HINT}write \"08:00\" (quoted), from 00:00 to 23:59"))
    }
}

impl fmt::Display for ClockTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

written_as_text!(
    ClockTime,
    "ClockTime",
    "string",
    r"^[0-2][0-9]:[0-5][0-9](:[0-5][0-9])?$",
    "A time of day in the zone of its document: `08:00`."
);

/// A calendar date, `2026-12-24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CalendarDate(pub Date);

impl FromStr for CalendarDate {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let date = shaped(text, "0000-00-00").then(|| text.parse().ok()).flatten();
        date.map(Self).ok_or_else(|| format!("expected a date{HINT}write 2026-12-24"))
    }
}

impl fmt::Display for CalendarDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

written_as_text!(CalendarDate, "Date", "string", r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", "A date: `2026-12-24`.");

/// A date with a time of day and without an offset, `2026-12-05T00:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CivilTime(pub DateTime);

impl FromStr for CivilTime {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let is_shaped = shaped(text, "0000-00-00T00:00") || shaped(text, "0000-00-00T00:00:00");
        let time = is_shaped.then(|| text.parse().ok()).flatten();
        time.map(Self).ok_or_else(|| {
            format!(
                "expected a date and time without an offset{HINT}write \"2026-12-05T00:00\", in the zone of the Site"
            )
        })
    }
}

impl fmt::Display for CivilTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

written_as_text!(
    CivilTime,
    "CivilTime",
    "string",
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?$",
    "A date and time in the zone of the Site: `2026-12-05T00:00`."
);

/// A time zone by its IANA name, `Asia/Seoul` or `UTC`; from the database that is compiled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone(pub TimeZone);

impl FromStr for Zone {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        if text == "UTC" {
            return Ok(Self(TimeZone::UTC));
        }
        let database = TimeZoneDatabase::bundled();
        database.get(text).map(Self).map_err(|_| {
            let names: Vec<String> = database.available().map(|name| name.as_str().to_owned()).collect();
            let near = crate::suggest::nearest(text, names.iter().map(String::as_str));
            let hint = near.map_or_else(
                || "write an IANA name such as Asia/Seoul".to_owned(),
                |name| format!("did you mean `{name}`?"),
            );
            format!("expected the IANA name of a time zone{HINT}{hint}")
        })
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.iana_name().unwrap_or("UTC"))
    }
}

written_as_text!(
    Zone,
    "TimeZone",
    "string",
    r"^[A-Za-z0-9_+/-]+$",
    "A time zone by its IANA name: `Asia/Seoul`, `UTC`."
);
