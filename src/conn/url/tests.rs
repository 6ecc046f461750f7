//! Tests of every form, of the error for each defect, and that no secret is ever repeated.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proptest::prelude::*;

use super::*;

/// Parses a URL without TLS.
fn plain(url: &str) -> Target {
    parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn single_of(url: &str) -> ConnectionInfo {
    let Target { kind, model } = plain(url);
    assert!(matches!(kind, TargetKind::Single), "{url} is {kind:?}");
    model
}

fn login(info: &ConnectionInfo) -> (Option<&str>, Option<&str>, i64) {
    let settings = info.redis_settings();
    (settings.username(), settings.password(), settings.db())
}

fn shown(addresses: &[Address]) -> Vec<String> {
    let shown = |address: &Address| format!("{} {}", address.host, address.port);
    addresses.iter().map(shown).collect()
}

#[test]
fn single_servers() {
    for (url, address, expected) in [
        ("redis://h", "h:6379", (None, None, 0)),
        (" redis://h/\n", "h:6379", (None, None, 0)),
        ("REDIS://h:1/2", "h:1", (None, None, 2)),
        ("valkey://:p@h:1/2/", "h:1", (None, Some("p"), 2)),
        ("redis://u:p@h", "h:6379", (Some("u"), Some("p"), 0)),
        ("redis://u:@h", "h:6379", (Some("u"), Some(""), 0)),
        ("redis://:@h", "h:6379", (None, None, 0)),
        ("redis://[::1]:7", "::1:7", (None, None, 0)),
        (
            "redis://u:p@[fe80::1]",
            "fe80::1:6379",
            (Some("u"), Some("p"), 0),
        ),
        (
            "redis://a%40b:%2F%23%3a@h",
            "h:6379",
            (Some("a@b"), Some("/#:"), 0),
        ),
        ("redis://u:a:b@h", "h:6379", (Some("u"), Some("a:b"), 0)),
        ("redis://h?protocol=resp3", "h:6379", (None, None, 0)),
        ("unix:///tmp/a%20b", "/tmp/a b", (None, None, 0)),
        (
            "unix:/tmp/s?db=3&pass=a%2Bb+c",
            "/tmp/s",
            (None, Some("a+b c"), 3),
        ),
        (
            "redis+unix:///tmp/s?user=u&pass=p",
            "/tmp/s",
            (Some("u"), Some("p"), 0),
        ),
        ("valkey+unix:///s@t", "/s@t", (None, None, 0)),
    ] {
        let info = single_of(url);
        assert_eq!(info.addr().to_string(), address, "{url}");
        assert_eq!(login(&info), expected, "{url}");
    }
    let info = single_of("redis://h?protocol=resp3");
    assert_eq!(info.redis_settings().protocol(), ProtocolVersion::RESP3);
}

#[test]
fn clusters() {
    for url in [
        "redis+cluster://u:p%2C@a,b:7000,[::1]:7001,a:6379",
        "valkey+cluster://u:p%2C@a,b:7000,[::1]:7001/0",
    ] {
        let Target { kind, model } = plain(url);
        let TargetKind::Cluster { seeds } = kind else {
            panic!("{url}");
        };
        assert_eq!(shown(&seeds), ["a 6379", "b 7000", "::1 7001"]);
        assert_eq!(login(&model), (Some("u"), Some("p,"), 0));
    }
}

#[test]
fn sentinels() {
    let url = "redis+sentinel://u:p@a,b:7000/my%20main/3?sentinel_user=v&sentinel_password=q%40";
    let Target { kind, model } = plain(url);
    let TargetKind::Sentinel {
        sentinels,
        primary,
        sentinel_model,
    } = kind
    else {
        panic!("{url}");
    };
    assert_eq!(shown(&sentinels), ["a 26379", "b 7000"]);
    assert_eq!(primary, "my main");
    assert_eq!(login(&model), (Some("u"), Some("p"), 3));
    assert_eq!(login(&sentinel_model), (Some("v"), Some("q@"), 0));
    let Target { kind, model } = plain("valkey+sentinel://:p@a/main?sentinel_password=q");
    let TargetKind::Sentinel { sentinel_model, .. } = kind else {
        panic!("{url}");
    };
    assert_eq!(login(&model), (None, Some("p"), 0));
    assert_eq!(login(&sentinel_model), (None, Some("q"), 0));
}

#[test]
fn tls_where_it_is_built_in() {
    for url in [
        "rediss://h",
        "valkeys://h:1",
        "rediss+cluster://h,i",
        "valkeys+cluster://h",
        "rediss+sentinel://h/main",
        "valkeys+sentinel://h/main",
    ] {
        let target = parse(url);
        if cfg!(not(feature = "tls")) {
            let error = target.unwrap_err();
            assert!(error.is_invalid(), "{error}");
            assert!(error.to_string().contains("feature `tls`"), "{error}");
            continue;
        }
        let Target { kind, model } = target.unwrap();
        let infos = match kind {
            TargetKind::Single | TargetKind::Cluster { .. } => vec![model],
            TargetKind::Sentinel { sentinel_model, .. } => vec![sentinel_model, model],
        };
        for info in infos {
            let checked = ConnectionAddr::TcpTls {
                host: "h".to_owned(),
                port: match info.addr() {
                    ConnectionAddr::TcpTls { port, .. } => *port,
                    other => panic!("{url}: {other:?}"),
                },
                insecure: false,
                tls_params: None,
            };
            assert_eq!(*info.addr(), checked, "{url}");
        }
    }
}

#[test]
fn an_error_says_what_is_wrong_and_shows_the_right_form() {
    for (url, wrong, form) in [
        ("", "scheme", "redis://["),
        ("localhost:6379", "scheme", "redis+sentinel://["),
        ("http://u:s3cret@h", "scheme", "unix:///"),
        ("rediss+unix:///s3cret", "scheme", "unix:///"),
        ("redis+s3cret://h", "scheme", "redis://["),
        ("redis:h", "://", "redis://["),
        ("redis://", "host is missing", "redis://["),
        ("redis://u:s3cret@", "host is missing", "redis://["),
        ("redis://u:s3cret@:1", "host is missing", "redis://["),
        ("redis://u:s3cret@h:port", "port", "redis://["),
        ("redis://u:s3cret@h:0", "port", "redis://["),
        ("redis://u:s3cret@h:65536", "port", "redis://["),
        ("redis://u:s3cret@h:+1", "port", "redis://["),
        ("redis://u:s3cret@h:", "port", "redis://["),
        ("redis://::1", "IPv6", "redis://["),
        ("redis://[::1", "IPv6", "redis://["),
        ("redis://[::1]6379", "IPv6", "redis://["),
        ("redis://[s3cret]:1", "IPv6", "redis://["),
        ("redis://0.0.0.0", "listen", "redis://["),
        ("redis://[::]:1", "listen", "redis://["),
        ("redis://s3cret@h", "without a password", "redis://["),
        ("redis://u:%ff@h", "UTF-8", "redis://["),
        ("redis://u:s3/cret@h", "%2F", "redis://["),
        ("redis://u:1/s3cret@h", "%2F", "redis://["),
        ("redis://u:1?s3cret@h", "%3F", "redis://["),
        ("redis://u:1#s3cret@h", "%23", "redis://["),
        ("redis://h#insecure", "certificate", "redis://["),
        ("redis://h/s3cret", "database", "redis://["),
        ("redis://h/-1", "database", "redis://["),
        ("redis://h/0/main", "database", "redis://["),
        ("redis://h?s3cret=1", "unknown key", "redis://["),
        ("redis://h?s3cret", "value", "redis://["),
        ("redis://h?protocol=s3cret", "protocol", "redis://["),
        ("redis://a,b", "redis+cluster://", "redis://["),
        ("unix://tmp/s", "slash", "unix:///"),
        ("unix:s", "slash", "unix:///"),
        ("unix:///s?user=u", "without a password", "unix:///"),
        ("unix:///s?pass=s3cret&pass=t", "twice", "unix:///"),
        ("unix:///s?db=s3cret", "database", "unix:///"),
        ("unix:///s#t", "%23", "unix:///"),
        (
            "redis+cluster://u:s3cret@a,,b",
            "host is missing",
            "redis+cluster://[",
        ),
        (
            "redis+cluster://u:s3cret@a/1",
            "database 0",
            "redis+cluster://[",
        ),
        (
            "redis+cluster://u:s3cret@a?db=1",
            "unknown key",
            "redis+cluster://[",
        ),
        (
            "redis+cluster://u:s3cret@a,u:s3cret@b",
            "once",
            "redis+cluster://[",
        ),
        ("redis+cluster://a,u:s3cret@b", "once", "redis+cluster://["),
        (
            "redis+sentinel://u:s3cret@a",
            "name is missing",
            "redis+sentinel://[",
        ),
        (
            "redis+sentinel://u:s3cret@a//0",
            "name is missing",
            "redis+sentinel://[",
        ),
        (
            "redis+sentinel://a/main/s3cret",
            "database",
            "redis+sentinel://[",
        ),
        (
            "redis+sentinel://a/main?password=s3cret",
            "unknown key",
            "redis+sentinel://[",
        ),
        (
            "redis+sentinel://a/main?sentinel_user=s3cret",
            "without",
            "redis+sentinel://[",
        ),
    ] {
        let error = parse(url).expect_err(url);
        assert!(error.is_invalid(), "{url}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("s3cret"), "{url}: {shown}");
        let (said, forms) = shown.split_once("; use ").expect("the right form");
        assert!(said.contains(wrong), "{url}: {said}");
        assert!(forms.contains(form), "{url}: {forms}");
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z][a-z0-9.-]{0,12}",
        any::<[u8; 4]>()
            .prop_filter("an address", |bytes| *bytes != [0; 4])
            .prop_map(|bytes| std::net::Ipv4Addr::from(bytes).to_string()),
        any::<[u16; 8]>()
            .prop_filter("an address", |words| *words != [0; 8])
            .prop_map(|words| format!("[{}]", Ipv6Addr::from(words))),
    ]
}

fn hosts() -> impl Strategy<Value = Vec<(String, Option<u16>)>> {
    proptest::collection::vec((host(), proptest::option::of(1..=u16::MAX)), 1..5)
}

fn written(hosts: &[(String, Option<u16>)]) -> String {
    let written = |(host, port): &(String, Option<u16>)| match port {
        Some(port) => format!("{host}:{port}"),
        None => host.clone(),
    };
    hosts.iter().map(written).collect::<Vec<_>>().join(",")
}

fn expected(hosts: &[(String, Option<u16>)], default: u16) -> Vec<String> {
    let mut expected = Vec::new();
    for (host, port) in hosts {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let address = format!("{host} {}", port.unwrap_or(default));
        if !expected.contains(&address) {
            expected.push(address);
        }
    }
    expected
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        user in ".{1,8}", password in ".{0,8}", hosts in hosts(), name in ".{1,8}",
        db in 0..1000_i64, sentinel_password in ".{1,8}",
    ) {
        let login_text = format!("{}:{}@", encoded(&user), encoded(&password));
        let as_written = (Some(&*user), Some(&*password), db);

        let [first, ..] = &*hosts else { unreachable!() };
        let info = single_of(&format!("redis://{login_text}{}/{db}", written(std::slice::from_ref(first))));
        prop_assert_eq!(login(&info), as_written);
        let Address { host, port } = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Address { host: host.as_str().into(), port: *port },
            other => panic!("{other:?}"),
        };
        prop_assert_eq!(shown(&[Address { host, port }]), expected(std::slice::from_ref(first), 6379));

        let Target { kind, model } = plain(&format!("redis+cluster://{login_text}{}", written(&hosts)));
        let TargetKind::Cluster { seeds } = kind else { panic!() };
        prop_assert_eq!(shown(&seeds), expected(&hosts, 6379));
        prop_assert_eq!(login(&model), (Some(&*user), Some(&*password), 0));

        let url = format!(
            "redis+sentinel://{login_text}{}/{}/{db}?sentinel_password={}",
            written(&hosts), encoded(&name), encoded(&sentinel_password),
        );
        let Target { kind, model } = plain(&url);
        let TargetKind::Sentinel { sentinels, primary, sentinel_model } = kind else { panic!() };
        prop_assert_eq!(shown(&sentinels), expected(&hosts, 26379));
        prop_assert_eq!(primary, name);
        prop_assert_eq!(login(&model), as_written);
        prop_assert_eq!(login(&sentinel_model), (None, Some(&*sentinel_password), 0));
    }

    /// Tests passwords with arbitrary raw characters, at each position of a URL that can have a password.
    #[test]
    fn a_password_is_never_shown(
        scheme in "(redis|rediss|valkey|redis\\+cluster|redis\\+sentinel|valkeys\\+sentinel)",
        before in "[ -~]{0,6}", after in "[ -~]{0,6}", host in "[a-z0-9:,\\[\\]./?#@]{0,10}",
        behind in "[ -~]{0,10}", place in 0..3,
    ) {
        let secret = format!("{before}s3cret{after}");
        let url = match place {
            0 => format!("{scheme}://u:{secret}@{host}/{behind}"),
            1 => format!("redis+sentinel://a/main?{behind}&sentinel_password={secret}"),
            _ => format!("unix:///{behind}?pass={secret}"),
        };
        let shown = match parse(&url) {
            Ok(target) => format!("{target:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        prop_assert!(!shown.contains("s3cret"), "{}: {}", url, shown);
    }

    #[test]
    fn nothing_makes_it_panic(url in "(redis|rediss|redis\\+cluster|redis\\+sentinel|unix):.{0,40}") {
        drop(parse(&url));
    }
}
