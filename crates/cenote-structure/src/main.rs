//! Checks rules that the compiler does not: import cycles between modules, kernels that need
//! nothing above them, programs that ship with planted bugs, changes of page rights, layouts of
//! heaps that are named outside of them, the picture of the crates, references to decisions, and
//! sizes.

mod cycles;
mod decisions;
mod heaps;
mod imports;
mod kernels;
mod picture;
mod rights;
mod ships;
mod sizes;
mod sources;
mod texts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::imports::Imports;
use crate::sources::Module;

const USAGE: &str = "\
usage: cenote-structure COMMAND, from the repository's root

  check           compare import cycles with scripts/cycles.txt, ARCHITECTURE.md's picture with
                  the manifests, and references to decisions with docs/decisions; find what a
                  module `kernel` needs of other modules of its crate, or of the crates of sealed
                  pages and of psyncs, what changes page rights beside cenote-protect, what names
                  layouts of heaps beside them, and programs that ship and do not refuse planted
                  bugs; status 1 if they differ, or there is any
  table           print, for each crate and each folder in one, its modules and
                  lines, and those in import cycles
  imports CRATE   print which module of a crate, or of a folder in it, imports which
  picture         draw the crates into ARCHITECTURE.md
  sizes           compare lengths of files, functions and lines, and words, with scripts/sizes.txt;
                  status 1 if one is over its limit and not in the list
  sizes lower     remove from the list, and lower in it, what has become smaller
  sizes list      print what is over a limit today";

/// The lines of ARCHITECTURE.md around the picture.
const PICTURE_BEGINS: &str = "<!-- crates, drawn by scripts/picture.sh -->\n```text\n";
const PICTURE_ENDS: &str = "```\n<!-- end of crates -->";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["check"] => check(),
        ["table"] => table(),
        ["imports", name] => show_imports(name),
        ["picture"] => picture(true),
        ["sizes"] => check_sizes(),
        ["sizes", "lower"] => lower_sizes(),
        ["sizes", "list"] => list_sizes(),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The root files of a crate: its library, or its program if it has none.
fn root_of(name: &str) -> Option<PathBuf> {
    let src = Path::new("crates").join(name).join("src");
    ["lib.rs", "main.rs"].into_iter().map(|file| src.join(file)).find(|root| root.exists())
}

/// The modules of each crate.
fn all_modules() -> Result<Vec<(String, Vec<Module>)>, String> {
    let mut all = Vec::new();
    for name in picture::crate_names(Path::new("crates"))? {
        // The fuzzer compiles files of other crates anew; they are checked there.
        if name == "cenote-fuzz" {
            continue;
        }
        if let Some(root) = root_of(&name) {
            let modules = sources::modules(&root)?;
            all.push((name, modules));
        }
    }
    Ok(all)
}

/// The imports of each crate, and of each large folder as `crate/folder`.
fn all_imports() -> Result<Vec<(String, Imports)>, String> {
    let all = all_modules()?;
    Ok(all.iter().flat_map(|(name, modules)| units(name, modules)).collect())
}

/// The units of one crate: itself and its large folders.
fn units(name: &str, modules: &[Module]) -> Vec<(String, Imports)> {
    let mut units = vec![(name.to_owned(), imports::imports(modules, &[]))];
    for folder in imports::folders(modules) {
        units.push((format!("{name}/{}", folder.join("/")), imports::imports(modules, &folder)));
    }
    units
}

