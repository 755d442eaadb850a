//! The `cenote` command: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    cenote_cli::main()
}
