//! Documents: YAML text in, a checked [`Site`] or a list of diagnostics out. No I/O: the caller reads the files.

pub mod site;

pub use site::Site;
