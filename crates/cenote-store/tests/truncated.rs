//! A puddle file that another program makes shorter under a running one: the program ends by SIGBUS
//! with one line that says why, and the next open names the damage.

use crate::common::{Dir, pool_options};
use cenote_store::{Access, Damage, OpenOptions};
use cenote_testkit::child;
use std::os::unix::process::ExitStatusExt;

const BUS: i32 = 7;

#[test]
fn a_truncated_puddle_ends_the_program_with_a_line_that_says_why() {
    const TEST: &str = "truncated::a_truncated_puddle_ends_the_program_with_a_line_that_says_why";
    if let Some((_, dir)) = child::task() {
        touch_what_is_gone(&dir);
    }
    let dir = Dir::formatted();
    {
        let (store, _) = dir.open();
        store.create_pool("p", &pool_options()).unwrap();
        store.close().unwrap();
    }
    let mut command = child::with_task(TEST, "touch", &dir.path());
    let (status, err) = child::ended(command.env("RUST_BACKTRACE", "1"));
    assert_eq!(status.signal(), Some(BUS), "{status:?}: {err}");
    let said: Vec<&str> = err.lines().filter(|line| line.contains("bus error")).collect();
    assert!(
        matches!(said[..], [line] if line.starts_with("cenote: bus error at 0x0000")
            && line.contains("was made shorter")
            && line.ends_with("run `cenote check` on the store")),
        "{err}"
    );
    assert!(!err.contains("panicked") && !err.contains("stack backtrace"), "{err}");
    let (store, _) = dir.try_open(OpenOptions::read_only()).unwrap();
    let refused = store.open_pool("p", Access::ReadOnly);
    assert!(
        matches!(&refused, Err(cenote_store::StoreError::PoolDamaged { damage, .. })
        if matches!(
            &damage[..],
            [Damage::Puddle { detail, .. }] if detail.contains("truncated")
        )),
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
