//! A debugger follows pointers of a pool that has moved.

use super::*;

/// Address of a list's first node, for a debugger, which finds it by name.
#[unsafe(no_mangle)]
static CENOTE_SHIP_FIRST: AtomicU64 = AtomicU64::new(0);

/// Where the debugger stops.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn cenote_archives_debugger_stops_here() {
    std::hint::black_box(CENOTE_SHIP_FIRST.load(Ordering::Relaxed));
}

/// Run by a debugger, in a process of its own: opens the store whose directory the environment
/// names.
#[test]
fn debugged() -> Result<()> {
    let Some(directory) = std::env::var_os("CENOTE_SHIP_DEBUGGED") else { return Ok(()) };
    let store = Store::open(Path::new(&directory))?;
    let pool = store.pool("copy")?;
    assert!(
        pool.pending_rewrites() > 0,
        "the debugger comes to puddles that no thread has touched"
    );
    let first = pool.read()?.root::<Node>()?.expect("it was there");
    CENOTE_SHIP_FIRST.store(first.addr(), Ordering::Relaxed);
    cenote_archives_debugger_stops_here();
    Ok(())
}

/// A debugger that knows nothing of Cenote follows the list through an imported pool, by the
/// addresses that stand in it. What it reads itself is not there until the program has touched it;
/// so it lets the program do that, by a function of the C library, when it comes to an address of
/// which it knows nothing yet.
#[test]
fn a_debugger_follows_a_list_through_an_imported_pool() -> Result<()> {
    if std::process::Command::new("gdb").arg("--version").output().is_err() {
        println!("skipped: there is no gdb");
        return Ok(());
    }
    let here = directory();
    let store = store_with_window(here.path(), window());
    drop(list(&store, "list", &small(), 6000)?);
    let (archive, _) = store.export(&["list"], Vec::new(), ExportOptions::default())?;
    let made = store.import(archive.as_slice(), names(&["copy"]))?;
    assert!(made.imported.pools[0].moved);
    store.close()?;
    let script = format!(
        "set pagination off\nset confirm off\nset breakpoint pending on\n\
         set disable-randomization off\n\
         handle SIGSEGV nostop noprint pass\nbreak cenote_archives_debugger_stops_here\nrun\n\
         set language c\n\
         set $at = *(unsigned long *)&CENOTE_SHIP_FIRST\nset $count = 0\n\
         set $sum = 0\nset $known = 0\n\
         while $at != 0\n\
         if ($at >> 16) != $known\ncall (unsigned long)strnlen((char *)$at, 1)\n\
         set $known = $at >> 16\nend\n\
         set $sum = $sum + *(unsigned long *)($at + {value})\n\
         set $at = *(unsigned long *)($at + {next})\nset $count = $count + 1\nend\n\
         printf \"followed %lu %lu\\n\", $count, $sum\nkill\nquit\n",
        value = core::mem::offset_of!(Node, value),
        next = core::mem::offset_of!(Node, next),
    );
    let path = here.path().join("script");
    std::fs::write(&path, script).expect("written");
    let mut gdb = std::process::Command::new("gdb");
    gdb.args(["-nx", "-batch", "-x"])
        .arg(&path)
        .arg("--args")
        .arg(std::env::current_exe().expect("it runs"));
    gdb.args(["archives::debugger::debugged", "--exact", "--nocapture", "--test-threads", "1"]);
    let ran = gdb.env("CENOTE_SHIP_DEBUGGED", here.path()).output().expect("gdb runs");
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    if err.contains("ptrace: Operation not permitted") || err.contains("Could not trace") {
        println!("skipped: this process may not be traced");
        return Ok(());
    }
    // The call of a function needs that; older debuggers do not know the state of newer processors.
    if err.contains("Couldn't write extended state status") {
        println!("skipped: this debugger cannot set the registers of this processor");
        return Ok(());
    }
    let wanted = format!("followed 6000 {}", (0..6000u64).sum::<u64>());
    assert!(out.contains(&wanted), "{out}\n{err}");
    Ok(())
}
