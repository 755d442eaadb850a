//! `docs/promises.md` lists every promise of the papers, and believes none that no test proves.
//!
//! The file is for people; this test keeps it honest. It reads nothing but text, so that it can
//! stand in the lowest crate that has tests of its own, and look at the sources of all the others.

#[path = "promises/references.rs"]
mod references;

use references::{has_test, is_called, named, problem_of_module, quoted, resolved};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The index of the papers: prefix, and how many numbered promises. Each paper also has one row
/// `-fig` for its evaluation.
const INDEX: [(&str, u32); 5] = [("POS", 10), ("PUD", 13), ("RAL", 9), ("PMO", 10), ("NVM", 6)];

/// Promises that no paper makes: there may be any number.
const BEYOND: &str = "CEN-";

/// The most columns of a row.
const WIDEST: usize = 300;

/// One row of the tables.
#[derive(Debug)]
struct Row {
    state: String,
    modules: Vec<String>,
    tests: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The rows of a document's tables, with their heads.
fn rows_of(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with('|') && !line.starts_with("| ---"))
}

/// The cells of a row, with those that are empty.
fn cells(row: &str) -> Vec<&str> {
    let row = row.trim();
    let row = row.strip_prefix('|').unwrap_or(row);
    row.strip_suffix('|').unwrap_or(row).split('|').map(str::trim).collect()
}

fn is_id(cell: &str) -> bool {
    cell.split_once('-').is_some_and(|(prefix, number)| {
        prefix.len() == 3
            && prefix.bytes().all(|b| b.is_ascii_uppercase())
            && (number == "fig" || number.parse::<u32>().is_ok())
    })
}

/// The rows of a document by id, and what is wrong with its form.
fn rows(text: &str) -> (BTreeMap<String, Row>, Vec<String>) {
    let (mut rows, mut problems) = (BTreeMap::new(), Vec::new());
    for line in text.lines().filter(|line| line.starts_with('|')) {
        let cells = cells(line);
        let Some(&id) = cells.first().filter(|id| is_id(id)) else { continue };
        let &[_, promise, state, module, test] = &cells[..] else {
            problems.push(format!("{id}: {} columns instead of 5", cells.len()));
            continue;
        };
        if promise.is_empty() {
            problems.push(format!("{id}: the promise is not said"));
        }
        let row = Row { state: state.to_owned(), modules: quoted(module), tests: quoted(test) };
        if rows.insert(id.to_owned(), row).is_some() {
            problems.push(format!("{id}: there twice"));
        }
    }
    (rows, problems)
}

/// Everything that is wrong with a document, with `read` to look at the files of the tree.
fn problems(text: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let (rows, mut problems) = rows(text);
    let mut expected = Vec::new();
    for (prefix, count) in INDEX {
        expected.extend((1..=count).map(|number| format!("{prefix}-{number}")));
        expected.push(format!("{prefix}-fig"));
    }
    problems.extend(
        expected.iter().filter(|id| !rows.contains_key(*id)).map(|id| format!("{id}: missing")),
    );
    for (id, row) in &rows {
        if !expected.contains(id) && !id.starts_with(BEYOND) {
            problems.push(format!("{id}: no such promise in the index"));
        }
        let modules = row.modules.iter().filter_map(|module| problem_of_module(module, read));
        problems.extend(modules.map(|problem| format!("{id}: {problem}")));
        let proved = match row.state.as_str() {
            "done" | "partial" => true,
            "planned" => false,
            other => {
                problems.push(format!("{id}: state \"{other}\" is none of done, partial, planned"));
                continue;
            }
        };
        if proved && row.modules.is_empty() {
            problems.push(format!("{id}: {} but names no module", row.state));
        }
        if proved && row.tests.is_empty() {
            problems.push(format!("{id}: {} but names no test", row.state));
        }
        let tests = resolved(&row.tests, read, has_test).into_iter().filter_map(Result::err);
        problems.extend(tests.map(|problem| format!("{id}: {problem}")));
    }
    problems
}

