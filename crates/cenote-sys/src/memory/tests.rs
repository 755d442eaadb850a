use super::*;
use crate::testing::in_child;
use std::os::fd::AsFd;

const MIB: usize = 1 << 20;

fn store(addr: usize, value: u64) {
    // SAFETY: the tests pass addresses that they mapped writable.
    unsafe { ptr::without_provenance_mut::<u64>(addr).write_volatile(value) }
}

fn load(addr: usize) -> u64 {
    // SAFETY: the tests pass addresses that they mapped readable.
    unsafe { ptr::without_provenance::<u64>(addr).read_volatile() }
}

/// Whether the access kills a child that does it, in its own copy of the address space.
fn kills(action: impl FnOnce()) -> bool {
    let status = crate::testing::spawn_child(action).wait();
    libc::WIFSIGNALED(status)
}

#[test]
fn a_reserved_range_is_refused_to_a_second_reservation_and_freed_by_release() {
    let base = reserve_anywhere(4 * MIB, 2 * MIB).expect("reserve");
    assert!(base.is_multiple_of(2 * MIB));
    let middle = base + MIB;
    assert!(matches!(
        reserve(middle, MIB),
        Err(ReserveError::Taken { base, len: MIB }) if base == middle
    ));
    // SAFETY: our own reservation.
    unsafe { release(base, 4 * MIB) }.expect("release");
    // Another test may be quicker with the address; then it is taken, which is as right.
    match reserve(base, 4 * MIB) {
        // SAFETY: our own reservation.
        Ok(()) => unsafe { release(base, 4 * MIB) }.expect("release"),
        Err(ReserveError::Taken { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_reservation_never_replaces_what_is_there() {
    let region = anonymous(MIB).expect("map");
    let addr = region.as_ptr().addr();
    store(addr, 42);
    assert!(matches!(reserve(addr, 4096), Err(ReserveError::Taken { .. })));
    assert_eq!(load(addr), 42);
}

#[test]
fn bad_ranges_are_refused_with_an_error() {
    for (base, len) in
        [(0, 4096), (4096 * 16, 0), (4097, 4096), (1 << 40, 100), (usize::MAX - 4095, 8192)]
    {
        assert!(matches!(reserve(base, len), Err(ReserveError::Range { .. })), "{base} {len}");
    }
    assert!(matches!(reserve_anywhere(4096, 12288), Err(ReserveError::Range { .. })));
    assert!(matches!(reserve_anywhere(0, 4096), Err(ReserveError::Range { .. })));
    assert!(matches!(
        reserve_anywhere(usize::MAX & !4095, 1 << 21),
        Err(ReserveError::Range { .. })
    ));
    assert!(matches!(reserve_anywhere(1 << 60, 4096), Err(ReserveError::System { .. })));
    assert!(matches!(reserve(1 << 62, 4096), Err(ReserveError::System { .. })));
    assert!(anonymous(usize::MAX).is_err());
}

#[test]
fn a_tebibyte_can_be_reserved() {
    let base = find_free(1 << 40, 1 << 40).expect("1 TiB of address space");
    assert!(base.is_multiple_of(1 << 40));
    reserve(base, 1 << 40).expect("free just now");
    // SAFETY: our own reservation.
    unsafe { release(base, 1 << 40) }.expect("release");
}

#[test]
fn a_shared_mapping_changes_the_file_and_a_private_one_does_not() {
    use std::os::unix::fs::FileExt;
    let file = tempfile::tempfile().expect("temporary file");
    file.set_len(8192).expect("length");
    let base = reserve_anywhere(MIB, 4096).expect("reserve");
    let word = || {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).expect("read");
        u64::from_le_bytes(bytes)
    };
    // SAFETY: inside our own reservation, whose bytes only this test uses.
    unsafe {
        map_file(file.as_fd(), base, 8192, Access::ReadWrite, Sharing::Shared).expect("map shared");
        store(base, 1);
        assert_eq!(word(), 1);
        map_file(file.as_fd(), base, 8192, Access::ReadWrite, Sharing::Private)
            .expect("map private");
        assert_eq!(load(base), 1);
        store(base, 2);
        assert_eq!((load(base), word()), (2, 1));
        file.write_all_at(&3_u64.to_le_bytes(), 4096).expect("write");
        map_file_at(file.as_fd(), 4096, base, 4096, Access::ReadOnly, Sharing::Shared)
            .expect("map at");
        assert_eq!(load(base), 3);
        release(base, MIB).expect("release");
    }
}

#[test]
fn a_synchronous_mapping_is_refused_where_flushes_would_not_persist() {
    let fd =
        rustix::fs::memfd_create(c"cenote-test", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&fd, 4096).expect("length");
    let base = reserve_anywhere(MIB, 4096).expect("reserve");
    // SAFETY: inside our own reservation.
    let error = unsafe { map_file(fd.as_fd(), base, 4096, Access::ReadWrite, Sharing::SharedSync) };
    assert_eq!(error.expect_err("tmpfs is not persistent").raw_os_error(), Some(libc::EOPNOTSUPP));
    // Still reserved: nothing can slip in.
    assert!(matches!(reserve(base, MIB), Err(ReserveError::Taken { .. })));
    // SAFETY: our own reservation.
    unsafe { release(base, MIB) }.expect("release");
}

#[test]
fn children_do_not_inherit_mappings_and_cannot_have_others_there() {
    let base = reserve_anywhere(MIB, 4096).expect("reserve");
    // SAFETY: inside our own reservation.
    unsafe { map_anonymous(base, 8192) }.expect("map");
    store(base, 5);
    // Nothing of it is there, and nothing can be: what led there leads to nothing.
    let faults = || {
        let status = crate::testing::spawn_child(|| assert_eq!(load(base), 5)).wait();
        libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV
    };
    let free = || in_child(|| i32::from(reserve(base, MIB).is_ok())) != 0;
    assert!(faults(), "the child has some of the parent's window");
    assert!(!free(), "the child can have other memory there");
    assert_eq!(load(base), 5);
    // SAFETY: inside our own reservation.
    unsafe { unmap_to_reserved(base, 8192) }.expect("unmap");
    assert!(!free(), "the child can have other memory where something was unmapped");
    assert!(matches!(reserve(base, MIB), Err(ReserveError::Taken { .. })));
    // SAFETY: our own reservation.
    unsafe { release(base, MIB) }.expect("release");
}

#[test]
fn protection_takes_away_exactly_what_it_says() {
    let region = anonymous(8192).expect("map");
    let addr = region.as_ptr().addr();
    store(addr, 9);
    // SAFETY: our own memory; only children touch it in ways that are taken away.
    unsafe {
        protect(addr, 4096, Some(Access::ReadOnly)).expect("protect");
        assert_eq!(load(addr), 9);
        assert!(kills(|| store(addr, 1)));
        assert!(!kills(|| store(addr + 4096, 1)));
        protect(addr, 4096, None).expect("protect");
        assert!(kills(|| {
            load(addr);
        }));
        protect(addr, 4096, Some(Access::ReadWrite)).expect("protect");
    }
    assert_eq!(load(addr), 9);
    store(addr, 10);
}

#[test]
fn anonymous_regions_are_zero_rounded_up_and_lazy() {
    let region = anonymous(1).expect("map");
    assert_eq!(region.len(), page_bytes());
    assert_eq!(load(region.as_ptr().addr()), 0);
    // Far more than the memory there is: only touched pages are taken.
    let big = match anonymous(1 << 42) {
        Ok(big) => big,
        Err(error) => {
            return println!(
                "skipped: strict accounting of memory, or a limit of address space: {error}"
            );
        }
    };
    store(big.as_ptr().addr() + (1 << 41), 1);
    assert_eq!(load(big.as_ptr().addr() + (1 << 41)), 1);
}
