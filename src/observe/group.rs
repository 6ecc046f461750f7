//! Groups of locks, a label of metrics: few values, even if a program has many names of locks.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// The most groups in a process. Later ones are counted together.
const GROUPS_MAX: usize = 64;

/// The number of groups: no group, the named ones, and the rest.
const GROUPS: usize = GROUPS_MAX + 2;

/// The name of the rest.
const OTHER_NAME: &str = "other";

static NAMES: Names = Names::new();

/// A group of locks: an index in the table of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group(u8);

impl Group {
    pub(crate) const NONE: Self = Self(0);
    const OTHER: Self = Self(GROUPS as u8 - 1);

    /// Returns the group of this name. The flag is true once in the life of the process: for the first name over the
    /// limit.
    pub(crate) fn named(name: &str) -> (Self, bool) {
        NAMES.group(name)
    }

    fn index(self) -> usize {
        self.0.into()
    }

    /// Returns the name; empty if there is no group.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NONE => "",
            Self::OTHER => OTHER_NAME,
            named => NAMES.given[named.index() - 1]
                .get()
                .copied()
                .unwrap_or_default(),
        }
    }

    pub(crate) fn or(self, other: Self) -> Self {
        if self == Self::NONE { other } else { self }
    }
}

/// A value for each group, made when it is first needed.
#[derive(Debug)]
pub(crate) struct ByGroup<T>([OnceLock<Box<T>>; GROUPS]);

impl<T> Default for ByGroup<T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| OnceLock::new()))
    }
}

impl<T: Default> ByGroup<T> {
    #[inline]
    pub(crate) fn of(&self, group: Group) -> &T {
        self.0[group.index()].get_or_init(Box::default)
    }

    /// Returns the groups that have a value.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Group, &T)> {
        let all = (0..).map(Group).zip(&self.0);
        all.filter_map(|(group, value)| Some((group, &**value.get()?)))
    }
}

/// A group that can be replaced by another.
#[derive(Debug)]
pub(crate) struct GroupCell(AtomicU8);

impl GroupCell {
    pub(crate) fn new(group: Group) -> Self {
        Self(AtomicU8::new(group.0))
    }

    pub(crate) fn get(&self) -> Group {
        Group(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn set(&self, group: Group) {
        self.0.store(group.0, Ordering::Relaxed);
    }
}

/// The names given so far, in their order. They stay for the life of the process.
#[derive(Debug)]
struct Names {
    given: [OnceLock<&'static str>; GROUPS_MAX],
    is_told: AtomicBool,
}

impl Names {
    const fn new() -> Self {
        Self {
            given: [const { OnceLock::new() }; GROUPS_MAX],
            is_told: AtomicBool::new(false),
        }
    }

    /// Returns the group of this name. A new name takes the first free group.
    fn group(&self, name: &str) -> (Group, bool) {
        match name {
            "" => return (Group::NONE, false),
            OTHER_NAME => return (Group::OTHER, false),
            _ => {}
        }
        let mut named = (1..).map(Group).zip(&self.given);
        let new = || &*name.to_owned().leak();
        match named.find(|(_, given)| *given.get_or_init(new) == name) {
            Some((group, _)) => (group, false),
            None => (Group::OTHER, !self.is_told.swap(true, Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_place_and_there_are_few() {
        let names = Names::new();
        let mut groups = Vec::new();
        for at in 0..GROUPS_MAX {
            let (group, is_told) = names.group(&format!("g{at}"));
            assert!(!is_told && !groups.contains(&group), "{at}: {group:?}");
            assert!((1..=GROUPS_MAX).contains(&group.index()));
            groups.push(group);
        }
        assert_eq!(names.group("g7"), (groups[7], false));
        assert_eq!(names.group("g64"), (Group::OTHER, true), "told once");
        for name in ["g64", "g65", "other"] {
            assert_eq!(names.group(name), (Group::OTHER, false), "{name}");
        }
        assert_eq!(names.group("g63"), (groups[63], false));
        assert_eq!(names.group(""), (Group::NONE, false));
    }

    #[test]
    fn a_group_has_the_name_that_was_given() {
        let (group, _) = Group::named("a group of a test");
        assert_eq!(group.name(), "a group of a test");
        assert_eq!(Group::named("a group of a test").0, group);
        assert_eq!((Group::NONE.name(), Group::OTHER.name()), ("", "other"));
        assert_eq!(Group::NONE.or(group), group);
        assert_eq!(group.or(Group::OTHER), group);
    }
}
