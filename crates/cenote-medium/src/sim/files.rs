//! The simulated medium as a [`Medium`]: files, locks, windows and mappings.
//!
//! Invariant: a call that fails changes nothing, and a call that changes something is one event of
//! the history; except a write that is cut short by a planted fault, which is an event for each
//! part that arrives.

use super::content::PAGE;
use super::course::{Course, EIO, bad_range, is_name, not_found, system};
use super::fault::FaultPoint;
use super::live::{Live, LiveFile, Mapping};
use super::medium::{Core, SimMedium};
use super::model::{Binding, Event, Inode, directory_of, pages};
use super::window::SimWindow;
use crate::{
    Durability, FileName, FileWord, LockGuard, LockHolder, LockKind, MapMode, Medium, MediumError,
    MediumInfo, MediumKind, Operation, Persistence,
};
use cenote_layout::id::Uuid;
use cenote_sys::memory::{self, Access};
use std::sync::{Arc, Weak};

type Result<T> = core::result::Result<T, MediumError>;

impl Live {
    pub(super) fn binding(&self, op: Operation, name: &str) -> Result<Binding> {
        self.names.get(name).copied().ok_or_else(|| not_found(op, name))
    }

    pub(super) fn inode(&self, op: Operation, name: &str) -> Result<Inode> {
        match self.binding(op, name)? {
            Binding::File(inode) => Ok(inode),
            Binding::Directory => Err(MediumError::NotAFile { op, name: FileName::new(name) }),
        }
    }

    fn directory(&self, op: Operation, name: &str) -> Result<()> {
        match name.is_empty() || self.names.get(name) == Some(&Binding::Directory) {
            true => Ok(()),
            false => Err(not_found(op, name)),
        }
    }

    fn file(&self, inode: Inode) -> (u64, &LiveFile) {
        static NOTHING: std::sync::LazyLock<LiveFile> = std::sync::LazyLock::new(LiveFile::default);
        let file = self.files.get(&inode).unwrap_or(&NOTHING);
        (file.len, file)
    }

    /// Puts bytes that were written to a file into the memory where it is mapped.
    pub(super) fn write_through(&self, inode: Inode, offset: u64, bytes: &[u8]) {
        for map in
            self.maps.iter().filter(|map| map.inode == inode && map.mode != MapMode::PrivateCopy)
        {
            let Some(room) = map.len.checked_sub(offset) else { continue };
            let part = &bytes[..bytes.len().min(room as usize)];
            let (addr, len) = (map.addr as usize, map.len as usize);
            let read_only = matches!(map.mode, MapMode::ReadOnly | MapMode::Tracked);
            // SAFETY: the range is this mapping; making it writable for a moment takes nothing
            // away.
            if read_only && unsafe { memory::protect(addr, len, Some(Access::ReadWrite)) }.is_err()
            {
                continue;
            }
            map.write(offset, part);
            if read_only {
                // SAFETY: the range is this mapping, which no program may write to.
                let _ = unsafe { memory::protect(addr, len, Some(Access::ReadOnly)) };
            }
        }
    }

    /// Writes to a file, as one event.
    pub(super) fn write(&mut self, inode: Inode, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.record(Event::Write { inode, offset, bytes: bytes.to_vec() });
        self.write_through(inode, offset, bytes);
        if let Some(file) = self.files.get_mut(&inode) {
            Arc::make_mut(&mut file.content).write(offset, bytes);
            file.len = file.len.max(offset + bytes.len() as u64);
            file.fill(offset, bytes.len() as u64);
        }
    }

    /// The file, if the range is made of whole pages of it.
    fn pages(&self, op: Operation, name: &str, offset: u64, len: u64) -> Result<Inode> {
        let inode = self.inode(op, name)?;
        let page = PAGE as u64;
        let whole = offset.is_multiple_of(page) && len.is_multiple_of(page) && len != 0;
        match whole && offset.checked_add(len).is_some_and(|end| end <= self.file(inode).0) {
            true => Ok(inode),
            false => Err(bad_range(
                op,
                name,
                offset,
                len,
                "the range is not made of whole pages of the file",
            )),
        }
    }

