//! The wire: shapes of OpenAI's and Anthropic's protocols that the gate touches, and nothing beyond them.
//!
//! Bytes pass through. [`json`] reads a body once and keeps the place of everything; [`request`] says what the gate has
//! to know of it and makes the engine's body by splicing; [`sse`] and [`answer`] write the alias back and read usage on
//! the way out; [`error`] is the only place that makes error bodies.
//!
//! Two things to know beside the obvious:
//! - [`request::model`] is called before authorisation, [`request::read`] after it: a model that the caller may not use
//!   is answered before anything is said about other fields.
//! - a [`sse::StreamFault`] carries the good events that came before the fault in the same read (`before`): send those,
//!   then [`error::event`], then close.

pub mod answer;
pub mod endpoint;
pub mod error;
mod form;
pub mod fuzz;
pub mod json;
pub mod messages;
pub mod multipart;
pub mod request;
pub mod sse;
mod usage;

pub use endpoint::{Api, Endpoint, Flavour};
pub use request::UsageAsked;
pub use usage::Usage;
