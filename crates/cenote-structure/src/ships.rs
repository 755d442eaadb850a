//! Programs that ship refuse planted bugs: the main file of each calls `cenote_medium::ships!`.

use std::path::Path;

/// Crates whose programs ship.
const SHIPPED: [&str; 3] = ["cenote-cli", "cenote-recover", "cenoted"];

const CALL: &str = "\ncenote_medium::ships!();\n";

/// A line for each program that does not call it.
pub(crate) fn wrong(crates: &Path) -> Vec<String> {
    let calls = |name: &str| {
        let main = crates.join(name).join("src/main.rs");
        std::fs::read_to_string(main).is_ok_and(|text| text.contains(CALL))
    };
    SHIPPED
        .into_iter()
        .filter(|name| !calls(name))
        .map(|name| {
            format!("crates/{name}/src/main.rs ships: it must call `cenote_medium::ships!()`")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_program_that_does_not_refuse_planted_bugs_is_named() {
        let crates = tempfile::tempdir().expect("a directory");
        for name in SHIPPED {
            let src = crates.path().join(name).join("src");
            fs::create_dir_all(&src).expect("made");
            fs::write(src.join("main.rs"), format!("use std::fs;\n{CALL}\nfn main() {{}}\n"))
                .expect("written");
        }
        assert_eq!(wrong(crates.path()), Vec::<String>::new());
        fs::write(crates.path().join("cenoted/src/main.rs"), "fn main() {}\n").expect("written");
        let found = wrong(crates.path());
        assert!(found.len() == 1 && found[0].contains("cenoted"), "{found:?}");
    }
}
