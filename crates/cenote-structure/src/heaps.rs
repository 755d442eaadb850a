//! Layouts of heaps are known to the heaps: code that moves, archives or maps pools names none of
//! their structures.
//!
//! Found by its own name, in paths, in imports and in macros. An import of all that a module has is
//! found by the module's name. Modules of tests are not looked at.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Path, UseTree};

use crate::sources::Module;

/// Structures of heaps, and what is computed from them. Roots are of every kind, and are not here.
const STRUCTURES: [&str; 28] = [
    "Descriptor",
    "HeapGeometry",
    "SuperblockState",
    "SweepState",
    "SUPERBLOCK_SIZE",
    "MARKS_SIZE",
    "TINY_MARKS_SIZE",
    "MEMBERS_SIZE",
    "SWEEP_SIZE",
    "LIST_COUNT",
    "class_size",
    "class_of",
    "blocks_per_superblock",
    "CACHED",
    "CONDEMNED",
    "LoggedHeader",
    "SubHeapGeometry",
    "SubHeapHeader",
    "SubHeapWord",
    "PartEntry",
    "CELL_SIZE",
    "PARTS_OFFSET",
    "WearHeader",
    "WearGeometry",
    "WearLine",
    "WearRecord",
    "LineWords",
    "WEAR_LINE",
];
/// Modules that define them, of which nothing is to be imported by `*`.
const MODULES: [&str; 5] = ["heap", "mark", "logged", "wear", "class"];
/// Crates that name none of them.
const BLIND: [&str; 9] = [
    "cenote",
    "cenote-archive",
    "cenote-collections",
    "cenote-object",
    "cenote-recover",
    "cenote-relocate",
    "cenote-shadow",
    "cenote-store",
    "cenoted",
];

/// Structures of heaps that the crate `name` names although it may not, a message for each.
pub(crate) fn wrong(name: &str, modules: &[Module]) -> Vec<String> {
    let mut wrong = Vec::new();
    for module in modules.iter().filter(|_| BLIND.contains(&name)) {
        let mut found = FoundNames::default();
        module.items.iter().for_each(|item| found.visit_item(item));
        wrong.extend(found.names.into_iter().map(|structure| {
            let module = module.path.join("::");
            format!("{name}: `{module}` names `{structure}`: ask the heap by `PoolImages`")
        }));
    }
    wrong
}

/// What is named of [`STRUCTURES`].
#[derive(Default)]
struct FoundNames {
    names: Vec<String>,
}

impl FoundNames {
    fn look(&mut self, name: &str) {
        if STRUCTURES.contains(&name) {
            self.names.push(name.to_owned());
        }
    }

    /// The names of a tree of imports behind `before`.
    fn look_at_tree(&mut self, before: &str, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                self.look(&path.ident.to_string());
                self.look_at_tree(&path.ident.to_string(), &path.tree);
            }
            UseTree::Name(name) => self.look(&name.ident.to_string()),
            UseTree::Rename(name) => self.look(&name.ident.to_string()),
            UseTree::Glob(_) if MODULES.contains(&before) => {
                self.names.push(format!("{before}::*"));
            }
            UseTree::Glob(_) => {}
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.look_at_tree(before, tree));
            }
        }
    }

    fn look_at_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Ident(name) => self.look(&name.to_string()),
                TokenTree::Group(group) => self.look_at_tokens(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for FoundNames {
    fn visit_path(&mut self, path: &'ast Path) {
        path.segments.iter().for_each(|segment| self.look(&segment.ident.to_string()));
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.look_at_tree("", &item.tree);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.look_at_tokens(called.tokens.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(text: &str) -> Module {
        let items = syn::parse_file(text).expect("Rust").items;
        Module { path: vec!["scan".to_owned()], items, lines: text.lines().count() }
    }

    #[test]
    fn a_layout_of_a_heap_that_is_named_elsewhere_is_refused() {
        let found = |text| wrong("cenote-relocate", &[module(text)]);
        let message = |what: &str| {
            vec![format!("cenote-relocate: `scan` names `{what}`: ask the heap by `PoolImages`")]
        };
        for (text, what) in [
            ("use cenote_layout::heap::{ROOT_COUNT, HeapGeometry};", "HeapGeometry"),
            ("use cenote_layout::heap::Descriptor as D;", "Descriptor"),
            ("use cenote_layout::heap::*;", "heap::*"),
            ("fn f() { let size = cenote_heap::class::class_size(1); }", "class_size"),
            ("fn f() { let at = WearHeader::ROOTS; }", "WearHeader"),
            ("fn f(mark: u8) -> bool { mark == mark::CONDEMNED }", "CONDEMNED"),
            ("fn f() { assert!(at % (SUPERBLOCK_SIZE) == 0); }", "SUPERBLOCK_SIZE"),
            ("struct S { header: Option<LoggedHeader> }", "LoggedHeader"),
        ] {
            assert_eq!(found(text), message(what), "{text}");
        }
    }

    #[test]
    fn roots_and_answers_of_the_heap_may_be_named_and_heaps_know_their_layouts() {
        let roots = "use cenote_layout::heap::{ROOT_COUNT, RootSlot}; use cenote_heap::PoolImages;";
        let none: Vec<String> = Vec::new();
        assert_eq!(wrong("cenote-relocate", &[module(roots)]), none);
        let geometry = module("use cenote_layout::heap::HeapGeometry;");
        assert_eq!(wrong("cenote-heap", core::slice::from_ref(&geometry)), none);
        for name in BLIND {
            assert_eq!(wrong(name, core::slice::from_ref(&geometry)).len(), 1, "{name}");
        }
    }
}
