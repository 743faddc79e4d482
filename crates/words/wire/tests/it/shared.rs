//! Captured answers of real engines, kept beside the project.

use std::path::PathBuf;

/// The folder of shared data: `TIDEGATE_SHARED`, by default beside the workspace.
fn root() -> PathBuf {
    let folder = std::env::var_os("TIDEGATE_SHARED")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared"), PathBuf::from);
    assert!(
        folder.join("fixtures").is_dir(),
        "no shared data: set TIDEGATE_SHARED to the folder that holds fixtures/ (tried {})",
        folder.display()
    );
    folder
}

/// The body of a captured answer.
pub(crate) fn fixture(name: &str) -> Vec<u8> {
    let path = root().join("fixtures").join(name);
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let at = text.windows(4).position(|window| window == b"\r\n\r\n").expect("headers end with an empty line");
    text[at + 4..].to_vec()
}

/// All captured answers of one engine whose bodies are event streams.
pub(crate) fn streams() -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for engine in ["vllm", "llamacpp"] {
        for entry in std::fs::read_dir(root().join("fixtures").join(engine)).unwrap() {
            let name = format!("{engine}/{}", entry.unwrap().file_name().to_string_lossy());
            if name.contains("stream") && name.ends_with(".http") && !name.contains("err_") {
                let body = fixture(&name);
                found.push((name, body));
            }
        }
    }
    assert!(found.len() >= 7, "the captured streams are there: {found:?}");
    found
}
