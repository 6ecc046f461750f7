//! State that the handles of one client on one synchroniser share, by kind and key.
//!
//! Invariant: an entry keeps nothing alive. Unused entries are removed when others are added.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

type Entry = Weak<dyn Any + Send + Sync>;

#[derive(Default)]
pub(crate) struct Shared(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    by_key: HashMap<(&'static str, Arc<str>), Entry>,
    /// Unused entries are removed when the map has more entries than this.
    sweep_at: usize,
}

impl Shared {
    /// The value of this kind and key, made if no handle or guard uses one. Kinds of different types differ in name.
    pub(crate) fn get_or_insert<T: Send + Sync + 'static>(
        &self,
        kind: &'static str,
        key: &Arc<str>,
        make: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let mut entries = self.0.lock();
        let id = (kind, Arc::clone(key));
        let known = entries.by_key.get(&id).and_then(Weak::upgrade);
        if let Some(Ok(value)) = known.map(Arc::downcast::<T>) {
            return value;
        }
        let value = make();
        let entry: Arc<dyn Any + Send + Sync> = Arc::clone(&value) as _;
        entries.by_key.insert(id, Arc::downgrade(&entry));
        if entries.by_key.len() > entries.sweep_at {
            entries.by_key.retain(|_, entry| entry.strong_count() > 0);
            entries.sweep_at = 64 + entries.by_key.len() * 2;
        }
        value
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
