//! Processes as `/proc` shows them, and signals that reach the process that was meant.

mod tree;

pub(crate) use tree::{INSTANCE_VARIABLE, Proc, boot_id, descendants, name_of, of_instance, own_instance_of, signal};
