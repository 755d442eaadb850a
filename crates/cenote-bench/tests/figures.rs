//! Every figure runs, and its rows can be read by programs. The program itself is run, as a user
//! would.

use cenote_bench::figures::{FIGURES, puddles_table3};
use std::process::Command;

/// The rows that a run has written.
struct Rows(String);

impl Rows {
    /// A row of this system and level is there; `rest` is how it goes on.
    fn has(&self, row: &str, system: &str, level: &str, rest: &str) {
        let wanted =
            format!("\"row\":\"{row}\",\"system\":\"{system}\",\"level\":\"{level}\"{rest}");
        assert!(self.0.contains(&wanted), "{wanted}");
    }

    fn of_the_heap(&self) {
        for level in ["process", "power"] {
            for row in puddles_table3::ROWS {
                self.has(row, "cenote", level, ",\"threads\":1,\"unit\":\"ns\"");
            }
            for threads in [1, 2] {
                for row in ["threadtest", "shbench", "larson"] {
                    self.has(
                        row,
                        "cenote",
                        level,
                        &format!(",\"threads\":{threads},\"unit\":\"Mpairs/s\""),
                    );
                }
                for row in ["poseidon6_64B", "poseidon6_256K"] {
                    self.has(
                        row,
                        "cenote",
                        level,
                        &format!(",\"threads\":{threads},\"unit\":\"Mops/s\""),
                    );
                }
            }
            self.has("prodcon", "cenote", level, ",\"threads\":2,\"unit\":\"Mobjects/s\"");
            self.has("total_10000", "cenote", level, ",\"threads\":1,\"unit\":\"ms\"");
        }
        for row in ["treiber_10000", "natarajan_mittal_10000"] {
            self.has(row, "cenote", "power", ",\"threads\":1,\"unit\":\"ms\"");
            self.has(row, "traversal", "power", ",\"threads\":1,\"unit\":\"ms\"");
        }
        self.has("file", "cenote", "process", "");
    }

    fn of_poseidon(&self) {
        let rows = ["64B", "256K", "larson", "ackermann", "kruskal", "queens", "load", "a"];
        for level in ["process", "power"] {
            for (row, threads) in rows.into_iter().flat_map(|row| [(row, 1), (row, 2)]) {
                for system in ["traced", "logged"] {
                    let rest = format!(",\"threads\":{threads},\"unit\":\"ns\"");
                    self.has(row, system, level, &rest);
                }
            }
            for (row, unit) in [("total", "ms"), ("probes", "slots"), ("pair", "ns")] {
                let rest = format!(",\"threads\":1,\"unit\":\"{unit}\"");
                self.has(&format!("{row}_10000"), "logged", level, &rest);
            }
        }
    }

    /// The median of a row.
    fn median(&self, row: &str, system: &str, level: &str) -> f64 {
        let wanted = format!("\"row\":\"{row}\",\"system\":\"{system}\",\"level\":\"{level}\"");
        let mut lines = self.0.lines().filter(|line| line.contains(&wanted));
        let line = lines.next().unwrap_or_else(|| panic!("no {wanted}"));
        let (_, rest) = line.split_once("\"median\":").expect("every row has one");
        let number = rest.split(',').next().expect("a number");
        number.parse().expect("a number")
    }

