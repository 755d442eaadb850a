//! `cenote show`: values by the store's records, without the types of this program.

use crate::common::{Fixture, empty, run, with_pool};
use cenote::{
    AtRest, HeapKind, Keyring, Locking, MasterKey, OpenOptions, Owned, OwnedBytes, OwnedStr,
    Persist, Pool, PoolMode, PoolOptions, Ptr, Store, field,
};
use cenote_collections::{
    BTreeMap, BTreeSet, BinaryHeap, ForwardList, HashMap, HashSet, InlineStr, List,
    RelaxedDurabilityMap, String as Text, TextMap, Vec, VecDeque,
};
use serde_json::{Value, json};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Persist, Clone, Copy)]
#[persist(name = "show::Shape")]
#[repr(u8)]
enum Shape {
    Empty,
    Circle { radius: f64 },
    Pair(u16, i64),
}

#[derive(Persist, Clone, Copy)]
#[persist(name = "show::Scalars")]
struct Scalars {
    small: u8,
    large: u64,
    huge: u128,
    negative: i32,
    real: f32,
    yes: bool,
    letter: char,
    count: Option<NonZeroU32>,
    uuid: [u8; 4],
    grid: [[u16; 2]; 2],
    key: InlineStr<10>,
    age: Option<u16>,
    year: Option<i32>,
    is_open: [Option<bool>; 3],
    pair: (u8, (i16, Option<Duration>)),
    took: Duration,
    at: Option<SystemTime>,
    range: Option<(u8, u16)>,
}

#[derive(Persist)]
#[persist(name = "show::Page")]
struct Page {
    url: OwnedStr,
    title: OwnedStr,
    image: OwnedBytes,
}

#[derive(Persist, Clone, Copy)]
#[persist(name = "show::Person")]
struct Person {
    name: Text,
    age: u8,
    boss: Option<Ptr<Person>>,
    phones: Vec<u64>,
    shapes: [Shape; 3],
}

#[derive(Persist, Clone, Copy)]
#[persist(name = "show::Everything")]
struct Everything {
    scalars: Scalars,
    list: List<i64>,
    forward: ForwardList<u64>,
    people: BTreeMap<InlineStr<15>, Ptr<Person>>,
    hash: HashMap<u64, bool>,
    bytes: Vec<u8>,
    none: Option<List<u64>>,
    first: Option<Ptr<Person>>,
    seen: HashSet<InlineStr<7>>,
    primes: BTreeSet<u64>,
    due: BinaryHeap<u32>,
    ring: VecDeque<u16>,
    sites: TextMap<u32>,
}

const SCALARS: Scalars = Scalars {
    small: 7,
    large: u64::MAX,
    huge: 1 << 100,
    negative: -5,
    real: 0.1,
    yes: true,
    letter: 'ß',
    count: None,
    uuid: [0xde, 0xad, 0, 1],
    grid: [[1, 2], [3, 4]],
    key: InlineStr::new(),
    age: Some(36),
    year: None,
    is_open: [Some(true), Some(false), None],
    pair: (1, (-1, None)),
    took: Duration::new(2, 500),
    at: Some(UNIX_EPOCH),
    range: Some((8, 9)),
};

