//! Where the fake engine is as a program.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The program `fake-engine`, built when it has to be: what Cargo offers for this works in this package's own tests only.
///
/// # Errors
/// Why it cannot be built, or is not where tests are.
pub fn fake_engine_program() -> Result<PathBuf, String> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PROGRAM.get_or_init(build).clone()
}

fn build() -> Result<PathBuf, String> {
    const HOW: &str = "build it with: cargo build -p tidegate-testkit --bin fake-engine";
    let own = std::env::current_exe().map_err(|error| format!("where this test is: {error}"))?;
    // target/PROFILE/deps/TEST
    let folder = own.ancestors().nth(2).ok_or_else(|| format!("no folder of programs above {}", own.display()))?;
    let program = folder.join("fake-engine");
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(other) => other,
        None => return Err(HOW.to_owned()),
    };
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut command = Command::new(cargo);
        command.args(["build", "-q", "-p", "tidegate-testkit", "--bin", "fake-engine", "--profile", profile]);
        let status = command.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        if !status.is_ok_and(|status| status.success()) {
            return Err(format!("fake-engine does not build; {HOW}"));
        }
    }
    if program.is_file() { Ok(program) } else { Err(format!("no {}; {HOW}", program.display())) }
}
