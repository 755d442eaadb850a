//! References of the documents' tables to sources and tests.
//!
//! `CRATE/FILE` means `FILE.rs` or `FILE/mod.rs` of the crate `cenote-CRATE`; `cenote` and
//! `cenoted` are crates of that name. A module lies in `src`, or in a folder of [`MODULES`]. A test
//! lies in `tests`, or where modules do. Behind `::` stands
//! * the name of one test of that file;
//! * the beginning of the name and `*`: it fits one test of that file;
//! * nothing, and no `::`: all tests of that file.
//!
//! A reference that begins with `::` has the file of the one before it in its cell. A path with an
//! extension is also a file. Each reference means exactly one file: what fits two is refused.

/// The folders of a crate that modules lie in.
const MODULES: [&str; 10] = [
    "src",
    "src/crypto",
    "src/kernel",
    "src/kernel/directory",
    "src/kernel/interface",
    "src/kernel/pools",
    "src/kernel/puddles",
    "src/kernel/store",
    "src/kernel/superblock",
    "src/view",
];

/// Gives the text of a file of the tree.
pub(crate) type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Tells whether a source has a test of a name.
pub(crate) type IsTest = fn(&str, &str) -> bool;

/// What stands between backticks.
pub(crate) fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The references to tests of a cell, and the scripts that it names.
pub(crate) fn named(cell: &str) -> (Vec<String>, Vec<String>) {
    quoted(cell)
        .into_iter()
        .filter(|name| name.contains('/') || name.starts_with("::"))
        .partition(|name| !name.starts_with("scripts/"))
}

/// The files below `folders` of a crate that a reference fits, with their text.
fn files(file: &str, folders: &[&str], read: Read) -> Vec<(String, String)> {
    let paths = match file.split_once('/') {
        _ if file.contains('.') => vec![file.to_owned()],
        Some((name, rest)) => {
            let prefix = if matches!(name, "cenote" | "cenoted") { "" } else { "cenote-" };
            let base = |folder: &&str| format!("crates/{prefix}{name}/{folder}/{rest}");
            folders
                .iter()
                .map(base)
                .flat_map(|b| [format!("{b}.rs"), format!("{b}/mod.rs")])
                .collect()
        }
        None => Vec::new(),
    };
    paths.into_iter().filter_map(|path| read(&path).map(|text| (path, text))).collect()
}

/// What is wrong with a reference of the column "module".
pub(crate) fn problem_of_module(file: &str, read: Read) -> Option<String> {
    match files(file, &MODULES, read).len() {
        0 => Some(format!("module {file} does not exist")),
        1 => None,
        fitting => Some(format!("module {file} fits {fitting} files")),
    }
}

/// The names of a source's functions.
fn functions(source: &str) -> impl Iterator<Item = &str> {
    let lines = source.lines().map(str::trim_start);
    lines
        .filter_map(|line| line.strip_prefix("fn ")?.split_once('('))
        .map(|(name, _)| name.trim_end())
}

/// The tests of a source that are meant.
fn tests_meant<'a>(source: &'a str, name: Option<&str>, is_test: IsTest) -> Vec<&'a str> {
    let fits = |function: &&str| match name {
        None => true,
        Some(name) => match name.strip_suffix('*') {
            Some(beginning) => function.starts_with(beginning),
            None => *function == name,
        },
    };
    functions(source).filter(fits).filter(|function| is_test(source, function)).collect()
}

/// The source of one reference, or what is wrong with it. `before`: the file of the one before.
fn resolve(
    reference: &str,
    before: &mut Option<String>,
    read: Read,
    is_test: IsTest,
) -> Result<String, String> {
    let (file, name) = match reference.split_once("::") {
        Some((file, name)) => (file, Some(name)),
        None => (reference, None),
    };
    let file = if file.is_empty() { before.clone().unwrap_or_default() } else { file.to_owned() };
    if !file.contains(['/', '.']) {
        return Err(format!("test {reference} is not of the form CRATE/FILE::name"));
    }
    *before = Some(file.clone());
    let files = files(&file, &[&["tests"][..], &MODULES].concat(), read);
    if files.is_empty() {
        return Err(format!("file {file} does not exist"));
    }
    let meant: Vec<(&String, Vec<&str>)> = files
        .iter()
        .map(|(_, source)| (source, tests_meant(source, name, is_test)))
        .filter(|(_, tests)| !tests.is_empty())
        .collect();
    match (&meant[..], name) {
        ([], _) => Err(format!("{file} has no test `fn {}` that is run", name.unwrap_or("..."))),
        ([(source, tests)], _) if name.is_none() || tests.len() == 1 => Ok((*source).clone()),
        _ => Err(format!("test {reference} is ambiguous: more than one fits")),
    }
}

