//! Compiles the C side of an adapter, if its feature is on: nothing else needs the peer's library.

fn main() {
    println!("cargo:rerun-if-changed=src/peers/libpmemobj.c");
    #[cfg(feature = "libpmemobj")]
    {
        let mut build = cc::Build::new();
        build.file("src/peers/libpmemobj.c").opt_level(2).warnings(true);
        // The library's macros save registers with setjmp in a loop; nothing that is read after a
        // jump changes in between.
        build.flag_if_supported("-Wno-clobbered");
        build.compile("cenote_bench_libpmemobj");
        println!("cargo:rustc-link-lib=dylib=pmemobj");
    }
}
