//! SIGKILL of a daemon and of clients that share a pool.
//!
//! Each client has a list of its own in the pool, and all have one total. A transaction changes a
//! client's list, its step and the total; the client says the step when that is committed. After
//! each kill, of a client, of the daemon, or of all:
//!
//! * the list of a dead client is at the last step that it said, or at the next one; those of
//!   others have lost nothing that was said;
//! * the total is the sum of the steps; each list is equal to the model of its step;
//! * clients that live go on, also while there is no daemon; after the end, no block leaks and
//!   nothing is damaged.

use crate::child::{self, Child};
use crate::round::{Outcome, Round, found, require};
use cenote::{Access, Persist, Pool, PoolOptions, Ptr, Reader, Result, Store};
use cenote_fuzz::Random;
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most clients of a round.
const CLIENTS_MAX: usize = 3;
/// Items that a transaction puts or takes.
const ITEMS: u64 = 4;
/// Kills of one round.
const KILLS: u64 = 6;
/// How long a client or this process waits for a daemon that is started again.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Persist)]
#[persist(name = "adversary::Shared")]
struct Shared {
    total: u64,
    lists: [List; CLIENTS_MAX],
}

#[derive(Clone, Copy, Persist)]
#[persist(name = "adversary::List")]
struct List {
    step: u64,
    first: Option<Ptr<Item>>,
}

#[derive(Persist)]
#[persist(name = "adversary::Item")]
struct Item {
    number: u64,
    next: Option<Ptr<Item>>,
    words: [u64; 40],
}

fn words(seed: u64, step: u64) -> [u64; 40] {
    let mut random = Random(seed ^ step.rotate_left(32));
    core::array::from_fn(|_| random.next_word())
}

/// Whether a step takes the first item away.
fn takes(seed: u64, step: u64) -> bool {
    Random(seed.rotate_left(7) ^ step).next_word() % 5 < 2
}

/// One transaction: the total goes up first, and the step last, so that what is half done shows.
fn apply(pool: &Pool, seed: u64, client: usize) -> Result<u64> {
    pool.write(|tx| -> Result<u64> {
        let shared =
            tx.root::<Shared>()?.ok_or_else(|| cenote::Error::Aborted("no root".into()))?;
        tx.get_mut(shared)?.total += 1;
        let List { step, mut first } = tx.get(shared)?.lists[client];
        for number in items(step) {
            first = match first {
                Some(item) if takes(seed, number) => {
                    let next = tx.get(item)?.next;
                    tx.free(item)?;
                    next
                }
                next => Some(tx.alloc(Item { number, next, words: words(seed, number) })?),
            };
            tx.get_mut(shared)?.lists[client].first = first;
        }
        tx.get_mut(shared)?.lists[client].step = step + 1;
        Ok(step + 1)
    })
}

/// The numbers of the items that a step puts or takes.
fn items(step: u64) -> std::ops::Range<u64> {
    step * ITEMS..(step + 1) * ITEMS
}

