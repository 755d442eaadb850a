//! What child processes do to a store: a writer that does something to its own files, and openers
//! that try to come in. A child says lines that begin with `@`.

use cenote::{Access, Error, OpenOptions, Persist, Pool, Ptr, Reader, Result, Store, field};
use cenote_testkit::child::{Talking, again, say, wait_to_go_on};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the child is to do: role, directory, operation, file.
pub(crate) const CHILD: &str = "CENOTE_WRITERS_CHILD";

#[derive(Persist)]
#[persist(name = "writers::Counter")]
pub(crate) struct Counter {
    pub(crate) value: u64,
}

pub(crate) fn counter(pool: &Pool) -> Result<Ptr<Counter>> {
    pool.write(|tx| match tx.root::<Counter>()? {
        Some(counter) => Ok(counter),
        None => {
            let counter = tx.alloc(Counter { value: 0 })?;
            tx.set_root(counter)?;
            Ok::<_, Error>(counter)
        }
    })
}

pub(crate) fn add(pool: &Pool, counter: Ptr<Counter>) -> Result<u64> {
    pool.write(|tx| {
        let value = tx.get(counter)?.value + 1;
        tx.set(counter, field!(Counter, value), value)?;
        Ok::<_, Error>(value)
    })
}

pub(crate) fn value(store: &Store) -> Result<u64> {
    let pool = store.pool("p")?;
    let view = pool.read()?;
    let root = view.root::<Counter>()?.expect("the counter");
    Ok(view.get(root)?.value)
}

/// What a program can do to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Copies it, which opens and closes it.
    Copy,
    /// Opens and closes it by another name.
    HardLink,
    /// Opens and closes it through a symbolic link.
    Symlink,
    /// Gives it another name and its own again.
    RenameAndBack,
    /// Puts a copy in its place.
    Replace,
    /// Writes into it what is in it.
    Rewrite,
    /// Gives it another name.
    RenameAway,
    /// Removes it.
    Remove,
}

impl Operation {
    pub(crate) const ALL: [Self; 8] = [
        Self::Copy,
        Self::HardLink,
        Self::Symlink,
        Self::RenameAndBack,
        Self::Replace,
        Self::Rewrite,
        Self::RenameAway,
        Self::Remove,
    ];

    pub(crate) fn parse(text: &str) -> Self {
        Self::ALL.into_iter().find(|op| format!("{op:?}") == text).expect("an operation")
    }

    /// Whether what the writer goes on to write may be lost with the file, because the program
    /// removed that or put another in its place.
    pub(crate) fn loses(self, file: &str) -> bool {
        matches!(self, Self::Replace | Self::RenameAway | Self::Remove) && file != "lock"
    }

    pub(crate) fn run(self, path: &Path) {
        let other = path.with_extension("other");
        match self {
            Self::Copy => drop(fs::copy(path, &other).unwrap()),
            Self::HardLink => {
                fs::hard_link(path, &other).unwrap();
                drop(fs::File::open(&other).unwrap());
                fs::remove_file(&other).unwrap();
            }
            Self::Symlink => {
                std::os::unix::fs::symlink(path, &other).unwrap();
                drop(fs::read(&other).unwrap());
                fs::remove_file(&other).unwrap();
            }
            Self::RenameAndBack => {
                fs::rename(path, &other).unwrap();
                fs::rename(&other, path).unwrap();
            }
            Self::Replace => {
                fs::copy(path, &other).unwrap();
                fs::rename(&other, path).unwrap();
            }
            Self::Rewrite => {
                let bytes = fs::read(path).unwrap();
                let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
                file.write_all(&bytes).unwrap();
            }
            Self::RenameAway => fs::rename(path, &other).unwrap(),
            Self::Remove => fs::remove_file(path).unwrap(),
        }
        // A copy beside it is in no writer's way.
        if self == Self::Copy {
            fs::remove_file(&other).unwrap();
        }
    }
}

/// Opens, commits, does something to its files, commits on when it is told to, and closes.
pub(crate) fn writer(dir: &Path, operation: &str, files: &str) -> Result<()> {
    let store = Store::open_with(dir, &OpenOptions::default())?;
    let pool = store.pool("p")?;
    let counter = counter(&pool)?;
    for _ in 0..3 {
        add(&pool, counter)?;
    }
    if operation != "None" {
        for file in files.split('+') {
            let path = match file {
                "puddle" => {
                    fs::read_dir(dir.join("puddles")).unwrap().next().unwrap().unwrap().path()
                }
                file => dir.join(file),
            };
            let operation = Operation::parse(operation);
            if file == "lock" && files != "lock" {
                fs::remove_file(&path).unwrap()
            } else {
                operation.run(&path)
            }
        }
    }
    say("ready");
    wait_to_go_on();
    let mut last = 0;
    let mut went_on = || {
        for _ in 0..3 {
            last = add(&pool, counter)?;
        }
        store.add_pool("q", &cenote::PoolOptions::default()).map(drop)
    };
    let result = went_on();
    drop(pool);
    let closed = store.close();
    say(format!("{last} {} {}", said(&result), said(&closed)));
    Ok(())
}

pub(crate) fn said<T>(result: &Result<T>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("[{error}]"),
    }
}

/// Tries to come in, in every way.
pub(crate) fn openers(dir: &Path) {
    // SAFETY: no client is admitted.
    let serving = Some(unsafe { cenote_store::Hosting::new() });
    let options = |access, hosting| OpenOptions { access, hosting, ..OpenOptions::default() };
    for (name, options) in [
        ("writer", options(Access::ReadWrite, None)),
        ("reader", options(Access::ReadOnly, None)),
        ("daemon", options(Access::ReadWrite, serving)),
    ] {
        match Store::open_with(dir, &options) {
            Ok(store) => {
                let seen = value(&store).map_or_else(|error| error.to_string(), |v| v.to_string());
                say(format!("{name} came in and saw {seen}"));
            }
            Err(error) => say(format!("{name} refused: {error}")),
        }
    }
    // Makes a store where there seems to be none.
    match Store::open(dir) {
        Ok(_) => say("format came in"),
        Err(error) => say(format!("format refused: {error}")),
    }
    say("done");
}

/// Opens a store, and goes on as another program, which has that store's superblock open if it is
/// told so.
pub(crate) fn execute(dir: &Path, program: &str) -> Result<()> {
    use std::os::unix::process::CommandExt;
    let store = Store::open(dir)?;
    let pool = store.pool("p")?;
    let counter = counter(&pool)?;
    add(&pool, counter)?;
    say("ready");
    wait_to_go_on();
    let script = match program {
        "opens" => "exec 9<\"$0\"; echo; echo @there; exec sleep 60",
        _ => "echo; echo @there; exec sleep 60",
    };
    let error = Command::new("sh").arg("-c").arg(script).arg(dir.join("superblock")).exec();
    panic!("exec: {error}")
}

/// Starts a child that does this.
pub(crate) fn start(what: &str) -> Talking {
    let mut command = again("writers::child");
    Talking::start(command.args(["--test-threads", "1"]).env(CHILD, what).stderr(Stdio::null()))
}

/// Writes pages full of one number until it is killed.
pub(crate) fn busy(dir: &Path) -> Result<()> {
    let store = Store::open_with(dir, &OpenOptions::default())?;
    let pool = store.pool("p")?;
    let counter = counter(&pool)?;
    say("ready");
    loop {
        add(&pool, counter)?;
    }
}
