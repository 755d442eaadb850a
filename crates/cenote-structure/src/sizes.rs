//! Sizes and words that exceed a limit, counted in each file, and a list of today's exceptions.
//!
//! | kind | counts | limit |
//! | --- | --- | --- |
//! | `file` | lines of a Rust file | 600 |
//! | `function NAME` | lines of a function | 70 |
//! | `parameters NAME` | a function's parameters, `self` among them | 6 |
//! | `wide` | lines over 100 columns of Rust, Markdown (no tables) and shell | 0 |
//! | `words` | "whoever", "somebody", "nobody" and "what ... is what" in the same texts | 0 |
//!
//! The list only shrinks. A count above its limit and above the list's number is an error, and so
//! is an exception in the list that is none any more. `sizes lower` writes today's numbers where
//! they are lower, and never adds or raises one.

use std::collections::BTreeMap;

use syn::Signature;
use syn::visit::{self, Visit};

use crate::texts::Text;

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const PARAMETERS_MAX: usize = 6;
const COLUMNS_MAX: usize = 100;
const WORDS: [&str; 3] = ["whoever", "somebody", "nobody"];

/// A path, and a kind with the name that it is about.
type Key = (String, String);
/// What exceeds a limit, with its count.
pub(crate) type Sizes = BTreeMap<Key, usize>;

/// Counts what exceeds a limit in `texts`.
///
/// # Errors
///
/// Names the Rust file that cannot be parsed.
pub(crate) fn measure(texts: &[Text]) -> Result<Sizes, String> {
    let mut sizes = Sizes::new();
    for text in texts {
        let mut add = |kind: &str, count: usize| {
            if count > 0 {
                *sizes.entry((text.path.clone(), kind.to_owned())).or_default() += count;
            }
        };
        match Language::of(text) {
            Some(Language::Rust) => {
                let lines = text.text.lines().count();
                add("file", if lines > FILE_LINES_MAX { lines } else { 0 });
                let mut finder = Finder { found: Vec::new() };
                let file = syn::parse_file(&text.text);
                finder.visit_file(&file.map_err(|e| format!("{}: {e}", text.path))?);
                for (kind, count) in finder.found {
                    add(&kind, count);
                }
                for (name, lines) in functions(&text.text) {
                    let over = if lines > FUNCTION_LINES_MAX { lines } else { 0 };
                    add(&format!("function {name}"), over);
                }
            }
            Some(Language::Other) => {}
            None => continue,
        }
        let table = |line: &str| text.path.ends_with(".md") && line.starts_with('|');
        let wide = |line: &&str| line.chars().count() > COLUMNS_MAX && !table(line);
        add("wide", text.text.lines().filter(wide).count());
        add("words", text.text.lines().map(words).sum());
    }
    Ok(sizes)
}

/// What a text is written in, if its lines are counted.
enum Language {
    Rust,
    Other,
}

impl Language {
    fn of(text: &Text) -> Option<Self> {
        // This file and its list name the words that it looks for.
        if text.path.ends_with("structure/src/sizes.rs") || text.path.ends_with("/sizes.txt") {
            return None;
        }
        let name = text.path.rsplit('/').next()?;
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("rs") => Some(Self::Rust),
            Some("md" | "sh") => Some(Self::Other),
            None if text.text.starts_with("#!") => Some(Self::Other),
            _ => None,
        }
    }
}

/// Words in `line` that name no one.
fn words(line: &str) -> usize {
    let line = line.to_lowercase();
    let words = || line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let named = words().filter(|word| WORDS.contains(word)).count();
    let mut after = words().skip_while(|word| *word != "what").skip(1).collect::<Vec<_>>();
    after.truncate(12);
    named + after.windows(2).filter(|pair| *pair == ["is", "what"]).count()
}

