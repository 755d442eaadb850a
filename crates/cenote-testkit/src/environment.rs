//! Numbers that the environment sets.

/// The number in a variable, or `default` if it is not set.
///
/// # Panics
/// The variable holds no number.
#[must_use]
pub fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text:?}"))
    })
}
