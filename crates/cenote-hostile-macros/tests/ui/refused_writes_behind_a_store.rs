// A medium does not change files under a store's references, nor become one, without `unsafe`.
#![forbid(unsafe_code)]

use cenote::{Medium, MediumOptions, OpenOptions, RealMedium, Store};
use std::sync::Arc;

fn main() {
    let medium = RealMedium::open("store", &MediumOptions::default()).unwrap();
    let medium: Arc<dyn Medium> = Arc::new(medium);
    let _store = Store::open_on(medium.clone(), &OpenOptions::default()).unwrap();
    let _ = medium.write_at("puddles/a", 0, &[0; 8]);
    let _ = medium.truncate("puddles/a", 0);
    let _ = medium.clear("puddles/a");
    let _ = medium.rename("puddles/a", "puddles/b");
    let _ = medium.remove("lock");
    let _ = medium.descriptor("puddles/a");
    let _ = medium.grant("puddles/a", true);
    let _ = medium.release("puddles/a", 0, 4096);
    let _ = medium.unmap(0, 4096);
}
