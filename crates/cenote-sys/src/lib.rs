//! Raw system interfaces: system calls, assembly, CPU features. No other crate of Cenote has `asm!`
//! or a raw system call.
//!
//! Each function is a thin layer over what Linux and the processor offer, with its contract written
//! down. Policy (which mapping, which durability level) lives above. There is one module per
//! concept; each opens with the argument why its `unsafe` code is sound.
//!
//! Linux only. On processors other than x86-64 [`cpu`] has portable versions: no flushes, no fences
//! beyond the language's, so no `power` durability.

#[cfg(not(target_os = "linux"))]
compile_error!("cenote-sys speaks to Linux only");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("a window of 1 TiB needs a 64-bit address space");

pub mod allocator;
pub mod alt_stack;
pub mod backtrace;
pub mod bytes;
pub mod cpu;
pub mod cpu_number;
pub mod description_lock;
pub mod dual_mapping;
pub mod fault;
pub mod fault_queue;
pub mod filesystem;
pub mod fork_guard;
pub mod futex;
pub mod held_byte;
pub mod mappings;
pub mod membarrier;
pub mod memory;
pub mod mounting;
pub mod numa;
pub mod pagemap;
pub mod peek;
pub mod peer;
pub mod probe;
pub mod process;
pub mod process_lock;
pub mod protection_keys;
mod random;
pub mod record_lock;
mod revocations;
pub mod second_mapping;
pub mod secret;
pub mod signals;
pub mod slots;
pub mod socket_activation;
mod taken;
pub mod userfaultfd;

#[cfg(test)]
mod testing;
