//! Safe functions of the lower crates by which a program could break memory, each judged.
//!
//! A program that names the lower crates has more than the safe interface of `cenote`. What a
//! caller has to promise there is asked for by `unsafe`. The rest is safe whatever the arguments
//! are, and `lower.txt` says why, for each public function and method that
//!
//! * takes or returns an address: a pointer, an atomic, an integer that is called one;
//! * belongs to, takes, or returns a type that leads to mapped memory, to files of a store or to
//!   what other programs believe of it ([`LEADS`]).
//!
//! A function that is not in the list fails this test until it is judged. Functions that macros
//! make are not seen. Bodies are not read: one that changes is judged by its review.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{FnArg, ImplItem, Item, Pat, ReturnType, Safety, Signature, TraitItem, Type, Visibility};

const CRATES: [&str; 13] = [
    "atrest", "groups", "heap", "journal", "layout", "log", "medium", "protect", "relocate",
    "shadow", "store", "sys", "tx",
];

/// Types that lead to memory, to files, or to what other programs believe.
const LEADS: &str = "Attached Body Connection FileHandle Backing Heap Host Hosting Import \
    Journal DaemonApi HeapLog LogLease LogWriter LoggedHeap Medium MemoryBacking MicroLog \
    OwnedMedium OwnedRegion Owner PoolBacking PoolHandle Psyncing PuddleHeap Puddle ReplayTarget \
    Inspect PoolHeap Reclaim SegmentSource Shared SimHook SimMedium Source Store SubHeap Trace \
    TracedHeap Tracked Transaction Trim \
    DualMapping TxContext TypeRecord View WearHeap";

/// Types that are addresses.
const ADDRESSES: [&str; 5] = ["NonNull", "AtomicPtr", "AtomicU64", "AtomicU32", "AtomicU8"];

/// What a parameter is called that is an address, or where one begins.
fn names_address(name: &str) -> bool {
    name.split('_').any(|part| {
        ["addr", "address", "base", "ptr", "shadow", "start", "to", "word"].contains(&part)
    })
}

/// What a signature mentions.
#[derive(Default)]
struct Mentions {
    leads: bool,
    address: bool,
    integer: bool,
}

impl<'ast> Visit<'ast> for Mentions {
    fn visit_type(&mut self, node: &'ast Type) {
        self.address |= matches!(node, Type::Ptr(_));
        visit::visit_type(self, node);
    }

    fn visit_path_segment(&mut self, node: &'ast syn::PathSegment) {
        let name = node.ident.to_string();
        self.leads |= LEADS.split_whitespace().any(|lead| lead == name);
        self.address |= ADDRESSES.contains(&name.as_str());
        self.integer |= ["u64", "usize"].contains(&name.as_str());
        visit::visit_path_segment(self, node);
    }
}

/// Whether a function is one that the list has to judge.
fn is_judged(owner: &str, signature: &Signature) -> bool {
    let mut all = Mentions::default();
    all.visit_signature(signature);
    let named_address = signature.inputs.iter().any(|input| {
        let FnArg::Typed(typed) = input else { return false };
        let Pat::Ident(name) = &*typed.pat else { return false };
        let mut of = Mentions::default();
        of.visit_type(&typed.ty);
        of.integer && names_address(&name.ident.to_string())
    });
    let gives_address = matches!(&signature.output, ReturnType::Type(_, answer) if {
        let mut of = Mentions::default();
        of.visit_type(answer);
        of.integer && names_address(&signature.ident.to_string())
    });
    let owner_leads = LEADS.split_whitespace().any(|lead| lead == owner);
    owner_leads || all.leads || all.address || named_address || gives_address
}

/// Judged functions of one crate, by name.
struct JudgedCrate<'a> {
    krate: &'a str,
    safe: BTreeSet<String>,
    asking: usize,
}

