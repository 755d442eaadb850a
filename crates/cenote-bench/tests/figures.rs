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
    for argument in ["--fill-until-killed", "--use-logged-heap-until-killed"] {
        let ran = Command::new(env!("CARGO_BIN_EXE_cenote-bench")).arg(argument).output();
        let ran = ran.expect("the program starts");
        assert!(
            !ran.status.success()
                && String::from_utf8_lossy(&ran.stderr).contains("only for this program")
        );
    }
}
