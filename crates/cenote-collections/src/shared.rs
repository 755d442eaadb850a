//! Shared by all collections: the check of a header, logging, and the descriptions of types.
//!
//! Every block type of this crate has a persistent name with a `/` in it, which
//! `#[derive(Persist)]` refuses in names of others: so no program can make a block that passes for
//! one of these.

use cenote::lost::{Lost, touch};
use cenote::persist::Persist;
use cenote::{Error, Ptr, Reader, Result, Tx};

/// In a header's `len`: the collection was destroyed by this transaction. (Once it commits the
/// header is no live block any more.)
pub(crate) const DESTROYED: u64 = u64::MAX;

/// The block that a handle points to.
pub(crate) trait Header: Persist {
    /// Elements, or [`DESTROYED`].
    fn len(&self) -> u64;
}

/// The header, if it is a live one: what every public method begins with.
#[inline]
pub(crate) fn open<H: Header>(reader: &impl Reader, header: Ptr<H>) -> Result<&H> {
    let found = reader.get(header)?;
    if found.len() == DESTROYED { Err(gone(header.addr(), H::type_name)) } else { Ok(found) }
}

#[cold]
#[inline(never)]
fn gone(addr: u64, type_name: fn() -> String) -> Error {
    Error::Dangling { addr, type_name: type_name() }
}

/// What was read of memory that may be damaged, or what could not be.
pub(crate) type Read<T> = core::result::Result<T, Lost>;

/// What could not be read, as an error that names pool and page.
pub(crate) trait OrLost<T> {
    fn or_lost(self, reader: &impl Reader) -> Result<T>;
}

impl<T> OrLost<T> for Read<T> {
    #[inline(always)]
    fn or_lost(self, reader: &impl Reader) -> Result<T> {
        match self {
            Ok(read) => Ok(read),
            Err(lost) => Err(reader.unreadable(lost)),
        }
    }
}

/// That a neighbour, if there is one, can be read and so be logged and written.
///
/// # Safety
/// As [`Ptr::touch`].
#[inline(always)]
pub(crate) unsafe fn touch_any<T>(node: Option<Ptr<T>>) -> Read<()> {
    match node {
        // SAFETY: passed on.
        Some(node) => unsafe { node.touch() },
        None => Ok(()),
    }
}

/// That places of an array can be read, and so be logged and written.
///
/// # Safety
/// They lie in a live block.
#[inline(always)]
pub(crate) unsafe fn touch_places<T>(first: *const T, len: usize) -> Read<()> {
    // SAFETY: passed on.
    unsafe { touch(first.addr(), len * size_of::<T>()) }
}

/// A place that is going to be written.
pub(crate) type Range = (*const u8, usize);

/// The range of one place.
#[inline]
pub(crate) fn range<T>(place: *mut T) -> Range {
    (place.cast_const().cast(), size_of::<T>())
}

/// The range from the start of one place to the end of another that lies behind it in the same
/// block.
#[inline]
pub(crate) fn span<A, B>(first: *mut A, last: *mut B) -> Range {
    (first.cast_const().cast(), last.addr() + size_of::<B>() - first.addr())
}

/// Logs ranges with one fence; then they may be written.
///
/// # Safety
/// The ranges lie in live blocks of a pool that the transaction holds. They were touched, because
/// logging reads them.
#[inline]
pub(crate) unsafe fn log(tx: &mut Tx<'_>, ranges: &[Range]) -> Result<()> {
    // SAFETY: live blocks of a pool that is held for writing, by contract; the transaction is
    // neither moved nor ended.
    unsafe { tx.raw().add_all(ranges)? };
    Ok(())
}

/// As [`log`], and frees a node, with the same fence.
///
/// # Safety
/// As [`log`]; `node` is a live node, in the pool of the live header.
#[inline]
pub(crate) unsafe fn log_and_free<H: Persist, N: Persist>(
    tx: &mut Tx<'_>,
    header: Ptr<H>,
    node: Ptr<N>,
    ranges: &[Range],
) -> Result<()> {
    // SAFETY: passed on.
    unsafe { tx.free_near_logged(header, node, ranges) }
}

/// As [`log`], for an operation that has allocated `fresh` already: gives it back if logging fails.
///
/// # Safety
/// As [`log`]; nothing points to `fresh`.
#[inline]
pub(crate) unsafe fn log_with<T: Persist>(
    tx: &mut Tx<'_>,
    fresh: Ptr<T>,
    ranges: &[Range],
) -> Result<()> {
    // SAFETY: passed on.
    match unsafe { log(tx, ranges) } {
        Ok(()) => Ok(()),
        Err(error) => Err(tx.give_back(fresh, error)),
    }
}

