//! What cannot be persistent does not compile, and the compiler says why.
//!
//! The compiler's words differ between versions: they are compared on the version named here.
//! `TRYBUILD=overwrite` writes them anew.

#[path = "support/random_types.rs"]
mod random_types;

use std::path::Path;
use std::process::Command;

/// The compiler whose messages are in `ui/*.stderr`.
const RUSTC: &str = "rustc 1.95.";

#[test]
fn what_cannot_be_persistent_does_not_compile() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = match Command::new(rustc).arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => error.to_string(),
    };
    if !version.starts_with(RUSTC) {
        println!("skipped: messages are known for {RUSTC}x, but this is {}", version.trim());
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/accepted_*.rs");
    cases.compile_fail("tests/ui/refused_*.rs");
}

/// Seeds of the programs that every run compiles; `CENOTE_TYPES_SEED` adds one.
const SEEDS: [u64; 2] = [1, 2];

#[test]
fn random_types_are_described_as_the_compiler_lays_them_out() {
    let more = std::env::var("CENOTE_TYPES_SEED").ok().and_then(|seed| seed.parse().ok());
    let cases = trybuild::TestCases::new();
    for seed in SEEDS.into_iter().chain(more) {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("random_types_{seed}.rs"));
        std::fs::write(&path, random_types::program(seed)).expect("the program can be written");
        cases.pass(&path);
    }
}
