//! Makes and opens a wear heap.
//!
//! **Making** stores the header of the heap into a root puddle of zeros: it commits, when it fits
//! its checksum. **Opening** reads it and the segment tables, a line for each chunk, and no block;
//! [`super::scan`] reads those.
//!
//! A line of a table that is damaged is made anew: the next segment begins where the next whole
//! line stands, and the last one ends with its puddle.

use super::error::{WearDamage, WearError};
use super::headers::{TableLine, read_table_line};
use super::lines::PuddleLines;
use super::puddle::{SegmentScan, WearPuddle, WearSegment};
use super::state::{WearHeap, WearOptions, WearState};
use crate::backing::{Backing, BackingError, Extent};
use cenote_layout::PAGE_SIZE;
use cenote_layout::header;
use cenote_layout::puddle::header_space;
use cenote_layout::wear::{
    CHUNK_LOG, WAIT_MS_MAX, WEAR_LINE, WearGeometry, WearHeader, WearRecord,
};
use core::ptr::without_provenance_mut;
use core::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use zerocopy::IntoBytes;

/// Bytes of a puddle from which on chunks are large.
const LARGE: u64 = 1 << 20;
/// Binary logarithm of the bytes of a chunk in small and in large puddles.
const CHUNKS: (u32, u32) = (12, 16);

impl<G: Backing> WearHeap<G> {
    /// Makes a heap in a pool that has its root puddle and no more, and opens it.
    ///
    /// # Errors
    /// The pool has a heap, also one whose header is damaged, or no root puddle that is large
    /// enough; it is shared or read-only.
    pub fn create(backing: G, options: &WearOptions) -> Result<Self, WearError> {
        if !backing.is_writable() {
            return Err(WearError::ReadOnly);
        }
        let root = root_of(&backing)?;
        // SAFETY: the root puddle is mapped, and large enough (`root_of`).
        match unsafe { read_header(&root) } {
            Ok(_) => return Err(WearError::Exists),
            // SAFETY: as above.
            Err(error) if unsafe { has_segment(&root) } => return Err(error.into()),
            // Zeros, or a part of the header of a heap that a crash kept from being made.
            Err(_) => {}
        }
        let log = match options.chunk_log {
            0 if root.size < LARGE => CHUNKS.0,
            0 => CHUNKS.1,
            log => log,
        };
        if !CHUNK_LOG.contains(&log) {
            return Err(WearError::Options { what: "chunk_log", value: log });
        }
        if options.wait_ms > WAIT_MS_MAX {
            return Err(WearError::Options { what: "wait_ms", value: options.wait_ms });
        }
        let key = match options.key {
            0 => random_key()?,
            key => key,
        };
        let header = WearHeader::new(key, options.wait_ms, log);
        let words = header.as_bytes().chunks_exact(8);
        for (at, word) in (start_of(&root)..).step_by(8).zip(words) {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            let to = with_exposed_provenance_mut::<u64>(at as usize);
            // SAFETY: a word of the root puddle, which is mapped for writing; nothing else uses the
            // pool before it has a heap.
            unsafe { AtomicU64::from_ptr(to) }.store(word, Ordering::Release);
        }
        let at = with_exposed_provenance(start_of(&root) as usize);
        // SAFETY: the header lies in the root puddle.
        unsafe { backing.flush(at, PAGE_SIZE as usize) };
        backing.fence();
        Self::open(backing, options)
    }

    /// Opens the heap of a pool. Blocks are not read: they are when they are needed, or by
    /// [`WearHeap::scan`].
    ///
    /// # Errors
    /// There is no heap, its header is damaged, it is open, or it is shared.
    pub fn open(backing: G, options: &WearOptions) -> Result<Self, WearError> {
        let root = root_of(&backing)?;
        // SAFETY: the root puddle is mapped, and large enough (`root_of`).
        let header = unsafe { read_header(&root) }?;
        let heap = Self::claim(backing, root, &header, options)?;
        let mut state = heap.lock();
        for extent in heap.backing.extents() {
            heap.backing.map(&extent)?;
            heap.attach(&mut state, &extent, false)?;
        }
        if heap.backing.is_writable() {
            let at = with_exposed_provenance(start_of(&root) as usize);
            // SAFETY: the header lies in the root puddle. Its process may have died before it was
            // durable.
            unsafe { heap.backing.flush(at, PAGE_SIZE as usize) };
            heap.backing.fence();
        }
        heap.end(state);
        Ok(heap)
    }

