//! A command as the server gets it: words of bytes, in one buffer that is used again.

/// No command has a longer name.
const VERB_MAX: usize = 20;

/// The name of a command in capitals; nothing, if it is longer than any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verb {
    letters: [u8; VERB_MAX],
    len: usize,
}

impl std::ops::Deref for Verb {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.letters[..self.len]
    }
}

/// The words of one command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Words {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(crate) fn push(&mut self, word: &[u8]) {
        self.bytes.extend_from_slice(word);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn at(&self, index: usize) -> &[u8] {
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1],
        };
        &self.bytes[start..self.ends[index]]
    }

    pub(crate) fn get(&self, index: usize) -> Option<&[u8]> {
        (index < self.len()).then(|| self.at(index))
    }

    /// The words from `index` on.
    pub(crate) fn from(&self, index: usize) -> impl Iterator<Item = &[u8]> {
        (index..self.len()).map(|at| self.at(at))
    }

    /// The first word in capitals, if it can be a command.
    pub(crate) fn verb(&self) -> Verb {
        let word = self.get(0).unwrap_or_default();
        let mut letters = [0; VERB_MAX];
        let Some(room) = letters.get_mut(..word.len()) else {
            return Verb { letters, len: 0 };
        };
        room.copy_from_slice(word);
        room.make_ascii_uppercase();
        let len = word.len();
        Verb { letters, len }
    }

    /// Whether one of the words has this in it.
    pub(crate) fn names(&self, name: &[u8]) -> bool {
        self.from(0)
            .any(|word| word.windows(name.len()).any(|part| part == name))
    }

    /// For people; a script, and its SHA, by its name.
    pub(crate) fn shown(&self) -> String {
        let word = |at: &[u8]| String::from_utf8_lossy(at).into_owned();
        let named = |text: String| {
            let found = lockset::simulated::scripts()
                .find(|(_, sha, whole)| [*sha, *whole].contains(&&*text));
            found.map_or(text, |(name, ..)| name.to_owned())
        };
        let words = self.from(0).map(|at| named(word(at)));
        words.collect::<Vec<_>>().join(" ")
    }
}

impl<'a> FromIterator<&'a [u8]> for Words {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(all: I) -> Self {
        let mut words = Self::default();
        all.into_iter().for_each(|word| words.push(word));
        words
    }
}
