//! The module `kernel` of a crate needs no other module of it, and no crate that knows more of a
//! store than it.
//!
//! Three rules. No path in it leads out of it. No call in it leads to a method that only other
//! modules define on its types: a method is found by its name, in calls and in macros, and a name
//! that the kernel defines itself, on whichever type, is taken for its own. And it names nothing of
//! the crates [`ABOVE`], but for the words of callers in [`VOCABULARY`].

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{ImplItem, Item, ItemImpl, Type};

use crate::imports;
use crate::sources::Module;

/// The name of such a module.
const KERNEL: &str = "kernel";
/// Methods of other crates' types that a kernel calls, and whose names methods above it have too.
const OF_OTHER_CRATES: [&str; 2] = ["hold", "read_at"];

/// Crates of sealed pages and of psyncs, which a kernel does not name.
const ABOVE: [&str; 2] = ["cenote_atrest", "cenote_shadow"];
/// Types of them in options and errors, which callers of the kernel's crate see: the module, and
/// the one path that it may import.
const VOCABULARY: [(&str, &str); 3] = [
    ("kernel::interface::options", "cenote_atrest::Keyring"),
    ("kernel::interface::error::store", "cenote_atrest::AtRestError"),
    ("kernel::interface::error::store", "cenote_atrest::view::SealedError"),
];

/// What is wrong with the kernel of the crate `name`, a message for each need. Empty if it has
/// none.
pub(crate) fn wrong(name: &str, modules: &[Module]) -> Vec<String> {
    let edges = imports::imports(modules, &[]).edges;
    let imported = edges.get(KERNEL).into_iter().flatten();
    let imported = imported.map(|to| format!("{name}: the kernel imports `{to}`"));
    let called = calls_outside(modules).into_iter().map(|(method, module)| {
        format!("{name}: the kernel calls the method `{method}`, which `{module}` defines")
    });
    imported.chain(called).chain(named_above(name, modules)).collect()
}

/// What the kernel names of the crates [`ABOVE`], a message for each.
fn named_above(name: &str, modules: &[Module]) -> Vec<String> {
    let mut wrong = Vec::new();
    for module in modules.iter().filter(is_inside) {
        let at = module.path.join("::");
        let mut found = NamedAbove::default();
        module.items.iter().for_each(|item| found.visit_item(item));
        found.imported.retain(|path| !VOCABULARY.contains(&(&at, path)));
        let all = found.imported.into_iter().chain(found.others);
        wrong.extend(all.map(|path| format!("{name}: the kernel names `{path}`, in `{at}`")));
    }
    wrong
}

/// Whether a module is the kernel, or in it.
fn is_inside(module: &&Module) -> bool {
    module.path.first().is_some_and(|first| first == KERNEL)
}

/// Methods that the kernel calls and only modules outside it define on its types, with the module
/// of each.
fn calls_outside(modules: &[Module]) -> Vec<(String, String)> {
    let (mut own, mut called) = (Defined::default(), Called::default());
    for item in modules.iter().filter(is_inside).flat_map(|module| &module.items) {
        own.visit_item(item);
        called.visit_item(item);
    }
    let mut outside: BTreeMap<String, String> = BTreeMap::new();
    for module in modules.iter().filter(|module| !is_inside(module)) {
        for (method, has_receiver) in module.items.iter().flat_map(|item| methods(item, &own.types))
        {
            if has_receiver || called.is_function(&method, &own.types) {
                outside.insert(method, module.path.join("::"));
            }
        }
    }
    let is_called = |method: &String| {
        called.methods.contains(method) && !OF_OTHER_CRATES.contains(&method.as_str())
            || called.is_function(method, &own.types)
    };
    outside.retain(|method, _| is_called(method) && !own.functions.contains(method));
    outside.into_iter().collect()
}

/// The functions of `item`, if it is an `impl` of one of `types` without a trait, and whether each
/// has a receiver.
fn methods(item: &Item, types: &BTreeSet<String>) -> Vec<(String, bool)> {
    let Item::Impl(ItemImpl { trait_: None, self_ty, items, .. }) = item else { return Vec::new() };
    let Type::Path(path) = &**self_ty else { return Vec::new() };
    if !path.path.segments.last().is_some_and(|name| types.contains(&name.ident.to_string())) {
        return Vec::new();
    }
    let methods = items.iter().filter_map(|item| match item {
        ImplItem::Fn(function) => {
            Some((function.sig.ident.to_string(), function.sig.receiver().is_some()))
        }
        _ => None,
    });
    methods.collect()
}

/// The types and functions that are defined.
#[derive(Default)]
struct Defined {
    types: BTreeSet<String>,
    functions: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Defined {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.types.insert(item.ident.to_string());
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.types.insert(item.ident.to_string());
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.functions.insert(signature.ident.to_string());
    }
}

/// The names of methods that are called, and of associated functions with their types.
#[derive(Default)]
struct Called {
    methods: BTreeSet<String>,
    functions: BTreeSet<(String, String)>,
}

impl Called {
    /// Whether a path `Type::name` with one of `types` is called.
    fn is_function(&self, name: &str, types: &BTreeSet<String>) -> bool {
        types.iter().any(|of| self.functions.contains(&(of.clone(), name.to_owned())))
    }

    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut dot = false;
        for token in tokens {
            match &token {
                TokenTree::Ident(name) if dot => {
                    self.methods.insert(name.to_string());
                }
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                _ => {}
            }
            dot = matches!(&token, TokenTree::Punct(mark) if mark.as_char() == '.');
        }
    }
}

impl<'ast> Visit<'ast> for Called {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.methods.insert(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        let mut segments = path.path.segments.iter().rev();
        if let (Some(function), Some(of)) = (segments.next(), segments.next()) {
            self.functions.insert((of.ident.to_string(), function.ident.to_string()));
        }
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.add_tokens(called.tokens.clone());
    }
}