/// The functions in formatted Rust, each with its lines from the first of its signature.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        // The formatter puts the end at the indent of the beginning.
        let ends = |line: &&str| {
            line.len() > indent
                && line[..indent].trim().is_empty()
                && (line[indent..].starts_with('}')
                    || line[indent..].starts_with(')') && line.ends_with([';', '}']))
        };
        let one_line = line.ends_with([';', '}']);
        let more = if one_line { None } else { lines[first + 1..].iter().position(ends) };
        found.push((name, more.map_or(1, |more| more + 2)));
    }
    found
}

/// The name of the function whose signature begins in this line.
fn function_name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let qualifies = |word: &str| {
        matches!(word, "const" | "async" | "unsafe" | "extern" | "\"C\"") || word.starts_with("pub")
    };
    words.find(|word| !qualifies(word)).filter(|word| *word == "fn")?;
    words.next()?.split(['(', '<']).next()
}

/// Collects functions that have too many parameters.
struct Finder {
    found: Vec<(String, usize)>,
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_signature(&mut self, signature: &'ast Signature) {
        let parameters = signature.inputs.len();
        if parameters > PARAMETERS_MAX {
            self.found.push((format!("parameters {}", signature.ident), parameters));
        }
        visit::visit_signature(self, signature);
    }
}

/// Reads the list: lines `path: kind count`.
///
/// # Errors
///
/// Names the line that is none.
pub(crate) fn read_list(text: &str) -> Result<Sizes, String> {
    let mut list = Sizes::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let entry = line.split_once(": ").and_then(|(path, rest)| {
            let (kind, count) = rest.rsplit_once(' ')?;
            Some(((path.to_owned(), kind.to_owned()), count.parse().ok()?))
        });
        let (key, count) = entry.ok_or(format!("sizes.txt: `{line}` is not `path: kind count`"))?;
        list.insert(key, count);
    }
    Ok(list)
}

/// Compares today's sizes with the list. Returns a message for each difference that counts.
pub(crate) fn compare(found: &Sizes, list: &Sizes) -> Vec<String> {
    let worse = found.iter().filter_map(|(key @ (path, kind), count)| {
        let allowed = list.get(key).copied().unwrap_or(0);
        let advice = advice(kind);
        (*count > allowed).then(|| format!("{path}: {kind}: {count}, allowed {allowed}: {advice}"))
    });
    let gone = list.keys().filter(|key| !found.contains_key(*key)).map(|(path, kind)| {
        format!("{path}: {kind}: no exception any more: run `scripts/sizes.sh lower`")
    });
    worse.chain(gone).collect()
}

fn advice(kind: &str) -> String {
    match kind.split(' ').next().unwrap_or(kind) {
        "file" => format!("a file has at most {FILE_LINES_MAX} lines: move a concept out"),
        "function" => format!("a function has at most {FUNCTION_LINES_MAX} lines: split it"),
        "parameters" => {
            format!("a function has at most {PARAMETERS_MAX} parameters: group them in a struct")
        }
        "wide" => format!("a line has at most {COLUMNS_MAX} columns: wrap it"),
        _ => "name the caller, the writer, the opener".to_owned(),
    }
}

/// The list with today's numbers where they are lower, and without what is gone.
pub(crate) fn lower(found: &Sizes, list: &Sizes) -> Sizes {
    let lowered = list.iter().filter_map(|(key, allowed)| {
        found.get(key).map(|count| (key.clone(), *count.min(allowed)))
    });
    lowered.collect()
}

