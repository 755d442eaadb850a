//! Pages that cannot be read any more, as of a file that was cut short or of memory that the
//! hardware has lost.

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Maps a file without bytes over a page, wherever that page of its file is mapped: from now on
/// every access to it is `SIGBUS`.
///
/// # Safety
/// No reference leads into the page, and only code that expects to lose it uses it.
pub unsafe fn lose(addr: usize) {
    let all = everywhere(addr & !(PAGE - 1));
    // SAFETY: the caller's page.
    all.into_iter().for_each(|page| unsafe { lose_at(page) });
}

/// All places where the page of a file is mapped that is mapped at `page`.
#[must_use]
pub fn everywhere(page: usize) -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let number = |text: &str| usize::from_str_radix(text, 16).expect("a number");
    // Range, offset, and device with inode.
    let parsed: Vec<_> = maps
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (from, to) = words.next()?.split_once('-')?;
            let offset = number(words.nth(1)?);
            let file = (words.next()?, words.next()?);
            Some((number(from)..number(to), offset, file))
        })
        .collect();
    let holds = parsed.iter().find(|(range, ..)| range.contains(&page));
    let Some((range, offset, file)) = holds.filter(|(_, _, (_, inode))| *inode != "0") else {
        return vec![page];
    };
    let at = page - range.start + offset;
    let same = |(other, from, of): &(core::ops::Range<usize>, usize, (&str, &str))| {
        let within = at.checked_sub(*from).filter(|_| of == file)?;
        (within < other.len()).then(|| other.start + within)
    };
    parsed.iter().filter_map(same).collect()
}

/// # Safety
/// As [`lose`].
unsafe fn lose_at(addr: usize) {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: the caller's page; the file is this function's.
    unsafe {
        let file = libc::memfd_create(c"lost".as_ptr(), libc::MFD_CLOEXEC);
        assert!(file >= 0, "no memory file");
        let at = core::ptr::without_provenance_mut(addr);
        assert!(libc::mmap(at, PAGE, access, flags, file, 0) != libc::MAP_FAILED, "not mapped");
        libc::close(file);
    }
}
