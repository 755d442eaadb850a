//! Measures what makes stores durable: non-temporal copies against a plain copy with flushes, at 8
//! B, 64 B and 4 KiB, each followed by a fence. Run with `cargo bench -p cenote-sys --bench
//! measure_stream`.
//!
//! The destination is ordinary memory, larger than the caches by default (MiB as the only
//! argument), written in order.

use cenote_sys::cpu::{self, FlushInstruction, LINE_BYTES};
use cenote_sys::memory;
use std::time::Instant;

/// Writes back the lines of a range with the processor's best instruction.
///
/// # Safety
/// The range is mapped.
unsafe fn flush(start: *const u8, len: usize) {
    let first = start.addr() / LINE_BYTES * LINE_BYTES;
    for line in (first..start.addr() + len).step_by(LINE_BYTES) {
        let p = start.with_addr(line);
        // SAFETY: a line that the range touches; the instruction is one that this processor has.
        unsafe {
            match cpu::flush_instruction() {
                FlushInstruction::Clwb => cpu::clwb(p),
                FlushInstruction::ClflushOpt => cpu::clflushopt(p),
                FlushInstruction::Clflush => cpu::clflush(p),
                FlushInstruction::None => {}
            }
        }
    }
}

/// Nanoseconds of one `write` of `unit` bytes: the best of seven passes over the region.
fn measure(region: &memory::OwnedRegion, unit: usize, mut write: impl FnMut(*mut u8)) -> f64 {
    let units = region.len() / unit;
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let begin = Instant::now();
        for i in 0..units {
            // SAFETY: i * unit + unit <= len.
            write(unsafe { region.as_ptr().add(i * unit) });
        }
        best = best.min(begin.elapsed().as_nanos() as f64 / units as f64);
    }
    best
}

fn main() -> std::io::Result<()> {
    let mib: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(64);
    let region = memory::anonymous(mib << 20)?;
    // Take the memory first.
    measure(&region, 4096, |p| {
        // SAFETY: inside the region.
        unsafe { p.write_bytes(1, 4096) }
    });
    let source = vec![7_u8; 8192];
    println!("{}, flush by {}, {mib} MiB", cpu::model_name(), cpu::flush_instruction());
    println!(
        "{:>8} {:>14} {:>14} {:>14} {:>14}",
        "bytes", "stream+fence", "copy+flush", "copy", "stream alone"
    );
    for unit in [8, 64, 128, 256, 512, 4096] {
        let from = std::hint::black_box(source.as_ptr());
        // SAFETY: `p` is, here and below, the start of `unit` bytes of the region, `from` of 8192
        // bytes.
        let stream = measure(&region, unit, |p| unsafe {
            cpu::stream_copy(p, from, unit);
            cpu::sfence();
        });
        // SAFETY: as above.
        let flushed = measure(&region, unit, |p| unsafe {
            p.copy_from_nonoverlapping(from, unit);
            flush(p, unit);
            cpu::sfence();
        });
        // SAFETY: as above.
        let plain = measure(&region, unit, |p| unsafe {
            std::hint::black_box(p).copy_from_nonoverlapping(from, unit)
        });
        // SAFETY: as above.
        let alone = measure(&region, unit, |p| unsafe { cpu::stream_copy(p, from, unit) });
        println!(
            "{unit:>8} {stream:>11.1} ns {flushed:>11.1} ns {plain:>11.1} ns {alone:>11.1} ns"
        );
    }
    let begin = Instant::now();
    let calls = 10_000_000;
    for _ in 0..calls {
        std::hint::black_box(cenote_sys::cpu_number::current());
    }
    println!("cpu_number::current {:.2} ns", begin.elapsed().as_nanos() as f64 / f64::from(calls));
    Ok(())
}
