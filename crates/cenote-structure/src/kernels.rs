//! The module `kernel` of a crate needs no other module of it.
//!
//! Two rules: no path in it leads out of it, and no call in it leads to a method that only other
//! modules define on its types. A method is found by its name, in calls and in macros. A name that
//! the kernel defines itself, on whichever type, is taken for its own.

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

/// What is wrong with the kernel of the crate `name`, a message for each need. Empty if it has
/// none.
pub(crate) fn wrong(name: &str, modules: &[Module]) -> Vec<String> {
    let edges = imports::imports(modules, &[]).edges;
    let imported = edges.get(KERNEL).into_iter().flatten();
    let imported = imported.map(|to| format!("{name}: the kernel imports `{to}`"));
    let called = calls_outside(modules).into_iter().map(|(method, module)| {
        format!("{name}: the kernel calls the method `{method}`, which `{module}` defines")
    });
    imported.chain(called).collect()
}

/// Methods that the kernel calls and only modules outside it define on its types, with the module
/// of each.
fn calls_outside(modules: &[Module]) -> Vec<(String, String)> {
    let inside = |module: &&Module| module.path.first().is_some_and(|first| first == KERNEL);
    let (mut own, mut called) = (Defined::default(), Called::default());
    for item in modules.iter().filter(inside).flat_map(|module| &module.items) {
        own.visit_item(item);
        called.visit_item(item);
    }
    let mut outside: BTreeMap<String, String> = BTreeMap::new();
    for module in modules.iter().filter(|module| !inside(module)) {
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
}
