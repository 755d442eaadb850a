//! Tells errors that are about a file of control data from all others.

use cenote_medium::MediumError;

/// An error that is about a file of control data. That a user may not read it is no damage.
pub(crate) fn of_control(error: MediumError) -> Result<MediumError, MediumError> {
    let other = matches!(error, MediumError::Denied { .. });
    if other || error.is_passing() || error.is_failed_sync() { Err(error) } else { Ok(error) }
}

/// What such an error says.
pub(crate) fn about_control(error: MediumError) -> Result<String, MediumError> {
    of_control(error).map(|error| error.to_string())
}
