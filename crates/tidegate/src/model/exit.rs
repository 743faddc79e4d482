//! How a verb ends: what is said, and the code.

use std::process::ExitCode;

use serde_json::json;
use tidegate_modelcache::CacheFault;

use crate::terminal;

/// Whatever has no code of its own.
pub(crate) const OTHER: u8 = 1;
/// Somebody does not answer; later they may.
pub(crate) const LATER: u8 = 3;
/// Bytes or manifest are not what they should be.
pub(crate) const WRONG_CONTENT: u8 = 4;
/// The disk.
pub(crate) const NO_ROOM: u8 = 5;
/// It is not there, or it is there with other content.
pub(crate) const WRONG_NAME: u8 = 6;
/// Keys, certificate, rights.
pub(crate) const REFUSED: u8 = 7;
/// Ctrl-C, as shells number it.
pub(crate) const INTERRUPTED: u8 = 130;
/// SIGTERM, as shells number it.
pub(crate) const TERMINATED: u8 = 143;

/// The exit code of a fault; a new fault has to choose.
pub(crate) const fn code(fault: &CacheFault) -> u8 {
    match fault {
        CacheFault::Throttled { .. }
        | CacheFault::StoreUnavailable { .. }
        | CacheFault::Stalled { .. }
        | CacheFault::Interrupted { .. }
        | CacheFault::Connect { .. }
        | CacheFault::OwnerBusy { .. } => LATER,
        CacheFault::WrongBytes { .. }
        | CacheFault::WrongLength { .. }
        | CacheFault::ChangedObject { .. }
        | CacheFault::VanishedObject { .. }
        | CacheFault::RangeIgnored { .. }
        | CacheFault::WrongContentRange { .. }
        | CacheFault::BadAnswer { .. }
        | CacheFault::ManifestInvalid { .. }
        | CacheFault::WrongDigest { .. }
        | CacheFault::Damaged { .. } => WRONG_CONTENT,
        CacheFault::DiskFull { .. }
        | CacheFault::Quota { .. }
        | CacheFault::ReadOnly { .. }
        | CacheFault::InodesFull { .. }
        | CacheFault::NoRoom(_) => NO_ROOM,
        CacheFault::NoSuchModel { .. } | CacheFault::NoSuchBucket { .. } | CacheFault::VersionExists { .. } => {
            WRONG_NAME
        }
        CacheFault::Refused { .. }
        | CacheFault::ExpiredCredentials { .. }
        | CacheFault::NoCredentials { .. }
        | CacheFault::Tls { .. } => REFUSED,
        CacheFault::BadSettings { .. } | CacheFault::BadSource { .. } | CacheFault::Io { .. } => OTHER,
        CacheFault::Cancelled => INTERRUPTED,
    }
}

/// Why a verb did not finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It failed.
    Fault(CacheFault),
    /// A signal came; the text is its name.
    Signal(&'static str),
}

impl From<CacheFault> for Ended {
    fn from(fault: CacheFault) -> Self {
        Self::Fault(fault)
    }
}

/// Says why, and what to do next.
pub(crate) fn report(ended: &Ended, json: bool, kept: &str) -> ExitCode {
    let (code, name, message, hint) = match ended {
        Ended::Fault(fault) => (code(fault), fault.code(), fault.to_string(), fault.hint().to_owned()),
        Ended::Signal("SIGTERM") => (TERMINATED, "cancelled", "ended by SIGTERM".to_owned(), kept.to_owned()),
        Ended::Signal(_) => (INTERRUPTED, "cancelled", "cancelled".to_owned(), kept.to_owned()),
    };
    if json {
        let event = json!({"event": "failed", "code": name, "message": message, "hint": hint});
        terminal::answer(&event.to_string());
    } else {
        terminal::note(&format!("error: {message} ({name})\nnext:  {hint}"));
    }
    ExitCode::from(code)
}
