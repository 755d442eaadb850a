//! Damage that stops a part of a pool, and not the pool: superblocks out of use, and primaries that
//! no psync can be written into.

use crate::common::{Fixture, empty};
use std::path::{Path, PathBuf};

fn files(directory: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(directory).expect("readable");
    all.map(|entry| entry.expect("an entry").path()).collect()
}

/// A store with two pools of values, closed: `first` in this mode, then `second`.
fn with_values(mode: &str) -> Fixture {
    let fixture = empty();
    for pool in ["first", "second"] {
        fixture.run("create", &[pool, "--mode", mode]).exits(0);
        let store = cenote::Store::open(&fixture.store).expect("opened");
        let pool = store.pool(pool).expect("the pool");
        let fill = |tx: &mut cenote::Tx<'_>| -> cenote::Result<()> {
            for number in 0..51 {
                let value = tx.alloc([u64::from(number); 12])?;
                tx.set_root_at(number, Some(value))?;
            }
            Ok(())
        };
        pool.write(fill).expect("written");
        drop(pool);
        store.close().expect("closed");
    }
    fixture
}

/// `info` was silent about superblocks that no block is handed out of.
#[test]
fn info_names_superblocks_that_are_out_of_use() {
    let fixture = with_values("direct");
    let whole = fixture.run("info", &[]).exits(0);
    assert!(!whole.out.contains("damaged"), "{}", whole.out);
    // A run of marks that say "allocated" is where blocks begin to be 96 bytes; one bit is flipped.
    let mut harmed = None;
    for file in files(&fixture.store.join("puddles")) {
        let mut bytes = std::fs::read(&file).expect("readable");
        let marks = [cenote_layout::heap::mark::ALLOCATED; 51];
        if let Some(at) = bytes.windows(marks.len()).position(|window| window == marks) {
            bytes[at + 20] ^= 4;
            std::fs::write(&file, &bytes).expect("written");
            harmed = Some(file);
            break;
        }
    }
    assert!(harmed.is_some(), "marks are found");
    let info = fixture.run("info", &[]).exits(1);
    assert!(info.out.contains("damaged") && info.out.contains("superblock"), "{}", info.out);
    let json = fixture.run("info", &["--json"]).exits(1).json();
    let quarantined = json["quarantined"].as_array().expect("a list");
    assert_eq!(quarantined.len(), 1, "{quarantined:?}");
    assert!(["first", "second"].contains(&quarantined[0]["pool"].as_str().expect("a name")));
    fixture.run("check", &[]).exits(1);
}

/// `check` was silent about a primary's header, and every writable open failed.
#[test]
fn check_names_the_pool_whose_primary_is_damaged() {
    let fixture = with_values("shadowed");
    fixture.run("check", &[]).exits(0);
    let primaries = files(&fixture.store.join("primary"));
    assert!(primaries.len() >= 2, "{primaries:?}");
    for harm in [true, false] {
        for file in &primaries {
            let whole = std::fs::read(file).expect("readable");
            let mut bytes = whole.clone();
            if harm {
                bytes[40] ^= 1;
            } else {
                bytes.truncate(whole.len() - 4096);
            }
            std::fs::write(file, &bytes).expect("written");
            let check = fixture.run("check", &["--json"]).exits(1).json();
            let findings = check["findings"].as_array().expect("a list");
            assert_eq!(findings.len(), 1, "{findings:?}");
            let pool = findings[0]["pool"].as_str().expect("it names the pool");
            assert!(["first", "second"].contains(&pool));
            let said = findings[0].to_string();
            assert!(said.contains("primary"), "{said}");
            // The pools' blocks are looked at all the same.
            assert_eq!(check["pools"].as_array().expect("a list").len(), 2);
            std::fs::write(file, &whole).expect("written");
        }
    }
    fixture.run("check", &[]).exits(0);
}
