//! Entry points for fuzz targets and for the tests that run their corpora. Each takes any bytes, holds what has to hold
//! for every input, and panics only when it does not. Not for use in the gate.
#![expect(clippy::panic, reason = "a broken invariant is what a fuzz target has to report")]

use crate::credential;
use crate::key::{self, ApiKey};

/// Panics when an invariant does not hold.
#[track_caller]
fn hold(holds: bool, what: &str) {
    if !holds {
        panic!("{what}");
    }
}

/// The key format: what is accepted is printed as it was read, and no neighbour of it is accepted.
pub fn key(data: &[u8]) {
    let Some(key) = ApiKey::parse(data) else { return };
    hold(key.reveal().as_bytes() == data, "a key reads back as it was written");
    hold(key::looks_own(data) && data.len() == ApiKey::LEN, "a key has its prefix and its length");
    hold(key.reveal().contains(key.id()) && key.id().len() == 8, "a key holds its id");
    for place in 8..data.len() {
        let mut changed = data.to_vec();
        changed[place] = if changed[place] == b'0' { b'1' } else { b'0' };
        hold(ApiKey::parse(&changed).is_none(), "a key with one other character is no key");
    }
}

/// Headers as lines of `name: value`, the first line being the query: what is found was sent in an accepted header.
pub fn credential(data: &[u8]) {
    let mut lines = data.split(|&byte| byte == b'\n');
    let query = lines.next().and_then(|line| std::str::from_utf8(line).ok());
    let headers: Vec<_> = lines
        .filter_map(|line| {
            let colon = line.iter().position(|&byte| byte == b':')?;
            let (name, value) = line.split_at(colon);
            Some((std::str::from_utf8(name).ok()?, &value[1..]))
        })
        .collect();
    let Ok(found) = credential::find(headers.iter().copied(), query) else { return };
    hold(!found.is_empty() && found.len() <= credential::CREDENTIAL_LEN_MAX, "a credential has a possible length");
    let accepted = ["authorization", "x-api-key", "api-key"];
    let sent = headers.iter().filter(|(name, _)| accepted.iter().any(|known| name.eq_ignore_ascii_case(known)));
    let sent: Vec<_> = sent.map(|(_, value)| value.trim_ascii()).collect();
    hold(!sent.is_empty() && sent.iter().all(|value| value.ends_with(found)), "all that were sent are the one found");
}
