//! Two protected things of one store change places, in some ways or in all: names, identities,
//! places and lengths in the catalog, files, headers of puddles, entries in the journals' lists;
//! each with checksums that fit. Under a name the store serves what was written under it, or
//! nothing, in every mode that claims integrity.

use crate::catalog_ties::{Step, Things, run, seen_each};
use crate::common::{protect, raw};
use crate::mixtures::{CHECKED, made_with};
use cenote_layout::catalog::{PuddleRecord, Record, decode_frame, encode_frame};
use cenote_layout::checksum::{checksum, seed};
use cenote_layout::header::{read, seal};
use cenote_layout::id::Uuid;
use cenote_layout::object::{JournalHeader, RootEntry};
use cenote_layout::puddle::PuddleHeader;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium};
use cenote_object::{Mode, Store};
use cenote_store::OpenOptions;
use zerocopy::{FromBytes, IntoBytes};

const HALF: u64 = 1 << 16;
/// The ways: bits of a mask.
const WAYS: u32 = 6;
const NAMES: u32 = 1;
const IDS: u32 = 2;
const PLACES: u32 = 4;
const FILES: u32 = 8;
const HEADERS: u32 = 16;
const LISTS: u32 = 32;

/// What changes places: a pool's root puddle, or an object.
const PAIRS: [[&str; 2]; 5] = [
    ["pool q", "pool r"],
    ["pool p", "pool q"],
    ["object twin", "object still"],
    ["object a", "object b"],
    ["object still", "pool r"],
];

/// A closed store with two pools and two objects that are alike but for names and contents.
fn made(mode: Mode) -> Image {
    use Step::{Close, Make, MakePool, Object, Pool};
    let sim = SimMedium::from_image_unrecorded(&made_with(mode, HALF));
    let all = ["a", "b", "still", "twin"].map(Object);
    let steps =
        [&[Make("twin"), MakePool("r")], &all[..], &["p", "q", "r"].map(Pool), &[Close]].concat();
    run(&sim, mode, &steps, || {});
    sim.image_now(CrashKind::Process)
}

/// The first puddle of what is called so.
fn puddle_of(image: &Image, thing: &str) -> Uuid {
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, _) = Store::open(sim, OpenOptions::read_only()).expect("open");
    let (kind, name) = thing.split_once(' ').expect("a kind and a name");
    let puddle = match kind {
        "object" => store.object(name).expect("it is there").id(),
        _ => {
            let pool = raw(&store).pools().into_iter().find(|pool| pool.record.name == name);
            let id = pool.expect("it is there").record.id;
            let all = raw(&store).puddle_records();
            all.into_iter()
                .find(|puddle| (puddle.pool, puddle.index) == (id, 0))
                .expect("its root")
                .uuid
        }
    };
    store.abandon();
    puddle
}

fn swap_of<T: PartialEq + Copy>(value: T, [one, other]: [T; 2]) -> T {
    match value {
        value if value == one => other,
        value if value == other => one,
        value => value,
    }
}

/// One store whose things change places.
struct Swap {
    image: Image,
    names: [String; 2],
    puddles: [PuddleRecord; 2],
    lens: [u64; 2],
}

impl Swap {
    fn of(image: &Image, pair: [&str; 2]) -> Self {
        let ids = pair.map(|thing| puddle_of(image, thing));
        let sim = SimMedium::from_image_unrecorded(image);
        let (store, _) = Store::open(sim, OpenOptions::read_only()).expect("open");
        let all = raw(&store).puddle_records();
        let puddles = ids.map(|id| *all.iter().find(|puddle| puddle.uuid == id).expect("a record"));
        let lens = ids.map(|id| {
            let objects = store.objects();
            objects
                .iter()
                .find(|object| object.id() == id)
                .map_or(0, |object| object.record.data_len)
        });
        store.abandon();
        let names =
            pair.map(|thing| thing.split_once(' ').expect("a kind and a name").1.to_owned());
        Self { image: image.clone(), names, puddles, lens }
    }

    fn ids(&self) -> [Uuid; 2] {
        self.puddles.map(|puddle| puddle.uuid)
    }

    fn name_of(&self, name: &str) -> String {
        let [one, other] = &self.names;
        if name == one {
            other.clone()
        } else if name == other {
            one.clone()
        } else {
            name.into()
        }
    }

    /// What a record says afterwards.
    fn changed(&self, record: Record, ways: u32) -> Record {
        let [one, other] = &self.puddles;
        match record {
            Record::Pool(mut pool) if ways & NAMES != 0 => {
                pool.name = self.name_of(&pool.name);
                Record::Pool(pool)
            }
            Record::Puddle(mut puddle) => {
                if ways & PLACES != 0 && self.ids().contains(&puddle.uuid) {
                    let from = if puddle.uuid == one.uuid { other } else { one };
                    (puddle.addr, puddle.size) = (from.addr, from.size);
                }
                if ways & IDS != 0 {
                    puddle.uuid = swap_of(puddle.uuid, self.ids());
                }
                Record::Puddle(puddle)
            }
            Record::Object(mut object) => {
                if ways & NAMES != 0 {
                    object.name = self.name_of(&object.name);
                }
                if ways & PLACES != 0
                    && !self.lens.contains(&0)
                    && self.ids().contains(&object.puddle)
                {
                    object.data_len = swap_of(object.data_len, self.lens);
                }
                if ways & IDS != 0 {
                    object.puddle = swap_of(object.puddle, self.ids());
                }
                Record::Object(object)
            }
            record => record,
        }
    }

