//! What a link counts as under way.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use redis::IntoConnectionInfo;
use tokio::net::TcpListener;

use super::*;

#[tokio::test]
async fn who_gives_up_waiting_is_not_taken_for_traffic() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let info = url.into_connection_info().unwrap();
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    let info = info.set_redis_settings(settings);
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let step = socket::Step {
        clock: Clock::System,
        limit: Duration::from_secs(5),
    };
    let words = words::Words::default();
    let cut = Arc::default();
    let socket = Socket::connect(&info, config, step, &words, &cut);
    let socket = socket.await.unwrap();
    let traffic = Arc::clone(&socket.traffic);
    let live = Live {
        socket,
        heard: AtomicU64::new(0),
        hearing: Arc::new(Hearing::new(None)),
    };
    let ping = redis::cmd("PING");
    let commands = vec![ping.clone(); 5];
    {
        let mut one = pin!(live.ask(None, &ping));
        let mut two = pin!(live.ask(Some(&ping), &ping));
        let mut five = pin!(live.ask_all(&commands));
        let mut context = Context::from_waker(Waker::noop());
        // It is not answered.
        assert!(one.as_mut().poll(&mut context).is_pending());
        assert_eq!(traffic.under_way(), 1);
        assert!(two.as_mut().poll(&mut context).is_pending());
        assert_eq!(traffic.under_way(), 3);
        assert!(five.as_mut().poll(&mut context).is_pending());
        assert_eq!(traffic.under_way(), 8);
    }
    assert_eq!(traffic.under_way(), 0);
}
