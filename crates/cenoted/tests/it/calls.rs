//! What a puddle that was made ahead costs the daemon, in system calls: `docs/counts.md` has the
//! list.

use crate::common::Daemon;
use crate::hostile::Raw;
use cenote_proto::{Reply, Request};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// What the thread that answers a request calls from its receipt to its answer.
fn calls_between(trace: &str) -> Vec<Vec<String>> {
    let mut calls: Vec<Vec<String>> = Vec::new();
    let mut open: std::collections::HashMap<&str, Vec<String>> = std::collections::HashMap::new();
    for line in trace.lines() {
        let Some((thread, call)) = line.split_once(char::is_whitespace) else { continue };
        // A call that another thread's call came between is written in two parts.
        let call = call.trim_start();
        let name = match call.strip_prefix("<... ") {
            Some(resumed) if resumed.starts_with("recvmsg") => "recvmsg",
            Some(_) => continue,
            None => call.split('(').next().unwrap_or_default(),
        };
        match name {
            "recvmsg" if call.contains("unfinished") => {}
            "recvmsg" => drop(open.insert(thread, Vec::new())),
            "sendmsg" => calls.extend(open.remove(thread)),
            name => open.entry(thread).or_default().push(name.to_owned()),
        }
    }
    calls
}

/// The list of the document.
fn documented() -> Vec<String> {
    let text = include_str!("../../../../docs/counts.md");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("| a puddle that was made ahead |"))
        .expect("a row");
    line.split('`')
        .filter(|part| part.chars().any(char::is_alphanumeric))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_puddle_that_was_made_ahead_is_two_writes_and_two_syncs() {
    let daemon = Daemon::start(&[]);
    let mut raw = Raw::connect(&daemon);
    let (name, spec) = ("numbers".to_owned(), crate::limits::spec(2 << 20));
    let made = raw.ask(&Request::CreatePool { name: name.clone(), spec, token: raw.client }).0;
    assert!(matches!(made, Reply::Created(_)), "{made:?}");
    let Reply::Pool { record, .. } = raw.ask(&Request::OpenPool { name, writable: true }).0 else {
        panic!("not granted")
    };
    let mut take = |index| match raw.ask(&Request::TakePuddle {
        pool: record.id,
        index,
        size: 2 << 20,
        metadata: false,
    }) {
        (Reply::Puddles { .. }, files) => assert_eq!(files.len(), 1),
        other => panic!("{other:?}"),
    };
    take(1);
    // The catalog's files are open now, and the next one is being made.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let out = daemon.path("trace");
    let pid = daemon.pid().as_raw_nonzero().to_string();
    let tracer = Command::new("strace")
        .args(["-f", "-q", "-p", &pid, "-o"])
        .arg(&out)
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut tracer) = tracer else {
        println!("skipped: there is no strace");
        return;
    };
    // With -q it says nothing but what is wrong, and a traced process has its tracer's number.
    let attached = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
        status
            .lines()
            .any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
    };
    for _ in 0..500 {
        if attached() || tracer.try_wait().expect("wait").is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    if !attached() {
        let mut why = String::new();
        let _ = BufReader::new(tracer.stderr.take().expect("stderr")).read_line(&mut why);
        println!("skipped: strace cannot attach: {why}");
        return;
    }
    // All of its threads are, when the first is and a moment has passed.
    std::thread::sleep(std::time::Duration::from_millis(300));
    take(2);
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_child(&tracer),
        rustix::process::Signal::INT,
    );
    tracer.wait().expect("the tracer");
    let trace = std::fs::read_to_string(out).expect("a trace");
    let calls = calls_between(&trace);
    let wanted = documented();
    println!("{wanted:?}");
    assert!(calls.contains(&wanted), "{wanted:?} is in none of {calls:?}\n{trace}");
}
