//! A list that nearly always has one element.

use smallvec::SmallVec;

/// Room for one element without an allocation.
pub(crate) type Few<T> = SmallVec<[T; 1]>;
