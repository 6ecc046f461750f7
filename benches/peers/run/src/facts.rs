//! Where and when: what a figure has to be read with.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    pub(crate) server: String,
    pub(crate) placement: String,
}

impl Facts {
    /// To be called before anything takes its place: what is pinned sees fewer processors.
    pub(crate) fn of_this_machine(server: String) -> Self {
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        let model = model
            .and_then(|rest| rest.split_once(": "))
            .map(|(_, name)| name);
        Self {
            date: said("date", &["-u", "+%F %H:%M UTC"]),
            commit: said("git", &["describe", "--always", "--dirty", "--exclude=*"]),
            cpu: model.unwrap_or("an unknown processor").trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: said("uname", &["-sr"]),
            server,
            placement: String::new(),
        }
    }
}

/// The output of a program, or `?`.
fn said(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    let output = output.ok().filter(|output| output.status.success());
    output.map_or("?".to_owned(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}