impl JudgedCrate<'_> {
    fn add(&mut self, owner: &str, signature: &Signature) {
        if matches!(signature.safety, Safety::Unsafe(_)) {
            self.asking += 1;
        } else if is_judged(owner, signature) {
            let owner = if owner.is_empty() { String::new() } else { format!("{owner}::") };
            self.safe.insert(format!("{}::{owner}{}", self.krate, signature.ident));
        }
    }

    fn items(&mut self, items: &[Item]) {
        let public = |visibility: &Visibility| matches!(visibility, Visibility::Public(_));
        for item in items {
            match item {
                Item::Fn(item) if public(&item.vis) => self.add("", &item.sig),
                Item::Mod(item) if !is_for_tests(&item.attrs) => {
                    self.items(item.content.as_ref().map_or(&[], |(_, items)| items));
                }
                Item::Impl(item) if item.trait_.is_none() && !is_for_tests(&item.attrs) => {
                    let Type::Path(of) = &*item.self_ty else { continue };
                    let owner = of.path.segments.last().expect("a name").ident.to_string();
                    for inside in &item.items {
                        if let ImplItem::Fn(inside) = inside
                            && public(&inside.vis)
                            && !is_for_tests(&inside.attrs)
                        {
                            self.add(&owner, &inside.sig);
                        }
                    }
                }
                Item::Trait(item) if public(&item.vis) => {
                    for inside in &item.items {
                        if let TraitItem::Fn(inside) = inside {
                            self.add(&item.ident.to_string(), &inside.sig);
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let is_test = |attribute: &syn::Attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|cfg| cfg == "test")
    };
    attributes.iter().any(is_test)
}

fn sources(at: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Names of the list. Each paragraph is a reason, and then names, indented.
fn listed(text: &str) -> BTreeSet<&str> {
    let mut listed = BTreeSet::new();
    for paragraph in text.split("\n\n") {
        let is_name = |line: &&str| line.starts_with("    ");
        let (names, reason): (Vec<&str>, Vec<&str>) = paragraph.lines().partition(is_name);
        assert!(reason.concat().len() > 20, "no reason above {names:?}");
        for name in names.iter().flat_map(|line| line.split_whitespace()) {
            assert!(listed.insert(name), "{name} is there twice");
        }
    }
    listed
}

#[test]
fn every_safe_function_of_lower_crates_that_has_an_address_is_judged() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let (mut safe, mut asking) = (BTreeSet::new(), 0);
    for krate in CRATES {
        let mut files = Vec::new();
        sources(&tests.join(format!("../../cenote-{krate}/src")), &mut files);
        let mut found = JudgedCrate { krate, safe: BTreeSet::new(), asking: 0 };
        for file in files {
            let source = std::fs::read_to_string(&file).unwrap();
            let parsed = syn::parse_file(&source)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            found.items(&parsed.items);
        }
        safe.append(&mut found.safe);
        asking += found.asking;
    }
    assert!(asking > 100 && safe.len() > 100, "the sources were not found");
    let text = std::fs::read_to_string(tests.join("lower.txt")).unwrap();
    let listed = listed(&text);
    let new: Vec<&String> = safe.iter().filter(|name| !listed.contains(name.as_str())).collect();
    let gone: Vec<&&str> = listed.iter().filter(|name| !safe.contains(**name)).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "make each unsafe or private, or say in lower.txt why it is safe: {new:#?}\n\
         these are no safe functions any more, take them out of lower.txt: {gone:#?}"
    );
}

/// What the rule has to catch, and what it may pass over.
#[test]
fn the_rule_sees_addresses_and_types_that_lead_to_memory() {
    let judged =
        |owner: &str, signature: &str| is_judged(owner, &syn::parse_str(signature).unwrap());
    assert!(judged("", "fn wake(&self, addr: usize, len: usize)"));
    assert!(judged("", "fn word() -> &'static AtomicU64"));
    assert!(judged("", "fn alias(&self) -> *mut u8"));
    assert!(judged("", "fn known(&self) -> Option<Arc<FileHandle>>"));
    assert!(judged("", "fn body_addr(&self) -> u64"));
    assert!(judged("Store", "fn end(&self)"));
    assert!(!judged("", "fn len(&self) -> u64"));
    assert!(!judged("", "fn name_of(id: u64) -> String"));
}
