//! Advice for programs and advice for users of commands: where a text of the library names its
//! interface, the command has a text of its own.

use std::path::{Path, PathBuf};

/// Texts that name the interface, and that no command meets: why not.
const NOT_MET: [(&str, &str); 9] = [
    ("UnknownDurability", "no command takes a durability level"),
    ("BadName", "names of files are the library's own"),
    ("Full", "`vm.max_map_count` is the kernel's name, which an operator sets"),
    ("OtherPool", "no command stores a pointer"),
    ("RootName", "no command names a root"),
    ("NamedRootType", "no command has a type"),
    ("AsIs", "commands that take a pool as it is open the store so"),
    ("PoolName", "the name is quoted as it was given"),
    ("ObjectName", "the same"),
];

fn sources(at: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(at).expect("readable").flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => sources(&path, found),
            false => found.push(path),
        }
    }
}

/// What is in a text besides values and commands.
fn bare(text: &str) -> String {
    let (mut out, mut depth, mut quoted) = (String::new(), 0_u32, false);
    for c in text.chars() {
        match c {
            '`' => quoted = !quoted,
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            c if depth == 0 && !quoted => out.push(c),
            _ => {}
        }
    }
    out
}

/// A word of a program's source: a path, a name with an underscore, a handle.
fn of_program(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let part = |c: char| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit();
    let has_underscore = word.contains('_') && word.chars().all(part);
    word.contains("::") || has_underscore || ["handles", "rewriter", "RegionPtr"].contains(&word)
}

/// Errors of a source whose texts have such words, by the variant's name.
fn errors_of(source: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for piece in source.split("#[error(").skip(1) {
        let Some((text, rest)) = piece.split_once(")]\n") else { continue };
        let literal: String = text.split('"').skip(1).step_by(2).collect();
        let debug = text.contains(":?}");
        let mut lines = rest.lines().map(str::trim);
        let line = lines.find(|line| !line.starts_with("///") && !line.starts_with("#["));
        let name = line.unwrap_or_default().trim_start_matches("pub struct ");
        let name: String = name.chars().take_while(|c| c.is_alphanumeric()).collect();
        if debug || bare(&literal).split_whitespace().any(of_program) {
            found.push((name, literal));
        }
    }
    found
}

#[test]
fn each_text_of_the_library_that_names_its_interface_has_one_for_commands() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let advice = crates.join("cenote-cli/src/advice.rs");
    let advice = std::fs::read_to_string(advice).expect("text");
    let mut files = Vec::new();
    // What a command can be told by: the library below it.
    for name in ["", "-store", "-object", "-medium", "-atrest", "-archive", "-heap"] {
        sources(&crates.join(format!("cenote{name}/src")), &mut files);
    }
    sources(&crates.join("cenote-relocate/src"), &mut files);
    let (mut errors, mut wrong) = (0, Vec::new());
    for file in files {
        for (name, text) in errors_of(&std::fs::read_to_string(&file).expect("text")) {
            errors += 1;
            let is_known = NOT_MET.iter().any(|(known, _)| *known == name);
            if !is_known && !advice.contains(&format!("::{name}")) {
                wrong.push(format!("{}: {name}: {text}", file.display()));
            }
        }
    }
    assert!(errors > 20, "the sources were not found: {errors}");
    assert!(wrong.is_empty(), "no text for commands in advice.rs:\n{}", wrong.join("\n"));
}

/// A text that a program's author passes on: a program can copy its open store while it goes on.
const PASSED_ON: &str = "Store::backup";

#[test]
fn no_text_and_no_help_of_the_command_names_the_interface_of_the_library() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| !file.parent().is_some_and(|dir| dir.ends_with("cli"))) {
        let source = std::fs::read_to_string(file).expect("text");
        let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
        let code = code.collect::<Vec<_>>().join("\n");
        for literal in code.split('"').skip(1).step_by(2) {
            let text = bare(&literal.replace(PASSED_ON, ""));
            let is_sentence = text.contains(' ') && !text.contains(['\n', ';', '(', ')', '=']);
            if is_sentence && text.split_whitespace().any(of_program) {
                wrong.push(format!("{}: {literal}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for command in ["create", "check", "logs", "adopt", "backup", "rekey", "tour"] {
        let help = crate::common::run([command, "--help"]).exits(0).out.replace(PASSED_ON, "");
        assert!(!help.split_whitespace().any(|word| word.contains("::")), "{help}");
    }
}