fn fill(pool: &Pool) {
    pool.write(|tx| -> cenote::Result<()> {
        let all = Everything {
            scalars: Scalars { key: InlineStr::truncated("k\n\"ö"), ..SCALARS },
            list: List::new(tx)?,
            forward: ForwardList::new(tx)?,
            people: BTreeMap::new(tx)?,
            hash: HashMap::new(tx)?,
            bytes: Vec::new(tx)?,
            none: None,
            first: None,
            seen: HashSet::from_iter(tx, [InlineStr::truncated("ada")])?,
            primes: BTreeSet::from_sorted(tx, [2, 3, 5, 7])?,
            due: BinaryHeap::from_iter(tx, [4, 8, 2])?,
            ring: VecDeque::from_iter(tx, [5, 6])?,
            sites: TextMap::new(tx)?,
        };
        for number in 0..100 {
            all.list.push_back(tx, -number)?;
            all.forward.push_front(tx, number as u64)?;
            all.hash.insert(tx, number as u64, number % 2 == 0)?;
            all.bytes.push(tx, number as u8)?;
        }
        all.ring.push_front(tx, 4)?;
        all.sites.insert(tx, "gemini://example.org/a", 3)?;
        let mut boss = None;
        for (name, age) in [("ada", 36), ("bob", 20), ("a.b", 3)] {
            let text = Text::new(tx)?;
            text.push_str(tx, name)?;
            let phones = Vec::new(tx)?;
            phones.push(tx, u64::from(age) * 1000)?;
            let shapes = [Shape::Empty, Shape::Circle { radius: 1.5 }, Shape::Pair(1, -1)];
            let person = tx.alloc(Person { name: text, age, boss, phones, shapes })?;
            all.people.insert(tx, InlineStr::truncated(name), person)?;
            boss = Some(person);
        }
        let first = all.people.get(&*tx, "ada")?.copied();
        if let Some(ada) = first {
            tx.set(ada, cenote::field!(Person, boss), boss)?;
        }
        let root = tx.alloc(Everything { first, ..all })?;
        tx.set_root(root)?;
        tx.set_named_root("ada", first)?;
        let page = Page { url: OwnedStr::EMPTY, title: OwnedStr::EMPTY, image: OwnedBytes::EMPTY };
        let page = tx.alloc(page)?;
        tx.put_owned(page, field!(Page, url), "gemini://ärger")?;
        tx.put_owned(page, field!(Page, image), &[1, 0xff])?;
        tx.set_named_root("page", Some(page))
    })
    .expect("filled");
}

fn options(mode: PoolMode, heap: HeapKind) -> PoolOptions {
    PoolOptions { mode, heap, ..PoolOptions::default() }
}

/// A closed store with a filled pool of each heap, a shadowed one, and one without a root.
fn filled() -> Fixture {
    let fixture = with_pool();
    let store = Store::open(&fixture.store).expect("a store");
    for (name, mode, heap) in [
        ("people", PoolMode::Direct, HeapKind::Traced),
        ("logged", PoolMode::Direct, HeapKind::Logged),
        ("wear", PoolMode::Direct, HeapKind::Wear { wait_ms: 10 }),
        ("shadowed", PoolMode::Shadowed, HeapKind::Traced),
    ] {
        let pool = store.create_pool(name, &options(mode, heap)).expect("a pool");
        fill(&pool);
        if mode == PoolMode::Shadowed {
            pool.psync().expect("durable");
        }
    }
    store.close().expect("closed");
    fixture
}

fn value(fixture: &Fixture, pool: &str, path: &str, more: &[&str]) -> Value {
    let arguments = [&[pool, path, "--json"], more].concat();
    fixture.run("show", &arguments).exits(0).json()["value"].take()
}

