//! NVMalloc's evaluation (CMU-PDL-11-114, section 8): of its allocator, over the wear heap; of
//! write protection, over pools with the logged heap; of update groups, by ordered maps.

pub mod figure4;
pub mod figure5;
pub mod figure7;
pub mod slab;
pub mod table2;
pub mod table3;
pub mod table4;
pub mod writes;