    fn create(&mut self, name: &str, len: u64) {
        let inode = self.next_inode();
        let name: Arc<str> = name.into();
        self.record(Event::Create { name: Arc::clone(&name), inode, len });
        self.files.insert(inode, LiveFile { len, ..LiveFile::default() });
        self.names.insert(name, Binding::File(inode));
    }
}

// SAFETY: what is said to be mapped is memory of the simulation, inside windows that it reserved.
unsafe impl Medium for SimMedium {
    fn line_writes(&self) -> Option<Vec<(String, u64, u64)>> {
        self.core.live().lines_written()
    }

    fn describe(&self) -> MediumInfo {
        let durability = self.core.options.durability;
        MediumInfo {
            path: String::from("(simulated)"),
            kind: MediumKind::Simulated,
            fs: String::from("simulation"),
            durability,
            note: match durability {
                Durability::Power => {
                    String::from("simulated persistent memory: flush and fence make stores durable")
                }
                Durability::Process => String::from(
                    "simulated page cache: stores survive the process, not the machine",
                ),
            },
        }
    }

    fn persistence(&self, level: Durability) -> Persistence {
        match level {
            Durability::Process
                if !self.core.hookable() || self.core.options.durability == Durability::Power =>
            {
                Persistence::PROCESS
            }
            level => Persistence::simulated(&self.slot, level),
        }
    }

    fn read_only(&self) -> bool {
        self.core.options.read_only
    }

    fn boot_id(&self) -> Uuid {
        self.live().origin.boot
    }

    fn mounting(&self) -> u64 {
        self.live().origin.mounting
    }

    fn now_s(&self) -> u64 {
        let mut live = self.live();
        live.clock_s += 1;
        live.clock_s
    }

    fn random_uuid(&self) -> Result<Uuid> {
        Ok(Uuid::from_random_bytes(self.live().random.bytes16()))
    }

    fn exists(&self, name: &str) -> Result<bool> {
        let mut live = self.live();
        Self::begin_read(&mut live, Operation::Examine, name)?;
        Ok(live.names.contains_key(name))
    }

    fn len(&self, name: &str) -> Result<u64> {
        let mut live = self.live();
        Self::begin_read(&mut live, Operation::Examine, name)?;
        let inode = live.inode(Operation::Examine, name)?;
        Ok(live.file(inode).0)
    }

    fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut live = self.live();
        Self::begin_read(&mut live, Operation::Read, name)?;
        let inode = live.inode(Operation::Read, name)?;
        let (len, file) = live.file(inode);
        let count =
            buf.len().min(usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX));
        let buf = &mut buf[..count];
        file.content.read(offset, buf);
        // Stores that no event has seen are in the file all the same.
        if let Some(map) = live.mapping_of(inode) {
            let mapped = usize::try_from(map.len.saturating_sub(offset)).unwrap_or(usize::MAX);
            map.read(offset, &mut buf[..count.min(mapped)]);
        }
        Ok(count)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let too_long =
            |_| bad_range(Operation::Read, name, 0, u64::MAX, "the file does not fit into memory");
        let len = {
            let live = self.live();
            live.inode(Operation::Read, name).map_or(0, |inode| live.file(inode).0)
        };
        let mut bytes = vec![0; usize::try_from(len).map_err(too_long)?];
        let count = self.read_at(name, 0, &mut bytes)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    unsafe fn write_at(&self, name: &str, offset: u64, data: &[u8]) -> Result<()> {
        self.write_to(&mut self.live(), name, offset, data)
    }

    fn create(&self, name: &str, len_bytes: u64) -> Result<()> {
        let op = Operation::Create;
        let mut live = self.live();
        let course = self.begin_change(&mut live, op, name).map_err(|error| match error {
            MediumError::NoSpace { op, name, source, .. } => {
                MediumError::NoSpace { op, name, needed_bytes: len_bytes, source }
            }
            other => other,
        })?;
        live.directory(op, directory_of(name))?;
        if live.names.contains_key(name) {
            return Err(MediumError::Exists { op, name: FileName::new(name) });
        }
        if matches!(course, Course::Normal) {
            live.create(name, len_bytes);
        }
        Ok(())
    }

    unsafe fn truncate(&self, name: &str, len_bytes: u64) -> Result<()> {
        let op = Operation::Truncate;
        let mut live = self.live();
        let course = self.begin_change(&mut live, op, name)?;
        let inode = live.inode(op, name)?;
        if live.maps.iter().any(|map| map.inode == inode && map.len > len_bytes) {
            return Err(bad_range(op, name, 0, len_bytes, "what is to be cut off is mapped"));
        }
        if matches!(course, Course::Normal) {
            live.record(Event::SetLen { inode, len: len_bytes });
            if let Some(file) = live.files.get_mut(&inode) {
                if len_bytes < file.len {
                    Arc::make_mut(&mut file.content).cut(len_bytes);
                }
                file.len = len_bytes;
            }
        }
        Ok(())
    }

    /// Cut to nothing and made long again: a crash may leave each step or both. (On real media the
    /// length stays; this is worse.)
    unsafe fn clear(&self, name: &str) -> Result<()> {
        let op = Operation::Write;
        let mut live = self.live();
        let course = self.begin_change(&mut live, op, name)?;
        let inode = live.inode(op, name)?;
        let len = live.file(inode).0;
        if live.maps.iter().any(|map| map.inode == inode) {
            return Err(bad_range(op, name, 0, len, "what is to be cleared is mapped"));
        }
        if matches!(course, Course::Normal) && len != 0 {
            live.record(Event::SetLen { inode, len: 0 });
            live.record(Event::SetLen { inode, len });
            if let Some(file) = live.files.get_mut(&inode) {
                Arc::make_mut(&mut file.content).cut(0);
                file.fill(0, len);
            }
        }
        Ok(())
    }

    unsafe fn release(&self, name: &str, offset: u64, len: u64) -> Result<bool> {
        let op = Operation::Release;
        let mut live = self.live();
        let course = self.begin_change(&mut live, op, name)?;
        let inode = live.pages(op, name, offset, len)?;
        if matches!(course, Course::Normal) {
            live.record(Event::Release { inode, offset, len });
            live.write_through(inode, offset, &vec![0; len as usize]);
            if let Some(file) = live.files.get_mut(&inode) {
                Arc::make_mut(&mut file.content).fill_zero(offset, offset + len);
                Arc::make_mut(&mut file.holes).extend(pages(offset, len));
            }
        }
        Ok(true)
    }

    fn ensure(&self, name: &str, offset: u64, len: u64) -> Result<()> {
        let op = Operation::Ensure;
        let mut live = self.live();
        let course = self.begin_change(&mut live, op, name)?;
        let inode = live.pages(op, name, offset, len)?;
        if matches!(course, Course::Normal) {
            live.record(Event::Ensure { inode, offset, len });
            if let Some(file) = live.files.get_mut(&inode) {
                file.fill(offset, len);
            }
        }
        Ok(())
    }

    fn sync(&self, name: &str) -> Result<()> {
        let op = Operation::Sync;
        let mut live = self.live();
        let outcome = Self::begin(&mut live, op, name);
        let inode = live.inode(op, name)?;
        match outcome {
            Ok(Course::Normal) => live.record(Event::Sync { inode }),
            Ok(Course::Pretend | Course::Short(..)) => {}
            Err(error) => {
                live.record(Event::SyncFailed { inode });
                return Err(error);
            }
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        let op = Operation::SyncDirectory;
        let mut live = self.live();
        let course = Self::begin(&mut live, op, dir)?;
        live.directory(op, dir)?;
        if matches!(course, Course::Normal) {
            live.record(Event::SyncDirectory { name: dir.into() });
        }
        Ok(())
    }

    unsafe fn rename(&self, from: &str, to: &str) -> Result<()> {
        let op = Operation::Rename;
        let mut live = self.live();
        let course = self.begin_change(&mut live, op, from)?;
        if !is_name(to) {
            return Err(MediumError::BadName { op, name: FileName::new(to) });
        }
        live.inode(op, from)?;
        live.directory(op, directory_of(to))?;
        if live.names.get(to) == Some(&Binding::Directory) {
            return Err(MediumError::NotAFile { op, name: FileName::new(to) });
        }
        if matches!(course, Course::Normal) && from != to {
            live.record(Event::Rename { from: from.into(), to: to.into() });
            if let Some(binding) = live.names.remove(from) {
                live.names.insert(to.into(), binding);
            }
        }
        Ok(())
    }

    unsafe fn remove(&self, name: &str) -> Result<()> {
        let op = Operation::Remove;
        let mut live = self.live();
        let course = self.begin_change(&mut live, op, name)?;
        live.inode(op, name)?;
        if matches!(course, Course::Normal) {
            live.record(Event::Remove { name: name.into() });
            live.names.remove(name);
        }
        Ok(())
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let mut live = self.live();
        Self::begin_read(&mut live, Operation::List, dir)?;
        live.directory(Operation::List, dir)?;
        let names = live.names.keys().filter(|name| directory_of(name) == dir);
        Ok(names.map(|name| name.rsplit('/').next().unwrap_or(name).to_owned()).collect())
    }

    fn make_dir(&self, name: &str) -> Result<()> {
        let op = Operation::MakeDirectory;
        let mut live = self.live();
        let course = self.begin_change(&mut live, op, name)?;
        live.directory(op, directory_of(name))?;
        if live.names.contains_key(name) {
            return Err(MediumError::Exists { op, name: FileName::new(name) });
        }
        if matches!(course, Course::Normal) {
            live.record(Event::MakeDirectory { name: name.into() });
            live.names.insert(name.into(), Binding::Directory);
        }
        Ok(())
    }

    fn lock(
        &self,
        name: &str,
        kind: LockKind,
    ) -> Result<core::result::Result<LockGuard, LockHolder>> {
        let op = Operation::Lock;
        let mut live = self.live();
        Self::begin_read(&mut live, op, name)?;
        if !live.names.contains_key(name) {
            if self.core.options.read_only {
                return Err(not_found(op, name));
            }
            live.directory(op, directory_of(name))?;
            live.create(name, 0);
        }
        let excluded =
            |other: LockKind| kind == LockKind::Exclusive || other == LockKind::Exclusive;
        if live.locks.iter().any(|(_, locked, other)| **locked == *name && excluded(*other)) {
            let shared = live
                .locks
                .iter()
                .all(|(_, locked, other)| **locked != *name || *other == LockKind::Shared);
            let how = if shared {
                "which reads, and keeps writers out until it is dropped"
            } else {
                "which writes"
            };
            let text = format!("another handle of this simulated medium, {how}");
            return Ok(Err(LockHolder { pid: Some(std::process::id()), text }));
        }
        let id = live.random.next();
        live.locks.push((id, name.into(), kind));
        Ok(Ok(LockGuard::new(SimLock { core: Arc::downgrade(&self.core), id })))
    }

    fn reserve_window(&self, base: u64, len: u64) -> Result<()> {
        // Waits without holding the simulation.
        if self.live().fault(FaultPoint::Operation(Operation::Reserve), "").is_some() {
            return Err(system(Operation::Reserve, "", EIO));
        }
        let mut window = SimWindow::reserve(base, len)?;
        if !self.core.keeps_memory {
            window.clear_idle();
        }
        self.live().windows.push(window);
        Ok(())
    }

    unsafe fn release_window(&self, base: u64, len: u64) -> Result<()> {
        let mut live = self.live();
        let Some(at) = live.windows.iter().position(|window| window.is(base, len)) else {
            return Err(bad_range(Operation::Reserve, "", base, len, "no window was reserved so"));
        };
        live.observe();
        let window = live.windows.remove(at);
        live.let_go(window);
        Ok(())
    }

    unsafe fn map_written(
        &self,
        name: &str,
        addr: u64,
        len: u64,
        mode: MapMode,
        word: Option<FileWord>,
    ) -> Result<()> {
        let op = Operation::Map;
        let mut live = self.live();
        if mode.is_shared_writable() && self.core.options.read_only {
            return Err(MediumError::ReadOnly { op, name: FileName::new(name) });
        }
        Self::begin_read(&mut live, op, name)?;
        let inode = live.inode(op, name)?;
        let bad = |reason| Err(bad_range(op, name, addr, len, reason));
        if len == 0 || !addr.is_multiple_of(PAGE as u64) || !len.is_multiple_of(PAGE as u64) {
            return bad(
                "address and length must be multiples of the page size, and the length not 0",
            );
        }
        if !live.windows.iter().any(|window| window.holds(addr, len)) {
            return bad("outside every window that this medium reserved");
        }
        if live.maps.iter().any(|map| map.overlaps(addr, len)) {
            return bad("something is mapped there");
        }
        if mode.is_shared_writable() && live.mapping_of(inode).is_some() {
            return bad("the simulation maps a file writable once only");
        }
        let found = live.file(inode).0;
        if found < len {
            let name = FileName::new(name);
            return Err(MediumError::Truncated { op, name, needed_bytes: len, found_bytes: found });
        }
        if let Some(FileWord { offset, value }) = word {
            self.write_to(&mut live, name, offset, &value.to_le_bytes())?;
        }
        // Stores are seen before the mapping, as an event of their own; without a history only
        // those count that the new mapping shows.
        if live.recording || live.mapping_of(inode).is_some() {
            live.observe();
        }
        let failed = |source| MediumError::from_io(op, name, source);
        let window = live.windows.iter_mut().find(|window| window.holds(addr, len));
        // What is tracked may be mapped twice, as on a real medium.
        let is_tracked = mode == MapMode::Tracked;
        let idle = window.and_then(|window| window.take_idle(addr, len, is_tracked));
        if idle.is_none() {
            let map = if is_tracked { memory::map_shared } else { memory::map_anonymous };
            // SAFETY: the range lies in a window of this medium, and nothing that is used is mapped
            // there.
            unsafe { map(addr as usize, len as usize) }.map_err(failed)?;
        }
        let is_shared = idle.map_or(is_tracked, |range| range.is_shared);
        let map = Mapping { inode, addr, len, mode, is_shared };
        map.fill(&live.file(inode).1.content, idle.is_some());
        if matches!(mode, MapMode::ReadOnly | MapMode::Tracked) {
            // SAFETY: the range was mapped just now, no thread uses it.
            unsafe { memory::protect(addr as usize, len as usize, Some(Access::ReadOnly)) }
                .map_err(failed)?;
        }
        live.maps.push(map);
        Ok(())
    }

    unsafe fn unmap(&self, addr: u64, len: u64) -> Result<()> {
        let op = Operation::Unmap;
        let mut live = self.live();
        if !live.windows.iter().any(|window| window.holds(addr, len)) {
            return Err(bad_range(
                op,
                "",
                addr,
                len,
                "outside every window that this medium reserved",
            ));
        }
        let inside = |map: &Mapping| map.addr >= addr && map.addr + map.len <= addr + len;
        if live.maps.iter().any(|map| map.overlaps(addr, len) && !inside(map)) {
            return Err(bad_range(op, "", addr, len, "the simulation unmaps whole mappings only"));
        }
        live.observe_before_unmapping(addr, len);
        let live = &mut *live;
        let window = live.windows.iter_mut().find(|window| window.holds(addr, len));
        match window {
            Some(window) if self.core.keeps_memory => {
                let maps = live.maps.iter().filter(|map| inside(map));
                maps.for_each(|map| window.leave_idle(map.range()));
            }
            // SAFETY: the range lies in a window of this medium; by the contract of `unmap` no
            // thread uses it any more.
            _ => unsafe { memory::unmap_to_reserved(addr as usize, len as usize) }
                .map_err(|source| MediumError::from_io(op, "", source))?,
        }
        live.maps.retain(|map| !inside(map));
        Ok(())
    }
}

/// A lock in a simulation.
struct SimLock {
    core: Weak<Core>,
    id: u64,
}

impl Drop for SimLock {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.live().locks.retain(|(id, _, _)| *id != self.id);
        }
    }
}