/// What a `&mut` to a value that owns is refused with: a program could move the value out.
macro_rules! refuse_owners {
    ($type:ty) => {
        const {
            assert!(
                !<$type as cenote::persist::Persist>::OWNS,
                "a value that owns cannot be moved: see `put_owned` and `free_owned`"
            )
        }
    };
}

/// Frees what values in a block own, and then does what removes or overwrites them: that may move
/// them out, since they own nothing any more. If a step fails, the transaction can only abort. For
/// values that own nothing it does the second step alone.
///
/// # Safety
/// As [`Tx::free_within`].
#[inline(always)]
pub(crate) unsafe fn release<'p, V: Persist, H: Header, B, R>(
    tx: &mut Tx<'p>,
    header: Ptr<H>,
    (block, values): (Ptr<B>, Range),
    then: impl FnOnce(&mut Tx<'p>) -> Result<R>,
) -> Result<R> {
    if !V::OWNS {
        return then(tx);
    }
    tx.all_or_abort(|tx| {
        // SAFETY: passed on.
        unsafe { tx.free_within(header, block.addr(), values)? };
        then(tx)
    })
}

/// Ensures values move into another pool only if they own nothing: what they own would stay.
pub(crate) fn refuse_to_leave<V: Persist>(at: u64, to: u64) -> Result<()> {
    if V::OWNS { Err(Error::OtherPool { at, to }) } else { Ok(()) }
}

/// Fills a collection that was just made; if that fails, destroys it. If that fails too, or the
/// caller's code panics, the transaction can only abort.
pub(crate) fn build(
    tx: &mut Tx<'_>,
    fill: impl FnOnce(&mut Tx<'_>) -> Result<()>,
    destroy: impl FnOnce(&mut Tx<'_>) -> Result<()>,
) -> Result<()> {
    let mut filled = Ok(());
    let settled = tx.all_or_abort(|tx| {
        filled = fill(tx);
        if filled.is_err() { destroy(tx) } else { Ok(()) }
    });
    filled.and(settled)
}

/// Makes a value, and inserts it. If a value cannot be inserted, the blocks allocated for it are
/// lost with it: then the transaction can only abort.
pub(crate) fn make_and_insert<'p, V, R>(
    tx: &mut Tx<'p>,
    make: impl FnOnce(&mut Tx<'p>) -> Result<V>,
    insert: impl FnOnce(&mut Tx<'p>, V) -> Result<R>,
) -> Result<R> {
    let before = tx.allocated();
    let value = make(tx)?;
    if tx.allocated() == before {
        insert(tx, value)
    } else {
        tx.all_or_abort(|tx| insert(tx, value))
    }
}

/// Frees the header of a collection that was destroyed, not of one that was emptied: the last step
/// of both, which `len` tells apart.
pub(crate) fn free_destroyed<H: Header>(tx: &mut Tx<'_>, header: Ptr<H>, len: u64) -> Result<()> {
    if len == DESTROYED { tx.free(header) } else { Ok(()) }
}

/// Most ranges that [`log_many`] logs with one fence.
const MANY: usize = 256;

/// Logs any number of ranges, with a fence for each 256.
///
/// # Safety
/// As [`log`], for all that the iterator yields.
pub(crate) unsafe fn log_many(
    tx: &mut Tx<'_>,
    ranges: impl IntoIterator<Item = Read<Range>>,
) -> Result<()> {
    let mut ranges = ranges.into_iter();
    let mut part = Vec::with_capacity(MANY);
    loop {
        part.clear();
        for range in ranges.by_ref().take(MANY) {
            part.push(range.or_lost(tx)?);
        }
        if part.is_empty() {
            return Ok(());
        }
        // SAFETY: passed on.
        unsafe { log(tx, &part)? };
    }
}

/// Lines of the log that an undo entry of so many bytes takes.
pub(crate) const fn lines(len: usize) -> usize {
    (32 + len).div_ceil(64)
}

/// A field of a block, as a raw pointer. To be used in an `unsafe` block: the block is live.
macro_rules! place {
    ($block:expr, $($field:tt).+) => { &raw mut (*$block.as_ptr()).$($field).+ };
}

/// Implements `Persist` for a block type: every field with its name and its type as it is on media.
macro_rules! persist_block {
    (
        $name:literal,
        $type:ident<$($parameter:ident),+> { $($field:ident: $field_type:ty),+ $(,)? }
        $(, owns: $owns:expr)?
    ) => {
        // SAFETY: every field is described where it is (the pattern lacks none), with a type of the
        // same layout and pointers; the name belongs to this crate, see `shared`. Unused fields are
        // zero, which is no pointer.
        unsafe impl<$($parameter: cenote::persist::Persist),+> cenote::persist::Persist
            for $type<$($parameter),+>
        {
            const TYPE_ID: cenote::persist::TypeId = cenote::persist::TypeId::of_name($name)
                $(.apply(<$parameter as cenote::persist::Persist>::TYPE_ID.0))+;
            $(const OWNS: bool = $owns;)?

            fn type_name() -> std::string::String {
                cenote::persist::__applied(
                    $name,
                    &[$(<$parameter as cenote::persist::Persist>::type_name),+],
                )
            }

            fn describe(layout: &mut cenote::persist::LayoutBuilder) {
                let _ = |value: Self| {
                    let Self { $($field: _),+ } = value;
                };
                $(
                    let offset = core::mem::offset_of!(Self, $field);
                    layout.field::<$field_type>(stringify!($field), offset);
                )+
            }
        }
    };
}

/// Implements `Persist` and the like for a handle: one pointer.
macro_rules! persist_handle {
    ($name:literal, $type:ident<$($parameter:ident),+>, $header:ty) => {
        // SAFETY: transparent over one pointer, described where it is, which is never null; the
        // name belongs to this crate, see `shared`.
        unsafe impl<$($parameter: cenote::persist::Persist),+> cenote::persist::Persist
            for $type<$($parameter),+>
        {
            const TYPE_ID: cenote::persist::TypeId = cenote::persist::TypeId::of_name($name)
                $(.apply(<$parameter as cenote::persist::Persist>::TYPE_ID.0))+;
            const NONE: cenote::persist::NoneForm = cenote::persist::NoneForm::Zero;

            fn type_name() -> std::string::String {
                cenote::persist::__applied(
                    $name,
                    &[$(<$parameter as cenote::persist::Persist>::type_name),+],
                )
            }

            fn describe(layout: &mut cenote::persist::LayoutBuilder) {
                layout.field::<cenote::Ptr<$header>>("header", core::mem::offset_of!(Self, header));
            }
        }

        impl<$($parameter),+> Clone for $type<$($parameter),+> {
            #[inline]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<$($parameter),+> Copy for $type<$($parameter),+> {}

        /// Two handles are equal if they name the same collection.
        impl<$($parameter),+> PartialEq for $type<$($parameter),+> {
            fn eq(&self, other: &Self) -> bool {
                self.header == other.header
            }
        }

        impl<$($parameter),+> Eq for $type<$($parameter),+> {}

        impl<$($parameter),+> core::fmt::Debug for $type<$($parameter),+> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($type), "({:#x})"), self.header.addr())
            }
        }

        const _: () = {
            type OfBytes = $type<$(persist_handle!(@unit $parameter)),+>;
            assert!(size_of::<OfBytes>() == 8 && size_of::<Option<OfBytes>>() == 8);
        };
    };
    (@unit $parameter:ident) => { u8 };
}

