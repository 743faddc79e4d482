//! Binding a process to CPUs and to the memory of one NUMA node. What it executes and starts inherits both.

use std::collections::BTreeSet;
use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Highest number of a NUMA node that can be bound to.
pub(crate) const NUMA_MAX: u32 = 1_023;

/// Binds the calling process to these CPUs, those that the kernel's mask can name; none: unbound.
pub(crate) fn cpus(cpus: &BTreeSet<u32>) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if (cpu as usize) < CpuSet::MAX_CPU {
            set.set(cpu as usize);
        }
    }
    if set.count() > 0 {
        sched_setaffinity(None, &set)?;
    }
    Ok(())
}

/// Takes memory from this NUMA node only, as `numactl --membind` does.
#[expect(unsafe_code, reason = "no library of ours has set_mempolicy(2); the mask outlives the call")]
pub(crate) fn memory(numa: u32) -> io::Result<()> {
    const BITS: usize = usize::BITS as usize;
    if numa > NUMA_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "numa node is out of range"));
    }
    let mut mask = [0_usize; (NUMA_MAX as usize + 1) / BITS];
    mask[numa as usize / BITS] |= 1 << (numa as usize % BITS);
    // The kernel reads one bit less than it is told.
    let bits = mask.len() * BITS + 1;
    // SAFETY: the call reads `bits - 1` bits from `mask`, which is that long.
    let answer = unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_BIND, mask.as_ptr(), bits) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_cannot_be_named_is_refused() {
        assert_eq!(memory(NUMA_MAX + 1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(memory(NUMA_MAX).is_err(), "no machine here has it");
        cpus(&BTreeSet::new()).unwrap();
    }
}
