//! Fuzzes protection at rest: headers, pages, side data and nodes are damaged and put under a right
//! checksum again. What is accepted must be what was sealed.

use crate::input::Input;
use cenote_atrest::tree::{Node, NodeSource};
use cenote_atrest::{Expect, HEADER_LEN, Keyring, MasterKey, Mode, PAGE_LEN, Protection};
use cenote_layout::at_rest::{AtRestHeader, NodeId, PageSide};
use cenote_layout::header;
use cenote_layout::id::Uuid;
use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;
use zerocopy::{FromBytes, IntoBytes};

const MODES: [Mode; 4] =
    [Mode::Integrity, Mode::Encryption, Mode::EncryptionIntegrity, Mode::Authenticated];

/// Nodes by their place; those that were never written are zeros.
#[derive(Debug, Default)]
struct Nodes(BTreeMap<u64, Vec<u8>>);

impl NodeSource for Nodes {
    fn read_node(&self, _: NodeId, offset: u64, bytes: &mut Node) -> io::Result<()> {
        match self.0.get(&offset) {
            Some(node) => bytes[..].copy_from_slice(node),
            None => bytes[..].fill(0),
        }
        Ok(())
    }
}

fn key() -> &'static Keyring {
    static KEY: OnceLock<Keyring> = OnceLock::new();
    let mut bytes: [u8; 32] = core::array::from_fn(|i| i as u8 * 7);
    KEY.get_or_init(|| match MasterKey::from_bytes(&mut bytes) {
        Ok(key) => Keyring::new(key),
        Err(error) => unreachable!("32 bytes are a key: {error}"),
    })
}

pub(crate) fn run(input: &mut Input<'_>) {
    let mode = MODES[input.below(MODES.len())];
    let keyring = mode.has_key().then(key);
    // No object's identity is nil.
    let mut id: [u8; 16] = input.array();
    id[0] |= 1;
    let object = Uuid(id);
    // More than one level of the tree now and then.
    let pages = 1 + input.below(600) as u64;
    let made = Protection::create(object, pages, mode, keyring).expect("a new protection");
    let page = input.below(pages as usize) as u64;
    let mut plain = [0u8; PAGE_LEN];
    plain[..8].copy_from_slice(&input.array::<8>());
    let mut sealed = [0u8; PAGE_LEN];
    let done = made.seal(page, &plain, &mut sealed).expect("a page of its own");
    let change =
        made.prepare(core::slice::from_ref(&done), &Nodes::default()).expect("an empty tree");
    let mut nodes =
        Nodes(change.nodes.iter().map(|node| (node.offset, node.bytes.to_vec())).collect());
    let original =
        change.header.as_ref().map_or_else(|| made.header().to_vec(), |header| header.to_vec());
    let mut side = done.side;

    let bytes = damaged_header(input, &original);
    let expect = Expect { pages: Some(pages), mode: Some(mode), ..Expect::of(object) };
    let opened = match Protection::open(&bytes, &expect, keyring) {
        Ok(opened) => opened,
        Err(error) => {
            assert_ne!(bytes, original, "refused what was not damaged: {error}");
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    // A header is under a key where there is one.
    assert!(!mode.has_key() || bytes == original, "{mode:?}: accepted a header that was forged");
    assert_eq!((opened.pages(), opened.mode()), (pages, mode));

    let forged = bytes != original;
    let damaged = harm(input, &mut sealed, &mut side, &mut nodes);
    // Another place, now and then: a page that was moved.
    let at = if input.one_in(4) { input.below(pages as usize) as u64 } else { page };
    let mut found = [0u8; PAGE_LEN];
    match opened.open_page(at, &sealed, side.as_ref(), &nodes, &mut found) {
        // Without a tree nothing tells; and a forger of tree and header where there is no key
        // forges pages.
        Ok(()) if !mode.has_tree() || forged => {}
        Ok(()) => {
            // A page that was never written is zeros under the tree, in modes that seal none.
            let nothing = at != page && !mode.has_side() && sealed == [0; PAGE_LEN];
            let as_sealed =
                if nothing { found == [0; PAGE_LEN] } else { at == page && found == plain };
            assert!(as_sealed, "{mode:?}: accepted what was not sealed for page {at}");
        }
        Err(error) => {
            assert!(damaged || forged || at != page, "refused what was not damaged: {error}");
        }
    }
}

/// A header that is damaged, perhaps sealed again, perhaps cut short.
fn damaged_header(input: &mut Input<'_>, original: &[u8]) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for _ in 0..input.below(3) {
        input.damage(&mut bytes);
    }
    if input.one_in(2)
        && let Ok(mut changed) = AtRestHeader::read_from_bytes(&bytes)
    {
        header::seal(&mut changed);
        bytes = changed.as_bytes().to_vec();
    }
    if input.one_in(16) {
        bytes.truncate(input.below(HEADER_LEN));
    }
    bytes
}

/// Damages the page, its side data or nodes of the tree; whether that changed something.
fn harm(
    input: &mut Input<'_>,
    sealed: &mut [u8; PAGE_LEN],
    side: &mut Option<PageSide>,
    nodes: &mut Nodes,
) -> bool {
    let mut damaged = false;
    for _ in 0..input.below(3) {
        let before = (*sealed, *side, nodes.0.clone());
        match input.below(3) {
            0 => input.damage(sealed),
            1 => {
                if let Some(known) = side {
                    let mut raw = known.as_bytes().to_vec();
                    input.damage(&mut raw);
                    *known = PageSide::read_from_bytes(&raw).expect("as long as it was");
                }
            }
            _ => {
                let number = input.below(nodes.0.len().max(1));
                if let Some(node) = nodes.0.values_mut().nth(number) {
                    input.damage(node);
                }
            }
        }
        damaged |= before != (*sealed, *side, nodes.0.clone());
    }
    damaged
}
