//! Tests how long a call goes on without an answer.

use super::{LEASE, MS};
use crate::client::Client;
use crate::script::NativePath;
use crate::testing::{Answer, Scripted};

/// The plain command and the script that follows it have one bound together.
#[tokio::test(start_paused = true)]
async fn a_call_to_a_silent_server_has_one_bound() {
    for path in [NativePath::On, NativePath::Off] {
        let server = Scripted::new(|_| Answer::Silence);
        let client = Client::over_by(&server, LEASE, path);
        let began = server.clock().now();
        // The limit is the time that one reply may take.
        let timed = client.lock("x").try_lock_for(MS * 1_000).await;
        assert!(began.until(server.clock().now()) <= MS * 1_001, "{timed:?}");
        let began = server.clock().now();
        let impatient = client.lock("y").give_up_after(MS * 500);
        let error = impatient.lock().await.unwrap_err();
        assert!(began.until(server.clock().now()) <= MS * 501, "{error}");
        assert!(
            error.to_string().contains("no reply within 500ms"),
            "{error}"
        );
    }
}
