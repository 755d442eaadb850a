use super::*;
use crate::memory::{self, Access, Sharing};
use core::mem::MaybeUninit;
use std::os::fd::AsFd;

#[repr(C)]
struct Padded {
    small: u8,
    word: u64,
}

#[test]
fn the_bytes_of_a_padded_value_are_those_that_memory_holds() {
    let mut place = [0xa5u8; 32].map(MaybeUninit::new);
    let at = place.as_mut_ptr().cast::<u8>();
    let value = at.wrapping_add(at.align_offset(8)).cast::<Padded>();
    // SAFETY: aligned, and room for a value in 32 bytes that are ours.
    let bytes = unsafe {
        (&raw mut (*value).small).write(7);
        (&raw mut (*value).word).write(u64::MAX);
        settled(value.cast(), 16)
    };
    assert_eq!((bytes[0], &bytes[1..8], &bytes[8..]), (7, &[0xa5; 7][..], &[0xff; 8][..]));
    // SAFETY: inside the same value; nothing need be aligned.
    assert_eq!(unsafe { load_word(value.cast::<u8>().add(1)) }, 0xffa5_a5a5_a5a5_a5a5);
}

#[test]
fn the_kernel_copies_what_is_there_and_says_what_is_not() {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(4096).expect("a length");
    let base = memory::reserve_anywhere(3 * 4096, 4096).expect("address space");
    // SAFETY: our own reservation. The second page lies behind the file's end; the third stays
    // inaccessible.
    unsafe { memory::map_file(file.as_fd(), base, 2 * 4096, Access::ReadWrite, Sharing::Shared) }
        .expect("map");
    // SAFETY: the first page, which is in the file.
    unsafe { core::ptr::with_exposed_provenance_mut::<u8>(base + 9).write_volatile(3) };
    let mut page = vec![0; 4096];
    copy_by_kernel(base, &mut page).expect("copied");
    assert_eq!((page[8], page[9]), (0, 3));
    let out = tempfile::tempfile().expect("a file");
    write_by_kernel(out.as_fd(), 5, base + 9, 100).expect("written");
    assert_eq!(std::os::unix::fs::FileExt::read_at(&out, &mut page, 0).expect("read"), 105);
    assert_eq!((page[4], page[5], page[6]), (0, 3, 0));
    for bad in [base + 4096, base + 2 * 4096] {
        assert!(copy_by_kernel(bad, &mut page).is_err(), "page {}", (bad - base) / 4096);
        assert!(
            write_by_kernel(out.as_fd(), 0, bad, 4096).is_err(),
            "page {}",
            (bad - base) / 4096
        );
    }
    // What cannot be copied whole is no copy.
    assert!(copy_by_kernel(base + 100, &mut page).is_err());
    // SAFETY: our own reservation.
    unsafe { memory::release(base, 3 * 4096) }.expect("release");
}

#[test]
fn the_kernel_stores_what_fits_and_says_where_a_page_is_lost() {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(2 * 4096).expect("a length");
    let base = memory::reserve_anywhere(2 * 4096, 4096).expect("address space");
    // SAFETY: our own reservation.
    unsafe { memory::map_file(file.as_fd(), base, 2 * 4096, Access::ReadWrite, Sharing::Private) }
        .expect("map");
    file.set_len(4096).expect("cut short");
    // SAFETY: mapped to be written; nothing else uses it.
    unsafe {
        store_by_kernel(base + 4000, &[7; 96]).expect("stored");
        assert!(store_by_kernel(base + 4000, &[7; 97]).is_err());
        assert!(store_by_kernel(base + 4096, &[7]).is_err());
        store_by_kernel(base, &[]).expect("nothing");
    }
    let mut found = [0; 97];
    copy_by_kernel(base + 3999, &mut found).expect("copied");
    assert_eq!((found[0], found[1], found[96]), (0, 7, 7));
    let mut in_file = [1; 96];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut in_file, 4000).expect("read");
    assert_eq!(in_file, [0; 96], "a private copy");
    // SAFETY: our own reservation.
    unsafe { memory::release(base, 2 * 4096) }.expect("release");
}
