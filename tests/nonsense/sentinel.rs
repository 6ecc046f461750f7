//! A sentinel answers nonsense: the caller gets an error in time, and memory stays bounded.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use lockset::Client;
use lockset_testkit::within;

use crate::peak::Peak;
use crate::relay::Nonsense;
use crate::{ALONE, SOON, endless, short};

/// One reply at most, and the client library's parsed copy.
const MEMORY_MAX: usize = 80 << 20;

fn speak(mut client: TcpStream, nonsense: &Nonsense) -> std::io::Result<()> {
    let mut asked = [0; 4096];
    if client.read(&mut asked)? == 0 {
        return Ok(());
    }
    client.write_all(&nonsense.first)?;
    while !nonsense.endless.is_empty() {
        client.write_all(&nonsense.endless)?;
    }
    while client.read(&mut asked)? > 0 {}
    Ok(())
}

/// Sends the nonsense to every client that asks.
fn sentinel(nonsense: &Nonsense) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let nonsense = nonsense.clone();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, nonsense) = (client.unwrap(), nonsense.clone());
            // Runs until the client hangs up.
            thread::spawn(move || drop(speak(client, &nonsense)));
        }
    });
    address
}

/// Asks the sentinel, which answers nonsense, and checks the error.
async fn ask(nonsense: &Nonsense) {
    let url = format!("redis+sentinel://{}/main", sentinel(nonsense));
    let builder = Client::builder(&url).connect_timeout(Duration::from_secs(1));
    let told = within(SOON, builder.build()).await;
    let told = told.expect_err(nonsense.name).to_string();
    assert!(told.len() < 2_000 && told.contains("main"), "{told:.2000}");
}

#[tokio::test]
async fn nonsense_from_a_sentinel_is_an_error() {
    let _alone = ALONE.lock().await;
    join_all(short().iter().map(ask)).await;
    for nonsense in endless() {
        let peak = Peak::begin();
        ask(&nonsense).await;
        let peak = peak.end();
        println!(
            "{} from a sentinel: {} KiB at most",
            nonsense.name,
            peak >> 10
        );
        assert!(peak < MEMORY_MAX, "{}: {peak}", nonsense.name);
    }
}