    fn of_nvmallocs_tables(&self) {
        for row in ["10B-4KB", "1KB"] {
            for (system, level) in [("slab", "none"), ("glibc", "none")] {
                self.has(row, system, level, ",\"threads\":1,\"unit\":\"Mops/s\"");
            }
            for system in ["traced", "logged", "wear", "wear-0"] {
                let [process, power] =
                    ["process", "power"].map(|level| self.median(row, system, level));
                assert!(process > 0.0 && power > 0.0, "{row} {system}: {process} {power}");
            }
        }
        for ratio in ["1:3", "1:2", "1:1"] {
            for (system, level) in [("glibc", "none"), ("wear", "power"), ("wear-0", "process")] {
                let [total, external, time] = ["total", "external", "time"]
                    .map(|row| self.median(&format!("{row} {ratio}"), system, level));
                // A byte is not free twice, and the end has no less than its live blocks.
                assert!(0.0 < total && total < 100.0, "{ratio} {system}: {total}");
                assert!((0.0..=total).contains(&external), "{ratio} {system}: {external}");
                assert!(time > 0.0, "{ratio} {system}: {time}");
            }
        }
        let [waits, does_not] =
            ["wear", "wear-0"].map(|system| self.median("total 1:1", system, "process"));
        assert!(waits > does_not, "{waits} {does_not}");
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn of_nvmallocs_writes(&self) {
        let of = |row: &str, system| {
            let level = if system == "original" { "none" } else { "power" };
            self.median(&format!("{row} insert"), system, level)
        };
        // 300 keys, and a value each, take 75 lines at least; each is written once at least.
        for system in ["original", "sorted", "modified"] {
            let [total, lines, max] = ["total", "lines", "max"].map(|row| of(row, system));
            assert!(total >= 300.0 && lines >= 75.0, "{system}: {total} {lines}");
            assert!(max >= total / lines && of("mean", system) <= max, "{system}: {max}");
        }
        assert!(of("max", "modified") < of("max", "sorted"));
        for (sizes, least_writes) in [("10B-4KB", 20.0), ("10B-256B", 2.0)] {
            let of = |row: &str, system| {
                let level = if system == "wear" { "process" } else { "none" };
                self.median(&format!("{row} {sizes}"), system, level)
            };
            // 500 operations: an allocation and a free write the header, and nothing else twice.
            assert_eq!(of("max", "wear"), 2.0);
            let heap = of("heap", "wear");
            assert!((450.0..600.0).contains(&heap), "{sizes}: {heap}");
            let [wear, glibc] = ["wear", "glibc"].map(|system| of("total", system));
            assert!(wear > 200.0 * least_writes && glibc > 200.0 * least_writes, "{wear} {glibc}");
            assert!((of("of_glibc", "wear") - wear / glibc).abs() < 0.001);
            assert!(of("heap", "glibc, uncached") > heap, "{sizes}");
            assert!(of("max", "glibc") > 2.0, "{sizes}");
        }
    }

    fn of_objects(&self) {
        for row in ["lu", "lu_8", "conv_4", "tmm_4"] {
            self.has(row, "cenote", "process", ",\"threads\":2,\"unit\":\"ns\"");
            self.has(row, "mmap, msync", "process", ",\"threads\":1,\"unit\":\"ns\"");
        }
        for row in ["fs", "vm", "wp", "ws"] {
            self.has(row, "cenote", "process", ",\"threads\":2,\"unit\":\"ns\"");
            self.has(row, "write, fsync", "process", ",\"threads\":1,\"unit\":\"ns\"");
            for system in ["integrity", "encryption", "both", "authenticated"] {
                self.has(
                    &format!("{row}_attach"),
                    system,
                    "process",
                    ",\"threads\":1,\"unit\":\"ns\"",
                );
            }
        }
        self.has("attach", "encryption", "process", "");
        self.has("first_access", "authenticated", "process", "");
        self.has("first_access_p50", "encryption", "process", "");
        self.has("first_access_p99", "encryption", "process", "");
    }

    fn of_the_daemon_and_relocation(&self) {
        for row in ["export_16B", "export_16M", "import_16B", "import_16M"] {
            self.has(row, "cenote", "process", ",\"threads\":1,\"unit\":\"ms\"");
            self.has(row, "cp", "process", "");
        }
        for row in ["rewrite_20", "rewrite_2000"] {
            for system in ["cenote", "open", "memcpy"] {
                self.has(row, system, "process", "");
            }
        }
        for system in ["cenote", "allocate again"] {
            self.has("nodes_4_variables_100", system, "process", "");
        }
        for (row, beside) in [
            ("noop", "socket"),
            ("exist_puddle", "socket+fd"),
            ("new_puddle", "socket+fd"),
            ("reg_log_space", "socket+fd"),
        ] {
            self.has(row, "cenote", "process", ",\"threads\":1,\"unit\":\"us\"");
            self.has(row, beside, "process", "");
        }
        for (row, unit) in [("replay_1", "ms"), ("replay_100", "ms"), ("memory_50", "KiB")] {
            self.has(row, "cenote", "process", &format!(",\"threads\":1,\"unit\":\"{unit}\""));
        }
    }
}

#[test]
fn every_figure_runs_short_and_writes_rows_with_all_keys() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("rows");
    let ran = Command::new(env!("CARGO_BIN_EXE_cenote-bench"))
        .args(["--all", "--quick", "--json"])
        .arg(&path)
        .output();
    let ran = ran.expect("the program starts");
    let told =
        format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{told}");
    let text = std::fs::read_to_string(&path).expect("rows");
    for figure in &FIGURES {
        assert!(text.contains(&format!("\"figure\":\"{}\"", figure.name)), "{}", figure.name);
    }
    let rows = Rows(text);
    rows.of_the_heap();
    rows.of_poseidon();
    rows.of_objects();
    rows.of_the_daemon_and_relocation();
    rows.of_nvmallocs_tables();
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    rows.of_nvmallocs_writes();
    for attack in ["overlap", "leak"] {
        // No block is handed out twice, and none is lost.
        let nothing = ",\"threads\":1,\"unit\":\"blocks\",\"median\":0.000";
        rows.has(attack, "cenote", "power", nothing);
        rows.has(attack, "logged", "power", nothing);
    }
    for line in rows.0.lines() {
        for key in
            ["figure", "row", "system", "level", "threads", "unit", "median", "min", "max", "runs"]
        {
            assert_eq!(line.matches(&format!("\"{key}\":")).count(), 1, "{line}");
        }
    }
}

#[test]
fn a_child_that_was_not_asked_for_says_so_and_fails() {
    for argument in [
        "--fill-until-killed",
        "--use-logged-heap-until-killed",
        "--fragment",
        "--count-writes",
        "--count-writes-of-map",
    ] {
        let ran = Command::new(env!("CARGO_BIN_EXE_cenote-bench")).arg(argument).output();
        let ran = ran.expect("the program starts");
        assert!(
            !ran.status.success()
                && String::from_utf8_lossy(&ran.stderr).contains("only for this program")
        );
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn each_store_is_counted_once() {
    let ran = Command::new(env!("CARGO_BIN_EXE_cenote-bench"))
        .args(["--count-writes", "known", "0", "0", "0", "/"])
        .output();
    let ran = ran.expect("the program starts");
    // Two lines have the store into two pages, ten lines three writes of two stores each.
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "writes 1x2 3x10\n", "{ran:?}");
}
