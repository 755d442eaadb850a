//! The programs of docs/tutorial do what its pages say.

use cenote_testkit::child::again;
use cenote_testkit::directories::directory;

mod counter {
    include!("../tutorial/counter.rs");

    pub(super) fn run() {
        main();
    }
}

mod line {
    include!("../tutorial/line.rs");

    pub(super) fn run() {
        main().unwrap();
    }
}

mod words {
    include!("../tutorial/words.rs");

    pub(super) fn run() {
        main().unwrap();
    }
}

mod accounts {
    include!("../tutorial/accounts.rs");

    pub(super) fn run() {
        main().unwrap();
    }
}

mod log {
    include!("../tutorial/log.rs");

    pub(super) fn run_program() {
        main().unwrap();
    }
}

/// The program that the child of these tests runs.
const PROGRAM: &str = "CENOTE_TUTORIAL_PROGRAM";

/// A program of the tutorial: its page, its text, and what its runs print.
struct Lesson {
    name: &'static str,
    page: &'static str,
    program: &'static str,
    prints: &'static [&'static str],
}

const LESSONS: [Lesson; 5] = [
    Lesson {
        name: "counter",
        page: include_str!("../../docs/tutorial/1-first-pool.md"),
        program: include_str!("../tutorial/counter.rs"),
        prints: &["run 1\n", "run 2\n"],
    },
    Lesson {
        name: "line",
        page: include_str!("../../docs/tutorial/2-own-types.md"),
        program: include_str!("../tutorial/line.rs"),
        prints: &["born 1906, 7 minutes\nborn 1815\n"],
    },
    Lesson {
        name: "words",
        page: include_str!("../../docs/tutorial/3-collections.md"),
        program: include_str!("../tutorial/words.rs"),
        prints: &[
            "be: [1, 5]\nnot: [3]\nto: [0, 4]\n",
            "be: [1, 5, 7, 11]\nnot: [3, 9]\nto: [0, 4, 6, 10]\n",
        ],
    },
    Lesson {
        name: "accounts",
        page: include_str!("../../docs/tutorial/4-transactions.md"),
        program: include_str!("../tutorial/accounts.rs"),
        prints: &["30 to bob\neve has no account\nnot 300 to bob: there are 70\n\
                   ada: Some(70)\nbob: Some(30)\n"],
    },
    Lesson {
        name: "log",
        page: include_str!("../../docs/tutorial/5-what-survives.md"),
        program: include_str!("../tutorial/log.rs"),
        prints: &["1 lines\n", "2 lines\n"],
    },
];

#[test]
fn the_tutorial_shows_these_programs() {
    for lesson in LESSONS {
        let shown = format!("```rust,no_run\n{}```\n", lesson.program);
        assert!(lesson.page.contains(&shown), "page and tutorial/{}.rs differ", lesson.name);
    }
}

#[test]
fn the_programs_of_the_tutorial_print_what_it_says() {
    for lesson in LESSONS {
        let scratch = directory();
        for prints in lesson.prints {
            let mut child = again("tutorial::child");
            child.current_dir(scratch.path()).env("XDG_STATE_HOME", scratch.path());
            let output = child.env(PROGRAM, lesson.name).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {error}", lesson.name);
            assert!(said.contains(prints), "{}: {said}", lesson.name);
        }
    }
}

/// A program, in a process of its own: it uses the working directory.
#[test]
fn child() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("counter") => counter::run(),
        Ok("line") => line::run(),
        Ok("words") => words::run(),
        Ok("accounts") => accounts::run(),
        Ok("log") => log::run_program(),
        _ => {}
    }
}
