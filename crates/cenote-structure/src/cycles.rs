//! Which modules of a crate lie in an import cycle, and whether a list allows them.
//!
//! The list only shrinks. A module in a cycle that the list does not name is an error, and so is a
//! module in the list that is in no cycle any more.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use crate::imports::Imports;

/// The cycles of a crate, each as the modules that reach each other.
pub(crate) fn cycles(imports: &Imports) -> Vec<BTreeSet<&str>> {
    let mut graph = DiGraphMap::<&str, ()>::new();
    for (from, named) in &imports.edges {
        for to in named {
            graph.add_edge(from.as_str(), to.as_str(), ());
        }
    }
    let together = tarjan_scc(&graph).into_iter().filter(|scc| scc.len() > 1);
    let mut found: Vec<BTreeSet<&str>> = together.map(BTreeSet::from_iter).collect();
    found.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
    found
}

/// Reads the list: a line `crate: module module ...`, or `crate/folder: ...`, for each that may
/// have cycles.
///
/// # Errors
///
/// Names the line that has no colon.
pub(crate) fn read_list(text: &str) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let mut list = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, modules) = line.split_once(':').ok_or(format!("no colon in `{line}`"))?;
        let modules = modules.split_whitespace().map(str::to_owned).collect();
        list.insert(name.to_owned(), modules);
    }
    Ok(list)
}

/// Compares the modules in cycles with the list. Returns what is wrong, a message for each module.
pub(crate) fn compare(
    name: &str,
    found: &[BTreeSet<&str>],
    list: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<String> {
    let found: BTreeSet<&str> = found.iter().flatten().copied().collect();
    let empty = BTreeSet::new();
    let allowed = list.get(name).unwrap_or(&empty);
    let krate = name.split('/').next().unwrap_or(name);
    let new = found.iter().filter(|module| !allowed.contains(**module)).map(|module| {
        format!(
            "{name}: module `{module}` is in an import cycle now: \
             `cargo run -p cenote-structure -- imports {krate}` shows who imports whom"
        )
    });
    let gone = allowed.iter().filter(|module| !found.contains(module.as_str())).map(|module| {
        format!(
            "{name}: module `{module}` is in no cycle any more: remove it from scripts/cycles.txt"
        )
    });
    new.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(edges: &[(&str, &str)]) -> Imports {
        let mut imports = Imports::default();
        for (from, to) in edges {
            imports.edges.entry((*from).into()).or_default().insert((*to).into());
        }
        imports
    }

    #[test]
    fn a_cycle_is_found_and_what_leads_into_it_is_not_part_of_it() {
        let imports = imports(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("c", "e")]);
        assert_eq!(cycles(&imports), vec![BTreeSet::from(["a", "b", "c"])]);
    }

    #[test]
    fn a_new_module_in_a_cycle_is_refused_and_so_is_one_that_left_it() {
        let imports = imports(&[("a", "b"), ("b", "a")]);
        let list = read_list("# comment\nx: a c\n").unwrap();
        let wrong = compare("x", &cycles(&imports), &list);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].contains("`b` is in an import cycle now"), "{wrong:?}");
        assert!(wrong[1].contains("`c` is in no cycle any more"), "{wrong:?}");
    }

    #[test]
    fn a_list_that_agrees_is_accepted() {
        let imports = imports(&[("a", "b"), ("b", "a")]);
        let list = read_list("x: a b").unwrap();
        assert!(compare("x", &cycles(&imports), &list).is_empty());
    }
}
