//! Finds the server binary with `scripts/find-server`, once per process and flavour.
//!
//! Only the script knows the order of preference.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The server family that a test requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Any available server.
    Any,
    /// Valkey, even if Redis is installed.
    Valkey,
}

/// The path of a server binary of this flavour, or an error that says how to install one.
pub(crate) fn server_binary(flavour: Flavour) -> Result<&'static Path, String> {
    static ANY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    static VALKEY: OnceLock<Result<PathBuf, String>> = OnceLock::new();

    let (answer, arguments) = match flavour {
        Flavour::Any => (&ANY, &[][..]),
        Flavour::Valkey => (&VALKEY, &["--valkey"][..]),
    };
    match answer.get_or_init(|| ask_script(arguments)) {
        Ok(path) => Ok(path),
        Err(reason) => Err(reason.clone()),
    }
}

fn ask_script(arguments: &[&str]) -> Result<PathBuf, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/find-server");
    let output = Command::new(&script)
        .args(arguments)
        .output()
        .map_err(|error| format!("cannot run {}: {error}", script.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(PathBuf::from(path))
}
