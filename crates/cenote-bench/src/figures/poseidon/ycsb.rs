//! Figure 9: YCSB over a B+-tree ([`super::tree`]).
//!
//! * `load`: keys are inserted into a new tree, in random order: a value for each, and nodes. The
//!   paper: 10^7; here 10^6, or `--objects N`. A run is all of them.
//! * `a`: workload A over such a tree, 10^7 operations in the paper: half reads, half updates, of
//!   keys by a scrambled Zipfian distribution with constant 0.99. An update allocates a new value,
//!   stores it, and frees the old one, which another thread may have allocated. The paper does not
//!   say how large its values are, nor that updates allocate; it calls the workload heavy on
//!   allocation.
//!
//! What a thread is to do is computed before the clock starts.

use super::tree::Tree;
use super::{On, operations, threads};
use crate::allocator::{Allocator, Fault, verdict};
use crate::case::{Case, Failure, Length, Sample};
use crate::place::Settings;
use crate::random::Random;
use crate::team::team;
use std::cell::OnceCell;
use std::rc::Rc;

/// Keys, if nothing else is asked for.
const KEYS: u64 = 1_000_000;

/// Operations of the paper's workload A.
const OPERATIONS: u64 = 10_000_000;

/// Operations of a thread that are computed before; then they are repeated.
const COMPUTED: usize = 1 << 20;

/// The rows of Figure 9.
pub(super) fn figure9<A: Allocator>(on: &On<A>, settings: &Settings) -> Vec<Case> {
    let keys = keys(settings);
    let persistence = on.persistence();
    // Loaded when it is used first, for all numbers of threads.
    let loaded: Rc<OnceCell<Tree<A>>> = Rc::default();
    let length = operations(OPERATIONS, settings);
    let mut cases = Vec::new();
    for threads in threads(settings) {
        cases.push(on.case("load", threads, Length::Operations(keys), move |allocator, _| {
            let tree = Tree::new(allocator.clone(), persistence)?;
            let sample = load(&tree, threads, keys)?;
            verdict(tree.free_all())?;
            Ok(sample)
        }));
        let loaded = Rc::clone(&loaded);
        cases.push(on.case("a", threads, length, move |allocator, count| {
            if loaded.get().is_none() {
                let tree = Tree::new(allocator.clone(), persistence)?;
                load(&tree, 1, keys)?;
                let _ = loaded.set(tree);
            }
            let tree = loaded.get().ok_or("the tree was loaded")?;
            workload_a(tree, threads, keys, count)
        }));
    }
    cases
}

/// Keys of a tree.
#[must_use]
pub fn keys(settings: &Settings) -> u64 {
    settings.objects.unwrap_or(if settings.quick { 10_000 } else { KEYS })
}

/// Key number `i`: all are different, none is 0, and they are in no order.
fn key(i: u64) -> u64 {
    (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn load<A: Allocator>(tree: &Tree<A>, threads: u32, keys: u64) -> Result<Sample, Failure> {
    team(threads, |member| {
        let mine = || (u64::from(member.index)..keys).step_by(threads as usize);
        let mut wrong = 0;
        member.timed(|| -> Result<(), Fault> {
            for i in mine() {
                wrong |= tree.put(key(i))?;
            }
            Ok(())
        })?;
        verdict(wrong)?;
        Ok(mine().count() as u64)
    })
}

/// What a thread does with a key.
#[derive(Clone, Copy)]
struct YcsbStep {
    key: u64,
    is_update: bool,
}

fn workload_a<A: Allocator>(
    tree: &Tree<A>,
    threads: u32,
    keys: u64,
    count: u64,
) -> Result<Sample, Failure> {
    let each = count.div_ceil(u64::from(threads)).max(1);
    let zipf = Zipf::new(keys);
    team(threads, |member| {
        let mut random = Random::new(u64::from(member.index) << 32 | count);
        let steps: Vec<YcsbStep> = (0..each.min(COMPUTED as u64))
            .map(|_| YcsbStep {
                key: key(zipf.scrambled(&mut random)),
                is_update: random.below(2) == 0,
            })
            .collect();
        let mut wrong = 0;
        let mut some = |count: u64| -> Result<(), Fault> {
            for step in steps.iter().cycle().take(count as usize) {
                wrong |= match step.is_update {
                    true => tree.put(step.key)?,
                    false => tree.read(step.key),
                };
            }
            Ok(())
        };
        some(each / 8)?;
        member.timed(|| some(each))?;
        verdict(wrong)?;
        Ok(each)
    })
}

/// YCSB's Zipfian numbers (after Gray and others, SIGMOD 1994).
struct Zipf {
    items: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

/// YCSB's constant.
const THETA: f64 = 0.99;

impl Zipf {
    fn new(items: u64) -> Self {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-THETA)).sum::<f64>();
        let all = zeta(items);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / all);
        Self { items, zeta: all, alpha: 1.0 / (1.0 - THETA), eta }
    }

    /// 0 most often, then 1, and so on.
    fn rank(&self, random: &mut Random) -> u64 {
        let u = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }

    /// The same, with the frequent numbers all over the range.
    fn scrambled(&self, random: &mut Random) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for byte in self.rank(random).to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        hash % self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_frequent_as_zipf_says() {
        let (zipf, mut random) = (Zipf::new(1000), Random::new(1));
        let mut seen = vec![0u32; 1000];
        for _ in 0..200_000 {
            seen[zipf.rank(&mut random) as usize] += 1;
        }
        // One in `zeta`, which is 7.7 for a thousand numbers.
        let first = 200_000.0 / zipf.zeta;
        assert!((f64::from(seen[0]) / first - 1.0).abs() < 0.05, "{} of {first}", seen[0]);
        assert!(seen[0] > seen[1] && seen[1] > seen[10] && seen[10] > seen[500], "{seen:?}");
        assert!((0..1000).all(|_| zipf.scrambled(&mut random) < 1000));
    }
}
