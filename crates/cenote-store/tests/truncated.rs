//! A puddle file that somebody makes shorter under a running program: the program ends by SIGBUS
//! with one line that says why, and the next open names the damage.

use crate::common::{Dir, pool_options};
use cenote_store::{Access, Damage, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const BUS: i32 = 7;
/// Set in the child: the store's directory.
const STORE: &str = "CENOTE_TEST_TRUNCATED_STORE";

#[test]
fn a_truncated_puddle_ends_the_program_with_a_line_that_says_why() {
    if let Some(dir) = std::env::var_os(STORE) {
        touch_what_is_gone(std::path::Path::new(&dir));
    }
    let dir = Dir::formatted();
    {
        let (store, _) = dir.open();
        store.create_pool("p", &pool_options()).unwrap();
        store.close().unwrap();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "truncated::a_truncated_puddle_ends_the_program_with_a_line_that_says_why",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(STORE, dir.path())
        .env("RUST_BACKTRACE", "1")
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.signal(), Some(BUS), "{:?}: {err}", output.status);
    let said: Vec<&str> = err.lines().filter(|line| line.contains("bus error")).collect();
    assert!(
        matches!(said[..], [line] if line.starts_with("cenote: bus error at 0x0000")
            && line.contains("was made shorter") && line.ends_with("run `cenote check` on the store")),
        "{err}"
    );
    assert!(!err.contains("panicked") && !err.contains("stack backtrace"), "{err}");
    let (store, _) = dir.try_open(OpenOptions::read_only()).unwrap();
    let refused = store.open_pool("p", Access::ReadOnly);
    assert!(
        matches!(&refused, Err(cenote_store::StoreError::PoolDamaged { damage, .. })
            if matches!(&damage[..], [Damage::Puddle { detail, .. }] if detail.contains("truncated"))),
        "{refused:?}"
    );
}

/// Ends the process.
fn touch_what_is_gone(dir: &std::path::Path) -> ! {
    let (store, _) =
        cenote_store::Store::open(crate::common::real(dir), OpenOptions::default()).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    let puddle = pool.root_puddle().unwrap();
    let name: String = puddle.uuid().to_hex().iter().map(|b| char::from(*b)).collect();
    let file = std::fs::File::options().write(true).open(dir.join("puddles").join(name)).unwrap();
    file.set_len(4096).unwrap();
    let last = puddle.addr() + puddle.size() - 8;
    // SAFETY: mapped for writing; the page is gone, which is what is tested.
    unsafe { (last as *mut u64).write_volatile(1) };
    std::process::exit(0);
}
