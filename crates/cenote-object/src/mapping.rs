//! The memory of an attached object: its file's pages, or a view that verifies and decrypts them.
//!
//! Invariant: the mapping at an object's address shows what was committed last, or nothing at all.
//! Records that recovery could not apply are laid over the file. Pages of a protected object appear
//! when they are touched, or all at once if they are few (`cenote_atrest::view`). No code has a
//! reference into the mapping before the function here has returned.

use crate::at_rest::{self, View};
use crate::dirty::Mechanism;
use crate::error::ObjectError;
use crate::shared::Shared;
use cenote_atrest::{Keyring, Mode};
use cenote_layout::PAGE_SIZE;
use cenote_medium::{FileHandle, MapMode, MediumError, Operation};
use cenote_protect::{Owner, RangeKind, Right, Whole};
use cenote_store::ObjectInfo;
use cenote_sys::bytes::store_by_kernel;
use std::sync::Arc;

/// Whether an object has protection at rest. One that has none takes no key, and is not for a
/// program that gave the store a key: it may stand in the place of one that has.
pub(crate) fn is_protected(
    shared: &Shared,
    info: &ObjectInfo,
    key: Option<&Keyring>,
) -> Result<bool, ObjectError> {
    let asked = key.is_some() || shared.store.asks_for_protection();
    match (info.record.at_rest.mode(), asked) {
        (Mode::None, false) => Ok(false),
        (Mode::None, true) => Err(ObjectError::NotProtected { name: info.record.name.clone() }),
        _ => Ok(true),
    }
}

/// The key is checked here, and no page is read of an object that is larger than a few. `writing`:
/// how a writer wants written pages to be found.
pub(crate) fn map_view(
    shared: &Shared,
    info: &ObjectInfo,
    primary: &Arc<FileHandle>,
    key: Option<&Keyring>,
    writing: Option<Option<Mechanism>>,
) -> Result<View, ObjectError> {
    let name = &info.record.name;
    let Some(source) = at_rest::source_of(shared, info, Arc::clone(primary)) else {
        return Err(ObjectError::NotProtected { name: name.clone() });
    };
    let protection = at_rest::open(shared, info, &source, key)?;
    let medium = shared.store.medium();
    // SAFETY: the object's own range, and it is not attached. The medium has the range from now
    // on; the view comes over the data.
    unsafe { medium.map(&info.file(), info.addr, info.size, MapMode::PrivateCopy) }?;
    let (what, base) = (at_rest::named(name), info.data_addr() as usize);
    // SAFETY: mapped just now, and not given away; `give_back` drops the view first.
    let view = unsafe {
        match writing {
            Some(Some(Mechanism::Mprotect)) => View::closed(&what, protection, source, base, true),
            _ => View::new(&what, protection, source, base, writing.is_some()),
        }
    };
    let view = view.map_err(|error| at_rest::sealed(name, error)).and_then(|view| match writing {
        Some(Some(mechanism @ Mechanism::Compare)) if !view.compares() => {
            let reason = "it has too many pages to load them at once, or one of them is damaged";
            Err(ObjectError::Mechanism { name: name.clone(), mechanism, reason: reason.into() })
        }
        _ => Ok(view),
    });
    view.inspect_err(|_| {
        // SAFETY: mapped above; the view is gone.
        let _ = unsafe { medium.unmap(info.addr, info.size) };
    })
}

/// The view that all readers share. Each shows its key.
pub(crate) fn view_for_reading(
    shared: &Shared,
    info: &ObjectInfo,
    primary: &Arc<FileHandle>,
    key: Option<&Keyring>,
) -> Result<Arc<View>, ObjectError> {
    let mut made = None;
    shared.enter_reader(info, || {
        let view = Arc::new(map_view(shared, info, primary, key, None)?);
        shared.keep_view(info.id(), &view);
        made = Some(view);
        Ok(())
    })?;
    if let Some(view) = made {
        return Ok(view);
    }
    // Readers are there, so no process changes header or key meanwhile.
    let opened = match at_rest::source_of(shared, info, Arc::clone(primary)) {
        Some(source) => at_rest::open(shared, info, &source, key).map(drop),
        None => Err(ObjectError::NotProtected { name: info.record.name.clone() }),
    };
    let view = shared.view(info.id());
    match (opened, view) {
        (Ok(()), Some(view)) => Ok(view),
        (opened, view) => {
            // Gone before its memory is, if its users have detached.
            drop(view);
            shared.leave_reader(info.id(), || {
                shared.forget_view(info.id());
                // SAFETY: the object's own range, whose last reader this was.
                unsafe { shared.store.medium().unmap(info.addr, info.size) }
            })?;
            opened.and(Err(ObjectError::NotProtected { name: info.record.name.clone() }))
        }
    }
}

/// Maps an object for reading, with committed records laid over its primary if recovery could not
/// write them there.
pub(crate) fn map_for_reading(shared: &Shared, info: &ObjectInfo) -> Result<(), ObjectError> {
    let medium = shared.store.medium();
    let Some(patches) = shared.patches(info.id()) else {
        // SAFETY: the object's own range, and it is not attached.
        return Ok(unsafe { medium.map(&info.file(), info.addr, info.size, MapMode::ReadOnly) }?);
    };
    // SAFETY: as above.
    unsafe { medium.map(&info.file(), info.addr, info.size, MapMode::PrivateCopy) }?;
    let laid_over = patches.iter().try_for_each(|(offset, bytes)| {
        // SAFETY: mapped just now, private and writable; recovery has checked that the patch lies
        // in the data; there is no reference yet.
        unsafe { store_by_kernel((info.data_addr() + offset) as usize, bytes) }
            .map_err(|error| MediumError::from_io(Operation::Read, &info.file(), error).into())
    });
    let closed = laid_over.and_then(|()| {
        let (from, what) = (info.addr as usize, at_rest::named(&info.record.name));
        let range = from..from + info.size as usize;
        let owner = Owner::new(range, RangeKind::ReadOnly, &what, Whole::new(Right::Read));
        // SAFETY: this object's own mapping; there is no reference into it yet.
        unsafe { owner.set(0..info.size / PAGE_SIZE, Right::Read) }
            .map_err(|source| ObjectError::Scan { name: info.record.name.clone(), source })?;
        shared.keep_closed(info.id(), owner);
        Ok(())
    });
    closed.inspect_err(|_| {
        // SAFETY: mapped above; there is no reference yet.
        let _ = unsafe { medium.unmap(info.addr, info.size) };
    })
}
