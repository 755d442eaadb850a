// `crate = "..."` names a module that stands in for parts of cenote.
#![forbid(unsafe_code)]

mod fake_variants {
    pub mod persist {
        pub use cenote::persist::{LayoutBuilder, Persist, TypeId, __Drop, __String};
        pub struct VariantBuilder;
        impl VariantBuilder {
            pub fn field<F>(_: &mut cenote::persist::VariantBuilder<'_>, _name: &str) {}
        }
    }
}

#[derive(cenote::Persist)]
#[persist(crate = "crate::fake_variants")]
#[repr(u8)]
enum Evil {
    Text(&'static str),
    Call(fn() -> u64),
}

mod fake_layout {
    pub mod persist {
        pub use cenote::persist::{Persist, TypeId, __Drop, __String};
        pub struct LayoutBuilder;
        impl LayoutBuilder {
            pub const fn __slot<T>() -> std::mem::MaybeUninit<T> {
                std::mem::MaybeUninit::uninit()
            }
            pub const fn __place<T, F>(_: *const T, _: *const F) -> usize {
                0
            }
            pub fn __field(&mut self, _: &str, _: usize) {}
            pub fn __type_name(_: &str, _: &[&dyn std::fmt::Display]) -> String {
                String::new()
            }
        }
    }
}

#[derive(cenote::Persist)]
#[persist(crate = "crate::fake_layout")]
struct Text {
    text: &'static str,
}

mod fake_trait {
    pub mod persist {
        pub use cenote::persist::{LayoutBuilder, TypeId, __Drop, __String};
        pub trait Persist {}
    }
}

#[derive(cenote::Persist)]
#[persist(crate = "crate::fake_trait")]
struct Empty;

fn main() {}
