//! `cenote doctor`: what the machine gives, what is used instead of what is missing, in plain
//! words.

use crate::cli::Doctor;
use crate::failure::{Failure, Verdict};
use crate::output::Out;
use crate::units::{bytes, count};
use cenote::{Durability, Medium as _, MediumOptions, RealMedium};
use cenote_medium::MediumKind;
use cenote_store::{WINDOW_LEN_DEFAULT, known_windows, known_windows_file};
use cenote_sys::cpu::FlushInstruction;
use cenote_sys::probe::{Limit, Report, UserfaultfdMode};
use serde_json::{Value, json};

/// How a line is to be taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// There.
    Good,
    /// Missing, and something else does its work.
    Instead,
    /// A fact.
    Fact,
}

pub(crate) fn run(arguments: &Doctor, out: &mut Out) -> Result<Verdict, Failure> {
    let medium = RealMedium::open(&arguments.dir, &MediumOptions::default())?;
    let info = medium.describe();
    let report = Report::collect();

    out.line(out.bold(&format!("the directory {}", info.path)))?;
    let dax = info.kind == MediumKind::Dax;
    say(out, Mark::Fact, "file system", &format!("{} ({})", info.fs, info.kind))?;
    if dax {
        say(out, Mark::Good, "DAX", "yes: programs map the persistent memory itself (MAP_SYNC)")?;
    } else {
        say(
            out,
            Mark::Instead,
            "DAX",
            "no: the kernel refuses MAP_SYNC here; files are mapped through the page cache",
        )?;
    }
    let mark = if info.durability == Durability::Power { Mark::Good } else { Mark::Fact };
    say(out, mark, "durability", &format!("{}: {}", info.durability, info.note))?;
    if medium.read_only() {
        say(out, Mark::Instead, "read-only", "stores here can be read, not written")?;
    }

    out.line("")?;
    out.line(out.bold("the processor"))?;
    say(out, Mark::Fact, "model", &format!("{}, {} usable", report.cpu_model, report.cpus))?;
    flush(&report, dax, out)?;
    availability(
        out,
        "protection keys",
        report
            .protection_keys
            .as_ref()
            .map(|()| "yes (PKU): pages can be made writable for one thread".into()),
        "nothing needs them unless a program asks for them",
    )?;

    out.line("")?;
    out.line(out.bold("the kernel"))?;
    say(
        out,
        Mark::Fact,
        "release",
        &format!("{}, pages of {}", report.kernel, bytes(report.page_bytes as u64)),
    )?;
    kernel(&report, out)?;

    out.line("")?;
    out.line(out.bold("limits of this process"))?;
    limits(&report, out)?;
    out.object(&as_json(&report, &info, medium.read_only()))?;
    Ok(Verdict::Clean)
}

fn say(out: &mut Out, mark: Mark, label: &str, text: &str) -> Result<(), Failure> {
    let sign = match mark {
        Mark::Good => out.good("+"),
        Mark::Instead => out.warn("-"),
        Mark::Fact => out.dim("."),
    };
    let mut lines = crate::output::wrapped(text, 59).into_iter();
    let label = out.dim(&format!("{label:<15}"));
    out.line(format_args!("  {sign} {label} {}", lines.next().unwrap_or_default()))?;
    for line in lines {
        out.line(format_args!("{:20}{line}", ""))?;
    }
    Ok(())
}

/// What can be done with mappings.
fn mappings(report: &Report, out: &mut Out) -> Result<(), Failure> {
    let hidden =
        "yes: of logged pools, read-only at their address, written through a hidden mapping";
    availability(
        out,
        "safe metadata",
        report.second_mapping.as_ref().map(|()| hidden.into()),
        "stray writes into metadata of heaps are not stopped",
    )?;
    availability(
        out,
        "sealed memory",
        report
            .memfd_seals
            .as_ref()
            .map(|()| "yes: memory files of a size that cannot change".into()),
        "memory files are not passed to other processes",
    )
}

/// Something that is there, in words, or why not and what is used instead.
fn availability(
    out: &mut Out,
    label: &str,
    found: Result<String, &cenote_sys::probe::Missing>,
    instead: &str,
) -> Result<(), Failure> {
    match found {
        Ok(text) => say(out, Mark::Good, label, &text),
        Err(missing) => say(out, Mark::Instead, label, &format!("no: {missing}; {instead}")),
    }
}

fn flush(report: &Report, dax: bool, out: &mut Out) -> Result<(), Failure> {
    let use_here =
        if dax { "" } else { "; not needed here, because durability is that of the page cache" };
    let text = match report.flush_instruction {
        FlushInstruction::Clwb => format!("clwb: writes a cache line back and keeps it{use_here}"),
        FlushInstruction::ClflushOpt => {
            format!(
                "clflushopt, because clwb is missing: the next use of a line loads it \
                 again{use_here}"
            )
        }
        FlushInstruction::Clflush => {
            format!(
                "clflush, because clwb and clflushopt are missing: flushes one line after the \
                     other{use_here}"
            )
        }
        _ => {
            let text = "unknown for this processor: commits survive crashes of programs, but no \
                        loss of power";
            return say(out, Mark::Instead, "flush", text);
        }
    };
    say(out, Mark::Good, "flush", &text)
}

