//! Pure: checks of the report of a server.

use std::time::Duration;

use super::check::{Check, Verdict};
use crate::span;
use lockset_operator::{Right, ServerReport};

/// The oldest version that can serve locks.
const VERSION_MIN: [u64; 2] = [6, 2];

/// The number of round trips that a lease has to allow.
const TRIPS_PER_LEASE: u32 = 60;

const LEASE_MIN: Duration = Duration::from_millis(100);

const CLOCK_MS_MAX: i64 = 1000;
const LAG_SECONDS_MAX: u64 = 10;
const FULL_PERCENT: u64 = 90;

pub(super) fn of(report: &ServerReport, is_cluster: bool) -> Vec<Check> {
    let mut checks = Vec::new();
    if report.info.is_empty() {
        let advice =
            "give the user +info to have version, memory, persistence and replicas checked";
        checks.push(Check::wrong("info", Verdict::Warn, "not told", advice));
    } else {
        checks.extend([
            version(report),
            topology(report, is_cluster),
            eviction(report),
            memory(report),
            persistence(report),
            replicas(report),
        ]);
    }
    if report.round_trips[0].is_zero() {
        let advice =
            "give the user +time to have the clock and the distance of the server measured";
        checks.push(Check::wrong(
            "round trip",
            Verdict::Warn,
            "not measured",
            advice,
        ));
    } else {
        checks.push(clock(report));
        checks.push(distance(report));
    }
    checks.extend(report.has_restore.map(native_path));
    checks.extend(notifications(report));
    checks.extend(rights(report));
    checks
}

/// Whether free locks can be taken without a script; whether the user may do so is among the rights.
fn native_path(has_restore: bool) -> Check {
    if has_restore {
        return Check::ok("native path", "free locks are taken by a plain command");
    }
    let advice = "locks work all the same, and taking a free one costs the server about three times as much: \
        do not rename or disable the command, where you can choose";
    Check::wrong(
        "native path",
        Verdict::Warn,
        "the server has no RESTORE",
        advice,
    )
}

/// Whether waiters hear of releases. If they do not, handles have to be polled.
fn notifications(report: &ServerReport) -> Option<Check> {
    const NAME: &str = "waits";
    const POLLED: &str = "write `.polled(..)` on handles, with pauses that fit: without it a waiter asks \
        once in a sixth of its client's lease, up to 1 s";
    let wrong =
        |found: &str, advice: String| Some(Check::wrong(NAME, Verdict::Warn, found, advice));
    if report.has_pubsub == Some(false) {
        return wrong("the server cannot publish and subscribe", POLLED.to_owned());
    }
    let mut rights = report
        .rights
        .iter()
        .filter(|right| right.is_for_notifications)
        .peekable();
    rights.peek()?;
    let missing = rights.filter(|right| !right.is_given);
    let missing: Vec<_> = missing.map(|right| format!("'{}'", right.rule)).collect();
    if missing.is_empty() {
        return Some(Check::ok(NAME, "notifications wake waiters"));
    }
    let user = report.user.as_deref().unwrap_or("USER");
    let advice = format!("ACL SETUSER {user} {} '&*'; or {POLLED}", missing.join(" "));
    wrong("the user may not publish and subscribe", advice)
}

fn field<'a>(report: &'a ServerReport, name: &str) -> &'a str {
    report.info.get(name).map_or("", String::as_str)
}

fn number(report: &ServerReport, name: &str) -> u64 {
    field(report, name).parse().unwrap_or_default()
}

fn version(report: &ServerReport) -> Check {
    let valkey = field(report, "valkey_version");
    let (software, version) = match valkey {
        "" => ("Redis", field(report, "redis_version")),
        valkey => ("Valkey", valkey),
    };
    let found = format!("{software} {version}");
    let mut parts = version
        .split('.')
        .map(|part| part.parse().unwrap_or_default());
    let parts = [parts.next().unwrap_or(0), parts.next().unwrap_or(0)];
    if parts >= VERSION_MIN {
        return Check::ok("version", found);
    }
    let advice = "use Redis 6.2 or later, or Valkey: scripts need commands of 6.2";
    Check::wrong("version", Verdict::Fail, found, advice)
}

