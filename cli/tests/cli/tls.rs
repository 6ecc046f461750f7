//! Every verb over TLS. Which servers can speak it: docs/testing.md.

use lockset_testkit::{Certificates, Cluster, Sentinels, Server};

use crate::place::{ENCODED, Place, USER, is_discreet, make_user, with_login};
use crate::topology::every_verb_works;

fn login() -> String {
    format!("{USER}:{ENCODED}")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn one_server() {
    let server = Server::builder().tls().demand_client_certificates().start();
    make_user(&server).await;
    let url = with_login(&server.tls_url(), &login());
    every_verb_works(&Place::over_tls(url, server.tls())).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn a_cluster() {
    let cluster = Cluster::builder().tls().replicas(0).start().await;
    for node in cluster.nodes() {
        make_user(node).await;
    }
    let url = with_login(&cluster.url(), &login());
    every_verb_works(&Place::over_tls(url, cluster.node(0).tls())).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn sentinels() {
    let sentinels = Sentinels::builder().tls().start().await;
    for server in sentinels.servers() {
        make_user(server).await;
    }
    let certificates = sentinels.servers()[0].tls();
    let url = with_login(&sentinels.url(), &login());
    let place = Place::over_tls(&url, certificates);
    every_verb_works(&place).await;
    let checks = place.objects(&["doctor"], 0).await;
    let seen = checks.iter().find(|check| check["check"] == "sentinels");
    let seen = seen.expect("the sentinels were asked over TLS");
    assert_eq!(seen["verdict"], "ok", "{seen}");

    // Certificates for another host than the one that is connected to: each server is asked in that name.
    let named = Place::over_tls(&url, certificates).and("LOCKSET_TLS_SERVER_NAME", "localhost");
    let checks = named.objects(&["doctor"], 0).await;
    let seen = checks.iter().find(|check| check["check"] == "sentinels");
    assert_eq!(
        seen.unwrap()["verdict"],
        "warn",
        "they cannot be asked one by one"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn an_untrusted_server_is_named() {
    let server = Server::builder().tls().start();
    make_user(&server).await;
    let url = with_login(&server.tls_url(), &login());
    let wrong = Place::over_tls(&url, &Certificates::new());
    let ended = wrong.ended(&["run", "a", "--", "true"]).await;
    assert_eq!(ended.status, 64, "{ended:?}");
    assert!(ended.err.contains("TLS"), "{ended:?}");
    // One that does not speak it, and one that does where it was not asked to.
    let plain = url.replace(&server.tls_addr().to_string(), &server.addr().to_string());
    let ended = Place::over_tls(plain, server.tls()).ended(&["list"]).await;
    assert!(
        ended.status == 69 && ended.err.contains("speak TLS"),
        "{ended:?}"
    );
    let ended = Place::new(url.replace("rediss", "redis"))
        .ended(&["list"])
        .await;
    assert!(
        ended.status == 69 && ended.err.contains("rediss"),
        "{ended:?}"
    );
    is_discreet(&ended);
}
