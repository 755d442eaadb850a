//! `cenote-adversary HARNESS`: attacks real stores, and compares what is left with a model.
//!
//! A harness is a function of a seed. It runs one *round*, on files of its own. The seed decides
//! its actions, but not the moment at which a process is killed, nor which of two processes is
//! first: a failure may need several tries. Every failure ends with the command that repeats its
//! round. The last line of a run has its counts.
//!
//! The program plays every part: it starts itself again in a *role* (`__role NAME ...`), and called
//! as `cenote` it is that command.

mod child;
mod clients;
mod faults;
mod kill;
mod mutate;
mod others;
mod plant;
mod power;
mod races;
mod round;
mod sample;
mod table;

use round::{Harness, RoundPlan};
use std::path::Path;
use std::process::ExitCode;

/// Harnesses by name, with what their rounds do.
const HARNESSES: [(&str, Harness, &str); 7] = [
    ("kill", kill::round, "SIGKILL of a program with a store of its own"),
    ("clients", clients::round, "SIGKILL of a daemon and of clients that share a pool"),
    ("others", others::round, "SIGKILL of a program with objects, then commands without them"),
    ("power", power::round, "loss of power on ext4 in a file, behind a loop device"),
    (
        "faults",
        faults::round,
        "an I/O error, a full disk or SIGKILL at one system call of a command",
    ),
    ("mutate", mutate::round, "damage under right checksums, opened by everything"),
    (
        "races",
        races::round,
        "processes that open, write, remove, check and are killed, on one store",
    ),
];

/// What a child of a harness does; the arguments are its own.
const ROLES: [(&str, child::Role); 7] = [
    ("kill", kill::child),
    ("daemon", clients::daemon),
    ("client", clients::client),
    ("racer", races::racer),
    ("psyncs", power::psyncs),
    ("busy", mutate::busy),
    ("digest", sample::digest_role),
];

fn usage(problem: &str) -> ExitCode {
    eprintln!(
        "{problem}\nusage: cenote-adversary HARNESS [--seed N] [--rounds N] [--seconds N] \
         [--thorough]"
    );
    for (name, _, what) in HARNESSES {
        eprintln!("  {name:<8} {what}");
    }
    ExitCode::from(2)
}

fn main() -> ExitCode {
    plant::plant();
    let mut args = std::env::args();
    let own = args.next().unwrap_or_default();
    if Path::new(&own).file_name().is_some_and(|name| name == child::COMMAND) {
        return cenote_cli::main();
    }
    let rest: Vec<String> = args.collect();
    match rest.split_first() {
        None => usage("no harness is named"),
        Some((first, rest)) if first == child::ROLE => child::play(rest, &ROLES),
        Some((name, rest)) => match HARNESSES.iter().find(|(known, ..)| known == name) {
            None => usage(&format!("there is no harness {name:?}")),
            Some((name, harness, _)) => match RoundPlan::parse(rest) {
                Ok(plan) => round::run(name, *harness, &plan),
                Err(problem) => usage(&problem),
            },
        },
    }
}