/// A file of the tree as text; a directory as nothing.
fn read(path: &str) -> Option<String> {
    if path.contains("..") || path.starts_with('/') {
        return None;
    }
    std::fs::read_to_string(root().join(path)).ok()
}

/// The rows of a document that are wider than an engineer reads.
fn wide_rows(text: &str) -> Vec<String> {
    let width = |row: &&str| row.chars().count();
    let wide = rows_of(text).filter(|row| width(row) > WIDEST);
    wide.map(|row| format!("{} columns: {row}", width(&row))).collect()
}

#[test]
fn every_row_can_be_read() {
    for document in ["docs/promises.md", "docs/proof.md", "docs/attacks.md"] {
        let wide = wide_rows(&read(document).expect(document));
        assert!(wide.is_empty(), "{document}, over {WIDEST} columns:\n  {}", wide.join("\n  "));
    }
    let row = |columns| format!("| {} |", "x".repeat(columns - 4));
    assert_eq!(wide_rows(&row(WIDEST)), Vec::<String>::new());
    assert_eq!(wide_rows(&row(WIDEST + 1)).len(), 1);
}

#[test]
fn every_promise_is_listed_and_every_kept_one_is_proved() {
    let text = std::fs::read_to_string(root().join("docs/promises.md")).expect("docs/promises.md");
    let problems = problems(&text, &read);
    assert!(problems.is_empty(), "docs/promises.md:\n  {}", problems.join("\n  "));
    let (rows, _) = rows(&text);
    let count = |state: &str| rows.values().filter(|row| row.state == state).count();
    println!("{} done, {} partial, {} planned", count("done"), count("partial"), count("planned"));
}

/// What is wrong with a document of tables whose last column names tests: rows that name neither a
/// test nor a script, and tests that are not there.
fn problems_of_lines(text: &str, read: &dyn Fn(&str) -> Option<String>) -> (usize, Vec<String>) {
    let (mut lines, mut problems) = (0, Vec::new());
    for row in rows_of(text) {
        let cells = cells(row);
        let &[what, tests] = &cells[..] else {
            problems.push(format!("{row}: {} columns instead of 2", cells.len()));
            continue;
        };
        if tests == "tests" {
            continue;
        }
        lines += 1;
        let (tests, scripts) = named(tests);
        if scripts.is_empty() && tests.is_empty() {
            problems.push(format!("{what}: names no test"));
        }
        problems.extend(
            scripts
                .iter()
                .filter(|script| read(script).is_none())
                .map(|script| format!("{what}: no {script}")),
        );
        let wrong = resolved(&tests, read, has_test).into_iter().filter_map(Result::err);
        problems.extend(wrong.map(|problem| format!("{what}: {problem}")));
    }
    (lines, problems)
}

#[test]
fn every_line_about_the_daemon_names_tests_that_are_run() {
    let text = std::fs::read_to_string(root().join("docs/daemon.md")).expect("docs/daemon.md");
    let (lines, problems) = problems_of_lines(&text, &read);
    assert!(problems.is_empty(), "docs/daemon.md:\n  {}", problems.join("\n  "));
    assert!(lines >= 20, "{lines}");
    let wrong = "| a | `x.rs::y` |\n| b | |\n| c | `scripts/none.sh` |\n";
    assert_eq!(problems_of_lines(wrong, &read).1.len(), 3);
    // Neither is a row passed over because of its form.
    let good = "| messages | `scripts/fuzz.sh` |";
    assert_eq!(problems_of_lines(good, &read), (1, Vec::new()));
    for (columns, row) in [
        (1, "| messages `scripts/fuzz.sh` |"),
        (3, "| messages | more | `scripts/fuzz.sh` |"),
        (3, "| messages | `scripts/fuzz.sh` | |"),
        (3, "|| messages | `scripts/fuzz.sh` |"),
        (1, "|messages|"),
    ] {
        let (lines, problems) = problems_of_lines(&format!("{good}\n{row}\n{good}\n"), &read);
        assert_eq!(
            (lines, &problems[..]),
            (2, &[format!("{row}: {columns} columns instead of 2")][..])
        );
    }
}

