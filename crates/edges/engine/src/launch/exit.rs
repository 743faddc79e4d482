//! How an engine's first process ended.

use std::fmt;
use std::process::ExitStatus;

/// How an engine's first process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Shells' way to tell a signal in an exit code, which the minder uses.
const SIGNAL_BASE: i32 = 128;

impl Exit {
    /// The code with which the minder repeats it.
    pub(super) const fn to_code(self) -> u8 {
        match self {
            Self::Code(code) => code as u8,
            Self::Signal(signal) => (SIGNAL_BASE + signal) as u8,
        }
    }

    /// Reads the minder's own exit status.
    pub(super) fn of_minder(status: ExitStatus) -> Self {
        match (status.code(), std::os::unix::process::ExitStatusExt::signal(&status)) {
            (Some(code), _) if code > SIGNAL_BASE => Self::Signal(code - SIGNAL_BASE),
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(-1),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}