fn topology(report: &ServerReport, is_cluster: bool) -> Check {
    let role = field(report, "role");
    if role != "master" {
        let advice = "connect to its primary, or to the sentinels with redis+sentinel://";
        return Check::wrong("role", Verdict::Fail, "a replica", advice);
    }
    if field(report, "cluster_enabled") == "1" && !is_cluster {
        let advice = "connect with redis+cluster://, else most names are refused";
        return Check::wrong("role", Verdict::Fail, "a node of a cluster", advice);
    }
    Check::ok("role", "primary")
}

fn eviction(report: &ServerReport) -> Check {
    let policy = field(report, "maxmemory_policy");
    let has_limit = number(report, "maxmemory") > 0;
    if policy == "noeviction" {
        return Check::ok("eviction", policy);
    }
    let advice = "locks have a time to live, so this policy may delete those that are held: \
        CONFIG SET maxmemory-policy noeviction";
    let verdict = if has_limit {
        Verdict::Fail
    } else {
        Verdict::Warn
    };
    let found = if has_limit {
        policy.to_owned()
    } else {
        format!("{policy}, without a limit of memory yet")
    };
    Check::wrong("eviction", verdict, found, advice)
}

fn memory(report: &ServerReport) -> Check {
    let (used, max) = (number(report, "used_memory"), number(report, "maxmemory"));
    let mb = |bytes: u64| bytes / 1_048_576;
    if max == 0 {
        return Check::ok("memory", format!("{} MB used, no limit", mb(used)));
    }
    let found = format!("{} of {} MB used", mb(used), mb(max));
    if used.saturating_mul(100) < max.saturating_mul(FULL_PERCENT) {
        return Check::ok("memory", found);
    }
    let advice = "a full server refuses new locks: raise maxmemory or free some";
    let verdict = if used < max {
        Verdict::Warn
    } else {
        Verdict::Fail
    };
    Check::wrong("memory", verdict, found, advice)
}

fn persistence(report: &ServerReport) -> Check {
    let has_log = field(report, "aof_enabled") == "1";
    for (name, what) in [
        ("rdb_last_bgsave_status", "the last snapshot failed"),
        ("aof_last_write_status", "the last write to the log failed"),
    ] {
        if field(report, name) == "err" {
            let advice = "the server may refuse all writes: look at its log and its disk";
            return Check::wrong("persistence", Verdict::Fail, what, advice);
        }
    }
    if has_log {
        return Check::ok("persistence", "append-only log");
    }
    let advice = "a server that restarts forgets its locks while their holders work on: \
        CONFIG SET appendonly yes, or fence what the locks protect";
    Check::wrong("persistence", Verdict::Warn, "no append-only log", advice)
}

fn replicas(report: &ServerReport) -> Check {
    let count = number(report, "connected_slaves");
    // The field exists only if `min-replicas-to-write` is set.
    if field(report, "min_slaves_good_slaves") == "0" {
        let found = format!("{count}, none of them good enough for min-replicas-to-write");
        let advice = "the server refuses all writes now: bring replicas back, or \
            CONFIG SET min-replicas-to-write 0";
        return Check::wrong("replicas", Verdict::Fail, found, advice);
    }
    if count == 0 {
        return Check::ok("replicas", "none");
    }
    // The count comes from the server, so the list may be shorter.
    let replicas = (0..count).map(|at| field(report, &format!("slave{at}")));
    let replicas = replicas.take_while(|replica| !replica.is_empty());
    let mut late = Vec::new();
    for replica in replicas {
        let part = |name: &str| {
            let parts = replica.split(',').filter_map(|part| part.split_once('='));
            parts
                .into_iter()
                .find(|(key, _)| *key == name)
                .map_or("", |(_, value)| value)
        };
        let lag: u64 = part("lag").parse().unwrap_or_default();
        if part("state") != "online" || lag > LAG_SECONDS_MAX {
            late.push(format!(
                "{}:{} {} {lag} s",
                part("ip"),
                part("port"),
                part("state")
            ));
        }
    }
    if late.is_empty() {
        return Check::ok(
            "replicas",
            format!("{count}, none more than {LAG_SECONDS_MAX} s behind"),
        );
    }
    let advice = "a replica that takes over does not have the locks that it has not received yet";
    Check::wrong("replicas", Verdict::Warn, late.join("; "), advice)
}

fn clock(report: &ServerReport) -> Check {
    let ahead = report.clock_ahead_ms;
    let found = match ahead {
        0.. => format!("{ahead} ms ahead of this machine's"),
        _ => format!("{} ms behind this machine's", ahead.unsigned_abs()),
    };
    if ahead.abs() <= CLOCK_MS_MAX {
        return Check::ok("clock", found);
    }
    let advice = "leases do not depend on it, but queues shared with Redisson and ages of tokens do: \
        have both set by NTP";
    Check::wrong("clock", Verdict::Warn, found, advice)
}