/// The references of the rows of attacks: how many, and what is wrong with them.
fn problems_of_attacks(text: &str) -> (usize, Vec<String>) {
    let cells = rows_of(text).flat_map(cells);
    let found: Vec<_> = cells.flat_map(|cell| resolved(&named(cell).0, &read, is_called)).collect();
    (found.len(), found.into_iter().filter_map(Result::err).collect())
}

#[test]
fn every_attack_names_tests_that_are_there() {
    let text = read("docs/attacks.md").expect("docs/attacks.md");
    let (tests, problems) = problems_of_attacks(&text);
    assert!(problems.is_empty(), "docs/attacks.md:\n  {}", problems.join("\n  "));
    assert!(tests >= 10, "{tests}");
    for wrong in ["object/moved::no_such_test", "object/no_such_file", "no/promises::rows"] {
        assert_eq!(problems_of_attacks(&format!("| a | `{wrong}` |")).1.len(), 1, "{wrong}");
    }
}

/// Findings of the reviews that `docs/proof.md` has a row for.
fn findings() -> Vec<String> {
    let ranges =
        [("S1.", 1..=6), ("A1.", 1..=9), ("S2.C", 1..=2), ("S2.H", 1..=7), ("S2.M", 1..=3)];
    let ranges = ranges.into_iter().chain([("A2.", 1..=8)]);
    ranges
        .flat_map(|(review, numbers)| numbers.map(move |number| format!("{review}{number}")))
        .collect()
}

/// What is wrong with the table of proof: findings without a row, a run, a test, a generator, a
/// planted bug or a reason for none; tests, bugs and promises that are not there.
fn problems_of_proof(text: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let (known, (promises, _)) =
        (known_bugs(), rows(&read("docs/promises.md").unwrap_or_default()));
    let (mut expected, mut problems) = (findings(), Vec::new());
    for line in rows_of(text) {
        let cells = cells(line);
        let what = cells[0];
        for cell in &cells {
            let wrong =
                resolved(&named(cell).0, read, has_test).into_iter().filter_map(Result::err);
            problems.extend(wrong.map(|problem| format!("{what}: {problem}")));
        }
        let Some(at) = expected.iter().position(|id| id == what) else { continue };
        expected.remove(at);
        let &[_, _, run, tests, generators, bugs, ids] = &cells[..] else {
            problems.push(format!("{what}: {} columns instead of 7", cells.len()));
            continue;
        };
        if run.is_empty() || quoted(tests).is_empty() || quoted(generators).is_empty() {
            problems.push(format!("{what}: names no run, no test or no generator"));
        }
        let listed = quoted(bugs);
        if listed.is_empty() && !bugs.starts_with("none: ") {
            problems.push(format!("{what}: names no planted bug, and does not say why"));
        }
        let unknown = listed.iter().filter(|bug| !known.contains_key(*bug));
        problems.extend(unknown.map(|bug| format!("{what}: {bug} cannot be planted")));
        let missing = ids.split(", ").filter(|id| !promises.contains_key(*id));
        problems.extend(missing.map(|id| format!("{what}: there is no promise {id:?}")));
    }
    problems.extend(expected.iter().map(|id| format!("{id}: in no row")));
    problems
}

#[test]
fn every_finding_names_its_tests_generators_planted_bugs_and_promises() {
    let text = read("docs/proof.md").expect("docs/proof.md");
    let problems = problems_of_proof(&text, &read);
    assert!(problems.is_empty(), "docs/proof.md:\n  {}", problems.join("\n  "));
    // And what is wrong is noticed.
    let row = text.lines().find(|line| line.starts_with("| A1.9")).expect("a row");
    for (wrong, count) in [
        (text.replace(row, ""), 1),
        (text.replace(row, &row.replace("RekeyUndecided", "NoSuchBug")), 1),
        (text.replace(row, &row.replace("`RekeyUndecided`", "")), 1),
        (text.replace(row, &row.replace("CEN-109", "CEN-9999")), 1),
        (text.replace(row, &row.replace("change_of_a_key", "change_of_no_key")), 2),
        (text.replace(row, &format!("{row} more |")), 1),
    ] {
        assert_eq!(problems_of_proof(&wrong, &read).len(), count);
    }
}

