//! Modes of protection at rest, as the command line names them.

use cenote_object::Mode;

/// A mode of protection at rest by its name on the command line.
pub(crate) fn parse_at_rest(text: &str) -> Result<Mode, String> {
    Ok(match text {
        "none" => Mode::None,
        "integrity" => Mode::Integrity,
        "encryption" => Mode::Encryption,
        "both" => Mode::EncryptionIntegrity,
        "authenticated" => Mode::Authenticated,
        _ => return Err("use none, integrity, encryption, both or authenticated".into()),
    })
}

/// The name of a mode on the command line.
pub(crate) fn name_of(mode: Mode) -> &'static str {
    match mode {
        Mode::None => "none",
        Mode::Integrity => "integrity",
        Mode::Encryption => "encryption",
        Mode::EncryptionIntegrity => "both",
        Mode::Authenticated => "authenticated",
    }
}
