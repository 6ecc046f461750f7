//! How handles and guards describe themselves: names, ids, and a line for logs.

use std::time::Duration;

use lockset::{Member, MultiLock, Owner, Redlock};
use lockset_testkit::{Server, unique_name, within};

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{SOON, client, patient_client};

/// Checks a log line, which begins with its subject.
fn check_line(line: &str, kind: &str, parts: &[&str]) {
    assert!(line.starts_with(&format!("{kind} {{ ")), "{line}");
    assert!(!line.contains('\n') && line.len() < 500, "{line}");
    for part in parts {
        assert!(line.contains(part), "{part} in {line}");
    }
}

fn kind<T>() -> &'static str {
    let path = std::any::type_name::<T>();
    path.rsplit("::").next().expect("a name")
}

/// The guard of a multi-lock shows the names of all its members.
async fn a_guard_is_a_line<P: Primitive>() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let owner = Owner::new();
    let lock = P::of(&client, "shown\n1").fenced().owner(&owner);
    let guard = lock.lock().await.unwrap();
    let inner = guard.reenter().await.unwrap();
    let token = guard.fencing_token().expect("a token").to_string();
    check_line(
        &format!("{guard:?}"),
        kind::<P::Guard>(),
        &[
            r#""shown\n1""#,
            guard.holder_id(),
            &format!("{owner:?}"),
            "hold_count: 2",
            &format!("fencing_token: {token}"),
            "remaining: ",
        ],
    );
    lock.force_unlock().await.unwrap();
    within(SOON, guard.lost()).await;
    let line = format!("{inner:?}");
    check_line(&line, kind::<P::Guard>(), &["lost: Revoked"]);
    assert!(!line.contains("remaining"), "{line}");
}

/// The server stores the holder under the id that the guard reports, which begins with the client's
/// id.
async fn a_guard_reports_its_holder_id<P: Primitive>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let name = unique_name("lock");
    let guard = P::of(&client, &name).lock().await.unwrap();
    let mut admin = server.admin().await;
    let fields = redis::cmd("HKEYS").arg(&name).query_async(&mut admin).await;
    let fields: Vec<String> = fields.unwrap();
    // A writer's field has a suffix.
    let is_its = |field: &String| field.starts_with(guard.holder_id());
    assert!(fields.iter().any(is_its), "{fields:?}");
    let number = guard.holder_id().strip_prefix(client.id());
    let number = number.and_then(|rest| rest.strip_prefix(':'));
    assert!(number.is_some_and(|number| number.parse::<u64>().is_ok()));
    let again = guard.reenter().await.unwrap();
    assert_eq!(again.holder_id(), guard.holder_id());
}

for_every_primitive! {"current_thread":
    a_guard_is_a_line
    a_guard_reports_its_holder_id
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "current_thread":
    a_guard_is_a_line
    a_guard_reports_its_holder_id
}

#[tokio::test]
async fn a_handle_has_a_name_and_is_a_line() {
    let server = Server::builder().args(["--requirepass", "s3cret"]).start();
    let url = format!("redis://:s3cret@{}", server.addr());
    let client = patient_client(&url).await;
    let owner = Owner::new();
    let redlock = Redlock::new([client.clone()]).unwrap();
    let rw = client.rw_lock("r").owner(&owner);
    assert_eq!(client.lock("a").name(), "a");
    assert_eq!(client.fair_lock("f").name(), "f");
    assert_eq!(
        [rw.name(), rw.read_side().name(), rw.write_side().name()],
        ["r"; 3]
    );
    assert_eq!(redlock.lock("q").name(), "q");
    // An invalid name is shown as given.
    assert_eq!(client.lock("a}b").name(), "a}b");
    let multi = MultiLock::new([
        Member::from(client.lock("b")),
        Member::from(client.rw_lock("a").read_side()),
    ]);
    let multi = multi.unwrap().fenced();
    assert_eq!(multi.names(), ["a", "b"]);
    assert_eq!(multi.name(), "a");

    let lease = Duration::from_secs(5);
    let fixed = client.lock("a").fixed_lease(lease).fenced();
    let owned = &*format!("owner: {owner:?}");
    for (line, kind, parts) in [
        (
            format!("{fixed:?}"),
            "ReentrantLock",
            &[r#""a""#, client.id(), "fixed_lease: 5s", "fenced: true"][..],
        ),
        (
            format!("{:?}", client.fair_lock("f").lease(lease)),
            "FairLock",
            &[r#""f""#, " lease: 5s"],
        ),
        (format!("{rw:?}"), "RwLock", &[r#""r""#, owned]),
        (
            format!("{:?}", rw.read_side()),
            "ReadSide",
            &[r#""r""#, owned],
        ),
        (
            format!("{:?}", rw.write_side()),
            "WriteSide",
            &[r#""r""#, owned],
        ),
        (
            format!("{multi:?}"),
            "MultiLock",
            &[r#"["a", "b"]"#, "fenced: true"],
        ),
        (
            format!("{:?}", redlock.lock("q")),
            "RedlockLock",
            &[r#""q""#, &server.addr().to_string()],
        ),
        (
            format!("{client:?}"),
            "Client",
            &[client.id(), &server.addr().to_string()],
        ),
    ] {
        check_line(&line, kind, parts);
        assert!(!line.contains("s3cret"), "{line}");
    }
    let member = format!("{:?}", Member::from(rw.write_side()));
    assert!(member.starts_with("Member(write { name: \"r\""), "{member}");
}