/// Sources whose planted bugs stand in a table of their own.
const PLANTED_IN: [&str; 15] = [
    "crates/cenote/src/psync.rs",
    "crates/cenote-atrest/src/view",
    "crates/cenote-journal/src",
    "crates/cenote-object/src",
    "crates/cenote-protect/src",
    "crates/cenote-shadow/src",
    "crates/cenote-store/src/pending_rewrite/reseal.rs",
    "crates/cenote-store/src/primaries.rs",
    "crates/cenote-store/src/psync.rs",
    "crates/cenote-store/src/psync_part.rs",
    "crates/cenote-store/src/rekey.rs",
    "crates/cenote-store/src/restored.rs",
    "crates/cenote-store/src/sealed.rs",
    "crates/cenote-store/src/shadow.rs",
    "crates/cenote-store/src/unsealed.rs",
];

/// All of a file, or of the files below a directory.
fn read_all(path: &Path, into: &mut String) {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).expect("a directory");
        entries.for_each(|entry| read_all(&entry.expect("an entry").path(), into));
    } else {
        into.push_str(&std::fs::read_to_string(path).expect("a source"));
    }
}

/// The names that follow `Bug::` in a source.
fn bugs_in(source: &str) -> BTreeSet<String> {
    let names = source
        .split("Bug::")
        .skip(1)
        .map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric()).collect::<String>());
    names.filter(|name| !["None", "Guard"].contains(&name.as_str())).collect()
}

/// What is wrong with the table of planted bugs of a document. `known`: bugs with what is wrong in
/// each; `planted`: those that must be there.
fn problems_of_bugs(
    text: &str,
    known: &BTreeMap<String, String>,
    planted: &BTreeSet<String>,
    read: &dyn Fn(&str) -> Option<String>,
) -> Vec<String> {
    let (mut listed, mut problems) = (BTreeSet::new(), Vec::new());
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells = cells(line);
        let bug = cells[0].trim_matches('`');
        let &[_, what, tests] = &cells[..] else {
            problems.push(format!("{bug}: {} columns instead of 3", cells.len()));
            continue;
        };
        match known.get(bug) {
            None => problems.push(format!("{bug}: cannot be planted")),
            Some(words) if words != what => {
                problems.push(format!("{bug}: \"{what}\" is not \"{words}\""))
            }
            Some(_) => {}
        }
        if !listed.insert(bug.to_owned()) {
            problems.push(format!("{bug}: there twice"));
        }
        let tests = quoted(tests);
        if tests.is_empty() {
            problems.push(format!("{bug}: names no test"));
        }
        for (test, source) in tests.iter().zip(resolved(&tests, read, has_test)) {
            if !source.is_ok_and(|source| bugs_in(&source).contains(bug)) {
                problems.push(format!(
                    "{bug}: {test} is no test that is run, or its file does not plant it"
                ));
            }
        }
    }
    problems
        .extend(planted.difference(&listed).map(|bug| format!("{bug}: planted, and in no row")));
    problems
}

/// The bugs that can be planted, with what is wrong in each.
fn known_bugs() -> BTreeMap<String, String> {
    let mut known = BTreeMap::new();
    let lists = [("planted.rs", "pub enum Bug {"), ("planted/guards.rs", "pub enum GuardBug {")];
    for (file, begins) in lists {
        let source = read(&format!("crates/cenote-medium/src/{file}")).expect("planted bugs");
        let rest = source.split_once(begins).expect("a list").1;
        let mut words = String::new();
        for line in rest.split_once("\n}").expect("its end").0.lines().map(str::trim) {
            if let Some(more) = line.strip_prefix("/// ") {
                words = format!("{words} {more}");
            } else if let Some(name) = line.strip_suffix(',') {
                let what = core::mem::take(&mut words);
                known.insert(name.to_owned(), what.trim().trim_end_matches('.').to_owned());
            }
        }
    }
    known
}

