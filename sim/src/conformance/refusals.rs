//! Refusals of a simulated server for lack of a right or of replicas, compared with a real server.

use lockset_testkit::Server;
use redis::Value;

use super::deployed::{Real, agree, simulated};
use crate::node::Node;
use crate::rights::Right;

/// To a user without the rights below.
const WITHOUT_RIGHTS: &[&str] = &[
    "PUBLISH b 1",
    "RESTORE a 0 x",
    "CLIENT KILL ID 1",
    "CLIENT SETNAME x",
    "SCRIPT LOAD x",
    "SCRIPT EXISTS x",
    "SUBSCRIBE b",
    "SUBSCRIBE a1",
    "INCRBY a 1",
    "EVALSHA x 0",
    "SET a 1",
    "GET a",
    "EVAL return(redis.call('PUBLISH','b','1')) 0",
    "EVAL return(redis.pcall('PUBLISH','b','1')) 0",
    "EVAL return(redis.call('INCRBY',KEYS[1],'1')) 1 a",
    "EVAL return(redis.call('SPUBLISH','a1','1')) 0",
    "EVAL return(redis.call('SPUBLISH','b','1')) 0",
    "RESTORE a 0 x",
    "GET a",
];

const RIGHTS: &[&str] = &[
    "publish",
    "restore",
    "client|kill",
    "client|setname",
    "script|load",
    "script|exists",
    "incrby",
];

const WITHOUT_REPLICAS: &[&str] = &[
    "SET a 1",
    "GET a",
    "PUBLISH a 1",
    "WAIT 0 1",
    "SCRIPT FLUSH",
    "EVAL return(redis.call('SET',KEYS[1],'1')) 1 a",
    "EVAL return(redis.pcall('PEXPIRE',KEYS[1],'60000')) 1 a",
    "EVAL return(redis.call('EXISTS',KEYS[1])) 1 a",
    "INCRBY a 1",
];

fn one() -> Node {
    let mut node = Node::new(1, 0);
    node.connect(0);
    node
}

#[test]
fn a_user_without_rights_is_refused_as_by_a_real_server() {
    let server = Server::start();
    let mut real = Real::of(&server);
    let mut node = one();
    for right in RIGHTS {
        real.run(&format!("ACL SETUSER default -{right}"));
        node.deny(0, Right::Command(right));
    }
    real.run("ACL SETUSER default resetchannels &b*");
    node.deny(0, Right::Channels("a"));
    // A user without the right cannot subscribe, and one with it would get no further replies here.
    real.run("ACL SETUSER default -subscribe");
    node.deny(0, Right::Command("subscribe"));
    agree(&mut real, node, WITHOUT_RIGHTS);
}

/// A listener that loses a channel is disconnected; one that loses the command is not.
#[test]
fn who_may_not_listen_any_more_is_disconnected() {
    let server = Server::start();
    let (mut admin, mut listener) = (Real::of(&server), Real::of(&server));
    admin.run("ACL SETUSER other on nopass +@all allchannels allkeys");
    listener.run("AUTH other x");
    let mut node = one();
    let listens = |node: Node, channel| simulated(node, &format!("SUBSCRIBE {channel}")).0;
    listener.run("SUBSCRIBE a1");
    node = listens(node, "a1");
    for (change, right, is_connected) in [
        ("-subscribe", Right::Command("subscribe"), true),
        ("resetchannels &a*", Right::Channels("b"), true),
        ("resetchannels &b*", Right::Channels("a"), false),
    ] {
        admin.run(&format!("ACL SETUSER other {change}"));
        node.deny(0, right);
        let Value::BulkString(list) = admin.run("CLIENT LIST TYPE pubsub") else {
            panic!("a list");
        };
        assert_eq!(!list.is_empty(), is_connected, "{change}");
        assert_eq!(node.is_connected(1), is_connected, "{change}");
    }
    assert_eq!(node.killed, [1]);
}

#[test]
fn too_few_replicas_refuse_writes_as_on_a_real_server() {
    let server = Server::start();
    let (mut real, mut admin) = (Real::of(&server), Real::of(&server));
    let mut node = one();
    node = agree(&mut real, node, &["SET a 1"]);
    admin.run("CONFIG SET min-replicas-to-write 1");
    node.lacks_replicas = true;
    node = agree(&mut real, node, &["GET a"]);
    node = agree(&mut real, node, WITHOUT_REPLICAS);
    admin.run("CONFIG SET min-replicas-to-write 0");
    node.lacks_replicas = false;
    agree(&mut real, node, WITHOUT_REPLICAS);
}
