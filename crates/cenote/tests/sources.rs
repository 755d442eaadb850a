//! What holds of the sources as a whole, and no compiler checks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All sources of these crates, without their tests.
fn sources(of: impl Fn(&str) -> bool) -> Vec<String> {
    let mut waiting = vec![];
    for entry in std::fs::read_dir(repository().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        if of(path.file_name().unwrap().to_str().unwrap()) {
            waiting.push(path.join("src"));
        }
    }
    let mut sources = Vec::new();
    while let Some(at) = waiting.pop() {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }
    sources
}

/// Every public trait, and whether it is `unsafe`. A program can implement the others in safe code.
fn traits() -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    for source in sources(|name| !name.starts_with("cenote-bench")) {
        for line in source.lines() {
            let Some(line) = line.trim_start().strip_prefix("pub ") else { continue };
            let (is_unsafe, line) = match line.strip_prefix("unsafe ") {
                Some(line) => (true, line),
                None => (false, line),
            };
            let Some(rest) = line.strip_prefix("trait ") else { continue };
            let name: String =
                rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.insert(name, is_unsafe);
        }
    }
    found
}

#[test]
fn every_public_trait_is_unsafe_or_has_a_reason_not_to_be() {
    let text = std::fs::read_to_string(repository().join("CONTRIBUTING.md")).unwrap();
    let (_, table) = text.split_once("| trait | ").expect("the table");
    let (table, _) = table.split_once("\n\n").unwrap_or((table, ""));
    let mut listed = BTreeMap::new();
    for row in table.lines().skip(2) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, how, why] = cells[..] else { panic!("not a row: {row}") };
        assert!(matches!(how, "unsafe" | "safe") && !why.is_empty(), "{row}");
        listed.insert(name.trim_matches('`').to_string(), how == "unsafe");
    }
    assert_eq!(
        listed,
        traits(),
        "the table in CONTRIBUTING.md on the left, the sources on the right"
    );
}

/// What a declared type may be called is decided by `#[derive(Persist)]`.
#[test]
fn no_declared_type_has_a_name_of_this_project() {
    let derive =
        std::fs::read_to_string(repository().join("crates/cenote-derive/src/attributes.rs"))
            .unwrap();
    let mut names = 0;
    for source in sources(|name| matches!(name, "cenote" | "cenote-collections")) {
        for (_, rest) in
            source.match_indices("of_name(\"").map(|(at, found)| source.split_at(at + found.len()))
        {
            let name = rest.split('"').next().unwrap();
            let is_possible =
                name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '-' | '.'));
            assert!(
                !is_possible || derive.contains(&format!("    \"{name}\",\n")),
                "{name} is free"
            );
            names += 1;
        }
    }
    assert!(names > 12, "the sources were not found");
}
