//! Comments and pages are written in plain English.
//!
//! Counts the sentences that carry a construction native speakers seldom write. Other libraries of this field have about
//! one in a hundred. The limits below only ever fall: rewrite the thought, not the match.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use regex::{Regex, RegexSet};

/// The largest share of marked sentences, in percent, by the beginning of a path. The longest beginning counts.
const LIMITS: &[(&str, f64)] = &[
    ("", 10.0),
    ("ARCHITECTURE.md", 2.0),
    ("README.md", 1.0),
    ("benches/", 2.0),
    ("checks/", 2.0),
    ("cli/", 1.0),
    ("demos/", 2.0),
    ("docs/", 2.0),
    ("examples/", 2.0),
    ("lua/", 2.0),
    ("macros/", 2.0),
    ("operator/", 1.5),
    ("sim/", 2.0),
    ("src/", 2.0),
    ("src/engine/acquire/", 1.0),
    ("src/observe/announce/", 2.0),
    ("src/conn/", 1.5),
    ("src/engine/hold/", 1.5),
    ("src/observe/meter", 1.5),
    ("src/redlock/", 1.5),
    ("src/engine/replicas/", 1.0),
    ("src/script/", 1.0),
    ("src/semaphore/", 1.0),
    ("src/api/traits", 1.0),
    ("src/watchdog/", 1.0),
    ("testkit/", 2.0),
    ("tests/", 2.0),
];

static MARKS: LazyLock<RegexSet> = LazyLock::new(|| {
    RegexSet::new([
        r"\b(so many|so long|so much|so often|so few|so large|so short)\b",
        r"\b(whoever|whatever|wherever|whichever|whomever)\b",
        r"\b(nobody|somebody|anybody)\b",
        r"\b(any more|no more)\b",
        r"\b(that of|those of|those that|those who|those which|that which|such as has)\b",
        r"\b(of which|for which|by which|with which|in which|from which|to which|behind which)\b",
        r"^(The same|Likewise|As \w+,)\b",
        r"\b(given back|gives? back|gave back|given up|gives? up)\b",
        r"\b(is|are|was|were) to be\b",
        r"(\bby then\b|\bfrom then on\b|\bfrom here on\b|\bmeanwhile\b|\banew\b|\ball the same\b|(^|[;,.] )[Ee]lse\b)",
        r"\bworth\b",
        r"\b(in vain|has the say|see to|sees to|be told|is told|are told|tells? of)\b",
        r"\b(Has|has|have|Have) (it|them|this|something|whatever|what) \w+(ed|en|ne)\b",
    ])
    .unwrap()
});

static NOUN_CLAUSE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^(?:Who|What|Whom) (\w.*)").unwrap());
static COMMENT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^(?://[/!]?|--)\s?(.*)$").unwrap());

fn is_marked(sentence: &str) -> bool {
    const QUESTIONS: [&str; 6] = ["is the", "are the", "does", "do", "can", "should"];
    let is_noun_clause = NOUN_CLAUSE.captures(sentence).is_some_and(|found| {
        let rest = found.get(1).unwrap().as_str();
        !QUESTIONS.iter().any(|begins| rest.starts_with(begins))
    });
    is_noun_clause || MARKS.is_match(sentence)
}

/// The paragraphs of a page, or of the comments of a file. Code, tables and fenced blocks are left out.
fn paragraphs(text: &str, is_page: bool) -> Vec<String> {
    let mut all = Vec::new();
    let mut paragraph = Vec::new();
    let mut is_fenced = false;
    for line in text.lines() {
        let line = line.trim();
        let content = if is_page {
            Some(line)
        } else {
            COMMENT
                .captures(line)
                .map(|found| found.get(1).unwrap().as_str().trim())
        };
        let mut content = content.unwrap_or_default();
        if content.starts_with("```") {
            is_fenced = !is_fenced;
            content = "";
        }
        if is_fenced || is_page && content.starts_with('|') {
            content = "";
        }
        if !content.is_empty() {
            paragraph.push(content);
        } else if !paragraph.is_empty() {
            all.push(paragraph.join(" "));
            paragraph.clear();
        }
    }
    if !paragraph.is_empty() {
        all.push(paragraph.join(" "));
    }
    all
}

/// Sentences of at least four words.
fn sentences(paragraph: &str) -> Vec<String> {
    let mut all: Vec<Vec<&str>> = vec![Vec::new()];
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    for (at, word) in words.iter().enumerate() {
        all.last_mut().unwrap().push(word);
        let begins = words.get(at + 1).and_then(|next| next.chars().next());
        let begins = begins.is_some_and(|sign| sign.is_uppercase() || sign == '`' || sign == '[');
        if begins && word.ends_with(['.', ':', ';', '!', '?']) {
            all.push(Vec::new());
        }
    }
    all.retain(|words| words.len() >= 4);
    all.into_iter().map(|words| words.join(" ")).collect()
}

fn limit_of(file: &str) -> &'static (&'static str, f64) {
    let matching = LIMITS.iter().filter(|(begins, _)| file.starts_with(begins));
    matching
        .max_by_key(|(begins, _)| begins.len())
        .expect("there is one for all")
}

#[test]
fn prose_is_plain() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = Command::new("git")
        .args(["ls-files"])
        .current_dir(root)
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let is_prose = |file: &&str| {
        let is_ours = ![
            "CHANGELOG",
            "expansions/",
            "results/",
            "tests/house/prose.rs",
        ]
        .iter()
        .any(|left_out| file.contains(left_out));
        is_ours && [".rs", ".lua", ".md"].iter().any(|end| file.ends_with(end))
    };
    let mut counts: BTreeMap<&str, (f64, usize, Vec<String>)> = BTreeMap::new();
    for file in listed.lines().filter(is_prose) {
        let Ok(text) = std::fs::read_to_string(root.join(file)) else {
            continue;
        };
        let (begins, limit) = limit_of(file);
        let (_, all, marked) = counts.entry(begins).or_insert((*limit, 0, Vec::new()));
        for sentence in paragraphs(&text, file.ends_with(".md"))
            .iter()
            .flat_map(|text| sentences(text))
        {
            *all += 1;
            if is_marked(&sentence) {
                marked.push(format!("{file}: {sentence}"));
            }
        }
    }
    let mut over = Vec::new();
    let mut seen = 0;
    for (begins, (limit, all, marked)) in counts {
        seen += all;
        let share = 100.0 * marked.len() as f64 / all.max(1) as f64;
        println!("{begins:20} {all:6} sentences, {share:5.1} % marked, limit {limit}");
        if share > limit {
            let some: Vec<_> = marked.iter().rev().take(5).cloned().collect();
            over.push(format!(
                "{begins}: {share:.1} % of its sentences, limit {limit}: {some:#?}"
            ));
        }
    }
    assert!(seen > 5000, "sentences were found: {seen}");
    assert!(over.is_empty(), "{over:#?}");
}

#[test]
fn marks_are_found() {
    assert!(is_marked("Nobody else has it any more."));
    assert!(is_marked("What was asked for is here."));
    assert!(!is_marked("Counts at most this many waiters."));
    let text = "/// A comment\n/// of two lines. And more of it here.\nlet code = 1;\n// Another one is here.";
    let found = paragraphs(text, false);
    assert_eq!(found.len(), 2);
    assert_eq!(
        sentences(&found[0]),
        ["A comment of two lines.", "And more of it here."]
    );
}
