//! Page rights change in one crate: nothing else calls what changes them.
//!
//! Found by its last two names, in paths and in imports: `memory::protect`. Of an import that is
//! named anew, a function's or its module's, the import itself is found. Modules of tests are not
//! looked at.

use syn::visit::{self, Visit};
use syn::{Path, UseTree};

use crate::sources::Module;

/// What changes page rights: the module and the function.
const CHANGES: [(&str, &str); 4] =
    [("memory", "protect"), ("mm", "mprotect"), ("libc", "mprotect"), ("libc", "pkey_mprotect")];
/// Where it may be called: which crate, and in which module and those below, if not in all.
const ALLOWED: [(&str, Option<&str>); 3] =
    [("cenote-protect", None), ("cenote-sys", None), ("cenote-medium", Some("sim"))];

/// Changes of page rights in the crate `name` that are not its to make, a message for each.
pub(crate) fn wrong(name: &str, modules: &[Module]) -> Vec<String> {
    let mut wrong = Vec::new();
    for module in modules {
        let is_allowed = ALLOWED.iter().any(|(of, below)| {
            *of == name && below.is_none_or(|below| module.path.first().is_some_and(|m| m == below))
        });
        if is_allowed {
            continue;
        }
        let mut found = FoundCalls::default();
        module.items.iter().for_each(|item| found.visit_item(item));
        wrong.extend(found.names.into_iter().map(|changes| {
            let module = module.path.join("::");
            format!("{name}: `{module}` calls `{changes}`: change page rights by cenote-protect")
        }));
    }
    wrong
}

/// What is named of [`CHANGES`].
#[derive(Default)]
struct FoundCalls {
    names: Vec<String>,
}

impl FoundCalls {
    fn look(&mut self, before: &str, last: &str) {
        if CHANGES.contains(&(before, last)) {
            self.names.push(format!("{before}::{last}"));
        }
    }

    /// The names of a tree of imports behind `before`.
    fn look_at_tree(&mut self, before: &str, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.look_at_tree(&path.ident.to_string(), &path.tree),
            UseTree::Name(name) => self.look(before, &name.ident.to_string()),
            UseTree::Rename(name) => {
                let renamed = name.ident.to_string();
                self.look(before, &renamed);
                // Calls through the new name would not be found.
                if CHANGES.iter().any(|(module, _)| *module == renamed) {
                    self.names.push(format!("{renamed} as {}", name.rename));
                }
            }
            UseTree::Glob(_) => {
                let all = CHANGES.into_iter().filter(|(module, _)| *module == before);
                self.names.extend(all.map(|(module, _)| format!("{module}::*")));
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.look_at_tree(before, tree));
            }
        }
    }
}

impl<'ast> Visit<'ast> for FoundCalls {
    fn visit_path(&mut self, path: &'ast Path) {
        let mut segments = path.segments.iter().rev();
        if let (Some(last), Some(before)) = (segments.next(), segments.next()) {
            self.look(&before.ident.to_string(), &last.ident.to_string());
        }
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.look_at_tree("", &item.tree);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        // Of a macro's tokens, the text as it is written out: names with spaces between them.
        let text = called.tokens.to_string();
        for (module, function) in CHANGES {
            if text.contains(&format!("{module} :: {function}")) {
                self.names.push(format!("{module}::{function}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str, text: &str) -> Module {
        let items = syn::parse_file(text).expect("Rust").items;
        let path = path.split("::").map(str::to_owned).collect();
        Module { path, items, lines: text.lines().count() }
    }

    const CALL: &str =
        "use cenote_sys::memory::{self, Access}; fn f() { unsafe { memory::protect(1, 2, None) } }";

    #[test]
    fn a_planted_call_is_refused() {
        let message = |what: &str| {
            vec![format!(
                "cenote-store: `psync` calls `{what}`: change page rights by cenote-protect"
            )]
        };
        let found = |text| wrong("cenote-store", &[module("psync", text)]);
        assert_eq!(found(CALL), message("memory::protect"));
        assert_eq!(
            found("fn f() { cenote_sys::memory::protect(1, 2, None); }"),
            message("memory::protect")
        );
        assert_eq!(
            found("use cenote_sys::{fault, memory::protect as p};"),
            message("memory::protect")
        );
        assert_eq!(found("use cenote_sys::memory as m;"), message("memory as m"));
        assert_eq!(found("fn f() { libc::mprotect(at, len, 0); }"), message("libc::mprotect"));
        assert_eq!(found("use cenote_sys::memory::*;"), message("memory::*"));
        assert_eq!(
            found("fn f() { assert!(memory::protect(1, 2, None).is_ok()); }"),
            message("memory::protect")
        );
        assert_eq!(
            found("fn f() { rustix::mm::mprotect(at, len, flags); }"),
            message("mm::mprotect")
        );
    }

    #[test]
    fn the_crates_that_may_change_rights_do() {
        let none: Vec<String> = Vec::new();
        assert_eq!(wrong("cenote-protect", &[module("owner", CALL)]), none);
        assert_eq!(wrong("cenote-sys", &[module("userfaultfd", CALL)]), none);
        assert_eq!(wrong("cenote-medium", &[module("sim::files", CALL)]), none);
        assert_eq!(wrong("cenote-medium", &[module("real", CALL)]).len(), 1);
        assert_eq!(wrong("x", &[module("a", "fn f() { owner.protect(1..2); }")]), none);
    }
}
