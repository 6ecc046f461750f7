//! Dashboard, alerts and page speak of metrics that exist: those that the example serves.

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

/// In each line of the text that the example serves stands one, in quotes.
fn served(example: &str) -> BTreeSet<&str> {
    let texts = example.split('"').skip(1).step_by(2);
    let names: BTreeSet<&str> = texts.filter(|text| named(text).contains(text)).collect();
    assert!(names.len() > 10, "the example was read: {names:?}");
    names
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
    let example = read("examples/metrics.rs");
    let served = served(&example);
    let mut seen = 0;
    for expression in expressions {
        let names = named(expression);
        assert!(!names.is_empty(), "it names a metric: {expression}");
        for name in names {
            assert!(
                served.contains(name),
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
    let panels = dashboard["panels"].as_array().unwrap().len();
    assert!(expressions.len() >= panels, "each panel shows something");
    only_what_is_served(expressions);
}

#[test]
fn every_metric_is_on_the_dashboard() {
    let (example, dashboard) = (
        read("examples/metrics.rs"),
        read("docs/observability/dashboard.json"),
    );
    let missing: Vec<_> = served(&example)
        .difference(&named(&dashboard))
        .copied()
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
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
}

/// By the tool that comes with Prometheus.
#[test]
#[ignore = "needs promtool: apt-get install prometheus"]
fn alerts_are_what_prometheus_reads() {
    let rules = root().join("docs/observability/alerts.yml");
    let mut promtool = Command::new("promtool");
    let checked = promtool.args(["check", "rules"]).arg(rules).output();
    let checked = checked.expect("promtool is installed");
    assert!(checked.status.success(), "{checked:?}");
}
