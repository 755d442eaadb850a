//! Which modules of a crate, or of a large folder in it, name which others.
//!
//! A *unit* is a crate, or a folder with two modules or more. Its members are the modules directly
//! in it, and its root; a folder among them counts as one member. The root of a folder with at most
//! [`FOLDER_MAX`] modules is no member.
//!
//! A path counts if it starts with `crate`, `self` or `super`, in `use`, in code and in arguments
//! of macros and attributes, or if the unit's root names a module of its own. A name that the
//! unit's root or the crate's root exports again counts as the member that has it. The root's `pub
//! use` is no import: the root names all members, so every unit would be one cycle.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, ItemUse, UseTree, Visibility};

use crate::sources::Module;

/// The name of a crate's root among its modules.
pub(crate) const ROOT: &str = "lib.rs";
/// The name of a folder's root among its modules.
const FOLDER_ROOT: &str = "mod.rs";
/// Of a folder with more modules the root counts as one of them. In smaller ones a part may name
/// what the root defines for all.
const FOLDER_MAX: usize = 8;
/// Exports of exports that are followed.
const EXPORTS_MAX: usize = 4;

/// For each member of a unit: its lines, and the members that it names.
#[derive(Default)]
pub(crate) struct Imports {
    pub(crate) lines: BTreeMap<String, usize>,
    pub(crate) edges: BTreeMap<String, BTreeSet<String>>,
}

/// The folders among `modules` that are units of their own, as paths from the crate's root.
pub(crate) fn folders(modules: &[Module]) -> Vec<Vec<String>> {
    let mut sizes: BTreeMap<&[String], usize> = BTreeMap::new();
    for (_, folder) in modules.iter().filter_map(|m| m.path.split_last()) {
        *sizes.entry(folder).or_default() += 1;
    }
    let units = sizes.into_iter().filter(|(folder, size)| !folder.is_empty() && *size > 1);
    units.map(|(folder, _)| folder.to_vec()).collect()
}

/// Finds the imports in the unit `folder` (none: the crate) among `modules`, all of one crate.
pub(crate) fn imports(modules: &[Module], folder: &[String]) -> Imports {
    let inside = || modules.iter().filter(|m| m.path.starts_with(folder));
    let unit = Unit {
        folder,
        root: if folder.is_empty() { ROOT } else { FOLDER_ROOT },
        members: inside().filter_map(|m| m.path.get(folder.len()).cloned()).collect(),
        exports: exported_names(modules, folder),
        crate_exports: exported_names(modules, &[]),
    };
    let mut found = Imports::default();
    for module in inside() {
        let own = module.path.get(folder.len()).map_or(unit.root, String::as_str);
        *found.lines.entry(own.to_owned()).or_default() += module.lines;
        let mut finder = Finder { at: &module.path, unit: &unit, named: BTreeSet::new() };
        for item in &module.items {
            let exports = matches!(item, Item::Use(u) if !matches!(u.vis, Visibility::Inherited));
            if !(module.path == folder && exports) {
                finder.visit_item(item);
            }
        }
        finder.named.remove(own);
        found.edges.entry(own.to_owned()).or_default().extend(finder.named);
    }
    let parts = modules.iter().filter(|m| m.path.split_last().is_some_and(|l| l.1 == folder));
    if !folder.is_empty() && parts.count() <= FOLDER_MAX {
        found.edges.remove(FOLDER_ROOT);
        for named in found.edges.values_mut() {
            named.remove(FOLDER_ROOT);
        }
    }
    found
}

/// The names that the module `at` imports or exports again, with the absolute path of each.
fn exported_names(modules: &[Module], at: &[String]) -> BTreeMap<String, Vec<String>> {
    let below = |name: &String| {
        modules
            .iter()
            .any(|m| m.path.split_last().is_some_and(|(last, rest)| last == name && rest == at))
    };
    let mut exported = BTreeMap::new();
    for item in modules.iter().filter(|m| m.path == at).flat_map(|m| &m.items) {
        let Item::Use(used) = item else { continue };
        for path in use_paths(used) {
            let Some((_, name)) = path.last().cloned() else { continue };
            let segments: Vec<String> = path.into_iter().map(|(segment, _)| segment).collect();
            if let Some(path) = absolute(at, &segments, below) {
                exported.insert(name, path);
            }
        }
    }
    exported
}

/// The path from the crate's root that `segments` names in the module `at`, where `below` says
/// which names are modules in `at`. `None`: it leads out of the crate, or to what `at` imports.
fn absolute(
    at: &[String],
    segments: &[String],
    below: impl Fn(&String) -> bool,
) -> Option<Vec<String>> {
    let mut path = at.to_vec();
    let mut rest = segments;
    match segments.first()?.as_str() {
        "crate" => {
            path.clear();
            rest = &segments[1..];
        }
        "self" | "super" => {
            while let Some(first @ ("self" | "super")) = rest.first().map(String::as_str) {
                if first == "super" {
                    path.pop();
                }
                rest = &rest[1..];
            }
        }
        _ if below(&segments[0]) => {}
        _ => return None,
    }
    path.extend_from_slice(rest);
    Some(path)
}

/// A crate or a folder, and what its names lead to.
struct Unit<'a> {
    folder: &'a [String],
    root: &'static str,
    members: BTreeSet<String>,
    exports: BTreeMap<String, Vec<String>>,
    crate_exports: BTreeMap<String, Vec<String>>,
}