fn check() -> Result<(), String> {
    let text = fs::read_to_string("scripts/cycles.txt").map_err(|e| format!("cycles.txt: {e}"))?;
    let list = cycles::read_list(&text)?;
    let mut wrong = Vec::new();
    let modules = all_modules()?;
    let all: Vec<_> = modules.iter().flat_map(|(name, modules)| units(name, modules)).collect();
    wrong.extend(modules.iter().flat_map(|(name, modules)| kernels::wrong(name, modules)));
    wrong.extend(modules.iter().flat_map(|(name, modules)| rights::wrong(name, modules)));
    wrong.extend(modules.iter().flat_map(|(name, modules)| heaps::wrong(name, modules)));
    for (name, imports) in &all {
        wrong.extend(cycles::compare(name, &cycles::cycles(imports), &list));
    }
    wrong.extend(ships::wrong(Path::new("crates")));
    wrong.extend(picture(false).err());
    wrong.extend(decisions::compare(&texts::all()?));
    if wrong.is_empty() {
        println!("structure: {} crates and folders, no new import cycle", all.len());
        return Ok(());
    }
    Err(wrong.iter().map(|line| format!("error: {line}")).collect::<Vec<_>>().join("\n"))
}

fn table() -> Result<(), String> {
    println!("| crate | modules in cycles | lines in them |");
    println!("| --- | --- | --- |");
    for (name, imports) in all_imports()? {
        let cycles = cycles::cycles(&imports);
        let inside: Vec<&str> = cycles.iter().flatten().copied().collect();
        let lines: usize = inside.iter().map(|module| imports.lines[*module]).sum();
        let all: usize = imports.lines.values().sum();
        let modules = imports.lines.len();
        println!("| {name} | {} of {modules} | {lines} of {all} |", inside.len());
    }
    Ok(())
}

fn show_imports(name: &str) -> Result<(), String> {
    let root = root_of(name).ok_or(format!("crates/{name} does not exist"))?;
    for (unit, imports) in units(name, &sources::modules(&root)?) {
        println!("# {unit}");
        for (from, named) in &imports.edges {
            println!("{from}: {}", named.iter().map(String::as_str).collect::<Vec<_>>().join(" "));
        }
        for cycle in cycles::cycles(&imports) {
            println!("cycle: {}", cycle.into_iter().collect::<Vec<_>>().join(" "));
        }
    }
    Ok(())
}

/// Draws the crates into ARCHITECTURE.md, or compares what stands there.
fn picture(write: bool) -> Result<(), String> {
    let file = "ARCHITECTURE.md";
    let text = fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let drawn = picture::draw(&picture::dependencies(Path::new("crates"))?);
    let begins = text.find(PICTURE_BEGINS).ok_or(format!("{file} has no place for the picture"))?;
    let begins = begins + PICTURE_BEGINS.len();
    let len = text[begins..].find(PICTURE_ENDS).ok_or(format!("{file}: the picture has no end"))?;
    if text[begins..begins + len] == drawn {
        return Ok(());
    }
    if !write {
        return Err(format!("{file}: the picture of the crates is old: run scripts/picture.sh"));
    }
    let new = format!("{}{drawn}{}", &text[..begins], &text[begins + len..]);
    fs::write(file, new).map_err(|e| format!("{file}: {e}"))
}

const SIZES: &str = "scripts/sizes.txt";

/// What is over a limit today, and the list of exceptions.
fn sizes_and_list() -> Result<(sizes::Sizes, sizes::Sizes), String> {
    let text = fs::read_to_string(SIZES).map_err(|e| format!("{SIZES}: {e}"))?;
    Ok((sizes::measure(&texts::all()?)?, sizes::read_list(&text)?))
}

fn check_sizes() -> Result<(), String> {
    let (found, list) = sizes_and_list()?;
    let wrong = sizes::compare(&found, &list);
    if wrong.is_empty() {
        println!("sizes: {} exceptions, none new", list.len());
        return Ok(());
    }
    Err(wrong.iter().map(|line| format!("error: {line}")).collect::<Vec<_>>().join("\n"))
}

fn lower_sizes() -> Result<(), String> {
    let (found, list) = sizes_and_list()?;
    let text = sizes::write_list(&sizes::lower(&found, &list));
    fs::write(SIZES, text).map_err(|e| format!("{SIZES}: {e}"))
}

fn list_sizes() -> Result<(), String> {
    print!("{}", sizes::write_list(&sizes::measure(&texts::all()?)?));
    Ok(())
}
