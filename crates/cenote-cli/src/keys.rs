//! Keys of protected objects, as they come from the command line: in files, never in arguments,
//! which every user of the machine can read.

use crate::cli::KeyOf;
use crate::failure::Failure;
use cenote_object::{Argon2Params, KeyError, Keyring, Locking, MasterKey};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Most bytes of a file with a key or a passphrase.
const KEY_FILE_LEN_MAX: u64 = 1 << 20;

/// What is said of an input file that cannot be read.
pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("cannot read {}: {error}: check the path", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = |bytes| File::open(path)?.take(KEY_FILE_LEN_MAX + 1).read_to_end(bytes);
    read(&mut bytes).map_err(|error| unreadable(path, &error))?;
    if bytes.len() as u64 > KEY_FILE_LEN_MAX {
        let path = path.display();
        return Err(Failure::Failed(format!(
            "{path} has more than 1 MiB: it is no file with a key"
        )));
    }
    Ok(bytes)
}

/// The key in a file, or derived from the passphrase in another; `None` if neither is named.
pub(crate) fn from_files(
    key: Option<&Path>,
    passphrase: Option<&Path>,
) -> Result<Option<Keyring>, Failure> {
    let wrong = |path: &Path, error: KeyError| {
        let hint = match error {
            KeyError::File { .. } => {
                ": make a key with `head -c 32 /dev/urandom`, or name a passphrase with \
                 --passphrase-file"
            }
            _ => "",
        };
        Failure::Failed(format!("{}: {error}{hint}", path.display()))
    };
    if let Some(path) = key {
        let made = MasterKey::from_key_file(&mut read(path)?, Locking::IfPossible)
            .map_err(|error| wrong(path, error))?;
        return Ok(Some(Keyring::new(made).locking(Locking::IfPossible)));
    }
    let Some(path) = passphrase else { return Ok(None) };
    let mut text = read(path)?;
    let end = text.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(text.len());
    let made =
        Keyring::from_passphrase(&mut text[..end], Argon2Params::default(), Locking::IfPossible);
    Ok(Some(made.map_err(|error| wrong(path, error))?))
}

/// What a command was given.
pub(crate) fn given(key: &KeyOf) -> Result<Option<Keyring>, Failure> {
    from_files(key.key_file.as_deref(), key.passphrase_file.as_deref())
}