fn kernel(report: &Report, out: &mut Out) -> Result<(), Failure> {
    availability(
        out,
        "userfaultfd",
        report.userfaultfd.as_ref().map(|found| {
            let mode = match found.mode {
                UserfaultfdMode::Full => "all faults",
                UserfaultfdMode::UserModeOnly => {
                    "faults of the program, but not those inside system calls"
                }
            };
            let protects =
                if found.write_protect_async { ", asynchronous write protection" } else { "" };
            format!("yes: {mode}{protects}")
        }),
        "faults are resolved by a signal handler instead",
    )?;
    let instead = if report.dirty_by_private_copy.is_ok() {
        "changed pages of private mappings are found instead"
    } else {
        "mprotect and a fault handler find changed pages instead"
    };
    availability(
        out,
        "PAGEMAP_SCAN",
        report
            .dirty_by_write_protection
            .as_ref()
            .map(|()| "yes: finds changed pages of objects".into()),
        instead,
    )?;
    mappings(report, out)?;
    availability(
        out,
        "membarrier",
        report
            .membarrier
            .as_ref()
            .map(|()| "yes: one system call is a barrier for all threads".into()),
        "each thread executes its own barriers",
    )?;
    availability(
        out,
        "fork",
        report
            .wipe_on_fork
            .as_ref()
            .map(|()| "yes: a forked child is noticed at once, and gets no access".into()),
        "a forked child is noticed by its process number",
    )?;
    let setting = |found: &cenote_sys::probe::Availability<String>| match found {
        Ok(setting) => setting.clone(),
        Err(missing) => format!("not known ({missing})"),
    };
    let text = format!(
        "\"{}\" for private memory, \"{}\" for shared memory and tmpfs; small pages are used where \
         there are none",
        setting(&report.transparent_huge_pages),
        setting(&report.shared_huge_pages)
    );
    say(out, Mark::Fact, "huge pages", &text)
}

fn limits(report: &Report, out: &mut Out) -> Result<(), Failure> {
    let limits = &report.limits;
    let shown = |limit: &Limit, unit: &dyn Fn(u64) -> String| {
        limit.soft.map_or_else(|| "unlimited".into(), unit)
    };
    let window = bytes(WINDOW_LEN_DEFAULT);
    let addresses = shown(&limits.address_space_bytes, &bytes);
    if limits.address_space_bytes.soft.is_none_or(|limit| limit > WINDOW_LEN_DEFAULT) {
        say(out, Mark::Good, "addresses", &format!("{addresses}: a window of {window} fits"))?;
    } else {
        let text = format!(
            "{addresses}: a window of {window} does not fit; raise it (ulimit -v), or format with \
             a smaller --window-size"
        );
        say(out, Mark::Instead, "addresses", &text)?;
    }
    let known = match known_windows_file() {
        Some(file) => format!(
            "{} in {}; a new store avoids them; `cenote rm --store` takes its store's window off \
             the list; without the file all are forgotten",
            known_windows().len(),
            file.display()
        ),
        None => "not kept, because $XDG_STATE_HOME and $HOME are not set".into(),
    };
    say(out, Mark::Fact, "known windows", &known)?;
    say(out, Mark::Fact, "open files", &shown(&limits.open_files, &count))?;
    say(
        out,
        Mark::Fact,
        "locked",
        &format!("{} of memory can be locked", shown(&limits.locked_memory_bytes, &bytes)),
    )?;
    let mappings = limits.mappings.map_or_else(|| "not known".into(), count);
    say(
        out,
        Mark::Fact,
        "mappings",
        &format!("{mappings} (vm.max_map_count); each puddle takes one"),
    )
}

fn as_json(report: &Report, info: &cenote_medium::MediumInfo, read_only: bool) -> Value {
    fn there<T>(found: &cenote_sys::probe::Availability<T>) -> Value {
        match found {
            Ok(_) => json!({ "available": true }),
            Err(missing) => json!({ "available": false, "reason": missing.to_string() }),
        }
    }
    let limit = |limit: &Limit| json!({ "soft": limit.soft, "hard": limit.hard });
    let features = &report.cpu_features;
    json!({
        "path": info.path, "file_system": info.fs, "medium": info.kind.to_string(),
        "dax": info.kind == MediumKind::Dax, "durability": info.durability.to_string(),
        "note": info.note,
        "read_only": read_only, "kernel": report.kernel, "page_bytes": report.page_bytes,
        "cpu": report.cpu_model, "cpus": report.cpus,
        "flush_instruction": report.flush_instruction.name(),
        "clwb": features.clwb, "clflushopt": features.clflushopt, "clflush": features.clflush,
        "userfaultfd": there(&report.userfaultfd),
        "dirty_by_write_protection": there(&report.dirty_by_write_protection),
        "dirty_by_private_copy": there(&report.dirty_by_private_copy),
        "protection_keys": there(&report.protection_keys),
        "heap_metadata": if report.second_mapping.is_ok() { "hidden" } else { "none" },
        "second_mapping": there(&report.second_mapping),
        "memfd_seals": there(&report.memfd_seals),
        "membarrier": there(&report.membarrier), "wipe_on_fork": there(&report.wipe_on_fork),
        "transparent_huge_pages": report.transparent_huge_pages.as_ref().ok(),
        "shared_huge_pages": report.shared_huge_pages.as_ref().ok(),
        "address_space_bytes": limit(&report.limits.address_space_bytes),
        "open_files": limit(&report.limits.open_files),
        "locked_memory_bytes": limit(&report.limits.locked_memory_bytes),
        "mappings": report.limits.mappings,
        "known_windows": known_windows().len(),
    })
}