#[test]
fn every_planted_bug_of_psync_and_objects_is_listed_with_the_test_that_finds_it() {
    let text = read("docs/promises.md").expect("docs/promises.md");
    let mut sources = String::new();
    PLANTED_IN.iter().for_each(|path| read_all(&root().join(path), &mut sources));
    let (known, planted) = (known_bugs(), bugs_in(&sources));
    let problems = problems_of_bugs(&text, &known, &planted, &read);
    assert!(problems.is_empty(), "docs/promises.md:\n  {}", problems.join("\n  "));
    assert!(planted.len() >= 10, "{planted:?}");
    // And what is wrong is noticed.
    let row = text.lines().find(|line| line.starts_with("| `PsyncNotSynced`")).expect("a row");
    let wrong = |text: &str, known: &BTreeMap<String, String>| {
        problems_of_bugs(text, known, &planted, &read).len()
    };
    for damaged in [
        text.replace(row, ""),
        text.replace(row, &format!("{row}\n{row}")),
        text.replace("a_psync_that_does_not_sync_the_journal`", "nothing`"),
        text.replace(
            "object/planted::a_psync_that_does_not_sync_the_journal",
            "object/rules::one_writer_or_many_readers",
        ),
    ] {
        assert_eq!(wrong(&damaged, &known), 1);
    }
    assert!(wrong(&text, &BTreeMap::new()) >= planted.len());
    // A row of another form is told as such, and its bug is in no row.
    let narrow = row.rsplit_once("| `").expect("a last column").0.trim_end().to_owned() + " |";
    for (columns, other) in [(2, narrow), (4, format!("{row} more |"))] {
        let problems = problems_of_bugs(&text.replace(row, &other), &known, &planted, &read);
        let said = format!("PsyncNotSynced: {columns} columns instead of 3");
        assert!(problems.len() == 2 && problems.contains(&said), "{problems:?}");
    }
}

/// A document with every id in one state, and its test.
fn document(state: &str, module: &str, test: &str) -> String {
    let mut out =
        String::from("| id | promise | state | module | test |\n| --- | --- | --- | --- | --- |\n");
    for (prefix, count) in INDEX {
        for number in (1..=count).map(|n| n.to_string()).chain(["fig".into()]) {
            out += &format!("| {prefix}-{number} | text | {state} | {module} | {test} |\n");
        }
    }
    out
}

#[test]
fn each_kind_of_false_claim_is_noticed() {
    const SOURCE: &str = "    #[test]\n    // why\n    fn proof() {}\n\
        fn helper() {}\n#[test]\n#[ignore]\nfn off() {}\n";
    let tree = |path: &str| (path == "a.rs").then(|| SOURCE.to_owned());
    let found = |text: &str| problems(text, &tree);
    let good = document("done", "`a.rs`", "`a.rs::proof`");
    assert_eq!(found(&good), Vec::<String>::new());
    assert_eq!(found(&document("planned", "", "")), Vec::<String>::new());

    let first = good.lines().nth(2).expect("a row").to_owned() + "\n";
    for (what, text) in [
        ("missing", good.replacen(&first, "", 1)),
        ("twice", good.replacen(&first, &(first.clone() + &first), 1)),
        ("no such promise", good.clone() + "| XYZ-1 | text | planned | | |\n"),
        ("columns", good.replacen("| text ", "", 1)),
        ("state", good.replacen("done", "nearly", 1)),
        ("names no test", document("partial", "`a.rs`", "")),
        ("names no module", document("done", "", "`a.rs::proof`")),
        ("does not exist", document("planned", "`b.rs`", "")),
        ("does not exist", document("done", "`a.rs`", "`b.rs::proof`")),
        ("has no test", document("done", "`a.rs`", "`a.rs::prooF`")),
        ("has no test", document("done", "`a.rs`", "`a.rs::helper`")),
        ("has no test", document("done", "`a.rs`", "`a.rs::off`")),
        ("form", document("done", "`a.rs`", "`proof`")),
    ] {
        let problems = found(&text);
        assert!(problems.iter().any(|p| p.contains(what)), "\"{what}\" is not among {problems:?}");
    }
}