#[test]
fn each_kind_of_value_is_shown_in_pools_of_each_kind() {
    let fixture = filled();
    let before = fixture.files();
    for pool in ["people", "logged", "wear", "shadowed"] {
        let of = |path: &str, more: &[&str]| value(&fixture, pool, path, more);
        assert_eq!(
            of("0.scalars", &[]),
            json!({
                "small": 7, "large": "18446744073709551615", "huge": (1_u128 << 100).to_string(),
                "negative": -5, "real": 0.1, "yes": true, "letter": "ß", "count": null,
                "uuid": { "$bytes": "dead0001" }, "grid": [[1, 2], [3, 4]], "key": "k\n\"ö",
                "age": 36, "year": null, "is_open": [true, false, null],
                "pair": { "0": 1, "1": { "0": -1, "1": null } },
                "took": { "secs": 2, "nanos": 500 }, "at": { "secs": 0, "nanos": 0 },
                "range": { "0": 8, "1": 9 },
            })
        );
        assert_eq!(of("0.list", &["--count", "3"]), json!([0, -1, -2, { "$more": 97 }]));
        assert_eq!(of("0.list", &["--count", "100"]).as_array().map(std::vec::Vec::len), Some(100));
        assert_eq!(of("0.list[99]", &[]), json!(-99));
        assert_eq!(of("0.forward[0]", &[]), json!(99));
        assert_eq!(of("0.bytes", &["--bytes", "3"]), json!({ "$bytes": "000102", "$more": 97 }));
        assert_eq!(of("0.hash[42]", &[]), json!(true));
        assert_eq!(of("0.hash[41]", &[]), json!(false));
        assert_eq!(
            of("0.hash", &["--count", "1000"]).as_array().map(std::vec::Vec::len),
            Some(100)
        );
        assert_eq!(of("0.none", &[]), Value::Null);
        assert_eq!(of("0.scalars.pair.1.0", &[]), json!(-1));
        assert_eq!(of("0.scalars.range.1", &[]), json!(9), "an option is what is in it");
        let page = json!({ "url": "gemini://ärger", "title": "", "image": { "$bytes": "01ff" } });
        assert_eq!(of("page", &[]), page);
        assert_eq!(of("page.url", &[]), json!("gemini://ärger"));
        assert_eq!(of("0.seen", &[]), json!(["ada"]));
        assert_eq!(of("0.primes", &["--count", "3"]), json!([2, 3, 5, { "$more": 1 }]));
        assert_eq!(of("0.primes[#3]", &[]), json!(7));
        assert_eq!(of("0.primes[5]", &[]), json!(5));
        assert_eq!(of("0.due[0]", &[]), json!(8), "the greatest");
        assert_eq!(of("0.ring", &["--count", "2"]), json!([4, 5, { "$more": 1 }]));
        assert_eq!(of("0.sites", &[]), json!([["gemini://example.org/a", 3]]));
        assert_eq!(of("0.sites[\"gemini://example.org/a\"]", &[]), json!(3));
        assert_eq!(of("0.ring[2]", &[]), json!(6), "behind the end of its array");
        assert_eq!(of("ada.name", &[]), json!("ada"));
        assert_eq!(of("ada.phones[0]", &[]), json!(36000));
        let shapes =
            json!(["Empty", { "Circle": { "radius": 1.5 } }, { "Pair": { "0": 1, "1": -1 } }]);
        assert_eq!(of("ada.shapes", &[]), shapes);
        assert_eq!(of("ada.shapes[1].Circle.radius", &[]), json!(1.5));
        assert_eq!(of("0.people[\"a.b\"].age", &[]), json!(3));
        assert_eq!(of("0.people[bob].boss.name", &[]), json!("ada"));
        assert_eq!(of("0.people[#0].name", &[]), json!("a.b"), "the first key");
    }
    assert_eq!(fixture.files(), before, "looking changes nothing");
}

#[test]
fn pointers_are_followed_and_a_circle_is_a_reference_to_its_path() {
    let fixture = filled();
    let ada = value(&fixture, "people", "ada", &["--depth", "10"]);
    assert_eq!(ada["boss"]["name"], "a.b");
    assert_eq!(ada["boss"]["boss"]["name"], "bob");
    assert_eq!(ada["boss"]["boss"]["boss"]["$same"], "ada");
    let shallow = value(&fixture, "people", "ada", &["--depth", "0"]);
    assert_eq!(shallow["boss"]["$deeper"], "show::Person");
    assert_eq!(shallow["phones"]["$deeper"], "cenote/VecHeader<u64>");
    assert_eq!(shallow["name"], "ada", "a text has no depth");
    let all = fixture.run("show", &["people"]).exits(0).out;
    for part in [
        "ada: show::Person {",
        "0: show::Everything {",
        "phones: [36000]",
        "-> the same as ada (0x",
        "shapes: [Shape::Empty, Shape::Circle { radius: 1.5 }, Shape::Pair(1, -1)]",
        "... 84 more",
        "key: \"k\\n\\\"ö\"",
        "large: 18446744073709551615",
        "uuid: 0xdead0001",
        "none: null",
        "pair: (1, (-1, null))",
        "took: Duration { secs: 2, nanos: 500 }",
    ] {
        assert!(all.contains(part), "{part} is not in: {all}");
    }
    assert!(all.lines().all(|line| line.chars().count() < 400), "{all}");
}

