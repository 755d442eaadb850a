//! Memory of a sub-heap comes from the node of its CPU. `scripts/machine.sh` has a machine with two
//! nodes.

use crate::protected::{backing, make, open, options};
use cenote_heap::Backing;
use cenote_heap::logged::{LoggedHeap, LoggedOptions, Protection};
use cenote_layout::catalog::PoolMode;
use cenote_layout::id::TypeId;
use cenote_layout::puddle::{Role, header_space};
use cenote_sys::numa;
use cenote_testkit::directories::directory;
use std::thread;

const PAGE: u64 = 4096;

/// This thread runs on that CPU alone.
fn pin(cpu: usize) {
    // SAFETY: the kernel reads one set of CPUs.
    let done = unsafe {
        let mut cpus: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(cpu, &mut cpus);
        libc::sched_setaffinity(0, size_of_val(&cpus), &cpus)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// The node of the page at an address, which was touched.
fn node_of(addr: u64) -> u32 {
    // SAFETY: a page of this test's own.
    unsafe { numa::node_of(addr) }.expect("a page that was touched")
}

/// Each CPU allocates until its sub-heap has grown by several puddles. CPU 0 touches the pages:
/// without the request all would lie on its own node.
#[test]
fn memory_of_a_sub_heap_comes_from_the_node_of_its_cpu() {
    if numa::nodes() < 2 {
        println!("skipped: this machine has one node");
        return;
    }
    let dir = directory();
    let path = dir.path().join("store");
    make(&path, PoolMode::Direct);
    let store = open(&path);
    let options = LoggedOptions { levels: 2, ..LoggedOptions::for_pool(1 << 20) };
    let heap = LoggedHeap::open_pool(backing(&store), &options).expect("a heap");
    let size = 64 << 10;
    let blocks_on = |cpu| {
        pin(cpu);
        let node = numa::current();
        let alloc = |_| heap.alloc(size, 1, TypeId(7)).expect("room").addr;
        (node, (0..100).map(alloc).collect::<Vec<u64>>())
    };
    let by_cpu = [0, 1]
        .map(|cpu| thread::scope(|scope| scope.spawn(|| blocks_on(cpu)).join().expect("blocks")));
    assert_ne!(by_cpu[0].0, by_cpu[1].0, "two CPUs of two nodes");
    pin(0);
    let mut own = vec![0u8; 1 << 20];
    own.iter_mut().step_by(PAGE as usize).for_each(|byte| *byte = 1);
    assert_eq!(node_of(own.as_ptr().addr() as u64 + PAGE), by_cpu[0].0);
    for (node, blocks) in by_cpu {
        let pages = blocks.iter().map(|addr| addr.next_multiple_of(PAGE));
        let nodes: Vec<u32> = pages
            .map(|addr| {
                let page = core::ptr::with_exposed_provenance_mut::<u8>(addr as usize);
                // SAFETY: a byte of a block of this test's own.
                unsafe { page.write_volatile(1) };
                node_of(addr)
            })
            .collect();
        let there = nodes.iter().filter(|&&at| at == node).count();
        println!("node {node}: {there} of {} pages", nodes.len());
        assert_eq!(there, nodes.len(), "node {node}: {nodes:?}");
    }
}

/// What the kernel says of the memory at an address: `prefer:0`.
fn policy_of(addr: u64) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
    let of = |line: &str| {
        let (at, rest) = line.split_once(' ')?;
        let policy = rest.split(' ').next()?;
        Some((u64::from_str_radix(at, 16).ok()?, policy.to_owned()))
    };
    // A line is of what lies from its address on.
    maps.lines().filter_map(of).take_while(|(at, _)| *at <= addr).last().map(|(_, policy)| policy)
}

/// All that a sub-heap has is asked for on the node of its CPU: also levels of its table that lie
/// in puddles of their own, guarded or not. On a machine with one node the heap is told of two.
#[test]
fn levels_in_later_puddles_are_asked_for_on_the_node_of_the_cpu() {
    for protection in [Protection::None, Protection::Hidden] {
        let dir = directory();
        let path = dir.path().join("store");
        make(&path, PoolMode::Direct);
        let store = open(&path);
        let options = LoggedOptions { nodes: || 2, ..options(protection) };
        let heap = LoggedHeap::open_pool(backing(&store), &options).expect("a heap");
        pin(0);
        let _ = heap.alloc(300, 1, TypeId(7)).expect("room");
        let roles: Vec<(u64, Role)> = {
            (0..3000).for_each(|_| assert!(heap.alloc(300, 1, TypeId(7)).is_ok()));
            let extents = backing(&store).extents().into_iter().skip(1);
            extents.map(|e| (e.addr, store.puddle_of(e.addr).expect("a puddle").role())).collect()
        };
        let node = numa::current();
        let levels: Vec<u64> =
            roles.iter().filter(|(_, role)| *role == Role::Metadata).map(|(at, _)| *at).collect();
        assert!(!levels.is_empty() && levels.len() < roles.len());
        for (at, role) in &roles {
            // Behind the header of the puddle, and a guard page.
            let at = at + header_space(1 << 20) + 2 * PAGE;
            let Some(policy) = policy_of(at) else {
                println!("skipped: the kernel does not say");
                return;
            };
            assert_eq!(policy, format!("prefer:{node}"), "{protection:?} {role:?} {at:#x}");
        }
    }
}
