// A program without the feature `at-rest` takes no key, and says which feature it lacks.
use cenote::{Argon2Params, KeyError, Keyring, Locking, MasterKey};

fn main() {
    let mut key = core::array::from_fn(|i| i as u8);
    let key = MasterKey::with_locking(&mut key, Locking::IfPossible);
    assert!(matches!(key, Err(KeyError::NotBuilt)), "{key:?}");
    let (mut words, params) = (*b"some words", Argon2Params::default());
    let ring = Keyring::from_passphrase(&mut words, params, Locking::IfPossible);
    let refused = ring.expect_err("no ciphers, no key");
    assert!(refused.to_string().contains("`at-rest`"), "{refused}");
    assert_eq!(words, [0; 10], "the caller's passphrase stays in memory");
}