/// What is named of [`ABOVE`].
#[derive(Default)]
struct NamedAbove {
    /// By imports, which a list may allow.
    imported: Vec<String>,
    /// By paths in code and in macros.
    others: Vec<String>,
}

impl NamedAbove {
    fn add_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Ident(name) if ABOVE.contains(&name.to_string().as_str()) => {
                    self.others.push(name.to_string());
                }
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for NamedAbove {
    fn visit_item_use(&mut self, used: &'ast syn::ItemUse) {
        for path in imports::use_paths(used) {
            let names: Vec<String> = path.into_iter().map(|(name, _)| name).collect();
            if ABOVE.contains(&names[0].as_str()) {
                self.imported.push(names.join("::"));
            }
        }
    }

    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        self.add_tokens(TokenTree::from(item.ident.clone()).into());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if ABOVE.contains(&names[0].as_str()) {
            self.others.push(names.join("::"));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.add_tokens(called.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.add_tokens(list.tokens.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &[&str], text: &str) -> Module {
        let items = syn::parse_file(text).expect("Rust").items;
        let path = path.iter().map(|name| (*name).to_owned()).collect();
        Module { path, items, lines: text.lines().count() }
    }

    fn wrong_with(kernel: &str) -> Vec<String> {
        let above = "use crate::kernel::Store; pub fn open() {} impl Store { fn psync(&self) {} \
                     fn len(&self) {} fn make() {} }";
        wrong(
            "x",
            &[
                module(&[], "mod kernel; mod above; pub use above::open;"),
                module(&["kernel"], "pub struct Store; pub(crate) mod store; pub(crate) mod list;"),
                module(&["kernel", "list"], "impl List { fn len(&self) {} }"),
                module(&["kernel", "store"], kernel),
                module(&["above"], above),
            ],
        )
    }

    #[test]
    fn a_kernel_that_needs_itself_alone_is_accepted() {
        let none: Vec<String> = Vec::new();
        assert_eq!(wrong_with("use super::list; use crate::kernel::Store; fn f() {}"), none);
        assert_eq!(wrong_with("fn f(file: &File) { file.make() }"), none);
        // The name is one of its own methods' too.
        assert_eq!(wrong_with("fn f(list: &List) { list.len() }"), none);
        assert_eq!(wrong("y", &[module(&[], "mod a;"), module(&["a"], "use crate::b;")]), none);
    }

    #[test]
    fn a_path_out_of_the_kernel_is_found() {
        for text in ["use crate::above;", "fn f() { crate::open() }", "use super::super::above::*;"]
        {
            assert_eq!(wrong_with(text), ["x: the kernel imports `above`"], "{text}");
        }
    }

    #[test]
    fn a_method_that_others_define_on_its_types_is_found() {
        let message = |method| {
            vec![format!("x: the kernel calls the method `{method}`, which `above` defines")]
        };
        assert_eq!(wrong_with("fn f(store: &Store) { store.psync() }"), message("psync"));
        assert_eq!(wrong_with("fn f(s: &Store) { assert!(s.psync().is_ok()) }"), message("psync"));
        assert_eq!(wrong_with("fn f() { Store::make() }"), message("make"));
    }

    #[test]
    fn a_name_of_sealed_pages_or_of_psyncs_is_found() {
        let message = |path| vec![format!("x: the kernel names `{path}`, in `kernel::store`")];
        for (text, path) in [
            ("use cenote_atrest::view::View;", "cenote_atrest::view::View"),
            ("use cenote_shadow::{self as s};", "cenote_shadow::self"),
            ("use ::cenote_atrest::*;", "cenote_atrest::*"),
            ("pub(crate) use cenote_atrest as a;", "cenote_atrest"),
            ("extern crate cenote_atrest as a;", "cenote_atrest"),
            ("struct P { view: Option<cenote_atrest::view::View> }", "cenote_atrest::view::View"),
            ("fn f() { cenote_shadow::commit() }", "cenote_shadow::commit"),
            ("fn f() { assert!(x == cenote_atrest::PAGE_LEN) }", "cenote_atrest"),
            ("#[error(\"{}\", cenote_atrest::f())] struct E;", "cenote_atrest"),
            // A word of options is none of this module's.
            ("use cenote_atrest::Keyring;", "cenote_atrest::Keyring"),
        ] {
            assert_eq!(wrong_with(text), message(path), "{text}");
        }
        let none: Vec<String> = Vec::new();
        assert_eq!(
            wrong_with("use cenote_journal::Journal; /// [`cenote_atrest`]\nfn f() {}"),
            none
        );
        let above = module(&["sealed"], "use cenote_atrest::view::View;");
        assert_eq!(wrong("x", &[module(&[], "mod kernel;"), above]), none);
    }

    #[test]
    fn options_and_errors_may_import_the_words_of_callers_alone() {
        let wrong_in = |path: &[&str], text| wrong("x", &[module(path, text)]);
        let options = ["kernel", "interface", "options"];
        let none: Vec<String> = Vec::new();
        assert_eq!(wrong_in(&options, "use cenote_atrest::Keyring;"), none);
        let errors = "use cenote_atrest::{AtRestError, view::SealedError};";
        assert_eq!(wrong_in(&["kernel", "interface", "error", "store"], errors), none);
        assert_eq!(wrong_in(&options, errors).len(), 2);
        assert_eq!(wrong_in(&options, "use cenote_atrest::{Keyring, Mode};").len(), 1);
        assert_eq!(wrong_in(&options, "fn f(k: &cenote_atrest::Keyring) {}").len(), 1);
    }
}
