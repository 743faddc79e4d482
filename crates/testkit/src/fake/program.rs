//! Where programs of this workspace are that tests run.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The program `fake-engine`, built when it has to be.
///
/// # Errors
/// Why it cannot be built, or is not where tests are.
pub fn fake_engine_program() -> Result<PathBuf, String> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PROGRAM.get_or_init(|| workspace_program("tidegate-testkit", "fake-engine")).clone()
}

/// A program of the workspace, built when it has to be: what Cargo offers for this works in the package's own tests only.
///
/// # Errors
/// Why it cannot be built, or is not where tests are.
pub fn workspace_program(package: &str, name: &str) -> Result<PathBuf, String> {
    let how = format!("build it with: cargo build -p {package} --bin {name}");
    let own = std::env::current_exe().map_err(|error| format!("where this test is: {error}"))?;
    // target/PROFILE/deps/TEST
    let folder = own.ancestors().nth(2).ok_or_else(|| format!("no folder of programs above {}", own.display()))?;
    let program = folder.join(name);
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(other) => other,
        None => return Err(how),
    };
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut command = Command::new(cargo);
        command.args(["build", "-q", "-p", package, "--bin", name, "--profile", profile]);
        let status = command.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        if !status.is_ok_and(|status| status.success()) {
            return Err(format!("{name} does not build; {how}"));
        }
    }
    if program.is_file() { Ok(program) } else { Err(format!("no {}; {how}", program.display())) }
}
