//! Lines to a person. Printing that cannot be delivered (a closed pipe) is no error worth a message.

use std::fmt::Arguments;
use std::io::Write;

/// Writes one line to standard output.
pub(crate) fn out(line: Arguments<'_>) {
    drop(writeln!(std::io::stdout().lock(), "{line}"));
}

/// Writes one line to standard error.
pub(crate) fn err(line: Arguments<'_>) {
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}

/// A result, on standard output.
macro_rules! say {
    ($($part:tt)*) => { $crate::terminal::out(format_args!($($part)*)) };
}

/// Progress or a complaint, on standard error.
macro_rules! complain {
    ($($part:tt)*) => { $crate::terminal::err(format_args!($($part)*)) };
}

pub(crate) use {complain, say};
