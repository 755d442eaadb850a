//! Draws the crates: floors, bottom last, and what each crate stands on.
//!
//! A crate's floor is one above the highest crate that it depends on. Of its dependencies, those
//! that another one of them implies are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// For each crate, the crates of the workspace that it depends on.
pub(crate) type Dependencies = BTreeMap<String, BTreeSet<String>>;

/// Reads the dependencies from the manifests under `crates`, without those of tests.
///
/// # Errors
///
/// Names the manifest that cannot be read.
pub(crate) fn dependencies(crates: &Path) -> Result<Dependencies, String> {
    let mut found = Dependencies::new();
    for name in crate_names(crates)? {
        let file = crates.join(&name).join("Cargo.toml");
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let manifest: toml::Table = text.parse().map_err(|e| format!("{}: {e}", file.display()))?;
        let mut used = BTreeSet::new();
        add_dependencies(&manifest, &mut used);
        for target in manifest.get("target").and_then(toml::Value::as_table).into_iter().flatten() {
            target.1.as_table().into_iter().for_each(|table| add_dependencies(table, &mut used));
        }
        found.insert(name, used);
    }
    Ok(found)
}

/// The names of the folders of `crates`, in order.
///
/// # Errors
///
/// Names the folder that cannot be read.
pub(crate) fn crate_names(crates: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(crates).map_err(|e| format!("{}: {e}", crates.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().join("Cargo.toml").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

fn add_dependencies(table: &toml::Table, used: &mut BTreeSet<String>) {
    for section in ["dependencies", "build-dependencies"] {
        let names = table.get(section).and_then(toml::Value::as_table).into_iter().flatten();
        used.extend(names.map(|(name, _)| name.clone()).filter(|name| name.starts_with("cenote")));
    }
}

/// Draws the floors, the highest first.
pub(crate) fn draw(crates: &Dependencies) -> String {
    let mut floors: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for name in crates.keys() {
        floors.entry(floor(name, crates)).or_default().push(name);
    }
    let width = crates.keys().map(String::len).max().unwrap_or(0);
    let mut drawing = String::new();
    for (floor, names) in floors.iter().rev() {
        for (place, name) in names.iter().enumerate() {
            let label = if place == 0 { format!("{floor:>2}") } else { "  ".to_owned() };
            let stands_on: Vec<&str> = direct(name, crates).into_iter().map(short).collect();
            let line = format!("{label}  {name:width$}  {}", stands_on.join(" "));
            let _ = writeln!(drawing, "{}", line.trim_end());
        }
    }
    drawing
}

/// A crate's name without the project's.
fn short(name: &str) -> &str {
    name.strip_prefix("cenote-").unwrap_or(name)
}

fn floor(name: &str, crates: &Dependencies) -> usize {
    crates[name].iter().map(|below| 1 + floor(below, crates)).max().unwrap_or(0)
}

/// The dependencies of `name` that no other dependency of it implies.
fn direct<'a>(name: &str, crates: &'a Dependencies) -> Vec<&'a str> {
    let all = &crates[name];
    let implied = |one: &str| all.iter().any(|other| other != one && reaches(other, one, crates));
    all.iter().map(String::as_str).filter(|one| !implied(one)).collect()
}

fn reaches(from: &str, to: &str, crates: &Dependencies) -> bool {
    crates[from].iter().any(|next| next == to || reaches(next, to, crates))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_count_from_below_and_implied_dependencies_are_left_out() {
        let crates = [
            ("cenote-sys", &[][..]),
            ("cenote-store", &["cenote-sys"]),
            ("cenote", &["cenote-store", "cenote-sys"]),
        ];
        let crates = crates
            .iter()
            .map(|(name, used)| {
                ((*name).to_owned(), used.iter().map(|u| (*u).to_owned()).collect())
            })
            .collect();
        let expected = " 2  cenote        store\n 1  cenote-store  sys\n 0  cenote-sys\n";
        assert_eq!(draw(&crates), expected);
    }
}
