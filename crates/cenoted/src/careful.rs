//! A rewriter of pointers whose panics refuse one pool and leave the daemon running.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cenote_layout::catalog::{HeapKind, PuddleRecord};
use cenote_store::StoreError;
use cenote_store::relocate::{PoolBlocks, ReadPuddle, RewriteJob, Rewriter, Rewritten};

/// Rewrites as `R` does. If `R` panics on a client's image, that pool is refused and the store goes
/// on: only the image was touched.
#[derive(Debug)]
pub(crate) struct Careful<R>(pub(crate) R);

// SAFETY: as `R` does. An image on which that panicked is not used, as the error says.
unsafe impl<R: Rewriter> Rewriter for Careful<R> {
    fn rewrite(&self, image: &mut [u8], job: &RewriteJob) -> Result<Rewritten, String> {
        catch_unwind(AssertUnwindSafe(|| self.0.rewrite(image, job)))
            .unwrap_or_else(|_| Err("rewriting its pointers failed; it is unchanged".into()))
    }

    fn blocks(
        &self,
        heap: HeapKind,
        puddles: &[PuddleRecord],
        read: ReadPuddle<'_>,
    ) -> Result<Result<PoolBlocks, String>, StoreError> {
        catch_unwind(AssertUnwindSafe(|| self.0.blocks(heap, puddles, read)))
            .unwrap_or_else(|_| Ok(Err("looking at its heap failed; it is unchanged".into())))
    }

    fn metadata_puddles(
        &self,
        heap: HeapKind,
        puddles: &[PuddleRecord],
        read: ReadPuddle<'_>,
    ) -> Result<Vec<u32>, StoreError> {
        catch_unwind(AssertUnwindSafe(|| self.0.metadata_puddles(heap, puddles, read)))
            .unwrap_or_else(|_| Ok(Vec::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_layout::id::{PoolId, Uuid};
    use cenote_layout::moves::Moves;
    use cenote_layout::puddle::Role;
    use cenote_store::relocate::TypeTable;
    use std::sync::Arc;

    #[derive(Debug)]
    struct Panics;

    // SAFETY: changes nothing.
    unsafe impl Rewriter for Panics {
        fn rewrite(&self, image: &mut [u8], _: &RewriteJob) -> Result<Rewritten, String> {
            match image.first() {
                None => Ok(Rewritten::default()),
                Some(_) => panic!("on purpose"),
            }
        }
    }

    #[test]
    fn an_image_on_which_the_rewriter_panics_is_refused() {
        let (addr, size) = (1 << 41, 2 << 20);
        let puddle = PuddleRecord {
            uuid: Uuid([1; 16]),
            pool: PoolId(1),
            role: Role::Heap,
            index: 0,
            addr,
            size,
        };
        let (moves, types) = (Arc::new(Moves::default()), Arc::new(TypeTable::default()));
        let (heap, from, all_blocks, blocks) = (HeapKind::Traced, 1 << 42, false, None);
        let job = RewriteJob { puddle, heap, from, moves, types, all_blocks, blocks };
        let careful = Careful(Panics);
        assert_eq!(careful.rewrite(&mut [], &job), Ok(Rewritten::default()));
        let refused = careful.rewrite(&mut [0; 8], &job).expect_err("it panics");
        assert!(refused.contains("it is unchanged"), "{refused}");
        assert_eq!(careful.repeatable(&[], &job), None, "never in the file that a client may have");
    }
}
