//! `cenote-bench`: measures figures of the papers on Cenote. `cenote-bench --help` says how.

use std::process::ExitCode;

fn main() -> ExitCode {
    cenote_bench::command::main("cenote-bench", None)
}
