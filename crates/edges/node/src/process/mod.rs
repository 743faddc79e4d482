//! Processes as `/proc` shows them, and signals that reach the process that was meant.

mod tree;

pub(crate) use tree::{INSTANCE_VARIABLE, Mark, Proc, STATE_VARIABLE, boot_id, descendants, marked, name_of, signal};