    /// Opens the heap, or makes it if all puddles hold zeros apart from the header's page. (After a
    /// loss of power that is so in a pool in shadowed mode without a psync.) A pool that is open
    /// for reading stays empty.
    ///
    /// # Errors
    /// As [`WearHeap::open`] and [`WearHeap::create`].
    pub fn open_pool(backing: G, options: &WearOptions) -> Result<Self, WearError> {
        let root = root_of(&backing)?;
        // SAFETY: the root puddle is mapped, and large enough (`root_of`).
        let Err(error) = (unsafe { read_header(&root) }) else {
            return Self::open(backing, options);
        };
        for extent in backing.extents() {
            backing.map(&extent)?;
            // SAFETY: the puddle is mapped, and no heap is there.
            if !unsafe { is_unused(&extent) } {
                return Err(error.into());
            }
        }
        if backing.is_writable() {
            return Self::create(backing, options);
        }
        let header = WearHeader::new(options.key, options.wait_ms, *CHUNK_LOG.start());
        Self::claim(backing, root, &header, options)
    }

    /// A heap of which no puddle is attached yet; no other has the pool in this process.
    fn claim(
        backing: G,
        root: Extent,
        header: &WearHeader,
        options: &WearOptions,
    ) -> Result<Self, WearError> {
        let slot = backing.slot(root.addr).ok_or(WearError::NoPuddle)?;
        slot.compare_exchange(
            null_mut(),
            without_provenance_mut(1),
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .map_err(|_| WearError::Open)?;
        Ok(Self {
            backing: Arc::new(backing),
            root,
            key: header.key,
            wait_ms: header.wait_ms,
            chunk_log: header.chunk_log,
            clock: options.clock.clone(),
            on_damage: options.on_damage.clone(),
            state: Mutex::new(WearState::default()),
            scanned: Condvar::new(),
        })
    }

    /// Adds a puddle; one without room for a chunk stays unused. A new one has no segments.
    pub(crate) fn attach(
        &self,
        state: &mut WearState,
        extent: &Extent,
        is_new: bool,
    ) -> Result<(), BackingError> {
        let from = header_space(extent.size);
        let from = if extent.index == 0 { from + WearHeader::ROOTS_END } else { from };
        let Some(geometry) = WearGeometry::new(from, extent.size, self.chunk_log) else {
            return Ok(());
        };
        let end = geometry.end();
        self.backing.note_metadata(extent, u64::from(geometry.first) * WEAR_LINE);
        // SAFETY: the puddle is mapped as long as the heap lives, which alone uses its headers.
        let lines = unsafe { PuddleLines::new(extent.addr, end, extent.index, self.key) };
        let Some(lines) = lines else { return Ok(()) };
        let mut puddle = WearPuddle::new(lines, extent.addr, extent.index, geometry);
        if !is_new {
            let damage = self.read_table(&mut puddle);
            state.damage.extend(damage);
        }
        state.unscanned += puddle.segments.len() as u64;
        state.puddles.push(puddle);
        let number = without_provenance_mut(state.puddles.len());
        if let Some(slot) = self.backing.slot(extent.addr) {
            slot.store(number, Ordering::Release);
        }
        Ok(())
    }

    /// Learns segments from the table, and mends it where it is damaged.
    fn read_table(&self, puddle: &mut WearPuddle) -> Vec<WearDamage> {
        let (mut damage, backing) = (Vec::new(), &*self.backing);
        let WearGeometry { table, chunks, .. } = puddle.geometry;
        let mut torn = None;
        while puddle.begun < chunks {
            let begun = puddle.begun;
            let count = match read_table_line(&puddle.lines, &puddle.geometry, begun) {
                TableLine::Begins(count) => count,
                TableLine::End(is_torn) => {
                    torn = is_torn.then_some(table + begun);
                    break;
                }
                TableLine::Damaged(count) => {
                    if backing.is_writable() {
                        let record = WearRecord::Segment { chunks: count };
                        puddle.lines.store_mended(table + begun, &record, backing);
                    }
                    let (index, addr) = (puddle.index, puddle.addr_of(table + begun));
                    let what = "a line of the segment table was damaged; blocks say where it ends";
                    damage.push(WearDamage { puddle: index, addr, bytes: 0, what });
                    count
                }
            };
            if backing.is_writable() {
                puddle.lines.flush(table + begun, backing);
            }
            let (first, end) = (puddle.chunk_at(begun), puddle.chunk_at(begun + count));
            puddle.segments.push(WearSegment { first, end, scan: SegmentScan::Pending });
            puddle.begun += count;
        }
        if backing.is_writable() {
            if let Some(line) = torn {
                puddle.lines.store_zeros(line, backing);
                puddle.begin_ms = self.clock.now_ms() + u64::from(self.wait_ms) + 1;
            }
            backing.fence();
        }
        damage
    }
}

impl<G: Backing> Drop for WearHeap<G> {
    fn drop(&mut self) {
        for puddle in &self.lock().puddles {
            if let Some(slot) = self.backing.slot(puddle.addr) {
                slot.store(null_mut(), Ordering::Release);
            }
        }
        if let Some(slot) = self.backing.slot(self.root.addr) {
            slot.store(null_mut(), Ordering::Release);
        }
    }
}

/// Where the header lies.
pub(crate) const fn start_of(root: &Extent) -> u64 {
    root.addr + header_space(root.size)
}

fn root_of<G: Backing>(backing: &G) -> Result<Extent, WearError> {
    if backing.sharing().is_some() {
        return Err(WearError::Shared);
    }
    let root = backing.extents().first().copied().filter(|root| root.index == 0);
    let root = root.ok_or(WearError::NoPuddle)?;
    backing.map(&root)?;
    let body = header_space(root.size) + WearHeader::ROOTS_END;
    match root.size > body + WEAR_LINE {
        true => Ok(root),
        false => Err(WearError::Size { puddle: 0, size: root.size }),
    }
}

/// # Safety
/// The root puddle is mapped, and has more bytes than header and roots.
unsafe fn read_header(root: &Extent) -> Result<WearHeader, header::HeaderError> {
    let word = |at: u64| {
        let from = with_exposed_provenance_mut::<u64>(at as usize);
        // SAFETY: a word of the header (caller), which is accessed by atomics alone.
        unsafe { AtomicU64::from_ptr(from) }.load(Ordering::Acquire).to_le_bytes()
    };
    let start = start_of(root);
    let bytes: Vec<u8> = (start..start + PAGE_SIZE).step_by(8).flat_map(word).collect();
    header::read(&bytes, true)
}

/// Whether a heap has blocks there: its first segment is in the first line of the table.
///
/// # Safety
/// As [`read_header`].
unsafe fn has_segment(root: &Extent) -> bool {
    let table = start_of(root) + WearHeader::ROOTS_END;
    (table..table + WEAR_LINE).step_by(8).any(|at| {
        let from = with_exposed_provenance_mut::<u64>(at as usize);
        // SAFETY: a word behind the roots, where the root puddle has a line at least (`root_of`);
        // it is accessed by atomics alone.
        unsafe { AtomicU64::from_ptr(from) }.load(Ordering::Acquire) != 0
    })
}

/// Whether there are zeros in a puddle, but perhaps in its header and in that of a heap.
///
/// # Safety
/// The puddle is mapped.
unsafe fn is_unused(extent: &Extent) -> bool {
    let header = if extent.index == 0 { PAGE_SIZE } else { 0 };
    (start_of(extent) + header..extent.addr + extent.size).step_by(8).all(|at| {
        let from = with_exposed_provenance_mut::<u64>(at as usize);
        // SAFETY: a word of the puddle (caller), which is accessed by atomics alone.
        unsafe { AtomicU64::from_ptr(from) }.load(Ordering::Acquire) == 0
    })
}

/// A number that no other heap has.
fn random_key() -> Result<u64, BackingError> {
    let bytes = cenote_sys::process::random_bytes16();
    let failed = |error| BackingError::Store { doing: "drawing a key", source: Box::new(error) };
    let number = u128::from_le_bytes(bytes.map_err(failed)?);
    Ok(number as u64 ^ (number >> 64) as u64)
}
