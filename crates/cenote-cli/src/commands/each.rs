//! One pool after the other: a failure of one is printed, and the command goes on with the others.

use crate::failure::{Failure, Verdict};
use crate::output::Out;
use serde_json::json;

/// Does something with each pool. A failure is said with the pool's name, and the next pool's turn
/// comes.
///
/// # Errors
/// The only pool fails, of the store or of those that the user named; or every pool for a reason
/// that is not its own: the output cannot be written, or the user has stopped the command.
pub(crate) fn each(
    names: &[String],
    named: &[String],
    out: &mut Out,
    mut act: impl FnMut(&str, &mut Out) -> Result<Verdict, Failure>,
) -> Result<Verdict, Failure> {
    let mut verdict = Verdict::Clean;
    for name in names {
        match act(name, out) {
            Ok(Verdict::Clean) => {}
            Ok(Verdict::Found) => verdict = Verdict::Found,
            Err(failure @ (Failure::Pipe | Failure::Interrupted(_))) => return Err(failure),
            Err(failure) if names.len() == 1 || named.len() == 1 => return Err(failure),
            Err(failure) => {
                let mut message = failure.message().unwrap_or_default();
                if !message.contains(&format!("pool \"{name}\"")) {
                    message = format!("pool \"{name}\": {message}");
                }
                out.line(format_args!("{} {message}", out.bad("failed:")))?;
                out.object(&json!({ "pool": name, "error": message }))?;
                verdict = Verdict::Found;
            }
        }
    }
    Ok(verdict)
}
