//! Where state lives: the journal of reservations in flight and the store of keys, ledger, shift, routes and switches.
//!
//! ```text
//! core 0 ─ Journal ─┐  one write() per reservation, settles go with it            ┌─ usage, quota sums
//! core 1 ─ Journal ─┼─> <state>/journal/*.journal ── LedgerWriter ── Store ───────┼─ keys, audit
//! core n ─ Journal ─┘  the journal is the queue: nothing else is kept in memory   └─ shift, routes, switches
//! ```
//!
//! A start goes: [`Store::open`], [`Journals::open`] (reads what a dead process left), [`LedgerWriter::start`] (brings
//! it into the ledger, orphans at their estimate), then quota sums from [`Store::period_sums`] and the last minute's
//! admissions from [`Recovery`] into the limiter, then one [`Journals::journal`] per core, then the listener. An end
//! goes: the cores drop their journals, [`LedgerWriter::stop`], [`Journals::close`], [`Store::close`].
//!
//! Per request a core calls [`Journal::reserve`] before the upstream call and [`Journal::settle`] at its end, and every
//! 10 ms or so [`Journal::flush`]. Nothing is handed to the writer: it reads the journals.
//!
//! This crate is the only one that knows SQL.

pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod entry_ref;
pub mod failpoint;
pub mod journal;
pub mod store;
pub mod writer;

pub use journal::{Commit, Durability, Journal, JournalError, JournalOptions, Journals, Recovery};
pub use store::{Store, StoreError};
pub use writer::{LedgerWriter, WriterOptions, WriterStatus};
