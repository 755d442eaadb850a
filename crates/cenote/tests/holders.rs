//! Off-holders, region pointers and filters in safe code: they lead where they were made for,
//! recovery follows them, and what does not fit is refused.

use crate::support::directory;
use cenote::filter::{Scanned, Visitor};
use cenote::persist::{LayoutBuilder, TypeId, described};
use cenote::{Error, Persist, Pool, Ptr, Reader, RegionPtr, RelPtr, Result, Store, field};
use cenote_layout::pointer::PointerKind;

#[derive(Persist)]
#[persist(name = "holders::Node")]
struct Node {
    value: u64,
    next: RelPtr<Node>,
    side: [RelPtr<Node>; 2],
}

impl Node {
    fn new(value: u64) -> Self {
        Self { value, next: RelPtr::NULL, side: [RelPtr::NULL, RelPtr::NULL] }
    }
}

#[derive(Persist)]
#[persist(name = "holders::Link")]
#[repr(u8)]
enum Link {
    Missing,
    Near { weight: u32, to: RelPtr<Node> },
    Far(RegionPtr<Node>),
}

#[derive(Persist)]
#[persist(name = "holders::Holder")]
struct Holder {
    link: Link,
    far: RegionPtr<Node>,
    // To itself: links by distance 0.
    this: RelPtr<Holder>,
}

/// Values from `first` on, as its links say.
fn values(reader: &impl Reader, first: Ptr<Node>) -> Result<Vec<u64>> {
    let (mut out, mut at) = (Vec::new(), Some(first));
    while let Some(node) = at {
        let node = reader.get(node)?;
        out.push(node.value);
        at = node.next.get();
    }
    Ok(out)
}

fn build(pool: &Pool, count: u64) -> Result<Ptr<Node>> {
    pool.write(|tx| {
        let mut first: Option<Ptr<Node>> = None;
        for value in (0..count).rev() {
            let node = tx.alloc(Node::new(value))?;
            tx.set_rel(node, field!(Node, next), first)?;
            first = Some(node);
        }
        let first = first.expect("at least one");
        tx.set_root(first)?;
        Ok::<_, Error>(first)
    })
}

#[test]
fn a_list_by_off_holders_is_read_checked_and_collected_like_any_other() -> Result<()> {
    let dir = directory();
    {
        let pool = Store::open(dir.path())?.pool("p")?;
        build(&pool, 1000)?;
        pool.write(|tx| tx.alloc(Node::new(7)).map(drop))?;
    }
    let pool = Store::open(dir.path())?.pool("p")?;
    let first = pool.read()?.root::<Node>()?.expect("the root");
    assert_eq!(values(&pool.read()?, first)?, (0..1000).collect::<Vec<_>>());
    let report = pool.check()?;
    assert_eq!((report.leaked_blocks, report.trace.map(|trace| trace.faults)), (1, Some(0)));
    let report = pool.collect()?;
    assert_eq!((report.trace.blocks, report.freed_blocks), (1000, 1));
    assert_eq!(values(&pool.read()?, first)?.len(), 1000);
    Ok(())
}

#[test]
fn an_aborted_transaction_puts_off_holders_back() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.pool("p")?;
    let first = build(&pool, 3)?;
    let aborted = pool.write(|tx| {
        let third = tx.get(tx.get(first)?.next.get().expect("second"))?.next.get();
        tx.set_rel(first, field!(Node, next), third)?;
        assert_eq!(values(tx, first)?, [0, 2]);
        tx.set_rel(first, field!(Node, next), None)?;
        assert_eq!(values(tx, first)?, [0]);
        Err::<(), _>(Error::Aborted("on purpose".into()))
    });
    assert!(matches!(aborted, Err(Error::Aborted(_))));
    assert_eq!(values(&pool.read()?, first)?, [0, 1, 2]);
    Ok(())
}

fn near(link: &Link) -> Option<&RelPtr<Node>> {
    match link {
        Link::Near { to, .. } => Some(to),
        Link::Missing | Link::Far(_) => None,
    }
}