fn distance(report: &ServerReport) -> Check {
    let [least, middle] = report.round_trips;
    let lease = (middle * TRIPS_PER_LEASE).max(LEASE_MIN);
    let shown = |span: Duration| format!("{:.2} ms", span.as_secs_f64() * 1000.0);
    let found = format!(
        "a round trip takes {} (at least {}): leases from {} on are renewed in time",
        shown(middle),
        shown(least),
        span::show(lease)
    );
    if lease <= Duration::from_secs(30) {
        return Check::ok("round trip", found);
    }
    let advice =
        "the default lease of 30 s is too short for this distance: set ClientBuilder::lease";
    Check::wrong("round trip", Verdict::Warn, found, advice)
}

/// The missing rights, with the line to copy.
pub(super) fn rights(report: &ServerReport) -> Vec<Check> {
    let Some(user) = &report.user else {
        let advice = "give the user +acl|whoami and +acl|dryrun to have its rights checked";
        return vec![Check::wrong(
            "rights",
            Verdict::Warn,
            "the server does not tell the user",
            advice,
        )];
    };
    if report.rights.is_empty() {
        let advice =
            "it needs Redis 7 or Valkey, and +acl|dryrun; docs/rights.md lists what locks need";
        let found = format!("not checked for user {user}");
        return vec![Check::wrong("rights", Verdict::Warn, found, advice)];
    }
    let missing = |needed: bool| -> Vec<&Right> {
        let rights = report.rights.iter();
        rights
            .filter(|right| !right.is_given && right.is_needed == needed)
            .collect()
    };
    let line = |rights: &[&Right]| {
        let rules = rights.iter().map(|right| format!("'{}'", right.rule));
        let rules: Vec<String> = rules.collect();
        format!("ACL SETUSER {user} {}", rules.join(" "))
    };
    let purposes = |rights: &[&Right]| {
        let mut purposes: Vec<&str> = rights.iter().map(|right| right.purpose).collect();
        purposes.sort_unstable();
        purposes.dedup();
        purposes.join(", ")
    };
    let (needed, other) = (missing(true), missing(false));
    let mut checks = Vec::new();
    if needed.is_empty() {
        let found = format!("user {user} may do all that locks need");
        checks.push(Check::ok("rights", found));
    } else {
        let found = format!(
            "user {user} lacks {} for {}",
            needed.len(),
            purposes(&needed)
        );
        checks.push(Check::wrong("rights", Verdict::Fail, found, line(&needed)));
    }
    if !other.is_empty() {
        let found = format!("user {user} does without {}", purposes(&other));
        checks.push(Check::wrong("rights", Verdict::Warn, found, line(&other)));
    }
    checks
}

