//! Hash maps: a segment for each bucket, directories by level, and chains of pages.

use super::{Blocks, Broken, Checked, DESTROYED, Structures, broken, field, places, read, target};
use super::{Values, word_at, words};
use crate::id::TypeId;
use crate::types::TypeRecord;

extern crate alloc;
use alloc::string::String;

/// Slots of a page of a hash map.
const PAGE_SLOTS: u64 = 7;
/// Children of a segment and of a directory.
pub(in crate::values) const FAN_OUT: u64 = 128;
/// Most levels of directories: more would be of more buckets than a number can say.
pub(in crate::values) const HASH_HEIGHT_MAX: u64 = 8;

/// What a hash map is made of.
pub(in crate::values) struct HashMapShape {
    buckets: u64,
    pub(in crate::values) segment: TypeId,
    pub(in crate::values) directory: TypeId,
    pub(in crate::values) page: TypeId,
    pub(in crate::values) pages: u64,
    pub(in crate::values) children: u64,
    pub(in crate::values) tags: u64,
    pub(in crate::values) next: u64,
    pub(in crate::values) slots: u64,
    pub(in crate::values) element: TypeId,
    pub(in crate::values) size: u64,
}

/// What a map is made of, by the types of its segments and directories.
pub(in crate::values) fn table(
    values: &Values,
    header: u64,
    (segment, directory): (TypeId, TypeId),
    buckets: u64,
) -> Checked<HashMapShape> {
    let made = || {
        let of_segment = values.record_of(segment)?;
        let of_directory = values.record_of(directory)?;
        let list =
            of_directory.variants.first()?.fields.iter().find(|field| field.name == "children")?;
        let pages = of_segment.fields.iter().find(|field| field.name == "pages")?;
        let page = target(&of_segment, pages.offset, header).ok()?;
        let of_page = values.record_of(page)?;
        let slots = field(&of_page, "slots")?;
        let whole =
            pages.size == 8 * FAN_OUT && list.size == 8 * FAN_OUT && slots.size % PAGE_SLOTS == 0;
        whole.then_some(())?;
        Some(HashMapShape {
            buckets,
            segment,
            directory,
            page,
            pages: pages.offset,
            children: list.offset,
            tags: word_at(&of_page, "tags")?,
            next: word_at(&of_page, "next")?,
            slots: slots.offset,
            element: values.declared(&slots)?,
            size: slots.size / PAGE_SLOTS,
        })
    };
    let why = "parts of no known type";
    made().ok_or_else(|| Broken { at: header, field: String::new(), why, found: 0 })
}

impl Structures<'_> {
    /// Looks at the map whose header this is.
    pub(super) fn hashed(
        &mut self,
        header: u64,
        record: &TypeRecord,
        blocks: &mut dyn Blocks,
    ) -> Checked {
        let at = places(header, record, ["len", "buckets", "height", "segment", "directory"])?;
        let [len, buckets, height, segment, directory] = words(at, blocks)?;
        if len == DESTROYED {
            return Ok(());
        }
        if height > HASH_HEIGHT_MAX {
            return broken(at[2], "height", "no map has this height", height);
        }
        if buckets == 0 || FAN_OUT.checked_pow(height as u32 + 1).is_some_and(|room| room < buckets)
        {
            return broken(
                at[1],
                "buckets",
                "a number of buckets that its height has no room for",
                buckets,
            );
        }
        if if height == 0 { directory != 0 } else { directory == 0 || segment != 0 } {
            return broken(at[3], "segment", "a root that the height does not say", segment);
        }
        let (from, root) = if height == 0 { (at[3], segment) } else { (at[4], directory) };
        let mut entries = 0;
        if root != 0 || buckets != 1 {
            let ids =
                (target(record, at[3] - header, header)?, target(record, at[4] - header, header)?);
            let table = table(self.values, header, ids, buckets)?;
            self.buckets(&table, (from, root), (height, 0), &mut entries, blocks)?;
        }
        if entries == len {
            return Ok(());
        }
        broken(at[0], "len", "another number than there are entries", len)
    }

    /// Looks at a segment, or at a directory with `height` levels, which begins with bucket
    /// `first`.
    fn buckets(
        &mut self,
        table: &HashMapShape,
        (from, node): (u64, u64),
        (height, first): (u64, u64),
        entries: &mut u64,
        blocks: &mut dyn Blocks,
    ) -> Checked {
        let (id, list) = match height {
            0 => (table.segment, table.pages),
            _ => (table.directory, table.children),
        };
        self.enter(from, node, id, blocks)?;
        if height > 0 {
            let [over] = words([node], blocks)?;
            if over != u64::from(height == 1) {
                return broken(node, "", "a directory says another level than it is on", over);
            }
        }
        let mut links = [0; 8 * FAN_OUT as usize];
        read(node + list, &mut links, blocks)?;
        let each = FAN_OUT.saturating_pow(height as u32);
        for (number, link) in (0..FAN_OUT).zip(links.as_chunks::<8>().0) {
            let (place, link) = (node + list + 8 * number, u64::from_le_bytes(*link));
            let bucket = first.saturating_add(number.saturating_mul(each));
            if bucket >= table.buckets {
                if link != 0 {
                    return broken(place, "", "a link for a bucket that there is not", link);
                }
            } else if height > 0 {
                self.buckets(table, (place, link), (height - 1, bucket), entries, blocks)?;
            } else {
                self.chain(table, (place, link), entries, blocks)?;
            }
        }
        Ok(())
    }

    /// Looks at the pages of a bucket.
    fn chain(
        &mut self,
        table: &HashMapShape,
        (mut from, mut page): (u64, u64),
        entries: &mut u64,
        blocks: &mut dyn Blocks,
    ) -> Checked {
        while page != 0 {
            self.enter(from, page, table.page, blocks)?;
            let [tags, next] = words([page + table.tags, page + table.next], blocks)?;
            let bytes = tags.to_le_bytes();
            if bytes.iter().any(|tag| (1..0x80).contains(tag)) || bytes[7] != 0 {
                return broken(page + table.tags, "", "tags that no page has", tags);
            }
            let used = (0..).zip(bytes).filter(|(_, tag)| *tag != 0);
            for (slot, _) in used {
                let place = page + table.slots + slot * table.size;
                self.in_use(table.element, place, table.size, blocks)?;
                *entries = entries.saturating_add(1);
            }
            (from, page) = (page + table.next, next);
        }
        Ok(())
    }
}