impl Unit<'_> {
    /// The member that an absolute path leads to; `None`: it leads out of the unit.
    fn member(&self, mut path: Vec<String>) -> Option<&str> {
        for _ in 0..EXPORTS_MAX {
            let inside = path.strip_prefix(self.folder);
            let (exports, name) = match inside.and_then(<[String]>::first) {
                Some(name) => (&self.exports, name),
                None => (&self.crate_exports, path.first().filter(|_| inside.is_none())?),
            };
            if let Some(member) = inside.and_then(|_| self.members.get(name)) {
                return Some(member);
            }
            match exports.get(name) {
                Some(to) if *to != path => path = to.clone(),
                _ if inside.is_some() && name != "*" => return Some(self.root),
                _ => return None,
            }
        }
        None
    }
}

/// The paths of a `use`, each as segments with the name that the segment gets here.
pub(crate) fn use_paths(used: &ItemUse) -> Vec<Vec<(String, String)>> {
    fn walk(tree: &UseTree, before: &[(String, String)], out: &mut Vec<Vec<(String, String)>>) {
        let with = |name: String, renamed: String| {
            let mut path = before.to_vec();
            path.push((name, renamed));
            path
        };
        match tree {
            UseTree::Path(p) => {
                let name = p.ident.to_string();
                walk(&p.tree, &with(name.clone(), name), out);
            }
            UseTree::Name(n) => out.push(with(n.ident.to_string(), n.ident.to_string())),
            UseTree::Rename(r) => out.push(with(r.ident.to_string(), r.rename.to_string())),
            UseTree::Glob(_) => out.push(with("*".into(), "*".into())),
            UseTree::Group(g) => g.items.iter().for_each(|tree| walk(tree, before, out)),
        }
    }
    let mut out = Vec::new();
    walk(&used.tree, &[], &mut out);
    out
}

/// Collects the members of a unit that one module names.
struct Finder<'a> {
    at: &'a [String],
    unit: &'a Unit<'a>,
    named: BTreeSet<String>,
}

impl Finder<'_> {
    /// Adds what the path `segments` names.
    fn add(&mut self, segments: &[String]) {
        let below = |name: &String| self.at == self.unit.folder && self.unit.members.contains(name);
        let path = absolute(self.at, segments, below);
        self.named.extend(path.and_then(|path| self.unit.member(path)).map(str::to_owned));
    }

    /// Adds the paths in the arguments of a macro.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.add(&std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                other => {
                    self.add(&std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.add(&path);
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_use(&mut self, used: &'ast ItemUse) {
        for path in use_paths(used) {
            let names: Vec<String> = path.into_iter().map(|(name, _)| name).collect();
            self.add(&names);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.add(&names);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.add_tokens(called.tokens.clone());
        visit::visit_macro(self, called);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.add_tokens(list.tokens.clone());
        }
        visit::visit_attribute(self, attribute);
    }

    // A visibility names a module and imports nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &[&str], text: &str) -> Module {
        let items = syn::parse_file(text).expect("Rust").items;
        let path = path.iter().map(|name| (*name).to_owned()).collect();
        Module { path, items, lines: text.lines().count() }
    }

    fn named(own: &str) -> Vec<String> {
        let modules = [
            module(&[], "pub use a::{Kind, Other as Renamed}; pub use b::inner::Deep;"),
            module(&["a"], "pub struct Kind; pub struct Other;"),
            module(&["b"], "pub(crate) fn f() { let x = crate::c::g(); }"),
            module(&["b", "inner"], "use super::super::a::Kind; pub struct Deep;"),
            module(
                &["e"],
                "#[error(\"{}\", crate::c::g())] struct E; #[doc = \"crate::a\"] fn f() {}",
            ),
            module(&["c"], "use crate::Deep; fn g() { assert!(super::Renamed == crate::here()); }"),
            module(&["d"], "/// [`crate::a`]\nfn f(x: std::a::Kind) { a::f(); self::b() }"),
        ];
        imports(&modules, &[]).edges[own].iter().cloned().collect()
    }

    #[test]
    fn paths_in_uses_code_and_macros_count_and_names_go_to_their_module() {
        assert_eq!(named("b"), ["a", "c"]);
        assert_eq!(named("c"), ["a", "b", ROOT]);
        assert_eq!(named("e"), ["c"]);
    }

    #[test]
    fn other_crates_documentation_own_names_and_what_the_root_exports_do_not_count() {
        assert!(named("d").is_empty());
        assert!(named("a").is_empty());
        assert!(named(ROOT).is_empty());
    }

    #[test]
    fn a_large_folder_is_a_unit_and_its_names_are_followed_through_both_roots() {
        let mut modules = vec![
            module(&[], "pub use big::Heap; mod big; mod other;"),
            module(&["other"], "use crate::big::a;"),
            module(&["big"], "pub use b::Heap; use c::Own; pub(crate) use a::first;"),
            module(&["big", "a"], "use super::b; fn first() { crate::other::f() }"),
            module(&["big", "b"], "use crate::Heap as _; use super::first; struct Heap;"),
            module(&["big", "c", "deep"], "use crate::Heap; use super::super::Unknown;"),
        ];
        for name in ["c", "d", "e", "f", "g", "h"] {
            modules.push(module(&["big", name], ""));
        }
        let small = imports(&modules, &folders(&modules)[0]).edges;
        assert!(!small.contains_key(FOLDER_ROOT) && !small["c"].contains(FOLDER_ROOT));
        modules.push(module(&["big", "i"], ""));
        let all = folders(&modules);
        assert_eq!(all, [["big"]]);
        let edges = imports(&modules, &all[0]).edges;
        let named = |own: &str| edges[own].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(named("a"), ["b"]);
        assert_eq!(named("b"), ["a"]);
        assert_eq!(named("c"), ["b", FOLDER_ROOT]);
        assert_eq!(named(FOLDER_ROOT), ["c"]);
        assert!(!edges.contains_key("other"));
    }
}