#[test]
fn a_store_without_a_path_is_shown_pool_by_pool_and_root_by_root() {
    let fixture = filled();
    let pools = fixture.run("show", &["--json"]).exits(0).json_lines();
    let names: std::vec::Vec<_> = pools.iter().map(|pool| pool["pool"].as_str().unwrap()).collect();
    assert_eq!(names, ["logged", "people", "shadowed", "wear", "words"]);
    assert_eq!(pools[4]["roots"], json!([]));
    let roots = pools[0]["roots"].as_array().expect("a list");
    let named: std::vec::Vec<_> = roots.iter().map(|root| root["root"].as_str().unwrap()).collect();
    assert_eq!(named, ["ada", "page", "0"]);
    assert_eq!(roots[0]["type"], "show::Person");
    assert_eq!((&pools[0]["damaged"], &pools[0]["cut"]), (&json!(0), &json!(false)));
    assert!(fixture.run("show", &[]).exits(0).out.contains("no root is set"));
    assert!(run(["show", empty().store.to_str().unwrap()]).exits(0).out.contains("no pools yet"));
}

#[test]
fn a_map_of_relaxed_durability_is_shown_and_a_stale_handle_is_said() {
    let fixture = empty();
    fixture.run("create", &["words", "--mode", "direct"]).exits(0);
    {
        let store = Store::open(&fixture.store).expect("opened");
        let pool = store.pool("words").expect("a pool");
        let map = pool
            .write(|tx| -> cenote::Result<_> {
                let map = RelaxedDurabilityMap::<u64, u64>::new(tx)?;
                let root = tx.alloc(map)?;
                tx.set_named_root("counts", Some(root))?;
                let (gone, kept) = (List::<u64>::new(tx)?, List::<u64>::new(tx)?);
                let root = tx.alloc([gone, kept])?;
                tx.set_named_root("gone", Some(root))?;
                gone.destroy(tx)?;
                Ok(map)
            })
            .expect("made");
        let open = map.open(&pool).expect("opened");
        for key in 0..200 {
            open.insert(&key, &(key * key)).expect("inserted");
        }
        open.insert(&7, &70).expect("replaced");
        open.remove(&8).expect("removed");
        open.flush().expect("durable");
        drop((open, pool));
        store.close().expect("closed");
    }
    let all = value(&fixture, "words", "counts", &["--count", "1000"]);
    let mut pairs: std::vec::Vec<(u64, u64)> = all
        .as_array()
        .expect("a list")
        .iter()
        .map(|pair| (pair[0].as_u64().unwrap(), pair[1].as_u64().unwrap()))
        .collect();
    pairs.sort_unstable();
    let square = |key: u64| (key, if key == 7 { 70 } else { key * key });
    let expected: std::vec::Vec<_> = (0..200).filter(|key| *key != 8).map(square).collect();
    assert_eq!(pairs, expected);
    assert_eq!(value(&fixture, "words", "counts", &[])[16]["$more"], 183);
    assert_eq!(value(&fixture, "words", "counts[150]", &[]), json!(22500));
    // The block of the header is free.
    let gone = fixture.run("show", &["words", "gone", "--json"]).exits(1).json();
    assert!(gone["value"][0]["$damaged"].to_string().contains("no block begins there"), "{gone}");
    assert_eq!(gone["value"][1], json!([]));
}

