//! The GPU driver, as its kernel module tells in `/proc/driver/nvidia`: what code compiled for a GPU depends on.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

/// Where the kernel module tells.
pub const DRIVER_FOLDER: &str = "/proc/driver/nvidia";
/// Most bytes that are read of one file.
const BYTES_MAX: u64 = 64 * 1024;
/// Most GPUs of one machine that are looked at.
const GPUS_MAX: usize = 64;

/// The driver and the GPUs of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuDriver {
    /// The driver's version, such as `570.86.15`.
    pub version: Arc<str>,
    /// The model of every GPU here, such as `NVIDIA B300`.
    pub gpu: Arc<str>,
}

impl GpuDriver {
    /// Reads it; `None` where there is no driver, where it does not say its version, or where the GPUs differ: unknown
    /// stays unknown.
    #[must_use]
    pub fn read(folder: &Path) -> Option<Self> {
        let version = version(&text(&folder.join("version")).ok()?)?.into();
        let mut gpus = fs::read_dir(folder.join("gpus")).ok()?.take(GPUS_MAX).map(|gpu| {
            let text = text(&gpu.ok()?.path().join("information")).ok()?;
            model(&text).map(Arc::<str>::from)
        });
        let gpu = gpus.next()??;
        gpus.all(|other| other.as_ref() == Some(&gpu)).then_some(Self { version, gpu })
    }
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// The first word of the first line that is numbers with points between them.
fn version(text: &str) -> Option<&str> {
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    text.lines().next()?.split_whitespace().find(is_version)
}

fn model(text: &str) -> Option<&str> {
    let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim();
    (!model.is_empty()).then_some(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(version: &str, gpus: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("version"), version).unwrap();
        for (index, gpu) in gpus.iter().enumerate() {
            let place = folder.path().join(format!("gpus/0000:{index:02x}:00.0"));
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("information"), format!("Model: \t\t {gpu}\nIRQ:   \t\t 35\nGPU UUID: \t GPU-1\n"))
                .unwrap();
        }
        folder
    }

    #[test]
    fn both_kernel_modules_tell_their_version_and_equal_gpus_are_one_kind() {
        for line in [
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 02:50:36 UTC 2025\nGCC version: 12.3.0\n",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (builder)\n",
        ] {
            let folder = machine(line, &["NVIDIA B300", "NVIDIA B300"]);
            let expected = GpuDriver { version: "570.86.15".into(), gpu: "NVIDIA B300".into() };
            assert_eq!(GpuDriver::read(folder.path()), Some(expected));
        }
    }

    #[test]
    fn what_is_not_known_for_sure_is_unknown() {
        let line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu\n";
        assert_eq!(GpuDriver::read(machine(line, &["NVIDIA B300", "NVIDIA H200"]).path()), None, "two kinds");
        assert_eq!(GpuDriver::read(machine(line, &[]).path()), None, "no GPU");
        assert_eq!(GpuDriver::read(machine(line, &[" "]).path()), None, "no name");
        assert_eq!(GpuDriver::read(machine("NVRM version: unknown\n", &["NVIDIA B300"]).path()), None, "no version");
        assert_eq!(GpuDriver::read(Path::new("/nonexistent")), None, "no driver");
    }
}
