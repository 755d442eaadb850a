//! The `cenote` command: see the library.

use std::process::ExitCode;

cenote_medium::ships!();

fn main() -> ExitCode {
    cenote_cli::main()
}
