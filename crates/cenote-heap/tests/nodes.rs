//! Memory of a sub-heap comes from the node of its CPU. `scripts/machine.sh` has a machine with two
//! nodes.

use crate::protected::{backing, make, open};
use cenote_heap::logged::{LoggedHeap, LoggedOptions};
use cenote_layout::catalog::PoolMode;
use cenote_layout::id::TypeId;
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