#[test]
fn elements_and_variants_can_hold_them() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.pool("p")?;
    let (node, holder) = pool.write(|tx| {
        let (a, b) = (tx.alloc(Node::new(1))?, tx.alloc(Node::new(2))?);
        let second = field!(Node, side).element(1).expect("two elements");
        tx.set_rel(a, second, Some(b))?;
        let link = Link::Near { weight: 3, to: RelPtr::NULL };
        let holder = tx.alloc(Holder { link, far: RegionPtr::NULL, this: RelPtr::NULL })?;
        tx.set_rel_in(holder, |holder| near(&holder.link), Some(a))?;
        tx.set_rel(holder, field!(Holder, this), Some(holder))?;
        tx.set_root(holder)?;
        // A variant that has none.
        let other =
            tx.alloc(Holder { link: Link::Missing, far: RegionPtr::NULL, this: RelPtr::NULL })?;
        let found = tx.set_rel_in(other, |holder| near(&holder.link), Some(a));
        assert!(matches!(found, Err(Error::OutOfBounds { .. })));
        tx.free(other)?;
        Ok::<_, Error>((a, holder))
    })?;
    let view = pool.read()?;
    let found = view.get(holder)?;
    let Link::Near { weight: 3, to } = &found.link else { panic!("another variant") };
    assert_eq!((to.get(), found.this.get()), (Some(node), Some(holder)));
    let side = &view.get(node)?.side;
    assert!(side[0].is_null() && side[0].get().is_none());
    assert_eq!(view.get(side[1].get().expect("set"))?.value, 2);
    drop(view);
    assert!(pool.check()?.is_sound());
    assert_eq!(pool.collect()?.freed_blocks, 0);
    Ok(())
}

#[test]
fn an_off_holder_leads_to_live_values_of_its_own_pool_only() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let (one, two) = (store.pool("one")?, store.pool("two")?);
    let (here, there) = (build(&one, 1)?, build(&two, 1)?);
    let next = field!(Node, next);
    let refused = store.write(&[&one, &two], |tx| tx.set_rel(here, next, Some(there)));
    assert!(matches!(refused, Err(Error::OtherPool { to, .. }) if to == there.addr()));
    assert!(refused.unwrap_err().to_string().contains("RegionPtr"));
    let refused = one.write(|tx| tx.set_rel(here, next, Some(there)));
    assert!(matches!(refused, Err(Error::Dangling { .. })));
    let gone = one.write(|tx| tx.alloc(Node::new(1)))?;
    one.write(|tx| tx.free(gone))?;
    let refused = one.write(|tx| tx.set_rel(here, next, Some(gone)));
    assert!(matches!(refused, Err(Error::Dangling { .. })));
    let refused = one.write(|tx| tx.set_rel(gone, next, None));
    assert!(matches!(refused, Err(Error::Dangling { .. })));
    let elsewhere: &'static RelPtr<Node> = Box::leak(Box::new(RelPtr::NULL));
    let refused = one.write(|tx| tx.set_rel_in(here, |_| Some(elsewhere), None));
    assert!(matches!(refused, Err(Error::OutOfBounds { .. })));
    let refused = one.write(|tx| tx.set_rel_in(here, |_| None::<&RelPtr<Node>>, None));
    assert!(matches!(refused, Err(Error::OutOfBounds { .. })));
    assert_eq!(values(&one.read()?, here)?, [0]);
    Ok(())
}

#[test]
fn region_pointers_lead_into_other_pools_and_keep_what_is_there() -> Result<()> {
    let dir = directory();
    {
        let store = Store::open(dir.path())?;
        let (one, two) = (store.pool("one")?, store.pool("two")?);
        store.write(&[&one, &two], |tx| {
            // Nothing in its own pool leads to it.
            let far = tx.alloc_in(&two, Node::new(9))?;
            let region = tx.region_ptr(far)?;
            let link = Link::Far(region);
            let holder = tx.alloc_in(&one, Holder { link, far: region, this: RelPtr::NULL })?;
            tx.set_root_in(&one, 5, Some(holder))
        })?;
    }
    let store = Store::open(dir.path())?;
    let (one, two) = (store.pool("one")?, store.pool("two")?);
    let report = one.check()?;
    assert_eq!(report.trace.map(|trace| (trace.faults, trace.foreign_pointers)), Some((0, 2)));
    assert_eq!(two.check()?.leaked_blocks, 0, "led to from the other pool alone");
    assert_eq!(two.collect()?.freed_blocks, 0);
    let far = {
        let view = one.read()?;
        let holder = view.get(view.root_at::<Holder>(5)?.expect("the root"))?;
        let Link::Far(link) = holder.link else { panic!("another variant") };
        assert_eq!(link, holder.far);
        let to = view.resolve(link)?.expect("not null");
        assert!(matches!(view.get(to), Err(Error::Dangling { .. })), "not a value of this pool");
        assert_eq!(two.read()?.get(to)?.value, 9);
        assert_eq!(view.resolve(RegionPtr::<Node>::NULL)?, None);
        link
    };
    one.write(|tx| tx.set_root_at::<Holder>(5, None))?;
    assert_eq!(two.check()?.leaked_blocks, 1, "nothing leads to it any more");
    assert_eq!(two.collect()?.freed_blocks, 1);
    drop(two);
    store.remove_pool("two")?;
    assert!(matches!(one.read()?.resolve(far), Err(Error::NoRegion { .. })));
    Ok(())
}