#[test]
fn a_path_that_leads_nowhere_says_what_there_is() {
    let fixture = filled();
    let refused = |path: &str, status: i32, parts: &[&str]| {
        fixture.run("show", &["people", path]).complains(status, parts);
    };
    refused(
        "ada.nam",
        3,
        &["ada.nam: show::Person has no field `nam`", "did you mean name?", "phones"],
    );
    refused("adam.name", 3, &["there is no root `adam`", "did you mean ada?", "ada, page, 0"]);
    refused("7", 3, &["there is no root `7`"]);
    refused(".x", 3, &["several roots", "ada, page, 0"]);
    refused("0.list[100]", 3, &["no element 100", "List has 100", "from 0 to 99"]);
    refused("ada.phones[1]", 3, &["Vec has 1", "from 0 to 0"]);
    refused("ada.shapes[3]", 3, &["no element 3", "from 0 to 2"]);
    refused("0.people[\"adda\"]", 3, &["no key \"adda\"", "did you mean \"ada\"?", "\"bob\""]);
    refused("0.hash[100]", 3, &["no key 100: it has", "and 88 more"]);
    refused("0.none[0]", 3, &["0.none: it is null"]);
    refused("ada.shapes[1].Empty", 3, &["it is `Circle`", "ada.shapes[1].Circle"]);
    refused("ada.age.x", 3, &["ada.age.x", "has no parts, and no fields"]);
    refused("0.list.len", 3, &["elements by number"]);
    refused("0.list[x]", 3, &["elements by number"]);
    refused("ada.", 2, &["at the caret: ada.^: a name of a field"]);
    refused("ada[x", 2, &["at the caret: ada[x^: ] is missing"]);
    refused("ada]", 3, &["there is no root `ada]`"]);
    refused("", 2, &["a path begins with the name of a root"]);
    let dir = fixture.store.to_str().expect("text");
    run(["show", dir, "nope"]).complains(3, &["no pool \"nope\"", "people"]);
    run(["show", dir, "people", "0", "--depth", "51"]).complains(2, &["--depth", "0..=50"]);
    run(["show", dir, "words", "x"]).complains(3, &["no root is set"]);
}

#[test]
fn a_path_may_leave_out_the_only_root() {
    let fixture = with_pool();
    {
        let store = Store::open(&fixture.store).expect("opened");
        let pool = store.pool("words").expect("a pool");
        let set = pool.write(|tx| {
            let root = tx.alloc(SCALARS)?;
            tx.set_named_root("it", Some(root))
        });
        set.expect("committed");
        drop(pool);
        store.close().expect("closed");
    }
    assert_eq!(value(&fixture, "words", ".grid[1][0]", &[]), json!(3));
    let shown = fixture.run("show", &["words", ".yes"]).exits(0).out;
    assert_eq!(shown, "it.yes: bool = true\n");
    let forgotten = ["the only root is it", "may leave out: .yes.x"];
    fixture.run("show", &["words", "yes.x"]).complains(3, &forgotten);
    fixture.run("show", &["words", "[0]"]).complains(3, &["fields", "leave out [0]"]);
}

#[test]
fn a_protected_pool_is_shown_with_its_key() {
    let fixture = empty();
    let bytes: [u8; 32] = core::array::from_fn(|i| (i as u8).wrapping_mul(73) ^ 0x5a);
    let ring = || {
        let key = MasterKey::with_locking(&mut bytes.clone(), Locking::IfPossible).expect("a key");
        Some(Arc::new(Keyring::new(key).locking(Locking::IfPossible)))
    };
    let open = OpenOptions { key: ring(), accept_unprotected: true, ..OpenOptions::default() };
    let store = Store::open_with(&fixture.store, &open).expect("a store");
    let made = PoolOptions {
        at_rest: AtRest::Authenticated,
        key: ring(),
        ..options(PoolMode::Shadowed, HeapKind::Traced)
    };
    let pool = store.create_pool("secret", &made).expect("a pool");
    fill(&pool);
    pool.psync().expect("durable");
    drop(pool);
    store.close().expect("closed");
    let key = fixture.dir.path().join("key");
    std::fs::write(&key, bytes).expect("written");
    let key = key.to_str().expect("text");
    assert_eq!(value(&fixture, "secret", "ada.age", &["--key-file", key]), json!(36));
    fixture.run("show", &["secret"]).complains(3, &["--key-file"]);
    assert!(fixture.run("show", &[]).exits(0).out.contains("not shown: pool \"secret\""));
}

