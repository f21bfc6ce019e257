//! Which parts of the service work, and why the others do not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the parts say of themselves. Cheap to clone.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<BTreeMap<String, String>>>);

impl Health {
    /// The part does not work. Returns whether that is news.
    pub fn is_down(&self, part: &str, reason: &str) -> bool {
        self.parts().insert(part.to_owned(), reason.to_owned()).is_none()
    }

    /// The part works. Returns whether that is news.
    pub fn is_up(&self, part: &str) -> bool {
        self.parts().remove(part).is_some()
    }

    /// The parts that do not work, with their reasons.
    pub fn troubles(&self) -> BTreeMap<String, String> {
        self.parts().clone()
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
