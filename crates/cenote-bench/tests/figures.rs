//! Every figure runs, and its rows can be read by programs. The program itself is run, as a user
//! would.

use cenote_bench::figures::{FIGURES, puddles_table3};
use std::process::Command;

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
    let has = |row: &str, system: &str, level: &str, rest: &str| {
        let wanted =
            format!("\"row\":\"{row}\",\"system\":\"{system}\",\"level\":\"{level}\"{rest}");
        assert!(text.contains(&wanted), "{wanted}");
    };
    for level in ["process", "power"] {
        for row in puddles_table3::ROWS {
            has(row, "cenote", level, ",\"threads\":1,\"unit\":\"ns\"");
        }
        for threads in [1, 2] {
            for row in ["threadtest", "shbench", "larson"] {
                has(row, "cenote", level, &format!(",\"threads\":{threads},\"unit\":\"Mpairs/s\""));
            }
            for row in ["poseidon6_64B", "poseidon6_256K"] {
                has(row, "cenote", level, &format!(",\"threads\":{threads},\"unit\":\"Mops/s\""));
            }
        }
        has("prodcon", "cenote", level, ",\"threads\":2,\"unit\":\"Mobjects/s\"");
        has("total_10000", "cenote", level, ",\"threads\":1,\"unit\":\"ms\"");
    }
    for row in ["treiber_10000", "natarajan_mittal_10000"] {
        has(row, "cenote", "power", ",\"threads\":1,\"unit\":\"ms\"");
        has(row, "traversal", "power", ",\"threads\":1,\"unit\":\"ms\"");
    }
    has("file", "cenote", "process", "");
    for row in ["lu", "lu_8", "conv_4", "tmm_4"] {
        has(row, "cenote", "process", ",\"threads\":2,\"unit\":\"ns\"");
        has(row, "mmap, msync", "process", ",\"threads\":1,\"unit\":\"ns\"");
    }
    for row in ["fs", "vm", "wp", "ws"] {
        has(row, "cenote", "process", ",\"threads\":2,\"unit\":\"ns\"");
        has(row, "write, fsync", "process", ",\"threads\":1,\"unit\":\"ns\"");
        for system in ["integrity", "encryption", "both", "authenticated"] {
            has(&format!("{row}_attach"), system, "process", ",\"threads\":1,\"unit\":\"ns\"");
        }
    }
    has("attach", "encryption", "process", "");
    has("first_access", "authenticated", "process", "");
    has("first_access_p50", "encryption", "process", "");
    has("first_access_p99", "encryption", "process", "");
    for row in ["export_16B", "export_16M", "import_16B", "import_16M"] {
        has(row, "cenote", "process", ",\"threads\":1,\"unit\":\"ms\"");
        has(row, "cp", "process", "");
    }
    for row in ["rewrite_20", "rewrite_2000"] {
        for system in ["cenote", "open", "memcpy"] {
            has(row, system, "process", "");
        }
    }
    for system in ["cenote", "allocate again"] {
        has("nodes_4_variables_100", system, "process", "");
    }
    for (row, beside) in [
        ("noop", "socket"),
        ("exist_puddle", "socket+fd"),
        ("new_puddle", "socket+fd"),
        ("reg_log_space", "socket+fd"),
    ] {
        has(row, "cenote", "process", ",\"threads\":1,\"unit\":\"us\"");
        has(row, beside, "process", "");
    }
    for (row, unit) in [("replay_1", "ms"), ("replay_100", "ms"), ("memory_50", "KiB")] {
        has(row, "cenote", "process", &format!(",\"threads\":1,\"unit\":\"{unit}\""));
    }
    for line in text.lines() {
        for key in
            ["figure", "row", "system", "level", "threads", "unit", "median", "min", "max", "runs"]
        {
            assert_eq!(line.matches(&format!("\"{key}\":")).count(), 1, "{line}");
        }
    }
}

#[test]
fn a_child_that_was_not_asked_for_says_so_and_fails() {
    let ran = Command::new(env!("CARGO_BIN_EXE_cenote-bench")).arg("--fill-until-killed").output();
    let ran = ran.expect("the program starts");
    assert!(
        !ran.status.success()
            && String::from_utf8_lossy(&ran.stderr).contains("only for this program")
    );
}