/// The text of a list.
pub(crate) fn write_list(list: &Sizes) -> String {
    let mut text = String::from(
        "# Sizes and words over a limit, `path: kind count`: what `scripts/sizes.sh` accepts.\n\
         # This list only shrinks; `scripts/sizes.sh lower` lowers it.\n",
    );
    for ((path, kind), count) in list {
        text.push_str(&format!("{path}: {kind} {count}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(path: &str, text: &str) -> Vec<(String, usize)> {
        let texts = [Text { path: path.to_owned(), text: text.to_owned() }];
        let found = measure(&texts).expect("parses");
        found.into_iter().map(|((_, kind), count)| (kind, count)).collect()
    }

    fn function(lines: usize) -> String {
        format!(
            "struct S;\nimpl S {{\n    fn f() {{\n{}    }}\n}}\n",
            "        g();\n".repeat(lines - 2)
        )
    }

    #[test]
    fn long_functions_files_and_lists_of_parameters_are_found() {
        assert_eq!(sizes("a.rs", &function(70)), []);
        assert_eq!(sizes("a.rs", &function(71)), [("function f".into(), 71)]);
        assert_eq!(sizes("a.rs", &"// x\n".repeat(600)), []);
        assert_eq!(sizes("a.rs", &"// x\n".repeat(601)), [("file".into(), 601)]);
        let six = "fn f(a: A, b: A, c: A, d: A, e: A, f: A) {}";
        assert_eq!(sizes("a.rs", six), []);
        let seven = "trait T { fn f(&self, a: A, b: A, c: A, d: A, e: A, f: A); }";
        assert_eq!(sizes("a.rs", seven), [("parameters f".into(), 7)]);
    }

    #[test]
    fn the_end_of_a_function_is_found_whatever_its_signature() {
        let text = "fn a();\npub(crate) const fn b<T>(\n    x: T,\n) -> u8 {\n    0\n}\n\
                    extern \"C\" fn c() {}\nunsafe fn d(\n    x: u8,\n);\nlet fn_ = 1;\n";
        assert_eq!(functions(text), [("a", 1), ("b", 5), ("c", 1), ("d", 3)]);
    }

    #[test]
    fn attributes_and_documentation_of_a_function_are_not_its_lines() {
        let text = format!("/// x\n{}{}", "/// y\n".repeat(70), "#[inline]\nfn f() {}\n");
        assert_eq!(sizes("a.rs", &text), []);
    }

    #[test]
    fn wide_lines_count_but_for_tables_of_documents() {
        let wide = "ü".repeat(101);
        assert_eq!(sizes("a.md", &format!("{}\n| {wide} |\n", "ü".repeat(100))), []);
        assert_eq!(sizes("a.md", &wide), [("wide".into(), 1)]);
        assert_eq!(sizes("a.sh", &format!("| {wide}")), [("wide".into(), 1)]);
        assert_eq!(sizes(".ci/run", &format!("#!/bin/sh\n{wide}")), [("wide".into(), 1)]);
        assert_eq!(sizes("a.txt", &wide), []);
    }

    #[test]
    fn words_that_name_no_one_are_found() {
        assert_eq!(sizes("a.md", "Whoever asks, nobody\nknows."), [("words".into(), 2)]);
        assert_eq!(sizes("a.md", "What a psync looks at is what it wrote."), [("words".into(), 1)]);
        assert_eq!(
            sizes("a.md", "This is what it says. What is it? Nobody's."),
            [("words".into(), 1)]
        );
    }

    #[test]
    fn a_list_only_shrinks() {
        let found = read_list("a.rs: wide 3\na.rs: function f 80\n").expect("a list");
        let same = compare(&found, &found);
        assert!(same.is_empty(), "{same:?}");
        let list = read_list("# why\na.rs: wide 2\na.rs: function f 90\nb.rs: file 700").unwrap();
        let wrong = compare(&found, &list);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].starts_with("a.rs: wide: 3, allowed 2:"), "{wrong:?}");
        assert!(wrong[1].starts_with("b.rs: file: no exception any more"), "{wrong:?}");
        let lowered = lower(&found, &list);
        assert_eq!(lowered, read_list("a.rs: wide 2\na.rs: function f 80").unwrap());
        assert_eq!(read_list(&write_list(&lowered)).unwrap(), lowered);
        assert!(read_list("a.rs wide 3").is_err());
    }
}
