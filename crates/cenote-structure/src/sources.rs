//! Reads the modules of a crate, by following `mod` from its root file.
//!
//! Modules under `#[cfg(test)]` or `#[cfg(all(test, ...))]` are left out: a test may import what it
//! tests.

use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item};

/// One module with a body of its own: a file, or a `mod` in braces.
pub(crate) struct Module {
    /// Its path from the crate's root, without `crate`. The root's is empty.
    pub(crate) path: Vec<String>,
    /// Its items, without those of modules in it.
    pub(crate) items: Vec<Item>,
    /// Lines of its file. A `mod` in braces has none of its own.
    pub(crate) lines: usize,
}

/// Returns the modules of the crate whose root file is `root`.
///
/// # Errors
///
/// Names the file that cannot be read or parsed.
pub(crate) fn modules(root: &Path) -> Result<Vec<Module>, String> {
    let mut found = Vec::new();
    let dir = root.parent().ok_or("the root file has no directory")?;
    read_file(root, dir, Vec::new(), &mut found)?;
    Ok(found)
}

/// Reads `file`, whose submodules lie in `dir`.
fn read_file(
    file: &Path,
    dir: &Path,
    path: Vec<String>,
    found: &mut Vec<Module>,
) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let parsed = syn::parse_file(&text).map_err(|e| format!("{}: {e}", file.display()))?;
    read_items(parsed.items, dir, path, text.lines().count(), found)
}

fn read_items(
    items: Vec<Item>,
    dir: &Path,
    path: Vec<String>,
    lines: usize,
    found: &mut Vec<Module>,
) -> Result<(), String> {
    let mut own = Vec::new();
    for item in items {
        let Item::Mod(module) = item else {
            own.push(item);
            continue;
        };
        if for_tests(&module.attrs) {
            continue;
        }
        let name = module.ident.to_string();
        let below = dir.join(&name);
        let mut inner = path.clone();
        inner.push(name.clone());
        match module.content {
            Some((_, items)) => read_items(items, &below, inner, 0, found)?,
            None => {
                let file = module_file(&module.attrs, dir, &name)?;
                read_file(&file, &below, inner, found)?;
            }
        }
    }
    found.push(Module { path, items: own, lines });
    Ok(())
}

/// The file of `mod name;` in a module whose submodules lie in `dir`.
fn module_file(attrs: &[Attribute], dir: &Path, name: &str) -> Result<PathBuf, String> {
    if attrs.iter().any(|a| a.path().is_ident("path")) {
        return Err(format!("{}: module `{name}` has #[path]", dir.display()));
    }
    let flat = dir.join(format!("{name}.rs"));
    let folder = dir.join(name).join("mod.rs");
    if flat.exists() { Ok(flat) } else { Ok(folder) }
}

/// True for `#[cfg(test)]` and `#[cfg(all(test, ...))]`.
fn for_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().filter(|a| a.path().is_ident("cfg")).any(|a| {
        let mut found = false;
        let _ = a.parse_nested_meta(|meta| {
            found |= meta.path.is_ident("test");
            if meta.path.is_ident("all") {
                return meta.parse_nested_meta(|inner| {
                    found |= inner.path.is_ident("test");
                    skip_rest(&inner)
                });
            }
            skip_rest(&meta)
        });
        found
    })
}

/// Reads the value or the arguments behind a name in an attribute, and forgets them.
fn skip_rest(meta: &syn::meta::ParseNestedMeta<'_>) -> syn::Result<()> {
    if meta.input.peek(syn::Token![=]) {
        meta.value()?.parse::<syn::Lit>()?;
    } else if meta.input.peek(syn::token::Paren) {
        let inner;
        syn::parenthesized!(inner in meta.input);
        inner.parse::<proc_macro2::TokenStream>()?;
    }
    Ok(())
}
