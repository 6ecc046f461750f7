//! Shared by all commands: the value of a key of one type, and numbers and positions as words.

use std::collections::VecDeque;

use crate::number;
use crate::reply::Reply;
use crate::store::{Bytes, Data, SortedSet, Store};

/// Draws a number below its argument.
pub(crate) type Draw<'a> = &'a mut dyn FnMut(usize) -> usize;

pub(crate) type Outcome = Result<Reply, Reply>;

/// The value of a key, if it is of the wanted type.
macro_rules! of_type {
    ($get:ident, $make:ident, $variant:ident, $type:ty) => {
        pub(super) fn $get<'a>(store: &'a Store, key: &[u8]) -> Result<Option<&'a $type>, Reply> {
            match store.get(key) {
                None => Ok(None),
                Some(Data::$variant(data)) => Ok(Some(data)),
                Some(_) => Err(Reply::wrong_type()),
            }
        }

        pub(super) fn $make<'a>(store: &'a mut Store, key: &[u8]) -> Result<&'a mut $type, Reply> {
            match store.get_or_insert(key, || Data::$variant(Default::default())) {
                Data::$variant(data) => Ok(data),
                _ => Err(Reply::wrong_type()),
            }
        }
    };
}

pub(super) type Fields = Vec<(Bytes, Bytes)>;
pub(super) type Items = VecDeque<Bytes>;
pub(super) type Members = SortedSet;

of_type!(hash, hash_mut, Hash, Fields);
of_type!(list, list_mut, List, Items);
of_type!(members, members_mut, Sorted, Members);

pub(super) fn int(word: &[u8]) -> Result<i64, Reply> {
    number::int(word).ok_or_else(Reply::no_integer)
}

/// Converts a range of positions, where negative ones count from the end.
pub(super) fn positions(start: i64, stop: i64, len: usize) -> std::ops::Range<usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let from_end = |at: i64| if at < 0 { at + len } else { at };
    let (start, stop) = (from_end(start).max(0), from_end(stop).min(len - 1));
    if start > stop {
        return 0..0;
    }
    let index = |at: i64| usize::try_from(at).unwrap_or_default();
    index(start)..index(stop) + 1
}
