//! Every figure runs, and its rows can be read by programs.

use cenote_bench::command::Command;
use cenote_bench::figures::{FIGURES, puddles_table3};

#[test]
fn every_figure_runs_short_and_writes_rows_with_all_keys() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("rows");
    let arguments = ["--all", "--quick", "--json"].map(String::from).into_iter();
    let command = Command::parse(arguments.chain([path.display().to_string()])).expect("a good command line");
    command.run("cenote-bench", None).expect("all figures run");
    let text = std::fs::read_to_string(&path).expect("rows");
    for figure in &FIGURES {
        assert!(text.contains(&format!("\"figure\":\"{}\"", figure.name)), "{}", figure.name);
    }
    for row in puddles_table3::ROWS {
        for level in ["process", "power"] {
            let wanted = format!("\"row\":\"{row}\",\"system\":\"cenote\",\"level\":\"{level}\"");
            assert!(text.contains(&wanted), "{wanted}");
        }
    }
    for line in text.lines() {
        for key in ["figure", "row", "system", "level", "threads", "unit", "median", "min", "max", "runs"] {
            assert_eq!(line.matches(&format!("\"{key}\":")).count(), 1, "{line}");
        }
    }
}
