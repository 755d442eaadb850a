//! Bars of long work: drawn on standard error if that is a terminal, and nowhere else.

use crate::common::{Fixture, cenote, empty, run};
use cenote::{Persist, Ptr, Reader as _};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Much of nothing in particular.
#[derive(Persist)]
#[persist(name = "progress::Block")]
struct Block {
    next: Option<Ptr<Self>>,
    words: [u64; 16 << 10],
}

/// Blocks of the pool that travels: 24 MiB.
const BLOCKS: u64 = 192;

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// A store with a pool of many bytes that do not pack.
fn full() -> Fixture {
    let fixture = empty();
    let store = cenote::Store::open(&fixture.store).expect("a store");
    let pool = store.create_pool("much", &cenote::PoolOptions::default()).expect("a pool");
    let mut seed = 1u64;
    for _ in 0..BLOCKS {
        let words = core::array::from_fn(|_| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            seed
        });
        pool.write(|tx| -> cenote::Result<()> {
            let next = tx.root::<Block>()?;
            let block = tx.alloc(Block { next, words })?;
            tx.set_root(block)
        })
        .expect("written");
    }
    drop(pool);
    store.close().expect("closed");
    fixture
}

/// What a terminal was told so far, and whether nothing more comes.
#[derive(Default)]
struct Screen {
    bytes: Vec<u8>,
    over: bool,
}

/// The same, for a thread that waits for it.
#[derive(Clone, Default)]
struct Told(Arc<(Mutex<Screen>, Condvar)>);

impl Told {
    /// Waits until what was told is enough, or it is told that nothing more comes; all of it.
    fn wait(&self, enough: impl Fn(&str) -> bool) -> String {
        let (told, changed) = &*self.0;
        let end = Instant::now() + Duration::from_secs(60);
        let mut state = told.lock().expect("no panic");
        loop {
            let so_far = String::from_utf8_lossy(&state.bytes).into_owned();
            if enough(&so_far) || state.over {
                return so_far;
            }
            assert!(Instant::now() < end, "not within a minute; it was told {so_far:?}");
            state = changed.wait_timeout(state, Duration::from_secs(1)).expect("no panic").0;
        }
    }

    fn all(&self) -> String {
        self.wait(|_| false)
    }
}

/// Has a command use a new pseudo terminal for standard error. Why not, where there is none to be
/// had.
fn on_a_terminal(command: &mut Command) -> Result<Told, String> {
    let failed = |error: rustix::io::Errno| format!("no pseudo terminal: {error}");
    let keyboard =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).map_err(failed)?;
    grantpt(&keyboard).and_then(|()| unlockpt(&keyboard)).map_err(failed)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let screen = ioctl_tiocgptpeer(&keyboard, flags).map_err(failed)?;
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&screen, size).map_err(failed)?;
    command.stderr(screen).env("TERM", "xterm").env("NO_COLOR", "1").env_remove("COLUMNS");
    let told = Told::default();
    let tells = told.clone();
    std::thread::spawn(move || {
        let mut keyboard = File::from(keyboard);
        let mut bytes = [0; 4096];
        // Once no process has the screen any more, reading fails.
        while let Some(len) = keyboard.read(&mut bytes).ok().filter(|len| *len > 0) {
            let (told, changed) = &*tells.0;
            told.lock().expect("no panic").bytes.extend_from_slice(&bytes[..len]);
            changed.notify_all();
        }
        tells.0.0.lock().expect("no panic").over = true;
        tells.0.1.notify_all();
    });
    Ok(told)
}

/// The bars of this name that were drawn: done, and of how much.
fn bars(told: &str, prefix: &str) -> Vec<(u64, u64)> {
    let number = |text: &str| text.replace(',', "").parse().ok();
    told.split(&format!("{prefix} ["))
        .skip(1)
        .map(|bar| {
            let figures = bar.split_once("] ").and_then(|(_, rest)| rest.split_whitespace().next());
            let figures = figures.and_then(|figures| figures.split_once('/'));
            let found = figures.and_then(|(done, of)| Some((number(done)?, number(of)?)));
            found.unwrap_or_else(|| panic!("no figures in {bar:?}"))
        })
        .collect()
}

/// Whole bars only: what stands last may be half of one.
fn drawn(told: &str, prefix: &str) -> Vec<(u64, u64)> {
    bars(told.rsplit_once("MiB").map_or("", |(whole, _)| whole), prefix)
}

fn rises(bars: &[(u64, u64)]) {
    assert!(bars.is_sorted_by_key(|(done, _)| *done), "{bars:?}");
    assert!(bars.iter().all(|(done, of)| done <= of), "{bars:?}");
    let different: std::collections::BTreeSet<u64> = bars.iter().map(|(done, _)| *done).collect();
    assert!(different.len() >= 3, "{bars:?}");
    let totals: std::collections::BTreeSet<u64> =
        bars.iter().map(|(_, of)| *of).filter(|of| *of > 0).collect();
    assert_eq!(totals.len(), 1, "{bars:?}");
}