/// Changes the first place of the pool's files that has these bytes.
fn replace(fixture: &Fixture, from: &[u8], to: &[u8]) {
    for entry in std::fs::read_dir(fixture.store.join("puddles")).expect("readable").flatten() {
        let mut bytes = std::fs::read(entry.path()).expect("readable");
        if let Some(at) = bytes.windows(from.len()).position(|window| window == from) {
            bytes[at..at + to.len()].copy_from_slice(to);
            return std::fs::write(entry.path(), bytes).expect("written");
        }
    }
    panic!("no file has {from:x?}");
}

#[derive(Persist, Clone, Copy)]
#[persist(name = "show::Broken")]
struct Broken {
    mark: [u8; 8],
    flag: bool,
    shape: Shape,
    text: Text,
    list: List<u64>,
    link: Ptr<u64>,
    last: u64,
}

#[test]
fn damage_is_said_in_its_place_and_the_rest_is_shown() {
    let fixture = with_pool();
    let mark = *b"\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8";
    let header;
    {
        let store = Store::open(&fixture.store).expect("opened");
        let pool = store.pool("words").expect("a pool");
        pool.write(|tx| -> cenote::Result<()> {
            let (text, list, link) = (Text::new(tx)?, List::new(tx)?, tx.alloc(5_u64)?);
            text.push_str(tx, "qwertyuiop")?;
            list.push_back(tx, 0x1122_3344_5566_7788)?;
            list.push_back(tx, 2)?;
            let shape = Shape::Pair(0x5a5a, 3);
            let all = Broken { mark, flag: true, shape, text, list, link, last: 77 };
            let root = tx.alloc(all)?;
            tx.set_root(root)
        })
        .expect("committed");
        drop(pool);
        store.close().expect("closed");
        header = fixture.run("show", &["words", "0"]).exits(0).out;
    }
    assert!(header.contains("text: \"qwertyuiop\"") && header.contains("link: -> 5"), "{header}");
    let sound = fixture.files();
    let shown = |from: &[u8], to: &[u8], path: &str, expected: &str| {
        replace(&fixture, from, to);
        let shown = fixture.run("show", &["words", path]).exits(1).out;
        assert!(shown.contains(expected), "{expected} is not in: {shown}");
        let all = fixture.run("show", &["words", "--json"]).exits(1).json();
        assert_eq!(all["roots"][0]["value"]["last"], 77, "{all}");
        assert_eq!(all["damaged"], 1, "{all}");
        for (path, (bytes, _)) in &sound {
            std::fs::write(path, bytes).expect("written");
        }
    };
    shown(b"wert", b"w\xffrt", "0", "text: damaged: no UTF-8 at byte 2 of the text: 0x7177ff");
    // The bool follows somewhere behind the mark: the record says where.
    let types = fixture.run("dump", &["--json"]).exits(0).json_lines();
    let broken = types.iter().find(|object| object["type"] == "show::Broken").expect("the type");
    let offset = |name: &str| {
        let fields = broken["fields"].as_array().expect("fields");
        let field = fields.iter().find(|field| field["name"] == name).expect("the field");
        field["offset"].as_u64().expect("a number") as usize
    };
    let whole = {
        let files = sound.values().map(|(bytes, _)| bytes);
        let at = |bytes: &[u8]| bytes.windows(8).position(|window| window == mark);
        let (bytes, at) = files.filter_map(|bytes| Some((bytes, at(bytes)?))).next().expect("it");
        let from = at - offset("mark");
        bytes[from..from + broken["bytes"].as_u64().expect("a size") as usize].to_vec()
    };
    let with = |name: &str, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[offset(name)..offset(name) + bytes.len()].copy_from_slice(bytes);
        changed
    };
    shown(&whole, &with("flag", &[9]), "0", "flag: damaged: 9 is no bool");
    shown(&whole, &with("shape", &[9]), "0.shape.Pair", "no variant has the discriminant 9");
    shown(&whole, &with("link", &[8; 8]), "0.link", "0x808080808080808: no pool of this store");
    shown(&whole, &with("link", &[0; 8]), "0.link", "null in a pointer that is never null");
    shown(&whole, &with("list", &[0; 8]), "0.list[0]", "damaged: null in a pointer");
    let list = whole[offset("list")..offset("list") + 8].to_vec();
    shown(&whole, &with("link", &list), "0", "of type cenote/ListHeader<u64>, and the pointer is");
    let node = 0x1122_3344_5566_7788_u64.to_le_bytes();
    assert!(sound.values().any(|(bytes, _)| bytes.windows(8).any(|window| window == node)));
    fixture.run("show", &["words"]).exits(0);
}

