//! A simulated node of a cluster, and a simulated replica, against real ones: what they say to commands that are not
//! for them, while a slot moves and when it does not.

use lockset_testkit::{Cluster, Server};
use redis::Value;

use crate::cluster::{Membership, SlotView};
use crate::node::Node;
use crate::slots::{SLOTS, slot_of};
use crate::words::Words;

/// The slot of two of the keys below.
const KEY: &str = "a{conform}";

/// At both nodes.
const WHILE_NOTHING_MOVES: &[&str] = &[
    "CLUSTER KEYSLOT a{conform}",
    "GET a{conform}",
    "EXISTS a{conform} b{conform}",
    "DEL a{conform} elsewhere",
    "SPUBLISH a{conform} 1",
    "ASKING",
    "GET a{conform}",
];

/// While the slot moves, at the node that serves it.
const AT_THE_OWNER: &[&str] = &[
    "GET a{conform}",
    "SPUBLISH a{conform} 1",
    "EXISTS a{conform} b{conform}",
    "ASKING",
    "EXISTS a{conform} b{conform}",
    "EVAL return(redis.call('EXISTS','b{conform}')) 1 a{conform}",
    "EVAL return(redis.call('EXISTS','a{conform}','b{conform}')) 1 a{conform}",
];

/// At the node that it goes to.
const WHERE_IT_GOES: &[&str] = &[
    "GET a{conform}",
    "ASKING",
    "GET a{conform}",
    "GET a{conform}",
    "ASKING",
    "EXISTS a{conform} b{conform}",
    "ASKING",
    "SPUBLISH a{conform} 1",
    "SPUBLISH a{conform} 1",
    "ASKING",
    "SET a{conform} 1",
    "ASKING",
    "EVAL return(redis.call('EXISTS','b{conform}')) 1 a{conform}",
    "ASKING",
    "EVAL return(redis.call('EXISTS','a{conform}','b{conform}')) 1 a{conform}",
    "ASKING",
    "EXISTS a{conform} b{conform}",
    "ASKING",
    "SET b{conform} 1",
    "ASKING",
    "EXISTS a{conform} b{conform}",
    "EXISTS a{conform} b{conform}",
];

pub(super) struct Real {
    connection: redis::Connection,
    address: String,
    id: String,
}

impl Real {
    pub(super) fn of(server: &Server) -> Self {
        let client = redis::Client::open(server.url()).expect("its address");
        let mut real = Self {
            connection: client.get_connection().expect("a server"),
            address: server.addr().to_string(),
            id: String::new(),
        };
        if let Value::BulkString(id) = real.run("CLUSTER MYID") {
            real.id = String::from_utf8(id).expect("a name");
        }
        real
    }

    /// An error is the value in its place.
    pub(super) fn run(&mut self, line: &str) -> Value {
        let mut words = line.split(' ');
        let mut pipe = redis::pipe();
        let command = pipe.cmd(words.next().expect("a verb"));
        words.for_each(|word| {
            command.arg(word);
        });
        let packed = pipe.get_packed_pipeline();
        let replies =
            redis::ConnectionLike::req_packed_commands(&mut self.connection, &packed, 0, 1);
        replies.expect("a server").remove(0)
    }
}

/// The first connection asks.
pub(super) fn simulated(node: Node, line: &str) -> (Node, Value) {
    let words: Words = line.split(' ').map(str::as_bytes).collect();
    let (node, reply) = Box::new(node).execute(1, &words);
    (*node, reply.into_value())
}

fn shown(reply: &Value) -> String {
    match reply {
        Value::ServerError(no) => {
            let details = no.details().unwrap_or_default();
            // Either says that a script may not do that, and Valkey why.
            let denied = ["The user executing the script", "ACL failure in script"];
            if denied.iter().any(|denied| details.contains(denied)) {
                return format!("{} {}", no.code(), denied[0]);
            }
            let cause = details.split(" script: ").next().unwrap_or_default();
            // Redis and Valkey begin this one otherwise.
            let cause = cause.replace("Script attempted", "Attempted");
            // Valkey names the user, and advises nothing.
            let cause = cause.replace("User default has", "this user has");
            let cause = cause.replace(" Please use EVAL.", "");
            format!("{} {cause}", no.code())
        }
        other => format!("{other:?}"),
    }
}

/// Runs these commands at both.
pub(super) fn agree(real: &mut Real, node: Node, lines: &[&str]) -> Node {
    lines.iter().fold(node, |node, line| {
        let (node, ours) = simulated(node, line);
        let theirs = real.run(line);
        assert_eq!(shown(&ours), shown(&theirs), "{line}");
        node
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_says_what_a_real_one_says_of_slots() {
    let cluster = Cluster::start().await;
    let owner = cluster.primary_of(KEY).await;
    let primaries = cluster.primaries().await;
    let is_other = |server: &&&Server| server.addr() != owner.addr();
    let other = primaries.iter().find(is_other).expect("three of them");
    let mut real = [Real::of(owner), Real::of(other)];
    let addresses: Vec<String> = real.iter().map(|one| one.address.clone()).collect();
    let view = SlotView {
        owners: vec![0; SLOTS.into()],
        replicas: [].into(),
        epoch: 1,
    };
    let mut nodes = [0, 1].map(|me| {
        let mut node = Node::new(1, 0);
        node.connect(0);
        node.membership = Some(Membership::new(me, view.clone(), addresses.clone()));
        node
    });
    let slot = slot_of(KEY.as_bytes());
    let together = |real: &mut [Real; 2], nodes: [Node; 2], lines: [&[&str]; 2]| {
        let mut all = real.iter_mut().zip(nodes).zip(lines);
        let mut next = || {
            let ((real, node), lines) = all.next().expect("two");
            agree(real, node, lines)
        };
        [next(), next()]
    };
    nodes = together(&mut real, nodes, [WHILE_NOTHING_MOVES; 2]);

    let ids = real.each_ref().map(|one| one.id.clone());
    real[1].run(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    real[0].run(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
    for (at, node) in nodes.iter_mut().enumerate() {
        let member = node.membership.as_mut().expect("given");
        let moves = [&mut member.migrating, &mut member.importing];
        let [migrating, importing] = moves;
        if at == 0 { migrating } else { importing }.insert(slot, 1 - at);
    }
    nodes = together(&mut real, nodes, [AT_THE_OWNER, WHERE_IT_GOES]);
    drop(nodes);
}

#[test]
fn a_replica_refuses_what_a_real_one_refuses() {
    let (primary, replica) = (Server::start(), Server::start());
    let mut real = Real::of(&replica);
    real.run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    let mut node = Node::new(1, 0);
    node.connect(0);
    node.follow(Some(1));
    let lines = [
        "SET a 1",
        "EVAL return(redis.call('SET',KEYS[1],1)) 1 a",
        "EVAL return(redis.pcall('PEXPIRE',KEYS[1],1)) 1 a",
        "RESTORE a 0 x",
        "INCRBY a 64",
        "PUBLISH a 1",
        "PING",
    ];
    agree(&mut real, node, &lines);
}
