//! The figures, by name.

pub mod allocators;
pub mod checked;
pub mod daemon;
pub mod fat;
mod figure;
pub mod figure1;
pub mod list_tail;
pub mod logged_open;
pub mod nvmalloc;
pub mod open_after_kill;
pub mod pmo_files;
pub mod pmo_kernels;
pub mod pool_psync;
pub mod poseidon;
pub mod poseidon3;
pub mod psync;
pub mod puddles_table3;
pub mod ralloc_figure6;
pub mod relocation;
pub mod sensors;
pub mod steady;

pub use figure::{Body, Figure, Rows};

/// All of them.
pub const FIGURES: [Figure; 27] = [
    puddles_table3::FIGURE,
    figure1::FIGURE,
    list_tail::FIGURE,
    checked::FIGURE,
    allocators::FIGURE,
    steady::FIGURE,
    open_after_kill::FIGURE,
    poseidon3::FIGURE,
    poseidon::FIGURE6,
    poseidon::FIGURE7,
    poseidon::FIGURE8,
    poseidon::FIGURE9,
    logged_open::FIGURE,
    ralloc_figure6::FIGURE,
    psync::FIGURE,
    pool_psync::FIGURE,
    pmo_kernels::FIGURE,
    pmo_files::FIGURE,
    relocation::FIGURE,
    sensors::FIGURE,
    daemon::FIGURE,
    nvmalloc::figure4::FIGURE,
    nvmalloc::figure5::FIGURE,
    nvmalloc::table4::FIGURE,
    nvmalloc::figure7::FIGURE,
    nvmalloc::table2::FIGURE,
    nvmalloc::table3::FIGURE,
];

/// The figure of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.name == name)
}
