//! Checks that the dashboard, the alerts and the page only mention metrics of the library or of the
//! example.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).expect(file)
}

/// The metrics that a text names.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|sign: char| !(sign.is_ascii_lowercase() || sign == '_'));
    words.filter(|word| word.starts_with("lockset_")).collect()
}

/// The quoted strings that are names of metrics.
fn quoted(text: &str) -> BTreeSet<String> {
    let texts = text.split('"').skip(1).step_by(2);
    let names = texts.filter(|text| named(text).contains(text));
    names.map(str::to_owned).collect()
}

/// The metrics of the library and of the example.
fn served() -> BTreeSet<String> {
    let library = quoted(&read("src/observe/meter.rs"));
    assert!(library.len() > 10, "the names were read: {library:?}");
    let example = quoted(&read("examples/metrics.rs"));
    assert_eq!(example.intersection(&library).next(), None);
    library.into_iter().chain(example).collect()
}

/// Also accepts the series of a histogram.
fn is_served(name: &str, served: &BTreeSet<String>) -> bool {
    let parts = ["_bucket", "_count", "_sum"];
    let mut of = parts.iter().filter_map(|part| name.strip_suffix(part));
    served.contains(name) || of.any(|name| name.ends_with("_seconds") && served.contains(name))
}

/// The values of all keys of this name.
fn values<'a>(json: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match json {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if name == key => found.push(text),
                    _ => values(value, key, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| values(item, key, found)),
        _ => {}
    }
}

fn only_what_is_served<'a>(expressions: impl IntoIterator<Item = &'a str>) {
    let served = served();
    let mut seen = 0;
    for expression in expressions {
        let names = named(expression);
        assert!(!names.is_empty(), "it names a metric: {expression}");
        for name in names {
            assert!(
                is_served(name, &served),
                "no such metric: {name} in {expression}"
            );
        }
        seen += 1;
    }
    assert!(seen > 5, "there are expressions");
}

#[test]
fn the_dashboard_shows_metrics_that_exist() {
    let dashboard: Value =
        serde_json::from_str(&read("docs/observability/dashboard.json")).unwrap();
    let mut expressions = Vec::new();
    values(&dashboard["panels"], "expr", &mut expressions);
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(
        expressions.len() >= panels.len(),
        "each panel shows something"
    );
    for panel in panels {
        let is_described = panel["description"]
            .as_str()
            .is_some_and(|is| is.len() > 40);
        assert!(is_described, "no description: {}", panel["title"]);
    }
    let mut lists = Vec::new();
    values(&dashboard["templating"], "query", &mut lists);
    lists.retain(|query| query.starts_with("label_values"));
    assert!(!lists.is_empty(), "the jobs are read from a metric");
    only_what_is_served(expressions.into_iter().chain(lists));
}

#[test]
fn every_metric_is_on_the_dashboard_and_the_page() {
    for file in ["docs/observability/dashboard.json", "docs/observability.md"] {
        let text = read(file);
        let shown = named(&text);
        let is_shown = |name: &&String| {
            let parts = ["", "_bucket", "_count"];
            let mut parts = parts.iter().map(|part| format!("{name}{part}"));
            parts.any(|part| shown.contains(&*part))
        };
        let served = served();
        let missing: Vec<_> = served.iter().filter(|name| !is_shown(name)).collect();
        assert!(missing.is_empty(), "{file}: {missing:?}");
    }
}

/// Nor does the page speak of others.
#[test]
fn the_page_names_metrics_that_exist() {
    let (page, served) = (read("docs/observability.md"), served());
    let (_, section) = page.split_once("## Metrics").expect("its section");
    let unknown: Vec<_> = named(section)
        .into_iter()
        .filter(|name| !is_served(name, &served))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn alerts_ask_for_metrics_that_exist() {
    let rules = read("docs/observability/alerts.yml");
    let field = |name: &'static str| {
        let lines = rules.lines().map(str::trim_start);
        lines.filter_map(move |line| line.strip_prefix(name))
    };
    only_what_is_served(field("expr: "));
    let alerts = field("- alert: ").count();
    assert_eq!(field("expr: ").count(), alerts);
    assert_eq!(field("summary: ").count(), alerts);
    assert_eq!(field("severity: ").count(), alerts);
    let runbook = read("docs/operations.md");
    let names = field("- alert: ").zip(field("runbook_url: "));
    for (name, link) in names {
        let page = "https://github.com/lockset-rs/lockset/blob/main/docs/operations.md#";
        assert_eq!(link, format!("{page}{}", name.to_lowercase()));
        assert!(
            runbook.contains(&format!("\n### {name}\n")),
            "no part for {name}"
        );
    }
    assert_eq!(field("runbook_url: ").count(), alerts);
}

/// Runs `promtool`, which comes with Prometheus.
#[test]
#[ignore = "needs promtool: make test-alerts"]
fn prometheus_accepts_the_alerts() {
    let rules = root().join("docs/observability/alerts.yml");
    let mut promtool = Command::new("promtool");
    let checked = promtool.args(["check", "rules"]).arg(rules).output();
    let checked = checked.expect("promtool is installed");
    assert!(checked.status.success(), "{checked:?}");
}
