//! What no fetch on this machine can exceed, measured in the same run.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use super::Client;
use crate::bench::figures::Figure;
use crate::terminal::complain;
use crate::workspace;

/// Written and read to learn the disk's rate, in MiB, by each of [`WRITERS`].
const DISK_MIB: u64 = 256;
const WRITERS: usize = 8;
/// Sent over loopback, in MiB.
const LOOPBACK_MIB: u64 = 4096;
/// Each figure is the best of so many: a limit is what the machine can do.
const TRIES: usize = 3;

/// All in MB/s.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    disk_write: f64,
    disk_read: f64,
    loopback: f64,
    hash: f64,
}

impl Limits {
    /// The lowest that a fetch meets, with its name.
    pub(super) fn of_fetch(&self) -> (&'static str, f64) {
        lowest(&[("disk", self.disk_write), ("loopback", self.loopback), ("hashing", self.hash)])
    }

    /// The lowest that a verification meets, with its name.
    pub(super) fn of_verify(&self) -> (&'static str, f64) {
        lowest(&[("disk", self.disk_read), ("hashing", self.hash)])
    }

    pub(super) fn figures(&self) -> [Figure<Client>; 4] {
        [
            Figure::own("limit: direct write to the disk, 4 MiB blocks, 8 at once", "MB/s", self.disk_write),
            Figure::own("limit: direct read from the disk, the same", "MB/s", self.disk_read),
            Figure::own("limit: loopback, one connection", "MB/s", self.loopback),
            Figure::own("limit: SHA-256 by openssl on all cores", "MB/s", self.hash),
        ]
    }
}

fn lowest(all: &[(&'static str, f64)]) -> (&'static str, f64) {
    all.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("nothing", f64::NAN))
}

/// Measures them in a folder's file system.
///
/// # Errors
/// `dd` or `openssl` fails, or says something unknown.
pub(super) fn measure(folder: &Path) -> Result<Limits> {
    complain!("limits of this machine");
    let best = |measure: &dyn Fn() -> Result<f64>| -> Result<f64> {
        let mut best = 0.0_f64;
        for _ in 0..TRIES {
            best = best.max(measure()?);
        }
        Ok(best)
    };
    let disk_write = best(&|| disk(folder, Way::Write))?;
    let disk_read = best(&|| disk(folder, Way::Read))?;
    for number in 0..WRITERS {
        std::fs::remove_file(folder.join(format!("limit-{number}")))?;
    }
    Ok(Limits { disk_write, disk_read, loopback: best(&loopback)?, hash: best(&hash)? })
}

#[derive(Clone, Copy)]
enum Way {
    Write,
    Read,
}

fn disk(folder: &Path, way: Way) -> Result<f64> {
    let start = Instant::now();
    let mut children = Vec::new();
    for number in 0..WRITERS {
        let file = folder.join(format!("limit-{number}")).display().to_string();
        let mut dd = workspace::command("dd");
        dd.args(["bs=4M", &format!("count={}", DISK_MIB / 4), "status=none"]);
        match way {
            Way::Write => dd.args(["if=/dev/zero", &format!("of={file}"), "oflag=direct", "conv=fsync,notrunc"]),
            Way::Read => dd.args([&format!("if={file}"), "of=/dev/null", "iflag=direct"]),
        };
        children.push(dd.spawn().context("cannot start dd")?);
    }
    for mut child in children {
        if !child.wait()?.success() {
            bail!("dd failed: does the file system have direct access?");
        }
    }
    Ok(((WRITERS as u64 * DISK_MIB) << 20) as f64 / 1e6 / start.elapsed().as_secs_f64())
}

fn loopback() -> Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let start = Instant::now();
    let sender = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let block = vec![0; 1 << 20];
        (0..LOOPBACK_MIB).try_for_each(|_| stream.write_all(&block))
    });
    let mut stream = TcpStream::connect(address)?;
    let mut block = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        match stream.read(&mut block)? {
            0 => break,
            count => bytes += count,
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    sender.join().ok().context("the sender panicked")??;
    Ok(bytes as f64 / 1e6 / seconds)
}

fn hash() -> Result<f64> {
    let cores = std::thread::available_parallelism()?;
    let mut openssl = workspace::command("openssl");
    openssl.args(["speed", "-elapsed", "-seconds", "1", "-bytes", "1048576", "-mr", "-evp", "sha256"]);
    openssl.args(["-multi", &cores.to_string()]).stderr(std::process::Stdio::null());
    let printed = String::from_utf8(openssl.output().context("cannot start openssl")?.stdout)?;
    Ok(total_rate(&printed).context("openssl speed said something unknown")? / 1e6)
}

/// The sum over all processes, in bytes per second.
fn total_rate(printed: &str) -> Option<f64> {
    let line = printed.lines().rev().find(|line| line.starts_with("+F:"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_openssl_is_read_and_not_a_part() {
        let printed =
            "Got: +F:25:sha256:449538027.72 from 0\nGot: +F:25:sha256:1.0 from 1\n+F:25:sha256:972787833.66\n";
        assert_eq!(total_rate(printed), Some(972_787_833.66));
        assert_eq!(total_rate("something else"), None);
    }

    #[test]
    fn the_lowest_limit_has_its_name() {
        let limits = Limits { disk_write: 3.0, disk_read: 5.0, loopback: 2.0, hash: 4.0 };
        assert_eq!(limits.of_fetch(), ("loopback", 2.0));
        assert_eq!(limits.of_verify(), ("hashing", 4.0));
    }
}
