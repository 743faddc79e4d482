//! The store and the journal from outside.

mod conformance;
