//! What tests and benches need and production never sees: a fake engine with a switch for every fault that real ones
//! showed.
//!
//! ```text
//! FakeEngine::start(Script) --> addr()       a real loopback port
//!                           --> connector()  the same engine over in-memory streams, for tests on a paused clock
//!                           --> requests(), usage_log()   what it was asked, and what it says it generated
//! RealS3::start(S3Server, S3Options)         versitygw or SeaweedFS, installed by tools/real/s3
//! S3Double::start() --> fault(When, S3Fault) what no real store does on demand
//!                   --> log()                every request, and the bytes that left
//! RealKubernetes::shared() --> api()         a real API server, installed by tools/real/kubernetes
//! Kubelet::start(api, NodePlan) --> conduct() --> fail()   a node that a test plays
//! ```

pub mod fake;
pub mod kubernetes;
pub mod real;
pub mod s3;

pub use fake::{
    FakeEngine, Fault, Finish, Pace, Recorded, Refusal, Script, Shape, ToolCall, UsageRow, fake_engine_program,
    workspace_program,
};
pub use kubernetes::{Conduct, Failure, KubeApi, Kubelet, NodePlan};
pub use real::{RealKubernetes, RealS3, S3Options, S3Server};
pub use s3::{S3Double, S3Fault, S3Log, S3Request, Verb, When};
