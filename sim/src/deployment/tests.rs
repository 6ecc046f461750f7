//! A client's reaction to sentinels that name an unreachable or a replaced server.

use lockset::{Client, ClientBuilder, LostReason};
use tokio::time::{Duration, Instant, sleep};

use super::*;
use crate::clients::Made;
use crate::net::Direction;

const SECOND: Duration = Duration::from_secs(1);

/// The primary at first, the server that is named next, and a third.
const A: ServerId = 0;
const B: ServerId = 1;
const C: ServerId = 2;

const SENTINELS: [ServerId; 3] = [3, 4, 5];

/// Servers, and a client of theirs.
struct Here {
    deployment: Deployment,
    client: Client,
    number: usize,
}

impl Here {
    async fn new(settings: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Self {
        let layout = Layout::Sentinel {
            replicas: 2,
            sentinels: 3,
        };
        let deployment = Deployment::new(&Net::of_a_test(layout.servers()), layout);
        let (url, process) = (deployment.urls().remove(0), Arc::default());
        let Made { number, client } = Made::new(&deployment.net, &process, &url, settings).await;
        Self {
            deployment,
            client: client.unwrap(),
            number,
        }
    }

    fn net(&self) -> &Net {
        &self.deployment.net
    }

    /// These sentinels name this primary, and a client has had the time to act on that.
    async fn say(&self, sentinels: &[ServerId], primary: ServerId, epoch: u64) {
        for sentinel in sentinels {
            self.net().learn(*sentinel, primary, epoch);
        }
        sleep(SECOND * 5).await;
    }

    /// The client can send nothing to this server, and hears nothing of it.
    fn cut_off(&self, server: ServerId) {
        for direction in [Direction::ToServer, Direction::ToClient] {
            self.net().cut_off(self.number, server, direction);
        }
    }

    /// Which server grants a lock.
    async fn granted_by(&self, name: &str) -> Option<ServerId> {
        let lock = self.client.lock(name).give_up_after(SECOND);
        let guard = lock.try_lock().await.ok()??;
        let has_it = |server: &ServerId| {
            let holder = |state: &mut crate::net::State| {
                state.node(*server).store.get(name.as_bytes()).is_some()
            };
            self.net().with(holder)
        };
        let server = [A, B, C].into_iter().find(has_it);
        guard.release().await.unwrap();
        server
    }
}

/// It is no replica yet, and takes commands from every sender.
#[tokio::test(start_paused = true)]
async fn a_deposed_primary_gets_no_commands_though_its_successor_is_out_of_reach() {
    let here = Here::new(|settings| settings).await;
    let held = here.client.lock("held").lock().await.unwrap();
    here.cut_off(B);
    here.net().follow(B, None);
    here.say(&SENTINELS[..1], B, 5).await;
    // One alone may be wrong.
    assert_eq!(here.granted_by("one").await, Some(A));
    here.say(&SENTINELS[1..2], B, 5).await;
    assert_eq!(here.granted_by("most").await, None);
    // One that was cut off has an old view. It is the only one that replies.
    SENTINELS[..2].iter().for_each(|one| here.net().kill(*one));
    sleep(SECOND * 5).await;
    assert_eq!(here.granted_by("old").await, None);
    // Most sentinels name it again: another failover has led back to it.
    for sentinel in &SENTINELS[..2] {
        here.net().restart(*sentinel, true);
    }
    here.say(&SENTINELS, A, 6).await;
    assert_eq!(here.granted_by("again").await, Some(A));
    assert!(!held.is_lost());
    held.release().await.unwrap();
}

/// An earlier view, held by most sentinels after a new set-up, deposes no primary.
#[tokio::test(start_paused = true)]
async fn an_older_view_takes_no_primary_away_that_can_be_reached() {
    let here = Here::new(|settings| settings).await;
    here.say(&SENTINELS, A, 5).await;
    here.cut_off(B);
    here.say(&SENTINELS, B, 4).await;
    assert_eq!(here.granted_by("older").await, Some(A));
    here.say(&SENTINELS, B, 5).await;
    assert_eq!(here.granted_by("as old").await, Some(A));
}

/// It did not replicate the hold before it was replaced, and got no commands in that time.
#[tokio::test(start_paused = true)]
async fn holds_are_checked_when_the_same_primary_is_one_of_a_later_epoch() {
    let here = Here::new(|settings| settings).await;
    let kept = here.client.lock("kept").lock().await.unwrap();
    let gone = here.client.lock("gone").lock().await.unwrap();
    here.net().with(|state| state.node(A).store.remove(b"gone"));
    let began = Instant::now();
    here.net().learn(SENTINELS[0], A, 5);
    assert_eq!(gone.lost().await, LostReason::Revoked);
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    assert!(!kept.is_lost());
    kept.release().await.unwrap();
}

/// The server that was named first does not reply, and a connection to it may take a minute.
#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_holds_nobody_up_once_another_is_named() {
    let patient = |settings: ClientBuilder| settings.connect_timeout(SECOND * 60);
    let here = Here::new(patient).await;
    here.cut_off(B);
    here.net().kill(A);
    here.say(&SENTINELS, B, 5).await;
    here.net().follow(C, None);
    let began = Instant::now();
    here.say(&SENTINELS, C, 6).await;
    assert_eq!(here.granted_by("next").await, Some(C));
    assert!(began.elapsed() < SECOND * 10, "{:?}", began.elapsed());
}
