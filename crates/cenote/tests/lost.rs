//! Which blocks lie in one page, so that one touch of a block is enough.

use cenote::lost::in_one_page;
use cenote_heap::class::block_size;

#[test]
fn blocks_that_are_touched_once_lie_in_one_page() {
    for size in 0..=9000usize {
        let block = block_size(size.max(1) as u64, 8).expect("a size") as usize;
        let ends_in_its_page =
            |at: usize| at * block / 4096 == (at * block + size.max(1) - 1) / 4096;
        let is_touched_once = in_one_page(size, 8);
        assert!(!is_touched_once || (0..65536 / block).all(ends_in_its_page), "{size} in {block}");
        assert_eq!(is_touched_once, block <= 4096 && block.is_power_of_two(), "{size} in {block}");
    }
    assert!(!in_one_page(64, 64));
}
