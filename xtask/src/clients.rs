//! The client suites: the OpenAI and Anthropic Python libraries against `tidegate up` with the real engine.
//!
//! Tidegate runs on documents of `tests/clients/site`, with the small model served twice: for chat and for embeddings.
//! The suites take address, keys and aliases from the environment, so that they can be run against any installation.

use anyhow::Result;

use crate::real::{self, Name};
use crate::workspace;

/// Runs the suites.
///
/// # Errors
/// A component cannot be installed or started, or a suite failed.
pub(crate) fn run() -> Result<()> {
    let python = real::install(Name::Clients)?;
    let engine = real::install(Name::Llamacpp)?;
    workspace::run(workspace::cargo().args([
        "build",
        "--quiet",
        "--locked",
        "--profile",
        "fast",
        "--package",
        "tidegate",
    ]))?;
    let binary = workspace::target().join("fast/tidegate");
    workspace::run(
        workspace::command(python)
            .arg("tests/clients/run.py")
            .arg("--tidegate")
            .arg(binary)
            .arg("--engine")
            .arg(engine),
    )
}
