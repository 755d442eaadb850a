//! Figure `at-rest`: what protection costs per page of 4 KiB, by mode and implementation, and what
//! opening an object, touching its first page and putting k pages under the tree cost.
//!
//! `cargo bench -p cenote-atrest --bench at_rest -- [--quick] [--json FILE]`. Rows have the keys of
//! the other figures. Runs are short, so that the fastest was not disturbed by what else the
//! machine has to do.

use cenote_atrest::{
    Expect, Keyring, MasterKey, Mode, PAGE_LEN, Page, PageSide, Protection, SealedPage,
};
use cenote_layout::id::Uuid;
use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

const OBJECT: Uuid = Uuid(*b"an object's uuid");
/// Pages that are sealed in turn: they stay in the second-level cache, so that the cipher is
/// measured and not memory.
const WORKING_SET: usize = 64;
/// Pages of the object of 4 GiB.
const BIG: u64 = 1 << 20;

struct Report {
    runs: usize,
    run: Duration,
    rows: String,
}

impl Report {
    /// Nanoseconds for one call of `f`: median, least and most of the runs.
    fn time(&self, mut f: impl FnMut()) -> [f64; 3] {
        let mut calls = 1u32;
        loop {
            let start = Instant::now();
            (0..calls).for_each(|_| f());
            if start.elapsed() > self.run / 2 {
                break;
            }
            calls *= 2;
        }
        let mut runs: Vec<f64> = (0..self.runs)
            .map(|_| {
                let start = Instant::now();
                (0..calls).for_each(|_| f());
                start.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
            })
            .collect();
        runs.sort_by(f64::total_cmp);
        [runs[runs.len() / 2], runs[0], runs[runs.len() - 1]]
    }

    fn row(&mut self, row: &str, system: &str, unit: &str, [median, min, max]: [f64; 3]) {
        println!("{row:<44} {system:<10} {median:>10.2} {unit:<5} ({min:.2} to {max:.2})");
        let _ = writeln!(
            self.rows,
            "{{\"figure\":\"at-rest\",\"row\":\"{row}\",\"system\":\"{system}\",\
             \"level\":\"none\",\"threads\":1,\"unit\":\"{unit}\",\
             \"median\":{median:.3},\"min\":{min:.3},\"max\":{max:.3},\"runs\":{}}}",
            self.runs
        );
    }

    /// One row in GB/s, of calls that do one page.
    fn throughput(&mut self, row: &str, system: &str, f: impl FnMut()) {
        let [median, min, max] = self.time(f).map(|ns| PAGE_LEN as f64 / ns);
        self.row(row, system, "GB/s", [median, max, min]);
    }

    fn micros(&mut self, row: &str, system: &str, divisor: f64, f: impl FnMut()) {
        let times = self.time(f).map(|ns| ns / 1000.0 / divisor);
        self.row(row, system, "us", times);
    }
}

fn keyring() -> Keyring {
    let mut key = core::array::from_fn(|i| i as u8);
    Keyring::new(MasterKey::from_bytes(&mut key).expect("a key"))
}

fn pages() -> Vec<Page> {
    (0..WORKING_SET).map(|p| core::array::from_fn(|i| (p * 31 + i * 7) as u8)).collect()
}

fn page_rows(report: &mut Report, mode: Mode) {
    let keyring = keyring();
    let protection = Protection::create(OBJECT, BIG, mode, Some(&keyring)).expect("created");
    let sealer = protection.sealer();
    let system = "cenote".to_string();
    let (plain, mut sealed) = (pages(), pages());
    let mut at = 0;
    report.throughput(&format!("seal, {mode}"), &system, || {
        at = (at + 1) % WORKING_SET;
        black_box(sealer.seal(at as u64, &plain[at], &mut sealed[at]).expect("sealed"));
    });
    let mut out = [0; PAGE_LEN];
    if mode.has_key() && mode != Mode::EncryptionIntegrity {
        // Without digest, tree and nonce, and one page in the first-level cache: the cipher.
        let made = sealer.seal(0, &plain[0], &mut sealed[0]).expect("sealed");
        report.throughput(&format!("cipher alone, {mode}"), &system, || {
            sealer.open(0, &sealed[0], made.side.as_ref(), &mut out).expect("opened");
            black_box(&out);
        });
    }
    let made: Vec<SealedPage> = (0..WORKING_SET)
        .map(|p| sealer.seal(p as u64, &plain[p], &mut sealed[p]).expect("sealed"))
        .collect();
    let nothing: &[u8] = &[];
    let change = protection.prepare(&made, &nothing).expect("prepared");
    protection.commit(change).expect("committed");
    report.throughput(&format!("verify and open, {mode}"), &system, || {
        at = (at + 1) % WORKING_SET;
        let side = made[at].side.as_ref();
        protection.open_page(at as u64, &sealed[at], side, &nothing, &mut out).expect("opened");
        black_box(&out);
    });
}

