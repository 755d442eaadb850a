//! Collects the project's own documents, for `cenote tour` to have real text wherever it runs: the
//! Markdown files, and the documentation comments of all crates. What is missing is left out.

use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let root =
        PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    let mut files = Vec::new();
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        if root.join(name).is_file() {
            files.push(root.join(name));
        }
    }
    collect(&root.join("docs"), "md", &mut files);
    collect(&root.join("crates"), "rs", &mut files);
    println!("cargo::rerun-if-changed={}", root.join("docs").display());
    println!("cargo::rerun-if-changed={}", root.join("crates").display());

    let mut text = String::new();
    let mut documents = 0;
    for file in &files {
        println!("cargo::rerun-if-changed={}", file.display());
        let Ok(content) = fs::read_to_string(file) else { continue };
        let content =
            if file.extension().is_some_and(|e| e == "rs") { comments(&content) } else { content };
        if !content.trim().is_empty() {
            documents += 1;
            text.push_str(&content);
            text.push('\n');
        }
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("documents.txt"), text).expect("the build directory can be written");
    fs::write(
        out.join("documents.rs"),
        format!("const EMBEDDED_DOCUMENTS: usize = {documents};\n"),
    )
    .expect("the build directory can be written");
}

/// Files with the extension under a directory, in the order of their names; `target` and hidden
/// directories are left out.
fn collect(directory: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            collect(&path, extension, files);
        } else if path.extension().is_some_and(|e| e == extension) {
            files.push(path);
        }
    }
}

/// The text of the documentation comments.
fn comments(source: &str) -> String {
    let mut out = String::new();
    for line in source.lines() {
        let line = line.trim_start();
        if let Some(text) = line.strip_prefix("//!").or_else(|| line.strip_prefix("///")) {
            out.push_str(text);
            out.push('\n');
        }
    }
    out
}
