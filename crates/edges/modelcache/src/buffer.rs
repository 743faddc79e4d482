//! Aligned buffers for direct I/O, and the pool that bounds how much memory a fetch takes.
//!
//! Direct I/O wants memory at an aligned address. It is had without `unsafe`: each buffer is a little longer than asked
//! for and begins at the first aligned byte. The vector never grows, so the address stays.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What direct I/O needs of address, offset and length: the largest block of disks in use, in bytes.
pub(crate) const ALIGNMENT: usize = 4096;
/// Largest buffer, in bytes: above this nothing gets faster.
pub(crate) const BUFFER_BYTES_MAX: usize = 4 << 20;

/// Memory at an aligned address, filled from the front.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
    capacity: usize,
    len: usize,
}

impl Buffer {
    /// A buffer of `capacity` bytes, rounded up to the alignment.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.next_multiple_of(ALIGNMENT);
        let memory = vec![0; capacity + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { memory, start, capacity, len: 0 }
    }

    pub(crate) const fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn filled(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    pub(crate) const fn room(&self) -> usize {
        self.capacity - self.len
    }

    /// Takes what fits of `bytes` and says how many that were.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        let at = self.start + self.len;
        self.memory[at..at + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        taken
    }

    /// What is filled, with zeros behind it up to the next aligned length.
    pub(crate) fn padded(&mut self) -> &[u8] {
        let padded = self.len.next_multiple_of(ALIGNMENT);
        self.memory[self.start + self.len..self.start + padded].fill(0);
        &self.memory[self.start..self.start + padded]
    }

    /// The first `len` bytes to read into; `len` is rounded up to the alignment, at most the capacity.
    pub(crate) fn space(&mut self, len: usize) -> &mut [u8] {
        let len = len.next_multiple_of(ALIGNMENT).min(self.capacity);
        &mut self.memory[self.start..self.start + len]
    }

    /// Says how many bytes were read into [`Buffer::space`].
    pub(crate) fn set_filled(&mut self, len: usize) {
        self.len = len.min(self.capacity);
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

/// A bounded number of equal buffers, made when first needed.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Mutex<Vec<Buffer>>,
    permits: Arc<Semaphore>,
    buffer_bytes: usize,
}

impl Pool {
    /// At most `buffers` of `buffer_bytes` each.
    pub(crate) fn new(buffers: usize, buffer_bytes: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), permits: Arc::new(Semaphore::new(buffers)), buffer_bytes })
    }

    /// An empty buffer, as soon as there is one. `None` never happens while the pool lives.
    pub(crate) async fn take(self: &Arc<Self>) -> Option<Lease> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        let buffer = self.free.lock().pop();
        let mut buffer = buffer.unwrap_or_else(|| Buffer::new(self.buffer_bytes));
        buffer.clear();
        Some(Lease { buffer: Some(buffer), pool: Arc::clone(self), _permit: permit })
    }
}

/// A buffer of the pool; it goes back when dropped, wherever that is.
#[derive(Debug)]
pub(crate) struct Lease {
    buffer: Option<Buffer>,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl Lease {
    /// The buffer. The option is empty only in the drop.
    pub(crate) fn get(&mut self) -> &mut Buffer {
        self.buffer.get_or_insert_with(|| Buffer::new(self.pool.buffer_bytes))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.free.lock().push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_fills_to_its_end_and_pads_with_zeros() {
        let mut buffer = Buffer::new(10_000);
        assert_eq!(buffer.capacity(), 12_288);
        assert_eq!(buffer.fill(&[7; 12_000]), 12_000);
        buffer.clear();
        assert_eq!(buffer.fill(&[1; 5_000]), 5_000);
        let padded = buffer.padded();
        assert_eq!(padded.as_ptr().align_offset(ALIGNMENT), 0);
        assert_eq!(padded.len(), 8_192);
        assert!(padded[5_000..].iter().all(|byte| *byte == 0), "old bytes must not go to the disk");
        assert_eq!(buffer.fill(&[2; 20_000]), 12_288 - 5_000);
        assert_eq!(buffer.room(), 0);
    }

    #[tokio::test]
    async fn a_pool_lends_no_more_than_it_has_and_gets_back_what_is_dropped() {
        let pool = Pool::new(2, 4096);
        let one = pool.take().await.unwrap();
        let two = pool.take().await.unwrap();
        assert_eq!(pool.permits.available_permits(), 0);
        drop(one);
        let mut three = pool.take().await.unwrap();
        assert_eq!(three.get().filled(), b"");
        drop((two, three));
        assert_eq!(pool.free.lock().len(), 2, "made once");
    }
}
