//! The tree's own texts: Rust, Markdown, and scripts.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders that hold texts, from the repository's root.
const FOLDERS: [&str; 7] = [".ci", "crates", "dist", "docs", "examples", "fuzz", "scripts"];

/// A file and its contents.
pub(crate) struct Text {
    /// Its path from the repository's root, with `/` between names.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Reads all texts, in the order of their paths. Files that are no UTF-8 are passed over.
///
/// # Errors
///
/// Names the folder or file that cannot be read.
pub(crate) fn all() -> Result<Vec<Text>, String> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        walk(Path::new(folder), &mut files)?;
    }
    files.extend(entries(Path::new("."))?.into_iter().filter(|path| path.is_file()));
    let mut texts = Vec::new();
    for file in files {
        let Some(path) = file.to_str().map(|path| path.trim_start_matches("./").to_owned()) else {
            continue;
        };
        let bytes = fs::read(&file).map_err(|e| format!("{path}: {e}"))?;
        if let Ok(text) = String::from_utf8(bytes) {
            texts.push(Text { path, text });
        }
    }
    texts.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(texts)
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    for path in entries(folder)? {
        // Build outputs are no texts of ours.
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            walk(&path, files)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let entries = fs::read_dir(folder).map_err(failed)?;
    entries.map(|entry| entry.map(|e| e.path()).map_err(failed)).collect()
}
