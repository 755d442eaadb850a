//! A filter function is asked about its own type, and not about another that has the same id.
//!
//! Ids are 64-bit hashes. That two of these types have one took three minutes of one core.

use crate::common::{assert_sound, directory};
use cenote::persist::TypeSetError;
use cenote::{Error, Persist, Reader, Store};
use cenote_collections::{InlineStr, List};
use cenote_medium::planted::{Bug, plant};
use std::path::Path;
use std::process::Command;

/// Its id is that of the header of [`Texts`], which is private to the collections.
#[derive(Persist, Clone, Copy)]
#[persist(name = "rev::X")]
struct Number<const N: u64>(u64);
type Colliding = Number<4268303714344535655>;

#[derive(Persist, Clone, Copy)]
#[persist(name = "rev::Y")]
struct Text<const N: u64> {
    text: InlineStr<22>,
    nz: std::num::NonZeroU64,
}
type Texts = List<Text<16603240083733121556>>;

#[derive(Persist)]
#[persist(name = "filters::Holder")]
struct Holder {
    list: Texts,
}

const LEN: u64 = 300;
const AT: &str = "CENOTE_TEST_FILTERS_AT";
const BUG: &str = "CENOTE_TEST_FILTERS_BUG";

/// A store with a list, closed.
fn make(path: &Path) {
    let pool = Store::open(path).unwrap().pool("test").unwrap();
    pool.write(|tx| -> cenote::Result<()> {
        let list = Texts::new(tx)?;
        for k in 1..=LEN {
            let text = InlineStr::truncated("a text");
            list.push_back(tx, Text { text, nz: k.try_into().unwrap() })?;
        }
        let holder = tx.alloc(Holder { list })?;
        tx.set_root(holder)
    })
    .unwrap();
}

/// A program that knows the colliding type, and not the list, finds and frees what is leaked.
fn collect_elsewhere(path: &Path, bug: bool) -> u64 {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = "filters::a_filter_is_asked_about_its_own_type_and_no_other_of_its_id";
    command.args(["--exact", test, "--nocapture"]).env(AT, path);
    if bug {
        command.env(BUG, "1");
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let freed = text.lines().find_map(|line| line.split_once("freed ")?.1.parse().ok());
    freed.unwrap_or_else(|| panic!("{output:?}"))
}

#[test]
fn a_filter_is_asked_about_its_own_type_and_no_other_of_its_id() {
    if let Some(path) = std::env::var_os(AT) {
        let bug = if std::env::var_os(BUG).is_some() { Bug::FilterById } else { Bug::None };
        plant(bug);
        assert!(cenote::filter::register::<Colliding>(|_, _| ()).unwrap().is_none());
        let pool = Store::open(path).unwrap().pool("test").unwrap();
        println!("\nfreed {}", pool.collect().unwrap().freed_blocks);
        return;
    }
    let dir = directory();
    make(dir.path());
    assert_eq!(collect_elsewhere(dir.path(), false), 0);
    let pool = Store::open(dir.path()).unwrap().pool("test").unwrap();
    assert_sound(&pool);
    let view = pool.read().unwrap();
    let holder = view.get(view.root::<Holder>().unwrap().unwrap()).unwrap();
    assert_eq!(holder.list.iter(&view).unwrap().map(|text| text.nz.get()).max(), Some(LEN));
    drop(view);
    // In a program that has the list, the id is taken.
    let refused = cenote::filter::register::<Colliding>(|_, _| ()).unwrap_err();
    assert!(matches!(refused, Error::Types(TypeSetError::SameName { .. })), "{refused}");
    assert_eq!(pool.collect().unwrap().freed_blocks, 0);
}

#[test]
fn a_filter_that_is_asked_about_every_type_of_its_id_is_found() {
    // `Bug::FilterById` is planted in the process that collects.
    let dir = directory();
    make(dir.path());
    assert!(collect_elsewhere(dir.path(), true) >= LEN);
}
