//! JSON in columns, and words of it.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::StoreError;

/// Reads a column. What it holds was written by us: anything else is damage.
pub(super) fn parse<T: DeserializeOwned>(column: &str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Corrupt(format!("{column}: {error}")))
}

/// Writes a column of at most `max` bytes.
pub(super) fn bounded<T: Serialize>(what: &'static str, value: &T, max: usize) -> Result<String, StoreError> {
    let text = super::ledger::to_json(value)?;
    if text.len() > max {
        return Err(StoreError::Refused(format!("{what} has {} bytes, at most {max} are kept", text.len())));
    }
    Ok(text)
}

/// The word that serde gives a variant.
pub(super) fn word<T: Serialize>(value: &T) -> Result<String, StoreError> {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => Ok(word),
        Ok(other) => Err(StoreError::Io(format!("not a word: {other}"))),
        Err(error) => Err(StoreError::Io(error.to_string())),
    }
}

/// The variant that serde gives a word.
pub(super) fn unword<T: DeserializeOwned>(column: &str, text: &str) -> Result<T, StoreError> {
    serde_json::from_value(Value::String(text.to_owned()))
        .map_err(|error| StoreError::Corrupt(format!("{column}: {error}")))
}
