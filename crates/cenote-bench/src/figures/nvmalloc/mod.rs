//! NVMalloc's evaluation of its allocator (CMU-PDL-11-114, section 8.1), over the wear heap.

pub mod figure4;
pub mod figure5;
pub mod slab;
pub mod table2;
pub mod table3;
pub mod writes;
