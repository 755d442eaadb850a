//! Every decision that a text refers to has one entry, and the index lists each entry.
//!
//! An entry is a heading `## N. Title` in a topic, a file of `docs/decisions`. The index is the
//! table in its README: a link to the topic first, the numbers last. A reference is the word
//! "decision" or "decisions" before numbers, and in topics also a number in parentheses.

use std::collections::{BTreeMap, BTreeSet};

use crate::texts::Text;

const FOLDER: &str = "docs/decisions/";
const INDEX: &str = "docs/decisions/README.md";

/// Compares entries, index and references. Returns a message for each difference.
pub(crate) fn compare(texts: &[Text]) -> Vec<String> {
    let mut wrong = Vec::new();
    if texts.iter().any(|text| text.path == "docs/decisions.md") {
        wrong.push(format!("docs/decisions.md: move its entries to the topics in {FOLDER}"));
    }
    let mut entries: BTreeMap<u32, &str> = BTreeMap::new();
    for text in texts.iter().filter(|text| is_topic(text)) {
        for number in text.text.lines().filter_map(entry) {
            if let Some(other) = entries.insert(number, &text.path) {
                wrong.push(format!("{}: decision {number} is in {other}, too", text.path));
            }
        }
    }
    let index = texts.iter().find(|text| text.path == INDEX).map_or("", |text| &text.text);
    let listed: BTreeSet<(String, u32)> = index.lines().flat_map(row).collect();
    for (number, path) in &entries {
        if !listed.contains(&((*path).to_owned(), *number)) {
            wrong.push(format!("{INDEX}: decision {number} is missing in the row of {path}"));
        }
    }
    for (path, number) in &listed {
        if entries.get(number) != Some(&path.as_str()) {
            wrong.push(format!("{INDEX}: {path} has no entry {number}"));
        }
    }
    for text in texts {
        for number in references(&text.text, is_topic(text)) {
            if !entries.contains_key(&number) {
                wrong.push(format!("{}: there is no decision {number}", text.path));
            }
        }
    }
    wrong
}

fn is_topic(text: &Text) -> bool {
    text.path.starts_with(FOLDER) && text.path != INDEX
}

/// The number of an entry's heading.
fn entry(line: &str) -> Option<u32> {
    line.strip_prefix("## ")?.split_once(". ")?.0.parse().ok()
}

/// The topic and the numbers of a row of the index.
fn row(line: &str) -> Vec<(String, u32)> {
    let mut cells = line.strip_prefix("| [").into_iter().flat_map(|line| line.split('|'));
    let Some(file) = cells.next().and_then(|cell| cell.split(['(', ')']).nth(1)) else {
        return Vec::new();
    };
    let numbers = cells.rfind(|cell| !cell.trim().is_empty()).unwrap_or("");
    let numbers = numbers.split(',').filter_map(|number| number.trim().parse().ok());
    numbers.map(|number| (format!("{FOLDER}{file}"), number)).collect()
}

/// The numbers of decisions that `text` refers to.
fn references(text: &str, topic: bool) -> Vec<u32> {
    // Marks of comments may stand between "decision" and its number, where a line ends.
    let words = text.split_whitespace().filter(|w| !matches!(*w, "//" | "//!" | "///" | "#"));
    let mut found = Vec::new();
    let mut listing = false;
    for word in words {
        let inner = word.trim_matches(|c: char| !c.is_alphanumeric());
        match inner.parse() {
            Ok(number) if listing => {
                found.push(number);
                listing = !word.ends_with(['.', ')', ':', ';']);
            }
            Ok(number) if topic && word.starts_with('(') && word.contains(')') => {
                found.push(number);
            }
            _ => {
                let names = matches!(inner, "decision" | "decisions" | "Decision" | "Decisions");
                listing = names || listing && matches!(inner, "and" | "or" | "to");
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str, text: &str) -> Text {
        Text { path: path.to_owned(), text: text.to_owned() }
    }

    fn tree(topic: &str, index: &str, code: &str) -> Vec<String> {
        compare(&[
            text("crates/a/src/lib.rs", code),
            text(INDEX, index),
            text("docs/decisions/store.md", topic),
        ])
    }

    const TOPIC: &str = "# Store\n\n## 1. One\n\nSee (2).\n\n## 2. Two\n";
    const ROWS: &str = "| topic | about | numbers |\n| --- | --- | --- |\n\
                        | [store](store.md) | files, (3 of them) | 1, 2 |\n";

    #[test]
    fn a_tree_that_agrees_is_accepted() {
        let none: Vec<String> = Vec::new();
        assert_eq!(
            tree(TOPIC, ROWS, "//! (decision 2) and 40 more; decisions\n//! 1 and 2."),
            none
        );
        assert_eq!(tree(TOPIC, ROWS, "Decision 1. Then 17 decisions were made, and 3 lost."), none);
    }

    #[test]
    fn a_reference_without_an_entry_is_found() {
        for code in ["decision 7", "(decisions 1 and 7)", "decisions 1, 7.", "decision\n    /// 7:"]
        {
            let wrong = tree(TOPIC, ROWS, code);
            assert_eq!(wrong, ["crates/a/src/lib.rs: there is no decision 7"], "{code}");
        }
        let wrong = tree("## 1. One\n\nNot 5, see (7).\n## 2. Two", ROWS, "");
        assert_eq!(wrong, ["docs/decisions/store.md: there is no decision 7"]);
    }

    #[test]
    fn index_and_entries_are_compared_both_ways() {
        let wrong = tree("## 1. One\n## 3. Three\n", ROWS, "");
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains("decision 3 is missing in the row of docs/decisions/store.md"));
        assert!(wrong[1].contains("docs/decisions/store.md has no entry 2"));
    }

    #[test]
    fn a_number_that_is_given_twice_is_found() {
        let wrong = tree("## 1. One\n## 2. Two\n## 2. Again\n", ROWS, "");
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(wrong[0].contains("decision 2 is in docs/decisions/store.md, too"), "{wrong:?}");
    }
}
