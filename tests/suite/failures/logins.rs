//! Logins that a provider gives for each connection: passwords that are replaced while the client runs, and a provider
//! that has none.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use lockset::{Client, ClientBuilder, Credentials, Error, Event, Redlock};
use lockset_testkit::{ClientKind, Cluster, Sentinels, Server, eventually, spawn, within};

use crate::support::{
    BY_MESSAGE, LEASE, PATIENCE, SOON, ask, command, cycle, listening, nothing_left,
};

/// The behaviour of the provider when it is asked.
#[derive(Clone, Copy)]
enum Gives {
    Password(&'static str),
    Fails,
    Panics,
    Hangs,
}

/// The provider of a client, for the user `u`.
struct Login {
    gives: Mutex<Gives>,
    asked: AtomicUsize,
}

type Given = Result<Credentials, Box<dyn std::error::Error + Send + Sync>>;

impl Login {
    fn giving(gives: Gives) -> Arc<Self> {
        Arc::new(Self {
            gives: Mutex::new(gives),
            asked: AtomicUsize::new(0),
        })
    }

    fn gives(&self, gives: Gives) {
        *self.gives.lock().unwrap() = gives;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn builder(self: &Arc<Self>, url: &str) -> ClientBuilder {
        let login = Arc::clone(self);
        let provider = move || -> BoxFuture<'static, Given> {
            login.asked.fetch_add(1, Ordering::SeqCst);
            let gives = *login.gives.lock().unwrap();
            async move {
                match gives {
                    Gives::Password(password) => Ok(Credentials::new("u", password)),
                    Gives::Fails => Err("the vault\nis sealed".into()),
                    Gives::Panics => panic!("on purpose"),
                    Gives::Hangs => std::future::pending().await,
                }
            }
            .boxed()
        };
        Client::builder(url)
            .give_up_after(PATIENCE)
            .credentials(provider)
    }
}

/// Gives the user this password, in place of an earlier one.
async fn set_password(server: &Server, password: &str) {
    let password = format!(">{password}");
    let user = ["ACL", "SETUSER", "u", "reset", "on"];
    let rights = ["~*", "&*", "+@all"];
    command(server, &[&user[..], &[&password], &rights].concat()).await;
}

/// Ends the connections of the user, as a service does when the token of a connection has expired.
async fn kill_connections(server: &Server) {
    let kill = ["CLIENT", "KILL", "USER", "u"];
    let _: usize = ask(&mut server.admin().await, &kill).await;
}

async fn replace_password(servers: &[Server], login: &Login, password: &'static str) {
    login.gives(Gives::Password(password));
    for server in servers {
        set_password(server, password).await;
        kill_connections(server).await;
    }
}

/// A server with the user, who has the password of `OLD`.
async fn server() -> Server {
    let server = Server::start();
    set_password(&server, "old-s3cret").await;
    server
}

/// Checks the error of a call without a connection that is logged in.
fn assert_no_login(error: &Error, server: &Server, why: &str) {
    let text = format!("{error} {error:?}");
    assert!(error.is_refused() && error.is_transient(), "{text}");
    for part in [why, &server.addr().to_string(), "provider of credentials"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("s3cret") && !text.contains('\n'), "{text}");
}

const OLD: Gives = Gives::Password("old-s3cret");
const NEW: Gives = Gives::Password("new-s3cret");

#[tokio::test]
async fn each_connection_logs_in_with_what_is_given_for_it() {
    let (server, login) = (server().await, Login::giving(OLD));
    // The login in the URL is not used.
    let url = format!("redis://nobody:at-all@{}", server.addr());
    let client = login.builder(&url).build().await.unwrap();
    assert_eq!(login.asked(), 2, "for commands and for renewals");
    let other = login.builder(&url).build().await.unwrap();
    let guard = client.lock("held").lock().await.unwrap();
    for round in ["a-s3cret", "b-s3cret", "c-s3cret"] {
        let asked = login.asked();
        replace_password(std::slice::from_ref(&server), &login, round).await;
        within(SOON, cycle(&client.lock("free"))).await;
        guard.reenter().await.unwrap().release().await.unwrap();
        assert!(login.asked() > asked, "{round}");
        // Messages come over a connection of their own.
        let rival = client.lock("waited for").lock().await.unwrap();
        let lock = other.lock("waited for");
        let waits = spawn(async move { cycle(&lock).await });
        listening(&server).await;
        rival.release().await.unwrap();
        within(BY_MESSAGE, waits).await.unwrap();
    }
    let shown = format!("{client:?} {:?}", login.builder(&url));
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

/// A token expires before the provider has the next one, say.
#[tokio::test]
async fn a_rejected_login_is_not_final() {
    let (server, login) = (server().await, Login::giving(OLD));
    let events = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&events);
    let builder = login.builder(&server.admin_url()).lease(LEASE * 5);
    let builder = builder.observer(move |event: &Event<'_>| {
        told.lock().unwrap().push(event.clone().into_owned());
    });
    let client = builder.build().await.unwrap();
    let guard = client.lock("held").lock().await.unwrap();
    set_password(&server, "new-s3cret").await;
    kill_connections(&server).await;
    let hasty = client.lock("free").give_up_after(LEASE / 2);
    for error in [
        hasty.try_lock().await.unwrap_err(),
        hasty.lock().await.unwrap_err(),
        client.ping().await.unwrap_err(),
        login
            .builder(&server.admin_url())
            .build()
            .await
            .unwrap_err(),
    ] {
        assert_no_login(&error, &server, "WRONGPASS");
    }
    eventually(SOON, "renewals fail", async || {
        let events = events.lock().unwrap();
        events.iter().any(|event| match event {
            Event::RenewalFailed { error, .. } => {
                assert_no_login(error, &server, "WRONGPASS");
                true
            }
            _ => false,
        })
    })
    .await;
    let waits = spawn({
        let lock = client.lock("free").give_up_after(SOON);
        async move { cycle(&lock).await }
    });
    let asked = login.asked();
    eventually(SOON, "it is asked again", async || {
        login.asked() > asked + 1
    })
    .await;
    login.gives(NEW);
    within(SOON, waits).await.unwrap();
    client.ping().await.unwrap();
    guard.reenter().await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_provider_without_a_login_is_asked_again_with_pauses() {
    for (gives, why) in [
        (Gives::Fails, "failed: the vault is sealed"),
        (Gives::Panics, "panicked"),
        (Gives::Hangs, "gave none within"),
    ] {
        let (server, login) = (server().await, Login::giving(gives));
        let builder = || {
            let builder = login.builder(&server.admin_url()).lease(LEASE * 5);
            builder.connect_timeout(LEASE / 4)
        };
        let error = builder().build().await.unwrap_err();
        assert_no_login(&error, &server, why);
        let client = builder().lazy().build().await.unwrap();
        let asked = login.asked();
        let calls = (0..10).map(|_| async {
            let lock = client.lock("free").give_up_after(PATIENCE);
            lock.lock().await.unwrap_err()
        });
        for error in join_all(calls).await {
            assert_no_login(&error, &server, why);
        }
        // A pause lasts 0.1 to 0.5 s, and one link connects.
        let asked = login.asked() - asked;
        assert!((2..=20).contains(&asked), "{asked} times: {why}");
        login.gives(OLD);
        within(SOON, cycle(&client.lock("free"))).await;
        let guard = client.lock("held").lock().await.unwrap();
        login.gives(gives);
        kill_connections(&server).await;
        let error = client.lock("free").try_lock().await.unwrap_err();
        assert_no_login(&error, &server, why);
        login.gives(OLD);
        guard.reenter().await.unwrap().release().await.unwrap();
        guard.release().await.unwrap();
        nothing_left(&server).await;
    }
}

/// The connection for commands is still logged in.
#[tokio::test]
async fn a_hold_is_renewed_while_the_connection_for_renewals_gets_no_login() {
    let of_url = |url: &str| Client::builder(&url.replace("//", "//u:old-s3cret@"));
    let of_provider = |url: &str| Login::giving(OLD).builder(url);
    let builders: [&dyn Fn(&str) -> ClientBuilder; 2] = [&of_url, &of_provider];
    for builder in builders {
        let server = server().await;
        let builder = builder(&server.admin_url()).lease(LEASE);
        let client = builder.build().await.unwrap();
        let guard = client.lock("held").lock().await.unwrap();
        set_password(&server, "new-s3cret").await;
        let mut lines = server.clients(ClientKind::All).await;
        lines.retain(|line| line.name.starts_with("lockset-renewal"));
        let [line] = &*lines else {
            panic!("one connection for renewals: {lines:?}");
        };
        command(&server, &["CLIENT", "KILL", "ID", &line.id.to_string()]).await;
        tokio::time::sleep(LEASE * 2).await;
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
        nothing_left(&server).await;
    }
}

#[tokio::test]
async fn the_nodes_of_a_cluster_get_it() {
    let (cluster, login) = (Cluster::start().await, Login::giving(OLD));
    replace_password(cluster.nodes(), &login, "old-s3cret").await;
    let client = login.builder(&cluster.url()).build().await.unwrap();
    let locks: Vec<_> = (0..10).map(|i| client.lock(format!("lock {i}"))).collect();
    let guards = join_all(
        locks
            .iter()
            .map(|lock| async { lock.lock().await.unwrap() }),
    )
    .await;
    replace_password(cluster.nodes(), &login, "new-s3cret").await;
    for guard in guards {
        let again = within(SOON, guard.reenter()).await.unwrap();
        again.release().await.unwrap();
        guard.release().await.unwrap();
    }
    login.gives(OLD);
    for node in cluster.nodes() {
        kill_connections(node).await;
    }
    let hasty = locks[0].clone().give_up_after(LEASE / 2);
    let node = cluster.primary_of("lock 0").await;
    assert_no_login(&hasty.lock().await.unwrap_err(), node, "WRONGPASS");
    login.gives(NEW);
    for lock in &locks {
        within(SOON, cycle(lock)).await;
    }
}

#[tokio::test]
async fn primaries_get_it_and_sentinels_that_of_the_url() {
    let sentinels = Sentinels::builder()
        .replicas(1)
        .sentinel_password("s3ntinel")
        .start()
        .await;
    let login = Login::giving(OLD);
    replace_password(sentinels.servers(), &login, "old-s3cret").await;
    let url = format!("{}?sentinel_password=s3ntinel", sentinels.url());
    let client = login.builder(&url).build().await.unwrap();
    let lock = client.lock("free");
    cycle(&lock).await;
    replace_password(sentinels.servers(), &login, "new-s3cret").await;
    within(SOON, cycle(&lock)).await;
    sentinels.fail_over().await;
    within(SOON * 2, cycle(&lock.clone().give_up_after(SOON))).await;
    let primary = sentinels.primary().await;
    login.gives(Gives::Fails);
    kill_connections(primary).await;
    let error = lock.clone().give_up_after(LEASE / 2).lock().await;
    assert_no_login(&error.unwrap_err(), primary, "vault is sealed");
    let error = login.builder(&url).build().await.unwrap_err();
    assert_no_login(&error, primary, "vault is sealed");
    login.gives(NEW);
    within(SOON, cycle(&lock)).await;
}

/// Each server may have a login of its own.
#[tokio::test]
async fn a_redlock_goes_on_without_a_server_that_gets_none() {
    let mut servers = Vec::new();
    let mut logins = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..3 {
        let (server, login) = (server().await, Login::giving(OLD));
        clients.push(login.builder(&server.admin_url()).build().await.unwrap());
        servers.push(server);
        logins.push(login);
    }
    let redlock = Redlock::builder(clients).persistent_nodes();
    let lock = redlock.build().unwrap().lock("x");
    cycle(&lock).await;
    for (away, is_enough) in [(1, true), (2, false)] {
        for (server, login) in servers.iter().zip(&logins).take(away) {
            login.gives(Gives::Fails);
            kill_connections(server).await;
        }
        match within(SOON, lock.try_lock()).await {
            Ok(guard) if is_enough => guard.expect("it is free").release().await.unwrap(),
            Err(error) if !is_enough => {
                assert!(error.is_quorum() && error.is_transient(), "{error}");
                assert!(error.to_string().contains("vault is sealed"), "{error}");
            }
            other => panic!("{away} away: {other:?}"),
        }
    }
    for login in &logins {
        login.gives(OLD);
    }
    within(SOON, cycle(&lock)).await;
}
