use super::*;

type Stream = unsafe fn(*mut u8, *const u8, usize);

/// Copies into the middle of a buffer and says what is wrong with the outcome.
fn check(stream: Stream, dst_offset: usize, src_offset: usize, len: usize) {
    let src: Vec<u8> = (0..src_offset + len + 64).map(|i| (i * 7 + 1) as u8).collect();
    let mut dst = vec![0_u64; (dst_offset + len) / 8 + 64];
    // Line-aligned start, so that dst_offset alone decides the alignment.
    let base = dst.as_mut_ptr().cast::<u8>();
    let start = base.align_offset(LINE_BYTES) + dst_offset;
    // SAFETY: both ranges lie inside their vectors; dst is 8-aligned as dst_offset is.
    unsafe { stream(base.add(start), src.as_ptr().add(src_offset), len) };
    sfence();
    // SAFETY: the vector's bytes, all initialised.
    let bytes = unsafe { core::slice::from_raw_parts(base, dst.len() * 8) };
    assert_eq!(
        &bytes[start..start + len],
        &src[src_offset..src_offset + len],
        "{dst_offset} {src_offset} {len}"
    );
    assert!(
        bytes[..start].iter().all(|&b| b == 0),
        "wrote before the destination: {dst_offset} {src_offset} {len}"
    );
    assert!(
        bytes[start + len..].iter().all(|&b| b == 0),
        "wrote past the end: {dst_offset} {src_offset} {len}"
    );
}

fn check_all(stream: Stream) {
    for len in (0..=640).step_by(8).chain([1024, 4096, 4104, 8192 + 56]) {
        for dst_offset in (0..64).step_by(8) {
            for src_offset in [0, 1, 8, 13, 31] {
                check(stream, dst_offset, src_offset, len);
            }
        }
    }
}

#[test]
fn stream_copy_copies_exactly_its_range_at_every_alignment_and_length() {
    check_all(stream_copy);
}

#[test]
fn the_portable_stream_copy_does_the_same() {
    check_all(portable::stream_copy);
    assert_eq!(portable::detect(), CpuFeatures::default());
    portable::sfence();
    assert!(!portable::model_name().is_empty());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn every_register_width_copies_whole_lines() {
    let widths: [(&str, bool, Stream); 3] = [
        ("128", true, x86_64::stream_lines_128),
        // SAFETY: called only where the feature is there.
        ("256", features().avx2, |d, s, n| unsafe { x86_64::stream_lines_256(d, s, n) }),
        // SAFETY: called only where the feature is there.
        ("512", features().avx512f, |d, s, n| unsafe { x86_64::stream_lines_512(d, s, n) }),
    ];
    for (name, there, stream) in widths {
        if !there {
            println!("skipped: no {name}-bit registers on this processor");
            continue;
        }
        for lines in 0..=17 {
            for src_offset in [0, 1, 32] {
                check(stream, 0, src_offset, lines * LINE_BYTES);
            }
        }
    }
}

#[test]
fn stream_u64_writes_one_word() {
    let mut words = [1_u64, 2, 3];
    // SAFETY: a word of our own array.
    unsafe { stream_u64(&raw mut words[1], 0xdead_beef_0123_4567) };
    sfence();
    assert_eq!(words, [1, 0xdead_beef_0123_4567, 3]);
}

#[test]
fn the_chosen_flush_is_the_best_of_the_features_and_runs() {
    let f = features();
    let best = match flush_instruction() {
        FlushInstruction::Clwb => f.clwb,
        FlushInstruction::ClflushOpt => f.clflushopt && !f.clwb,
        FlushInstruction::Clflush => f.clflush && !f.clwb && !f.clflushopt,
        FlushInstruction::None => !f.clflush && !f.clwb && !f.clflushopt,
    };
    assert!(best, "{} chosen of {f:?}", flush_instruction());
    let value = 7_u64;
    let p = (&raw const value).cast::<u8>();
    // SAFETY: a live local; every instruction only where it exists.
    unsafe {
        if f.clwb {
            clwb(p);
        }
        if f.clflushopt {
            clflushopt(p);
        }
        if f.clflush {
            clflush(p);
        }
    }
    sfence();
    assert_eq!(value, 7);
    assert!(!model_name().is_empty());
}

#[test]
fn features_agree_with_the_kernel() {
    let Ok(info) = std::fs::read_to_string("/proc/cpuinfo") else {
        println!("skipped: no /proc/cpuinfo");
        return;
    };
    let Some(flags) = info.lines().find_map(|l| l.strip_prefix("flags")) else {
        println!("skipped: /proc/cpuinfo names no flags");
        return;
    };
    let flags: Vec<&str> = flags.split_ascii_whitespace().collect();
    for (name, here) in features().list() {
        // The kernel may hide what the processor has, never the other way round.
        let kernel = flags.contains(&name);
        assert!(here || !kernel, "{name}: the kernel sees it, we do not");
    }
}
