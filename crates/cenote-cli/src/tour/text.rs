//! The text of a tour, as words.
//!
//! A word is a run of letters and digits, in lower case. Its position is its number in the text. A
//! run of more than [`WORD_LEN_MAX`] bytes is several words.

use crate::failure::Failure;
use std::path::PathBuf;

include!(concat!(env!("OUT_DIR"), "/documents.rs"));
const EMBEDDED: &str = include_str!(concat!(env!("OUT_DIR"), "/documents.txt"));

/// Most bytes of a word.
pub(crate) const WORD_LEN_MAX: usize = 39;

/// What is indexed.
pub(crate) struct Text {
    /// Lower case, words separated by single newlines: what the builder is given.
    pub(crate) normal: String,
    /// Where it comes from, in words.
    pub(crate) source: String,
}

impl Text {
    /// The files, or the embedded documents if there are none.
    pub(crate) fn load(files: &[PathBuf]) -> Result<Self, Failure> {
        let mut raw = String::new();
        let source = if files.is_empty() {
            raw.push_str(EMBEDDED);
            format!("documents and comments of this project, {EMBEDDED_DOCUMENTS} files")
        } else {
            for file in files {
                let bytes = std::fs::read(file).map_err(|e| {
                    Failure::Failed(format!("cannot read {}: {e}: check the path", file.display()))
                })?;
                raw.push_str(&String::from_utf8_lossy(&bytes));
                raw.push('\n');
            }
            match files {
                [file] => file.display().to_string(),
                files => format!("{} files", files.len()),
            }
        };
        let normal = normalised(&raw);
        if normal.is_empty() {
            return Err(Failure::Failed(format!(
                "there is no word in {source}: name files with text"
            )));
        }
        Ok(Self { normal, source })
    }

    /// The words, in order.
    pub(crate) fn words(&self) -> Vec<&str> {
        words(&self.normal)
    }
}

/// Words of normalised text.
pub(crate) fn words(normal: &str) -> Vec<&str> {
    normal.lines().collect()
}

/// Tells texts apart, in this release and later ones.
pub(crate) fn fingerprint(normal: &str) -> u64 {
    cenote_layout::checksum::checksum(0, normal.as_bytes())
}

fn normalised(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    let mut len = 0;
    let mut letters = [0; 4];
    for c in raw.chars().flat_map(char::to_lowercase) {
        if c.is_alphanumeric() {
            let bytes = c.encode_utf8(&mut letters);
            if len + bytes.len() > WORD_LEN_MAX {
                out.push('\n');
                len = 0;
            }
            out.push_str(bytes);
            len += bytes.len();
        } else if len > 0 {
            out.push('\n');
            len = 0;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_runs_of_letters_and_digits_in_lower_case() {
        assert_eq!(words(&normalised("Hello, WORLD2! äÖ-x\n")), ["hello", "world2", "äö", "x"]);
        assert!(words(&normalised("... \n --")).is_empty());
    }

    #[test]
    fn long_runs_are_cut_between_characters_and_lose_nothing() {
        let long = "ä".repeat(100);
        let normal = normalised(&long);
        let cut = words(&normal);
        assert!(cut.iter().all(|word| word.len() <= WORD_LEN_MAX));
        assert_eq!(cut.concat(), long);
    }

    #[test]
    fn the_embedded_documents_are_a_real_text() {
        let text = Text::load(&[]).expect("embedded");
        assert!(text.words().len() >= 20_000, "{} words", text.words().len());
    }
}