/// For each reference of a cell the source that has its test, or what is wrong with it.
pub(crate) fn resolved(
    references: &[String],
    read: Read,
    is_test: IsTest,
) -> Vec<Result<String, String>> {
    let mut before = None;
    references.iter().map(|reference| resolve(reference, &mut before, read, is_test)).collect()
}

/// Whether a source has a test function of this name that is run by default.
pub(crate) fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    let is_function = |line: &str| {
        line.strip_prefix("fn ")
            .and_then(|rest| rest.strip_prefix(name))
            .is_some_and(|rest| rest.trim_start().starts_with('('))
    };
    lines.iter().enumerate().filter(|(_, line)| is_function(line)).any(|(at, _)| {
        let above =
            || lines[..at].iter().rev().take_while(|l| l.starts_with("#[") || l.starts_with("//"));
        above().any(|line| *line == "#[test]") && !above().any(|line| line.starts_with("#[ignore"))
    })
}

/// Whether a source has a test of this name, or is a program without a test harness, which calls
/// its functions itself, and has such a function.
pub(crate) fn is_called(source: &str, name: &str) -> bool {
    let own_main = functions(source).any(|function| function == "main");
    has_test(source, name) || own_main && functions(source).any(|function| function == name)
}

#[test]
fn a_reference_means_one_test_or_is_refused() {
    const TEST: &str =
        "#[test]\nfn first_of_two() {}\n#[test]\nfn first_of_all() {}\nfn helper() {}";
    let tree = |path: &str| -> Option<String> {
        let there = [
            "crates/cenote-a/tests/b.rs",
            "crates/cenote-a/src/c/mod.rs",
            "crates/cenote-a/src/d.rs",
            "crates/cenote-a/src/kernel/f.rs",
            "crates/cenote-a/tests/d.rs",
            "crates/cenote/tests/it/e.rs",
        ];
        let helpers = "crates/cenote-a/src/b.rs";
        (path == helpers)
            .then(|| "fn first_of_two() {}".to_owned())
            .or_else(|| there.contains(&path).then(|| TEST.to_owned()))
    };
    let problems = |references: &[&str]| -> Vec<String> {
        let references: Vec<String> = references.iter().map(|r| (*r).to_owned()).collect();
        resolved(&references, &tree, has_test).into_iter().filter_map(Result::err).collect()
    };
    let good =
        ["a/b::first_of_two", "::first_of_all", "a/c::first_of_t*", "a/b", "a/f", "cenote/it/e"];
    assert_eq!(problems(&good), Vec::<String>::new());
    for (reference, what) in [
        ("a/b::first_of_three", "has no test"),
        ("a/b::helper", "has no test"),
        ("a/b::second*", "has no test"),
        ("a/b::first_of_*", "ambiguous"),
        ("a/d::first_of_two", "ambiguous"),
        ("a/d", "ambiguous"),
        ("a/x::first_of_two", "does not exist"),
        ("x/b::first_of_two", "does not exist"),
        ("cenote-a/b::first_of_two", "does not exist"),
        ("::first_of_two", "form"),
        ("first_of_two", "form"),
    ] {
        let found = problems(&[reference]);
        assert!(found.len() == 1 && found[0].contains(what), "{reference}: {found:?}");
    }
    assert_eq!(problem_of_module("a/c", &tree), None);
    assert_eq!(problem_of_module("a/d", &tree), None);
    assert_eq!(problem_of_module("a/f", &tree), None);
    assert_eq!(
        problem_of_module("cenote/it/e", &tree).as_deref(),
        Some("module cenote/it/e does not exist")
    );
    let both = |_: &str| Some(String::new());
    assert!(problem_of_module("a/c", &both).is_some_and(|problem| problem.contains("20 files")));
}
