//! What a module above the kernel keeps with a pool or a job of the kernel, which does not know it.

use core::any::Any;
use core::fmt::Debug;

/// A value that can be kept so.
trait AnyPart: Any + Send + Sync + Debug {}

impl<T: Any + Send + Sync + Debug> AnyPart for T {}

/// At most one value, which the module that has its type finds by that.
#[derive(Debug, Default)]
pub(crate) struct OpaquePart(Option<Box<dyn AnyPart>>);

impl OpaquePart {
    pub(crate) fn of<T: Any + Send + Sync + Debug>(part: T) -> Self {
        Self(Some(Box::new(part)))
    }

    /// The value, if there is one, and it is of this type. Takes a comparison.
    pub(crate) fn get<T: Any>(&self) -> Option<&T> {
        let part: &dyn Any = &**self.0.as_ref()?;
        part.downcast_ref()
    }
}
