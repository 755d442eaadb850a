//! The command line itself: help, mistakes in it, and where output goes.

use crate::common::{cenote, run, with_pool};
use std::process::Stdio;

#[test]
fn help_names_the_exit_statuses_and_fits_a_terminal() {
    let commands = [
        "format",
        "create",
        "ls",
        "chmod",
        "chown",
        "logs",
        "info",
        "check",
        "dump",
        "reclaim",
        "rm",
        "stats",
        "top",
        "finish-frees",
        "trim",
        "clone",
        "copy",
        "randomize",
        "relocate",
        "object",
        "adopt",
        "backup",
        "export",
        "import",
        "doctor",
        "tour",
        "completions",
        "man",
    ];
    for arguments in commands.iter().map(|c| vec![*c, "--help"]).chain([vec!["--help"], vec!["-h"]])
    {
        let help = run(&arguments).exits(0).out;
        assert!(help.contains("Exit status:") && help.contains("--json"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
        assert!(!help.contains("__tour-build"));
    }
}

#[test]
fn a_wrong_command_line_is_one_line_and_exit_status_2() {
    run(["chekc"]).complains(2, &["chekc", "check"]);
    run(["ls"]).complains(2, &["DIR", "cenote ls --help"]);
    run(["ls", "--wait", "x", "."]).complains(2, &["seconds"]);
    run(["tour", "--kills", "-3"]).exits(2);
    run(["--nope"]).complains(2, &["--nope"]);
    let nothing: [&str; 0] = [];
    assert!(run(nothing).exits(2).err.contains("Usage:"));
}

#[test]
fn a_reader_that_goes_away_ends_a_command_quietly() {
    let fixture = with_pool();
    for arguments in [vec!["dump"], vec!["ls", "--json"], vec!["info"], vec!["check"]] {
        let mut child = cenote()
            .arg(arguments[0])
            .arg(&fixture.store)
            .args(&arguments[1..])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("cenote runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let fixture = with_pool();
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
        println!("skipped: there is no /dev/full here");
        return;
    };
    let output = cenote().arg("ls").arg(&fixture.store).stdout(full).output().expect("cenote runs");
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("cenote: cannot write the output"));
}

#[test]
fn there_is_no_colour_outside_a_terminal() {
    let fixture = with_pool();
    for command in ["ls", "info", "check", "dump", "show", "stats"] {
        assert!(!fixture.run(command, &[]).exits(0).out.contains('\x1b'), "{command}");
    }
}
