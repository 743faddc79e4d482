//! The documents as operators write them, checked through the public interface.
#![expect(clippy::unwrap_used, reason = "tests")]

mod design;