    fn catalog(&mut self, ways: u32) -> Vec<PuddleRecord> {
        let mut puddles = Vec::new();
        for file in ["catalog.0", "catalog.1"] {
            let bytes = self.image.file(file).expect("a catalog");
            let (mut at, mut out) = (0, Vec::new());
            while at < bytes.len() {
                let frame = decode_frame(&bytes[at..]).expect("a frame");
                at += frame.len;
                let record = self.changed(frame.record, ways);
                if let Record::Puddle(puddle) = &record {
                    puddles.push(*puddle);
                }
                let place = (frame.index, frame.last);
                encode_frame((frame.batch, frame.journals), place, &record, &mut out);
            }
            self.image.set_file(file, &out);
        }
        puddles
    }

    fn swapped(mut self, ways: u32) -> Image {
        let puddles = self.catalog(ways);
        let files = self.ids().map(file_of);
        let [one, other] = files.each_ref().map(|file| self.image.file(file).expect("it is there"));
        let contents = if ways & FILES != 0 { [other, one] } else { [one, other] };
        for ((file, mut bytes), id) in files.iter().zip(contents).zip(self.ids()) {
            let record = puddles.iter().rev().find(|puddle| puddle.uuid == id);
            if let (Some(record), true) = (record, ways & HEADERS != 0) {
                let header = read::<PuddleHeader>(&bytes, false).expect("a header");
                let (PuddleRecord { uuid, addr, size, pool, index, .. }, role) =
                    (*record, record.role as u32);
                let mut header = PuddleHeader { uuid, addr, size, pool, index, role, ..header };
                seal(&mut header);
                bytes[..size_of::<PuddleHeader>()].copy_from_slice(header.as_bytes());
            }
            self.image.set_file(file, &bytes);
        }
        if ways & LISTS != 0 {
            ["journal", "journal.pools"].iter().for_each(|journal| self.list(journal));
        }
        self.image
    }

    /// Swaps the entries of a journal's lists.
    fn list(&mut self, journal: &str) {
        let mut bytes = self.image.file(journal).expect("a journal");
        for slot in [0, 4096] {
            let Ok(mut header) = read::<JournalHeader>(&bytes[slot..], false) else { continue };
            let range = header.roots_at as usize..(header.roots_at + header.roots_len) as usize;
            let Some(list) = bytes.get_mut(range).filter(|list| !list.is_empty()) else { continue };
            if checksum(seed::JOURNAL_ROOTS, list) != header.roots_sum {
                continue; // the newer header's list lies there
            }
            for entry in list.chunks_exact_mut(size_of::<RootEntry>()) {
                let mut root = RootEntry::read_from_bytes(entry).expect("an entry");
                root.id = swap_of(root.id, self.puddles.map(|puddle| puddle.uuid));
                entry.copy_from_slice(root.as_bytes());
            }
            header.roots_sum = checksum(seed::JOURNAL_ROOTS, list);
            seal(&mut header);
            bytes[slot..slot + header.as_bytes().len()].copy_from_slice(header.as_bytes());
        }
        self.image.set_file(journal, &bytes);
    }
}

fn file_of(puddle: Uuid) -> String {
    let name: String = puddle.to_hex().iter().map(|byte| char::from(*byte)).collect();
    format!("puddles/{name}")
}

/// What is served of each thing, but for permission bits: they say who may ask, are changed without
/// a key, and are under none.
fn served(image: &Image) -> Result<Things, String> {
    let bound = |what: String| {
        let (place, contents) = what.split_once(", ").unwrap_or_default();
        let len = place.rsplit_once(' ').map_or("", |(len, _)| len);
        format!("{len} {contents}")
    };
    let all = seen_each(image)?.into_iter();
    Ok(all.map(|(name, what)| (name, what.map(bound))).collect())
}

/// Every pair, in every way. How often something was refused, or what is served that was not
/// written.
fn every_swap(mode: Mode) -> Result<[u64; 2], String> {
    let image = made(mode);
    let whole = served(&image).expect("whole");
    let mut counts = [0; 2];
    for pair in PAIRS {
        for ways in 1..1 << WAYS {
            let served = served(&Swap::of(&image, pair).swapped(ways));
            counts[1] += 1;
            let Ok(served) = served else {
                counts[0] += 1;
                continue;
            };
            let wrong = served.iter().find(|(name, is)| is.is_ok() && whole.get(*name) != Some(is));
            if let Some((name, is)) = wrong {
                return Err(format!(
                    "{mode}, {pair:?}, ways {ways:#b}: {name} is {is:?}, was {whole:?}"
                ));
            }
            counts[0] += u64::from(served.values().any(Result::is_err));
        }
    }
    protect(Mode::None);
    Ok(counts)
}

#[test]
fn two_things_that_change_places_in_any_way_are_refused_or_as_they_were() {
    for mode in CHECKED {
        let [refused, of] = every_swap(mode).unwrap_or_else(|what| panic!("{what}"));
        println!("{mode}: {refused} of {of} swaps are refused");
        assert!(refused > of * 3 / 4, "{mode}: {refused} of {of}");
    }
}

#[test]
fn bindings_that_are_not_compared_are_found_by_swaps() {
    plant(Bug::BindingIgnored);
    let found = every_swap(Mode::Authenticated);
    plant(Bug::None);
    protect(Mode::None);
    println!("{}", found.expect_err("the bug was not found"));
}
