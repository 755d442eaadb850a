//! Arguments of `show`.

use super::StoreDir;
use cenote_layout::values::shown::ShownLimits;
use clap::Args;

/// What the help of `show` ends with.
pub(crate) const SHOW_HELP: &str = "\
A PATH is a root and steps from there:
    contacts                 the root with this name; 0 is the numbered root 0
    contacts.owner.name      fields; pointers on the way are followed
    contacts[3]              the fourth element of an array, a vector or a list
    contacts[\"ada\"]          the value of a key of a map; [ada] is the same
    contacts[#0]             the value of the first entry of a map
    shape.Circle.radius      a variant of an enum, and a field of it
If the pool has one root, the path may leave it out: .owner.name

Examples:
    cenote show store people
    cenote show store people 'contacts[\"ada\"].phones' --count 100
    cenote show store people contacts --depth 1 --json

Exit status:
    0  done, and nothing is wrong
    1  something that was to be shown is damaged; the rest is shown
    2  wrong arguments, or a PATH that cannot be read
    3  it cannot be done: no such pool, root, field, element or key, an I/O error
    4  another process uses the store
  130  stopped by Ctrl-C";

/// Show the values of a pool, without the program that wrote them
///
/// The store records the names, fields and kinds of all types. By them this command prints values:
/// through pointers, into collections, as text or JSON. Without a PATH it prints all roots of the
/// pool, without a POOL those of all pools. Nothing is changed.
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// The pool; all of them if none is given
    pub(crate) pool: Option<String>,
    /// Where to begin: a root and steps from there, such as 'contacts[3].name'
    pub(crate) path: Option<String>,
    /// Follow this many pointers and collections inside each other, at most 50
    #[arg(
        long,
        value_name = "N",
        default_value_t = ShownLimits::default().depth,
        value_parser = clap::value_parser!(u32).range(0..=50)
    )]
    pub(crate) depth: u32,
    /// Print at most this many elements of each collection and array
    #[arg(long, value_name = "N", default_value_t = ShownLimits::default().count)]
    pub(crate) count: u64,
    /// Print at most this many bytes of each text, and of each array of bytes
    #[arg(long, value_name = "N", default_value_t = ShownLimits::default().bytes)]
    pub(crate) bytes: u64,
}