/// Implements `Persist` and the like for a handle that is another one by a name of its own.
macro_rules! persist_over {
    ($name:literal, $type:ident<$parameter:ident>, $field:ident: $inner:ty) => {
        // SAFETY: transparent over one handle, described where it is; the name belongs to this
        // crate, see `shared`.
        unsafe impl<$parameter: cenote::persist::Persist> cenote::persist::Persist
            for $type<$parameter>
        {
            const TYPE_ID: cenote::persist::TypeId = cenote::persist::TypeId::of_name($name)
                .apply(<$parameter as cenote::persist::Persist>::TYPE_ID.0);
            const NONE: cenote::persist::NoneForm = cenote::persist::NoneForm::Zero;

            fn type_name() -> std::string::String {
                cenote::persist::__applied(
                    $name,
                    &[<$parameter as cenote::persist::Persist>::type_name],
                )
            }

            fn describe(layout: &mut cenote::persist::LayoutBuilder) {
                layout.field::<$inner>(stringify!($field), core::mem::offset_of!(Self, $field));
            }
        }

        impl<$parameter> Clone for $type<$parameter> {
            #[inline]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<$parameter> Copy for $type<$parameter> {}

        /// Two handles are equal if they name the same collection.
        impl<$parameter> PartialEq for $type<$parameter> {
            fn eq(&self, other: &Self) -> bool {
                self.$field == other.$field
            }
        }

        impl<$parameter> Eq for $type<$parameter> {}

        impl<$parameter> core::fmt::Debug for $type<$parameter> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_tuple(stringify!($type)).field(&self.$field).finish()
            }
        }

        const _: () = assert!(size_of::<$type<u8>>() == 8 && size_of::<Option<$type<u8>>>() == 8);
    };
}
