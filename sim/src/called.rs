//! Which script a command calls, and with what.

use crate::words::Words;

/// The name of a script, its first key, and its arguments.
pub(crate) type Called<'a> = (&'static str, &'a [u8], Vec<&'a [u8]>);

/// The script that a command calls.
pub(crate) fn script(command: &Words) -> Option<Called<'_>> {
    if !matches!(&*command.verb(), b"EVAL" | b"EVALSHA") {
        return None;
    }
    let body = command.get(1)?;
    let is_meant =
        |(_, sha, text): &(&str, &str, &str)| sha.as_bytes() == body || text.as_bytes() == body;
    let (name, ..) = lockset::simulated::scripts().find(is_meant)?;
    let keys = usize::try_from(crate::number::int(command.get(2)?)?).ok()?;
    Some((name, command.get(3)?, command.from(3 + keys).collect()))
}