/// Tries again while the daemon may be on its way.
fn patiently<T, E: std::fmt::Display>(
    mut what: impl FnMut() -> std::result::Result<T, E>,
) -> Outcome<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match what() {
            Ok(done) => return Ok(done),
            Err(error) if Instant::now() > end => {
                return found(format!("after a minute still: {error}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// A child: `STORE SOCKET`. Says a number when it listens.
pub(crate) fn daemon(args: &[String]) -> Outcome {
    cenoted::prepare_process();
    let config = cenoted::Config::new(&args[0], &args[1]);
    let server = cenoted::Server::start(&config, None)?;
    child::say(1)?;
    let (_stays, stop) = std::os::unix::net::UnixStream::pair()?;
    Ok(server.run(std::os::fd::AsFd::as_fd(&stop))?)
}

/// A child: `SOCKET SEED NUMBER`.
pub(crate) fn client(args: &[String]) -> Outcome {
    let (seed, number) = (child::number(args, 1)?, child::number(args, 2)? as usize);
    let store = patiently(|| Store::connect(&args[0]))?;
    let pool = patiently(|| store.pool_with("shared", Access::Shared))?;
    loop {
        // A pool grows through the daemon, which may be dead.
        child::say(patiently(|| apply(&pool, seed, number))?)?;
    }
}

/// A daemon and its clients, as they come and go.
struct Scene<'a> {
    dir: &'a Path,
    seed: u64,
    daemon: Option<Child>,
    clients: Vec<Option<Child>>,
    /// Of each client, the least step that must be there, and whether it is dead, so that the next
    /// one is the most.
    said: Vec<u64>,
}

impl Scene<'_> {
    fn start_daemon(&mut self) -> Outcome {
        let (store, socket) = (self.dir.join("store"), self.dir.join("socket"));
        let mut daemon = Child::start(self.dir, "daemon", &[&store, &socket])?;
        daemon.hear()?;
        self.daemon = Some(daemon);
        Ok(())
    }

    fn kill_daemon(&mut self) -> Outcome {
        self.daemon.take().map_or(Ok(()), |daemon| daemon.kill().map(drop))
    }

    fn start_client(&mut self, number: usize) -> Outcome {
        let socket = self.dir.join("socket");
        let child = Child::start(
            self.dir,
            "client",
            &[&socket, &self.seed.to_string(), &number.to_string()],
        )?;
        self.clients[number] = Some(child);
        Ok(())
    }

    fn kill_client(&mut self, number: usize) -> Outcome<u64> {
        let Some(child) = self.clients[number].take() else { return Ok(0) };
        let last = child.kill()?.last().copied().unwrap_or(self.said[number]);
        let count = last - self.said[number];
        self.said[number] = last;
        Ok(count)
    }

    /// Every client that lives goes on.
    fn hear_all(&mut self) -> Outcome {
        for (client, said) in self.clients.iter_mut().zip(&mut self.said) {
            if let Some(client) = client {
                *said = client.hear()?.max(*said);
            }
        }
        Ok(())
    }

    /// While clients commit, the daemon copies the store: what it made is of one moment.
    fn back_up(&self, round: &mut Round<'_>) -> Outcome {
        let target = self.dir.join("backup");
        let mut command = child::cenote();
        command.arg("backup").arg(self.dir.join("socket")).arg(&target);
        let ended = child::run(&mut command, self.dir, child::LIMIT)?;
        require(ended.code == Some(0), || format!("backup: {ended:?}"))?;
        let store = Store::open(&target)?;
        let pool = store.pool("shared")?;
        self.compare(&pool)?;
        require(pool.check()?.is_sound(), || "the backup is not sound".into())?;
        drop(pool);
        store.close()?;
        round.counts.add("backups", 1);
        Ok(std::fs::remove_dir_all(target)?)
    }

    /// Compares the pool with the models, and what clients said.
    fn judge(&mut self, pool: &Pool) -> Outcome {
        let steps = self.compare(pool)?;
        for (number, step) in steps.into_iter().enumerate() {
            let said = self.said[number];
            let is_dead = self.clients[number].is_none();
            require(step >= said && (!is_dead || step <= said + 1), || {
                format!("client {number} is at step {step}, and has said {said}")
            })?;
            if is_dead {
                self.said[number] = step;
            }
        }
        Ok(())
    }

    /// Compares the pool with the models. The step of each client.
    fn compare(&self, pool: &Pool) -> Outcome<Vec<u64>> {
        let view = pool.read()?;
        let Some(shared) = view.root::<Shared>()? else { return found("no root") };
        let shared = view.get(shared)?;
        let mut total = 0;
        for (number, list) in shared.lists.iter().enumerate().take(self.said.len()) {
            total += list.step;
            let mut at = list.first;
            for item_number in model(self.seed, list.step) {
                let Some(item) = at else {
                    return found(format!("client {number}: no item {item_number}"));
                };
                let item = view.get(item)?;
                require(
                    item.number == item_number && item.words == words(self.seed, item_number),
                    || {
                        format!(
                            "client {number}: item {} is where {item_number} must be",
                            item.number
                        )
                    },
                )?;
                at = item.next;
            }
            require(at.is_none(), || format!("client {number} has more items than its model"))?;
        }
        require(total == shared.total, || {
            format!("total {}, and the steps make {total}", shared.total)
        })?;
        Ok(shared.lists.iter().take(self.said.len()).map(|list| list.step).collect())
    }
}

/// The numbers of the items after `step` steps, the last first.
fn model(seed: u64, step: u64) -> VecDeque<u64> {
    let mut items = VecDeque::new();
    for number in (0..step).flat_map(self::items) {
        if items.is_empty() || !takes(seed, number) {
            items.push_front(number);
        } else {
            items.pop_front();
        }
    }
    items
}

fn prepare(dir: &Path) -> Outcome {
    child::format(dir)?;
    let store = Store::open(dir)?;
    let options = PoolOptions { puddle_size: 192 << 10, ..PoolOptions::default() };
    let pool = store.create_pool("shared", &options)?;
    pool.write(|tx| -> Result<()> {
        let lists = [List { step: 0, first: None }; CLIENTS_MAX];
        let shared = tx.alloc(Shared { total: 0, lists })?;
        tx.set_root(shared)
    })?;
    drop(pool);
    Ok(store.close()?)
}

/// See the module.
pub(crate) fn round(round: &mut Round<'_>) -> Outcome {
    prepare(&round.dir.join("store"))?;
    let count = 2 + round.below(CLIENTS_MAX as u64 - 1) as usize;
    let mut scene = Scene {
        dir: round.dir,
        seed: round.seed,
        daemon: None,
        clients: (0..count).map(|_| None).collect(),
        said: vec![0; count],
    };
    scene.start_daemon()?;
    (0..count).try_for_each(|number| scene.start_client(number))?;
    for kill in 0..KILLS {
        scene.hear_all()?;
        if round.below(3) == 0 {
            scene
                .back_up(round)
                .map_err(|trouble| trouble.at(format_args!("before kill {kill}")))?;
        }
        std::thread::sleep(round.moment(20_000));
        let victim = round.below(count as u64) as usize;
        let what = ["client", "client", "daemon", "all"][round.below(4) as usize];
        one_kill(&mut scene, round, what, victim).map_err(|trouble| {
            trouble.at(format_args!("kill {kill}, of {what}, client {victim}"))
        })?;
    }
    end(&mut scene, round)
}

fn one_kill(scene: &mut Scene<'_>, round: &mut Round<'_>, what: &str, victim: usize) -> Outcome {
    match what {
        "client" => {
            let said = scene.kill_client(victim)?;
            round.counts.add("operations acknowledged", said);
            round.counts.add("clients killed", 1);
            let store = patiently(|| Store::connect(scene.dir.join("socket")))?;
            scene.judge(&patiently(|| store.pool_with("shared", Access::Shared))?)?;
            scene.start_client(victim)
        }
        "daemon" => {
            scene.kill_daemon()?;
            round.counts.add("daemons killed", 1);
            std::thread::sleep(round.moment(5_000));
            // A client may die before the daemon is there again.
            if round.below(3) == 0 {
                let said = scene.kill_client(victim)?;
                round.counts.add("operations acknowledged", said);
            }
            scene.start_daemon()?;
            if scene.clients[victim].is_none() {
                scene.start_client(victim)?;
            }
            scene.hear_all()
        }
        _ => {
            kill_all(scene, round)?;
            round.counts.add("killed all", 1);
            if round.below(2) == 0 {
                judge_embedded(scene)?;
            }
            scene.start_daemon()?;
            (0..scene.clients.len()).try_for_each(|number| scene.start_client(number))
        }
    }
}

fn kill_all(scene: &mut Scene<'_>, round: &mut Round<'_>) -> Outcome {
    let daemon_first = round.below(2) == 0;
    if daemon_first {
        scene.kill_daemon()?;
    }
    for number in 0..scene.clients.len() {
        let said = scene.kill_client(number)?;
        round.counts.add("operations acknowledged", said);
    }
    scene.kill_daemon()
}

/// What an embedded store finds when all are dead.
fn judge_embedded(scene: &mut Scene<'_>) -> Outcome {
    let store = Store::open(scene.dir.join("store"))?;
    require(store.report().damage.is_empty(), || format!("damage: {:?}", store.report().damage))?;
    let pool = store.pool("shared")?;
    scene.judge(&pool)?;
    let report = pool.check()?;
    require(report.is_sound(), || format!("{report:?}"))?;
    drop(pool);
    Ok(store.close()?)
}

fn end(scene: &mut Scene<'_>, round: &mut Round<'_>) -> Outcome {
    kill_all(scene, round)?;
    judge_embedded(scene).map_err(|trouble| trouble.at("at the end"))
}
