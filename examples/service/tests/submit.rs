//! The form over HTTP, in two processes.

mod support;

use futures_util::future::join_all;
use lockset_testkit::{Server, within};

use support::Web;
use support::shop::SOON;

#[tokio::test]
async fn one_of_two_hundred_posts_to_two_processes_passes() {
    let redis = Server::start();
    let url = redis.url();
    let start = || Web::start(env!("CARGO_BIN_EXE_submit"), &[("REDIS_URL", &*url)]);
    let web = [start(), start()];
    let posts = (0..200).map(|i| web[i % 2].post("/ada/form-7"));
    let replies = join_all(posts).await;
    let replies: Vec<_> = replies
        .iter()
        .map(|reply| (reply.status, reply.retry_after))
        .collect();
    let passed = replies.iter().filter(|reply| **reply == (200, None));
    assert_eq!(passed.count(), 1, "{replies:?}");
    let refused = replies.iter().filter(|(status, retry)| {
        *status == 429 && retry.is_some_and(|seconds| (1..=15).contains(&seconds))
    });
    assert_eq!(refused.count(), 199, "{replies:?}");
    // Another form of the same user has another key.
    assert_eq!(web[0].post("/ada/form-8").await.status, 200);
}

/// The server drops the handler of a client that goes away.
#[tokio::test]
async fn a_client_that_goes_away_does_not_free_the_form_while_it_is_saved() {
    let redis = Server::start();
    let url = redis.url();
    let environment = [("REDIS_URL", &*url), ("SAVE_MS", "500")];
    let mut web = Web::start(env!("CARGO_BIN_EXE_submit"), &environment);
    let connection = web.send("POST", "/ada/form-7").await;
    assert_eq!(within(SOON, web.said()).await, "saves form-7");
    drop(connection);
    assert_eq!(within(SOON, web.said()).await, "saved form-7");
    assert_eq!(web.post("/ada/form-7").await.status, 429);
    assert_eq!(web.post("/ada/form-8").await.status, 200);
    let next = [web.said().await, web.said().await];
    assert_eq!(next, ["saves form-8", "saved form-8"], "form-7 once");
}