/// Nothing that only a terminal is told.
fn is_plain(out: &str) {
    assert!(!out.contains('\x1b') && !out.contains('\r') && !out.contains(" ["), "{out:?}");
}

/// Runs a command to its end; what it said on standard output. Lets go of the terminal.
fn ends_well(mut command: Command) -> String {
    let mut child = command.spawn().expect("cenote runs");
    drop(command);
    let mut out = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
    assert!(child.wait().expect("it ends").success());
    out
}

#[test]
fn an_export_and_an_import_draw_how_far_they_have_come_on_a_terminal() {
    let (from, to) = (full(), empty());
    // Through pipes, so that they come no further than they are let.
    let mut export = cenote();
    export.args(["export", text(&from.store), "much", "-"]).stdout(Stdio::piped());
    let told = match on_a_terminal(&mut export) {
        Ok(told) => told,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let mut child = export.spawn().expect("cenote runs");
    drop(export);
    let mut stdout = child.stdout.take().expect("piped");
    let (mut archive, mut portion) = (Vec::new(), vec![0; 5 << 20]);
    let mut last = 0;
    for _ in 0..4 {
        stdout.read_exact(&mut portion).expect("an archive");
        archive.extend_from_slice(&portion);
        let shown = |told: &str| drawn(told, "exporting").last().map_or(0, |(done, _)| *done);
        last = shown(&told.wait(|told| shown(told) > last));
    }
    stdout.read_to_end(&mut archive).expect("the rest");
    assert!(child.wait().expect("it ends").success());
    let said = told.all();
    rises(&bars(&said, "exporting"));
    assert!(
        bars(&said, "exporting").iter().all(|(_, of)| *of == 0 || *of >= BLOCKS / 8),
        "{said:?}"
    );

    let mut import = cenote();
    import.args(["import", text(&to.store), "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let told = on_a_terminal(&mut import).expect("another terminal");
    let mut child = import.spawn().expect("cenote runs");
    drop(import);
    let mut stdin = child.stdin.take().expect("piped");
    let mut last = 0;
    let (portions, rest) = archive.as_chunks::<{ 5 << 20 }>();
    for portion in portions {
        stdin.write_all(portion).expect("it reads");
        let shown = |told: &str| drawn(told, "importing").last().map_or(0, |(done, _)| *done);
        last = shown(&told.wait(|told| shown(told) > last));
    }
    stdin.write_all(rest).expect("it reads");
    drop(stdin);
    let mut out = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
    assert!(child.wait().expect("it ends").success());
    rises(&bars(&told.all(), "importing"));
    is_plain(&out);
    assert!(out.contains("imported pool \"much\""), "{out}");
}

#[test]
fn a_verification_draws_how_many_pages_it_has_looked_at_on_a_terminal() {
    let fixture = empty();
    let dir = text(&fixture.store);
    let (key, input) = (fixture.dir.path().join("key"), fixture.dir.path().join("in"));
    std::fs::write(&key, (0..32).collect::<Vec<u8>>()).expect("written");
    std::fs::write(&input, vec![7; 16 << 20]).expect("written");
    let key = ["--key-file", text(&key)];
    run(["object", "create", dir, "box", "--size", "16M"].into_iter().chain(key)).exits(0);
    run(["object", "import", dir, "box", "--input", text(&input)].into_iter().chain(key)).exits(0);
    let mut verify = cenote();
    verify.args(["verify", dir]).args(key).stdout(Stdio::piped());
    let told = match on_a_terminal(&mut verify) {
        Ok(told) => told,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let done = ends_well(verify);
    let found = bars(&told.all(), "verifying");
    rises(&found);
    assert!(found.iter().any(|(_, of)| *of == 4096), "{found:?}");
    is_plain(&done);
    assert!(done.contains("4,096 pages of object \"box\""), "{done}");
}

#[test]
fn without_a_terminal_and_in_json_no_bar_is_drawn() {
    let (from, to) = (full(), empty());
    let archive = from.dir.path().join("much.cenote");
    for (fixture, command, arguments) in [
        (&from, "export", vec!["much", text(&archive)]),
        (&to, "import", vec![text(&archive)]),
        (&to, "import", vec![text(&archive), "-n", "--as", "other"]),
        (&from, "verify", vec![]),
    ] {
        let ran = fixture.run(command, &arguments).exits(0);
        assert_eq!(ran.err, "", "{command}");
        is_plain(&ran.out);
    }
    // A program reads standard output, and a bar is not for programs.
    let mut import = cenote();
    import
        .args(["import", text(&to.store), text(&archive), "--as", "third", "--json"])
        .stdout(Stdio::piped());
    match on_a_terminal(&mut import) {
        Ok(told) => {
            assert!(!ends_well(import).contains('\x1b'));
            assert_eq!(told.all(), "");
        }
        Err(reason) => println!("skipped: {reason}"),
    }
}
