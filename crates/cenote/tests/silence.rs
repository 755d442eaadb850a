//! The limit on a daemon's silence is none on its work: a daemon of the test's own, which answers
//! late, or never.

use cenote::{ConnectOptions, Error, PoolOptions, Store};
use cenote_layout::id::Uuid;
use cenote_proto::{
    Channel, Listener, MESSAGE_LEN_MAX, MediumText, Refusal, Reply, Request, decode, encode,
};
use cenote_store::StoreError;
use cenote_testkit::time::within;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_millis(600);
const WORK: Duration = Duration::from_secs(3);
const WINDOW_LEN: u64 = 1 << 30;
/// Where the next window lies: tests run side by side.
static WINDOW: AtomicU64 = AtomicU64::new(0x3f00_0000_0000);

/// Answers one connection. A pool that is to be created takes long, and cannot be.
fn serve(line: &Channel, window_base: u64, hangs: &AtomicBool) -> Option<()> {
    let mut buffer = vec![0; MESSAGE_LEN_MAX];
    loop {
        let received = line.receive_bytes(&mut buffer).ok().filter(|got| got.len > 0)?;
        let (number, request) = decode(&buffer[..received.len]).ok()?;
        while hangs.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let reply = match request {
            Request::Hello { .. } => Reply::Welcome {
                client: Uuid([7; 16]),
                store: Uuid([8; 16]),
                window_base,
                window_len: WINDOW_LEN,
                medium: MediumText {
                    path: "/nowhere".into(),
                    kind: "tmpfs".into(),
                    fs: "tmpfs".into(),
                    power: false,
                    note: String::new(),
                },
                power: false,
            },
            Request::Types { .. } => Reply::Types { records: Vec::new(), more: false },
            Request::Pools { .. } => Reply::Pools { items: Vec::new(), more: false },
            Request::CreatePool { .. } => {
                std::thread::sleep(WORK);
                Reply::Refused(Refusal::PoolExists)
            }
            _ => Reply::Done,
        };
        line.send(&encode(number, &reply).ok()?, &[]).ok()?;
    }
}

/// Runs `work` beside such a daemon, which hangs when the flag says so.
fn beside(work: impl FnOnce(&Path, &AtomicBool)) {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("socket");
    let listener = Listener::bind(&socket).expect("bound");
    let hangs = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&hangs);
    let base = WINDOW.fetch_add(WINDOW_LEN, Ordering::Relaxed);
    std::thread::spawn(move || {
        while let Ok(line) = listener.accept() {
            let flag = Arc::clone(&flag);
            std::thread::spawn(move || serve(&line, base, &flag));
        }
    });
    work(&socket, &hangs);
    hangs.store(false, Ordering::SeqCst);
}

fn connect(socket: &Path) -> Store {
    Store::connect_with(socket, &ConnectOptions::default().with_silence(LIMIT)).expect("connected")
}

#[test]
fn a_request_that_takes_long_is_not_cut() {
    within(60, || {
        beside(|socket, _| {
            let store = connect(socket);
            let began = Instant::now();
            let made = store.create_pool("pool", &PoolOptions::default());
            assert!(matches!(made, Err(Error::Store(StoreError::PoolExists { .. }))), "{made:?}");
            assert!(began.elapsed() >= WORK, "it was waited for");
        });
    });
}

#[test]
fn a_daemon_that_answers_nothing_ends_requests_one_after_the_other() {
    within(60, || {
        beside(|socket, hangs| {
            let store = connect(socket);
            hangs.store(true, Ordering::SeqCst);
            let began = Instant::now();
            std::thread::scope(|scope| {
                for name in ["a", "b", "c", "d"] {
                    let store = &store;
                    scope.spawn(move || {
                        let made = store.create_pool(name, &PoolOptions::default());
                        let is_silent =
                            matches!(made, Err(Error::Store(StoreError::DaemonSilent { .. })));
                        assert!(is_silent, "{made:?}");
                    });
                }
            });
            assert!(began.elapsed() >= LIMIT && began.elapsed() < Duration::from_secs(20));
        });
    });
}
