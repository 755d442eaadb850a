//! Figures: they count what has happened, and a collector can read the text.

use crate::common::{Actor, Daemon, add, make_counter};
use crate::hostile::Raw;
use cenote_proto::Request;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The value of a sample, its labels in its name.
pub(crate) fn sample(text: &str, name: &str) -> f64 {
    *parse(text).get(name).unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// All samples of a page; fails where it is not as the format wants it: a family's help and type
/// first, then its samples together, no sample twice, histograms that fit together.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let (mut samples, mut families) = (BTreeMap::new(), BTreeSet::new());
    let mut family: Option<(String, String)> = None;
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and a text");
            assert!(!help.is_empty() && families.insert(name.to_owned()), "{line}");
            family = Some((name.to_owned(), String::new()));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            let known = family.as_mut().expect("help comes first");
            assert_eq!(known.0, name);
            known.1 = kind.to_owned();
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            let bare = name.split('{').next().expect("a name");
            assert!(
                bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'),
                "{line}"
            );
            let (of, kind) = family.as_ref().expect("a family");
            let suffix = bare.strip_prefix(of.as_str()).expect("a sample of the family");
            match &**kind {
                "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
                "counter" => assert!(suffix.is_empty() && bare.ends_with("_total"), "{line}"),
                _ => assert_eq!(suffix, "", "{line}"),
            }
            if let Some(labels) = name.strip_prefix(bare).filter(|labels| !labels.is_empty()) {
                let label =
                    labels.strip_prefix('{').and_then(|l| l.strip_suffix('}')).expect("in braces");
                let (label, of) = label.split_once('=').expect("a label");
                assert!(label.bytes().all(|byte| byte.is_ascii_lowercase()), "{line}");
                assert!(of.len() > 2 && of.starts_with('"') && of.ends_with('"'), "{line}");
            }
            let value: f64 = value.parse().expect("a number");
            assert!(value >= 0.0 && samples.insert(name.to_owned(), value).is_none(), "{line}");
        }
    }
    let buckets: Vec<f64> = samples_of(text, "cenoted_replay_seconds_bucket{");
    assert!(buckets.len() > 5 && buckets.is_sorted(), "{buckets:?}");
    assert_eq!(buckets.last(), samples.get("cenoted_replay_seconds_count"));
    samples
}

/// Values in the order of lines.
fn samples_of(text: &str, prefix: &str) -> Vec<f64> {
    let lines = text.lines().filter(|line| line.starts_with(prefix));
    lines.map(|line| line.rsplit_once(' ').expect("a value").1.parse().expect("a number")).collect()
}

#[test]
fn what_is_counted_has_happened() {
    let daemon = Daemon::start(&[]);
    let mut watcher = cenote::DaemonWatcher::connect(daemon.socket()).expect("connect");
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("pool");
    make_counter(&pool);
    add(&pool);
    let before = parse(&watcher.metrics().expect("metrics"));
    assert_eq!(before["cenoted_requests_total{kind=\"create_pool\"}"], 1.0);
    assert_eq!((before["cenoted_grants_total"], before["cenoted_pools"]), (1.0, 1.0));
    assert_eq!(before["cenoted_clients{state=\"attached\"}"], 2.0);
    assert_eq!(before["cenoted_leases{access=\"write\"}"], 1.0);
    assert_eq!(before["cenoted_recoveries_total"], 0.0);
    drop((pool, store));
    // Pings are counted one by one, and so are refusals, by reason.
    let mut raw = Raw::connect(&daemon);
    for _ in 0..17 {
        raw.ask(&Request::Ping);
    }
    for _ in 0..3 {
        raw.ask(&Request::OpenPool { name: "none".into(), writable: true });
    }
    let mut child = Actor::start("holder", &daemon);
    assert_eq!(child.hear(), "inside");
    let clients = watcher.clients().expect("list");
    let holder = clients.iter().find(|client| client.pid == child.pid()).expect("it is listed");
    assert_eq!(
        (&*holder.pools[0].name, holder.pools[0].writable, holder.pools_held),
        ("numbers", true, 1)
    );
    assert!(holder.program.starts_with("it-"), "{holder:?}");
    assert!(holder.puddles >= 1 && holder.bytes > 0 && holder.messages > 3, "{holder:?}");
    child.kill();
    daemon.wait_until("it is recovered", |stat| stat.recoveries == 1);
    let after = parse(&watcher.metrics().expect("metrics"));
    let grown = |name: &str| after[name] - before[name];
    assert_eq!(grown("cenoted_requests_total{kind=\"ping\"}"), 17.0);
    assert_eq!(grown("cenoted_refused_total{reason=\"pool_unknown\"}"), 3.0);
    assert_eq!(grown("cenoted_recoveries_total"), 1.0);
    assert_eq!(grown("cenoted_logs_replayed_total"), 1.0);
    assert!(grown("cenoted_entries_replayed_total") >= 2.0, "a counter and a block");
    assert_eq!(grown("cenoted_replay_seconds_count"), 1.0);
    assert!(
        grown("cenoted_puddles_granted_total") >= 3.0 && grown("cenoted_bytes_granted_total") > 2e6
    );
    assert_eq!(after["cenoted_leases{access=\"write\"}"], 0.0);
    // What a client calls itself or its pools is in no label.
    assert!(!watcher.metrics().expect("metrics").contains("numbers"));
}

fn fetch(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    answer
}

#[test]
fn collectors_fetch_figures_by_http_and_a_slow_one_is_not_waited_for() {
    let mut daemon = Daemon::prepare(&[]);
    let path = daemon.path("metrics");
    let mut command = daemon.command();
    command.arg("--socket").arg(daemon.socket()).arg("--metrics").arg(&path);
    daemon.run(&mut command);
    let get = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    let page = |answer: &str| {
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(
            head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("version=0.0.4"),
            "{head}"
        );
        let len =
            head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
        assert_eq!(len.parse(), Ok(body.len()));
        parse(body)
    };
    let connect = || UnixStream::connect(&path).expect("connect");
    assert_eq!(page(&fetch(connect(), get))["cenoted_pools"], 0.0);
    assert!(fetch(connect(), "GET /other HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(fetch(connect(), "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400 "));
    assert!(fetch(connect(), &"x".repeat(9000)).starts_with("HTTP/1.1 400 "));
    // One that says nothing, one that sends a byte now and then, and one that goes away.
    let silent = connect();
    let mut slow = connect();
    slow.write_all(b"G").expect("write");
    drop(connect());
    let began = Instant::now();
    assert_eq!(page(&fetch(connect(), get))["cenoted_pools"], 0.0);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    drop((silent, slow));
    // Clients of the store are served meanwhile.
    let store = daemon.connect();
    make_counter(&store.pool("numbers").expect("pool"));
    drop(store);
    daemon.stop();
    assert!(!path.exists());

    // At a loopback address too; the port is free for a moment at least.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .expect("a port")
        .port();
    let address = format!("127.0.0.1:{port}");
    let mut command = daemon.command();
    command.arg("--socket").arg(daemon.socket()).args(["--metrics", &address]);
    daemon.run(&mut command);
    assert_eq!(
        page(&fetch(TcpStream::connect(&address).expect("connect"), get))["cenoted_pools"],
        1.0
    );
    daemon.stop();
}