#[test]
fn records_say_what_kind_of_pointer_is_where() {
    let kinds = |record: &cenote::persist::TypeRecord| -> Vec<(u64, u64, PointerKind)> {
        record.check().expect("a proper record");
        record.pointers.iter().map(|field| (field.offset, field.count, field.kind)).collect()
    };
    let of_node = Node::record();
    let place = |field| field as u64;
    let mut expected = vec![
        (place(std::mem::offset_of!(Node, next)), 1, PointerKind::RELATIVE),
        (place(std::mem::offset_of!(Node, side)), 2, PointerKind::RELATIVE),
    ];
    expected.sort();
    assert_eq!(kinds(&of_node), expected);
    let holder = Holder::record();
    let of_kind = |kind| kinds(&holder).into_iter().filter(|field| field.2 == kind).count();
    assert_eq!((of_kind(PointerKind::RELATIVE), of_kind(PointerKind::REGION)), (2, 2));
    assert!(
        holder.to_string().contains("off-holder at")
            && holder.to_string().contains("region pointer at")
    );
    let (mut plain, same) = (Node::record(), Node::record());
    plain.pointers[0].kind = PointerKind::NATIVE;
    assert!(!plain.differences(&same).is_empty(), "another kind is another layout");

    assert_eq!(described::<Node>().record.id, Node::TYPE_ID);
}

/// Links to two neighbours in one word: the exclusive or of their addresses.
struct Both {
    value: u64,
    neighbours: u64,
}

// SAFETY: two words; what the second leads to is followed through checked pointers only.
unsafe impl Persist for Both {
    const TYPE_ID: TypeId = TypeId::of_name("test/Both");

    fn type_name() -> String {
        "test/Both".into()
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.field::<u64>("value", std::mem::offset_of!(Self, value));
        layout.field::<u64>("neighbours", std::mem::offset_of!(Self, neighbours));
        layout.possible_pointers(std::mem::offset_of!(Self, neighbours), 1);
    }
}

/// Walks the whole list in both directions from any node whose one neighbour is known: here the
/// first, which has one neighbour only.
fn both(block: &Scanned<'_>, visitor: &mut Visitor<'_>) {
    // Only ends can be told apart by themselves; a real list would keep its first two nodes in a
    // header. Here nodes lie one after the other.
    let neighbours =
        block.word(std::mem::offset_of!(Both, neighbours)).expect("a word of the value");
    let size = block.bytes.len() as u64;
    for before in [0, block.addr - size, block.addr + size] {
        let after = neighbours ^ before;
        if after == 0 || after == block.addr + size || after == block.addr - size {
            visitor.pointer_to(after, Both::TYPE_ID);
            visitor.pointer_to(before, Both::TYPE_ID);
            return;
        }
    }
}

#[test]
fn a_filter_finds_what_a_pointer_map_cannot_say() -> Result<()> {
    let dir = directory();
    let pool = Store::open(dir.path())?.pool("p")?;
    let nodes = pool.write(|tx| {
        let nodes: Vec<Ptr<Both>> =
            (0..50).map(|value| tx.alloc(Both { value, neighbours: 0 })).collect::<Result<_>>()?;
        let addr = |i: usize| nodes.get(i).map_or(0, |node| node.addr());
        for (i, &node) in nodes.iter().enumerate() {
            let neighbours = i.checked_sub(1).map_or(0, addr) ^ addr(i + 1);
            tx.set(node, field!(Both, neighbours), neighbours)?;
        }
        tx.set_root(nodes[0])?;
        Ok::<_, Error>(nodes)
    })?;
    let stride = nodes[0].addr().abs_diff(nodes[1].addr());
    if nodes.windows(2).any(|pair| pair[0].addr().abs_diff(pair[1].addr()) != stride) {
        println!("skipped: the heap did not put the nodes side by side");
        return Ok(());
    }
    // Without the filter: the ends' words are addresses, the others' are not.
    assert!(pool.check()?.leaked_blocks > 40);
    assert!(cenote::filter::register::<Both>(both)?.is_none());
    let report = pool.check()?;
    assert_eq!((report.leaked_blocks, report.trace.map(|trace| trace.faults)), (0, Some(0)));
    assert_eq!(pool.collect()?.freed_blocks, 0);
    assert_eq!(pool.read()?.get(nodes[49])?.value, 49);
    Ok(())
}
