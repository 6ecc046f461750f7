//! A list that is of one thing nearly always.

use smallvec::SmallVec;

/// Room for one without asking the allocator.
pub(crate) type Few<T> = SmallVec<[T; 1]>;