/// Whether locks of these names can be granted together.
pub(super) fn slots(names: &[String], places: &[(u16, String)], is_cluster: bool) -> Check {
    if !is_cluster {
        return Check::ok("slots", "one server grants them all in one round trip");
    }
    let all: Vec<String> = names
        .iter()
        .zip(places)
        .map(|(name, (slot, server))| format!("{name} slot {slot} at {server}"))
        .collect();
    let found = all.join("; ");
    if places.iter().all(|(slot, _)| *slot == places[0].0) {
        return Check::ok("slots", found);
    }
    let advice = "a multi-lock takes these one after the other: give their names one tag in braces, \
        such as {7}, to have them granted in one round trip";
    Check::wrong("slots", Verdict::Warn, found, advice)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn report(fields: &[(&str, &str)]) -> ServerReport {
        let mut report = ServerReport::default();
        let well = [
            ("redis_version", "7.0.15"),
            ("role", "master"),
            ("maxmemory_policy", "noeviction"),
            ("aof_enabled", "1"),
        ];
        let fields = well.iter().chain(fields);
        let fields = fields.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        report.info = fields.collect::<BTreeMap<_, _>>();
        report.user = Some("locker".to_owned());
        report.round_trips = [Duration::from_micros(400); 2];
        report
    }

    fn verdict(name: &str, fields: &[(&str, &str)]) -> Verdict {
        let checks = of(&report(fields), false);
        let check = checks.iter().find(|check| check.check == name);
        check.unwrap_or_else(|| panic!("{name}")).verdict
    }

    #[test]
    fn each_fault_has_its_check() {
        for (name, fields, expected) in [
            ("version", &[][..], Verdict::Ok),
            ("version", &[("redis_version", "6.0.9")], Verdict::Fail),
            ("version", &[("valkey_version", "8.1.0")], Verdict::Ok),
            ("role", &[("role", "slave")], Verdict::Fail),
            ("role", &[("cluster_enabled", "1")], Verdict::Fail),
            (
                "eviction",
                &[("maxmemory_policy", "volatile-lru")],
                Verdict::Warn,
            ),
            (
                "eviction",
                &[("maxmemory_policy", "volatile-lru"), ("maxmemory", "9")],
                Verdict::Fail,
            ),
            (
                "memory",
                &[("used_memory", "95"), ("maxmemory", "100")],
                Verdict::Warn,
            ),
            (
                "memory",
                &[("used_memory", "9"), ("maxmemory", "100")],
                Verdict::Ok,
            ),
            (
                "memory",
                &[("used_memory", "100"), ("maxmemory", "100")],
                Verdict::Fail,
            ),
            (
                "replicas",
                &[("min_slaves_good_slaves", "0")],
                Verdict::Fail,
            ),
            ("persistence", &[("aof_enabled", "0")], Verdict::Warn),
            (
                "persistence",
                &[("rdb_last_bgsave_status", "err")],
                Verdict::Fail,
            ),
            (
                "replicas",
                &[
                    ("connected_slaves", "1"),
                    ("slave0", "ip=h,port=1,state=online,offset=5,lag=0"),
                ],
                Verdict::Ok,
            ),
            (
                "replicas",
                &[
                    ("connected_slaves", "1"),
                    ("slave0", "ip=h,port=1,state=online,offset=5,lag=60"),
                ],
                Verdict::Warn,
            ),
            ("rights", &[], Verdict::Warn),
        ] {
            assert_eq!(verdict(name, fields), expected, "{name} {fields:?}");
        }
    }

    #[test]
    fn a_clock_and_a_distance_are_measured() {
        let mut far = report(&[]);
        far.clock_ahead_ms = -5000;
        far.round_trips = [Duration::from_millis(700); 2];
        let checks = of(&far, false);
        let wrong = checks.iter().filter(|check| check.verdict == Verdict::Warn);
        let wrong: Vec<&str> = wrong.map(|check| check.check).collect();
        assert_eq!(wrong, ["clock", "round trip", "rights"]);
    }

    #[test]
    fn missing_rights_to_measure_are_named() {
        let mut blind = report(&[]);
        blind.round_trips = [Duration::ZERO; 2];
        let checks = of(&blind, false);
        let trip = checks.iter().find(|check| check.check == "round trip");
        assert_eq!(trip.unwrap().verdict, Verdict::Warn);
        assert!(checks.iter().all(|check| check.check != "clock"));
    }

    #[test]
    fn a_server_without_restore_is_told_of() {
        for (has_restore, expected) in [
            (Some(true), Some(Verdict::Ok)),
            (Some(false), Some(Verdict::Warn)),
            (None, None),
        ] {
            let mut report = report(&[]);
            report.has_restore = has_restore;
            let checks = of(&report, false);
            let check = checks.iter().find(|check| check.check == "native path");
            assert_eq!(check.map(|check| check.verdict), expected);
        }
    }

    #[test]
    fn a_server_without_notifications_needs_polled_waits() {
        let waits = |has_pubsub| {
            let mut report = report(&[]);
            report.has_pubsub = has_pubsub;
            let checks = of(&report, false);
            checks.into_iter().find(|check| check.check == "waits")
        };
        let check = waits(Some(false)).unwrap();
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.advice.unwrap().contains("`.polled(..)`"));
        // The rights of the user are not known.
        assert!(waits(Some(true)).is_none() && waits(None).is_none());
    }

    #[test]
    fn names_of_one_slot_go_together() {
        let names = ["a".to_owned(), "b".to_owned()];
        let place = |slot| (slot, "h:1".to_owned());
        assert_eq!(
            slots(&names, &[place(1), place(1)], true).verdict,
            Verdict::Ok
        );
        assert_eq!(
            slots(&names, &[place(1), place(2)], true).verdict,
            Verdict::Warn
        );
        assert_eq!(
            slots(&names, &[place(0), place(0)], false).verdict,
            Verdict::Ok
        );
    }
}