#[test]
fn pointers_into_another_pool_are_followed_there() {
    #[derive(Persist, Clone, Copy)]
    #[persist(name = "show::Outside")]
    struct Outside {
        there: Option<Ptr<u64>>,
    }
    let fixture = with_pool();
    fixture.run("create", &["other"]).exits(0);
    {
        let store = Store::open(&fixture.store).expect("opened");
        let (words, other) = (store.pool("words").unwrap(), store.pool("other").unwrap());
        let written: cenote::Result<()> = store.write(&[&words, &other], |tx| {
            let there = tx.alloc_in(&other, 4711_u64)?;
            let root = tx.alloc(Outside { there: Some(there) })?;
            tx.set_root(root)
        });
        written.expect("written");
        drop((words, other));
        store.close().expect("closed");
    }
    assert_eq!(value(&fixture, "words", "0.there", &[]), json!(4711));
    fixture.run("rm", &["other", "-y"]).exits(0);
    let shown = fixture.run("show", &["words"]).exits(1).out;
    assert!(shown.contains("there: damaged: 0x"), "{shown}");
}

#[derive(Persist)]
#[persist(name = "show::Chain")]
struct Chain {
    first: Owned<Link>,
}

#[derive(Persist)]
#[persist(name = "show::Link", owned)]
struct Link {
    number: u64,
    next: Owned<Link>,
}

#[test]
fn what_a_value_owns_is_shown_and_the_list_of_waiting_blocks_is_no_root() {
    let fixture = with_pool();
    let store = Store::open(&fixture.store).expect("a store");
    let pool = store.create_pool("chains", &PoolOptions::default()).expect("a pool");
    pool.write(|tx| -> cenote::Result<()> {
        let chain = tx.alloc(Chain { first: Owned::EMPTY })?;
        let link = Link { number: 7, next: Owned::EMPTY };
        let link = tx.put_owned(chain, field!(Chain, first), link)?;
        tx.put_owned(link, field!(Link, next), Link { number: 8, next: Owned::EMPTY })?;
        tx.set_root(chain)
    })
    .expect("filled");
    drop(pool);
    store.close().expect("closed");
    let last = json!({"number": 8, "next": null});
    let first = json!({"number": 7, "next": last});
    assert_eq!(value(&fixture, "chains", "0", &[]), json!({ "first": first }));
    assert_eq!(value(&fixture, "chains", "0.first.next.number", &[]), 8);
    let shown = fixture.run("show", &["chains", "--json"]).exits(0).json();
    assert_eq!(shown["roots"].as_array().map(std::vec::Vec::len), Some(1), "{shown}");
}
