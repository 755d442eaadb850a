//! Pools of an open store, their leases, and the puddles that they take.

pub(crate) mod heap_puddle;
pub(crate) mod lease;
pub(crate) mod making;
pub(crate) mod pool;
pub(crate) mod pool_rules;
pub(crate) mod spare;