/// An object of 4 GiB of which every 1,009th page is written.
struct Big {
    header: Vec<u8>,
    tree: Vec<u8>,
    page: u64,
    sealed: Page,
    side: Option<PageSide>,
}

fn big(mode: Mode, keyring: &Keyring) -> Big {
    let protection = Protection::create(OBJECT, BIG, mode, Some(keyring)).expect("created");
    let regions = protection.regions();
    let mut tree = vec![0; (regions.len - regions.tree) as usize];
    let mut sealed = [0; PAGE_LEN];
    let made: Vec<_> = (0..BIG)
        .step_by(1009)
        .map(|page| protection.seal(page, &[7; PAGE_LEN], &mut sealed).expect("sealed"))
        .collect();
    let last = made[made.len() - 1];
    let change = protection.prepare(&made, &&tree[..]).expect("prepared");
    for node in &change.nodes {
        tree[node.offset as usize..][..512].copy_from_slice(&node.bytes[..]);
    }
    protection.commit(change).expect("committed");
    Big { header: protection.header().to_vec(), tree, page: last.page, sealed, side: last.side }
}

fn object_rows(report: &mut Report, mode: Mode) {
    let keyring = keyring();
    let big = big(mode, &keyring);
    let best = "cenote";
    let expect = Expect::of(OBJECT);
    let open = || Protection::open(&big.header, &expect, Some(&keyring)).expect("opened");
    report.micros(&format!("open an object of 4 GiB, {mode}"), best, 1.0, || {
        black_box(open());
    });
    let protection = open();
    if mode.has_key() {
        report.micros(&format!("rekey an object of 4 GiB, {mode}"), best, 1.0, || {
            black_box(protection.rekey(&keyring).expect("rekeyed"));
        });
    }
    let Some(shape) = cenote_layout::at_rest::TreeShape::new(BIG) else { return };
    if mode.has_tree() {
        // The whole path is read and verified, as by the first touch of an object that was just
        // opened.
        let mut out = [0; PAGE_LEN];
        let root = protection.anchor().root;
        let source = &big.tree[..];
        report.micros(&format!("first touch, 4 GiB, whole path, {mode}"), best, 1.0, || {
            let tree = cenote_atrest::tree::Tree::new(OBJECT, shape, root);
            let digest = protection
                .sealer()
                .digest(big.page, &big.sealed, big.side.as_ref())
                .expect("a digest");
            tree.verify(big.page, &digest, &source).expect("verified");
            protection
                .sealer()
                .open(big.page, &big.sealed, big.side.as_ref(), &mut out)
                .expect("opened");
        });
        // The tree is the same in every mode.
        for k in [1u64, 16, 256, 4096].into_iter().filter(|_| mode == Mode::Authenticated) {
            let leaves: Vec<_> = (0..k).map(|i| (i * 251 % BIG, [i as u8 + 1; 32])).collect();
            let tree = cenote_atrest::tree::Tree::new(OBJECT, shape, root);
            report.micros(
                &format!("tree, {k} scattered pages, a page"),
                "sha-256",
                k as f64,
                || {
                    black_box(tree.prepare(&leaves, &source).expect("prepared"));
                },
            );
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|a| a == "--quick");
    let json = arguments.iter().position(|a| a == "--json").and_then(|at| arguments.get(at + 1));
    let (runs, run) =
        if quick { (5, Duration::from_millis(1)) } else { (201, Duration::from_millis(2)) };
    let mut report = Report { runs, run, rows: String::new() };
    for mode in [
        Mode::None,
        Mode::Integrity,
        Mode::Encryption,
        Mode::EncryptionIntegrity,
        Mode::Authenticated,
    ] {
        page_rows(&mut report, mode);
    }
    for mode in [Mode::Encryption, Mode::EncryptionIntegrity, Mode::Authenticated] {
        object_rows(&mut report, mode);
    }
    if let Some(path) = json {
        std::fs::write(path, report.rows).expect("the rows can be written");
    }
}
