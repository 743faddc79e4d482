//! What tests and benches need and production never sees: a fake engine with a switch for every fault that real ones
//! showed.
//!
//! ```text
//! FakeEngine::start(Script) --> addr()       a real loopback port
//!                           --> connector()  the same engine over in-memory streams, for tests on a paused clock
//!                           --> requests(), usage_log()   what it was asked, and what it says it generated
//! RealS3::start(S3Server, S3Options)         versitygw or SeaweedFS, installed by tools/real/s3
//! ```

pub mod fake;
pub mod real;

pub use fake::{FakeEngine, Fault, Finish, Pace, Recorded, Refusal, Script, Shape, ToolCall, UsageRow};
