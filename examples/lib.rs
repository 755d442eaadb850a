//! What the programs in this folder share: arguments, and how they end.

use std::process::ExitCode;

/// What a program gives: errors of Cenote and of anything else.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Runs a program with its arguments. An error goes to standard error, as a sentence.
pub fn finish(run: impl FnOnce(&[String]) -> Outcome<()>) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The error of a program that was given other arguments.
///
/// # Errors
/// Always.
pub fn usage<T>(arguments: &str) -> Outcome<T> {
    Err(format!("usage: cargo run --example {arguments}").into())
}
