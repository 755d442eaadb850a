//! Readers beside writers, and writers beside writers.

use super::{Value, all, make, modelled};
use crate::common::{assert_sound, directory, pool, power_pool, random};
use cenote::Pool;
use cenote_groups::GroupOptions;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const KEYS: usize = 300;

/// How far each key is: the step that its writer has begun with, and the last that is done. A step
/// that is odd removes the key.
struct KeySteps {
    begun: Vec<AtomicU64>,
    done: Vec<AtomicU64>,
}

fn value(key: u64, step: u64) -> Value {
    [step, key, !step, !key]
}

/// Each writer has keys of its own; readers look at all of them.
fn beside(pool: &Pool, options: GroupOptions, (writers, steps): (u64, u64)) {
    let open = make(pool).open_with(pool, options).expect("open");
    let atomics = || (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let keys = KeySteps { begun: atomics(), done: atomics() };
    let stop = AtomicBool::new(false);
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|writer| {
                let (open, keys) = (open.clone(), &keys);
                scope.spawn(move || {
                    let mut seed = writer + 7;
                    for at in 0..steps {
                        let key = random(&mut seed) % (KEYS as u64 / writers) * writers + writer;
                        let step = keys.begun[key as usize].fetch_add(1, Ordering::SeqCst) + 1;
                        if step % 3 == 0 {
                            open.remove(&key).unwrap();
                        } else {
                            open.insert(&key, &value(key, step)).unwrap();
                        }
                        keys.done[key as usize].store(step, Ordering::SeqCst);
                        if at % 97 == 0 {
                            open.flush().unwrap();
                        }
                    }
                })
            })
            .collect();
        for reader in 0..2 {
            let (open, keys, stop, seen) = (open.clone(), &keys, &stop, &seen);
            scope.spawn(move || {
                let mut seed = 1000 + reader;
                while !stop.load(Ordering::Relaxed) {
                    let key = random(&mut seed) % KEYS as u64;
                    let least = keys.done[key as usize].load(Ordering::SeqCst);
                    let view = pool.read().unwrap();
                    let found = open.get(&view, &key).unwrap().copied();
                    let in_range =
                        open.range(&view, key..=key).unwrap().next().map(|(_, value)| *value);
                    drop(view);
                    let most = keys.begun[key as usize].load(Ordering::SeqCst);
                    for found in [found, in_range] {
                        match found {
                            Some(found) => {
                                assert_eq!(found, value(key, found[0]), "whole");
                                assert!((least..=most).contains(&found[0]), "{least}..={most}");
                            }
                            None => assert!((least..=most).any(|step| step % 3 == 0)),
                        }
                    }
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        stop.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.expect("a writer"));
    });
    assert!(seen.into_inner() > 0, "readers went on");
    let model: BTreeMap<u64, Value> = (0..KEYS as u64)
        .map(|key| (key, keys.done[key as usize].load(Ordering::SeqCst)))
        .filter(|(_, step)| step % 3 != 0)
        .map(|(key, step)| (key, value(key, step)))
        .collect();
    assert_eq!(all(&open, pool), model);
    drop(open);
    assert_sound(pool);
}

#[test]
fn readers_beside_one_writer_see_each_entry_whole_and_none_that_is_older_than_asked() {
    let dir = directory();
    beside(&pool(dir.path()), GroupOptions::default(), (1, 8_000));
}

#[test]
fn readers_beside_several_writers_at_power_see_each_entry_whole() {
    for options in [GroupOptions::default(), modelled()] {
        let dir = directory();
        beside(&power_pool(dir.path()), options, (2, 2_500));
    }
}
