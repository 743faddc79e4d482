//! What is recorded of a model beside its manifest: why it stays, when it was used, under which name it was seen.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_core::Sha256Digest;

use super::small;
use crate::evict::Hold;
use crate::fault::CacheFault;
use crate::layout::{Layout, ModelPath};

/// How many reasons one model can have to stay.
pub const PINS_MAX: usize = 64;
/// Length of a holder's name and of its note, in bytes.
pub const PIN_TEXT_MAX: usize = 256;
/// How many names are kept.
pub const NAMES_MAX: usize = 65_536;

const PIN_BYTES_MAX: u64 = 128 << 10;
const USE_BYTES_MAX: u64 = 32;
const REF_BYTES_MAX: u64 = 80;

/// One reason why a model stays. Reasons are kept on the disk: a restart of whoever gave one does not take it away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pin {
    /// What for.
    pub hold: Hold,
    /// Who says so; the same holder with the same `hold` has one pin.
    pub by: String,
    /// Why, in words.
    #[serde(default)]
    pub note: String,
    /// Since when, in seconds since 1970.
    pub since_s: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PinRecord {
    version: u32,
    pins: Vec<Pin>,
}

/// A model's pins; none when there is no record.
pub(crate) fn pins(layout: &Layout, digest: Sha256Digest) -> Result<Vec<Pin>, CacheFault> {
    let path = layout.pin(digest);
    let Some(bytes) = small::read(&path, PIN_BYTES_MAX)? else { return Ok(Vec::new()) };
    let record: PinRecord = serde_json::from_slice(&bytes)
        .map_err(|error| small::damaged(&path, &format!("no record of pins: {error}")))?;
    if record.version != 1 {
        return Err(small::damaged(&path, "the record of pins is of another version"));
    }
    Ok(record.pins)
}

/// Writes a model's pins; an empty list removes the record.
pub(crate) fn set_pins(layout: &Layout, digest: Sha256Digest, pins: Vec<Pin>) -> Result<(), CacheFault> {
    let path = layout.pin(digest);
    if pins.is_empty() {
        return small::remove_file(&path).and_then(|()| small::sync_folder(&layout.pins()));
    }
    let too_long = |text: &String| text.len() > PIN_TEXT_MAX || text.chars().any(char::is_control);
    if pins.len() > PINS_MAX || pins.iter().any(|pin| too_long(&pin.by) || too_long(&pin.note)) {
        return Err(CacheFault::BadSettings {
            reason: format!(
                "a model has at most {PINS_MAX} pins, each with at most {PIN_TEXT_MAX} bytes of plain text"
            ),
        });
    }
    let record = PinRecord { version: 1, pins };
    let bytes = serde_json::to_vec(&record).map_err(|error| small::damaged(&path, &error.to_string()))?;
    small::write(layout, &path, &bytes)
}

/// When a model was used last, in seconds since 1970. A record that makes no sense is none: it only orders evictions.
pub(crate) fn last_use(layout: &Layout, digest: Sha256Digest) -> Result<Option<u64>, CacheFault> {
    let bytes = match small::read(&layout.last_use(digest), USE_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(CacheFault::Damaged { .. }) => None,
        Err(fault) => return Err(fault),
    };
    Ok(bytes.and_then(|bytes| std::str::from_utf8(&bytes).ok()?.trim().parse().ok()))
}

pub(crate) fn set_last_use(layout: &Layout, digest: Sha256Digest, now_s: u64) -> Result<(), CacheFault> {
    small::write(layout, &layout.last_use(digest), now_s.to_string().as_bytes())
}

/// The digest last seen under a name.
pub(crate) fn reference(layout: &Layout, model: &ModelPath) -> Result<Option<Sha256Digest>, CacheFault> {
    let path = layout.reference(model);
    let Some(bytes) = small::read(&path, REF_BYTES_MAX)? else { return Ok(None) };
    let text = std::str::from_utf8(&bytes).ok();
    text.and_then(|text| Sha256Digest::parse(text.trim()))
        .map(Some)
        .ok_or_else(|| small::damaged(&path, "no digest in it"))
}

/// All names with their digests; names that make no sense are left out, they belong to nobody.
pub(crate) fn references(layout: &Layout) -> Result<BTreeMap<ModelPath, Sha256Digest>, CacheFault> {
    let mut all = BTreeMap::new();
    for family in small::names(&layout.refs(), NAMES_MAX)? {
        let Some(family) = family.text().filter(|_| family.kind.is_dir()) else { continue };
        for version in small::names(&layout.refs().join(family), NAMES_MAX)? {
            let path = version.text().and_then(|version| ModelPath::parse(&format!("{family}/{version}")).ok());
            let Some(path) = path else { continue };
            match reference(layout, &path) {
                Ok(Some(digest)) => drop(all.insert(path, digest)),
                Ok(None) | Err(CacheFault::Damaged { .. }) => {}
                Err(fault) => return Err(fault),
            }
        }
    }
    Ok(all)
}

/// The digests that a folder of records has entries for.
pub(crate) fn recorded(folder: &std::path::Path) -> Result<Vec<Sha256Digest>, CacheFault> {
    Ok(small::names(folder, NAMES_MAX)?.iter().filter_map(|name| name.text().and_then(Sha256Digest::parse)).collect())
}
