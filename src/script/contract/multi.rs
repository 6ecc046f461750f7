//! Several locks at once: all or none are taken, and each as its own kind would be.

use redis::{RedisResult, Value};

use super::fixture::{Fixture, Keys, Subscriber, U1, U2, U3, U4, U9, list, near};
use crate::conn::error_reply::code;
use crate::engine::Few;
use crate::script::reply::{self, Acquired};

/// A lock of each kind, named by a letter.
#[derive(Clone, Copy)]
struct Member {
    kind: &'static str,
    name: &'static str,
    fenced: bool,
}

const fn member(kind: &'static str, name: &'static str) -> Member {
    Member {
        kind,
        name,
        fenced: false,
    }
}

const PLAIN: Member = member("plain", "P");
const FAIR: Member = member("fair", "F");
const READ: Member = member("read", "R");
const WRITE: Member = member("write", "W");
const ALL: [Member; 4] = [PLAIN, FAIR, READ, WRITE];

impl Member {
    fn helper(self, what: &str) -> String {
        format!("{what}:{{{}}}", self.name)
    }

    fn channel(self) -> String {
        match self.kind {
            "read" | "write" => self.helper("redisson_rwlock"),
            _ => self.helper("redisson_lock__channel"),
        }
    }

    /// The keys of its queue, or of its waiting readers and writers.
    fn side_keys(self) -> Vec<String> {
        match self.kind {
            "fair" => [
                "redisson_lock_queue",
                "redisson_lock_timeout",
                "lockset_fair_alive",
            ]
            .map(|what| self.helper(what))
            .to_vec(),
            "plain" | "reentrant" => vec![],
            _ => vec![self.helper("lockset_rw_waiting")],
        }
    }

    fn token_key(self) -> String {
        self.helper("redisson_lock_token")
    }
}

/// The keys and arguments of the script that takes these locks.
fn acquire(members: &[Member], holder: &str, queued: usize) -> (Vec<String>, Vec<String>) {
    let mut keys = Vec::new();
    let queued = queued.to_string();
    let mut args = vec![
        "PUBLISH".to_owned(),
        queued,
        "0".to_owned(),
        "30000".to_owned(),
    ];
    for member in members {
        keys.push(member.name.to_owned());
        let kind = match (member.kind, member.fenced) {
            ("plain", true) => "reentrant",
            (kind, _) => kind,
        };
        if kind == "plain" {
            args.push(holder.to_owned());
            continue;
        }
        keys.push(member.token_key());
        keys.extend(member.side_keys());
        let fenced = if member.fenced { "1" } else { "0" };
        args.extend([kind, holder, "30000", fenced, "3000", "0"].map(str::to_owned));
        args.push(member.channel());
    }
    (keys, args)
}

/// The keys and arguments of the script that releases them.
fn release(members: &[Member], holder: &str) -> (Vec<String>, Vec<String>) {
    let mut keys = Vec::new();
    let mut args = vec!["PUBLISH".to_owned()];
    for member in members {
        keys.push(member.name.to_owned());
        keys.extend(member.side_keys());
        let kind = match member.kind {
            "read" | "write" => "rw",
            kind => kind,
        };
        args.extend([kind.to_owned(), holder.to_owned(), member.channel()]);
    }
    (keys, args)
}

fn words(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

impl Fixture {
    async fn take_all(&mut self, members: &[Member], holder: &str, queued: usize) -> Acquired {
        let (keys, args) = acquire(members, holder, queued);
        let reply = self
            .run("multi_acquire", &words(&keys), &words(&args))
            .await;
        reply::acquired_all(&reply, members.len()).unwrap()
    }

    /// Returns the index of the member that is held elsewhere, and the rest of its lease in ms.
    async fn take_none(
        &mut self,
        members: &[Member],
        holder: &str,
        queued: usize,
    ) -> (usize, Option<i64>) {
        match self.take_all(members, holder, queued).await {
            Acquired::Elsewhere {
                member, remaining, ..
            } => (member, remaining.map(|span| span.as_millis() as i64)),
            held => panic!("{held:?}"),
        }
    }

    async fn try_all(&mut self, members: &[Member], holder: &str) -> RedisResult<Value> {
        let (keys, args) = acquire(members, holder, 0);
        let mut user = self.user("+@all").await;
        user.run("multi_acquire", &words(&keys), &words(&args))
            .await
    }

    async fn release_all(&mut self, members: &[Member], holder: &str) -> Value {
        let (keys, args) = release(members, holder);
        self.run("multi_release", &words(&keys), &words(&args))
            .await
    }

    async fn sorted_messages(&mut self, subscriber: &mut Subscriber) -> Vec<String> {
        let mut sorted = self.messages(subscriber).await;
        sorted.sort();
        sorted
    }

    /// Takes this member for another holder.
    async fn taken(&mut self, member: Member, by: &str) {
        assert!(matches!(
            self.take_all(&[member], by, 0).await,
            Acquired::Held { .. }
        ));
    }
}

fn who_is_in(keys: &Keys, holder: &str) -> Vec<String> {
    let of = |content: &Vec<String>| content.iter().any(|word| word.starts_with(holder));
    let names = keys.iter().filter(|(_, content)| of(content));
    names.map(|(key, _)| key.clone()).collect()
}

#[tokio::test]
async fn the_multi_trace() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    let held = Acquired::Held {
        tokens: Few::from_elem(None, 4),
    };
    let mut first = Keys::new();
    for round in 0..2 {
        assert_eq!(fixture.take_all(&ALL, U1, 0).await, held);
        let keys = fixture.keys().await;
        let names: Vec<_> = keys.keys().map(String::as_str).collect();
        let read_lease = &format!("{{R}}:{U1}:rwlock_timeout:1");
        assert_eq!(names, ["F", "P", "R", "W", read_lease]);
        for name in names {
            assert!(near(fixture.pttl_of(name).await, 30_000), "{name}");
        }
        if round == 1 {
            assert_eq!(keys, first, "the second time changes nothing");
        }
        first = keys;
    }
    assert_eq!(first["P"], [U1, "1"]);
    assert_eq!(first["F"], [U1, "1"]);
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
    for (index, member) in ALL.into_iter().enumerate() {
        // Other readers may enter too.
        if member.kind != "read" {
            let (at, remaining) = fixture.take_none(&[member], U2, 0).await;
            assert_eq!(at, 0);
            assert!(near(remaining.unwrap(), 30_000), "{index}");
        }
    }
    fixture.release_all(&ALL, U2).await;
    fixture.sorted_messages(&mut subscriber).await;

    assert_eq!(fixture.release_all(&ALL, U9).await, list(&[-1; 4]));
    assert_eq!(fixture.keys().await, first, "no holder");
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
    // The fair lock has no waiter to notify.
    assert_eq!(fixture.release_all(&ALL, U1).await, list(&[1, 0, 1, 1]));
    let told = [
        "redisson_lock__channel:{P} 0",
        "redisson_rwlock:{R} 0",
        "redisson_rwlock:{W} 00",
        "redisson_rwlock:{W} 1",
    ];
    assert_eq!(fixture.sorted_messages(&mut subscriber).await, told);
    assert_eq!(fixture.release_all(&ALL, U1).await, list(&[-1; 4]));
    assert_eq!(
        fixture.messages(&mut subscriber).await,
        [""; 0],
        "a repeat announces nothing"
    );
    assert_eq!(fixture.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn one_that_is_held_elsewhere_keeps_all_from_being_taken() {
    let mut fixture = Fixture::new().await;
    for (index, taken) in ALL.into_iter().enumerate() {
        let _: () = fixture.ask(&["FLUSHALL"]).await;
        // A reader would let another reader in.
        let by_other = if taken.kind == "read" {
            member("write", taken.name)
        } else {
            taken
        };
        fixture.taken(by_other, U2).await;
        for _ in 0..2 {
            let (at, remaining) = fixture.take_none(&ALL, U1, 0).await;
            assert_eq!(at, index);
            assert!(near(remaining.unwrap(), 30_000));
            // The holder waits only at the taken member, if that member has a queue.
            let mut place = match taken.kind {
                "reentrant" => vec![],
                _ => taken.side_keys(),
            };
            place.sort();
            assert_eq!(who_is_in(&fixture.keys().await, U1), place);
        }
    }
}

/// A place in one queue would keep others out for nothing while another member is held elsewhere.
#[tokio::test]
async fn a_waiter_for_several_stands_in_one_queue_at_a_time() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.taken(FAIR, U2).await;
    fixture.taken(WRITE, U2).await;
    assert_eq!(fixture.take_none(&ALL, U1, 0).await.0, 1);
    assert_eq!(fixture.take_none(&[FAIR], U3, 0).await.0, 0);
    fixture.release_all(&[FAIR], U2).await;
    fixture.sorted_messages(&mut subscriber).await;
    assert_eq!(fixture.take_none(&ALL, U1, 2).await.0, 3);
    let waits = WRITE.side_keys();
    assert_eq!(who_is_in(&fixture.keys().await, U1), waits);
    // It was the head of the queue that it left, so the next waiter is notified once.
    let told = fixture.sorted_messages(&mut subscriber).await;
    assert_eq!(told, [format!("{}:{U3} 0", FAIR.channel())]);
    // The waiter moves back. The readers that let this writer go first are notified.
    fixture.taken(FAIR, U3).await;
    assert_eq!(fixture.take_none(&ALL, U1, 4).await.0, 1);
    assert_eq!(
        fixture.sorted_messages(&mut subscriber).await,
        ["redisson_rwlock:{W} 00", "redisson_rwlock:{W} 1"]
    );
    assert!(!fixture.keys().await.contains_key(&WRITE.side_keys()[0]));
    // All are free and it is the waiter's turn, so none of its places is left.
    fixture.release_all(&[WRITE], U2).await;
    fixture.release_all(&[FAIR], U3).await;
    assert!(matches!(
        fixture.take_all(&ALL, U1, 2).await,
        Acquired::Held { .. }
    ));
    let holds = ["F", "P", "R", "W"];
    assert_eq!(who_is_in(&fixture.keys().await, U1), holds);
}

#[tokio::test]
async fn a_grant_to_many_has_a_token_of_each_that_asks() {
    let mut fixture = Fixture::new().await;
    let fenced = [
        Member {
            fenced: true,
            ..PLAIN
        },
        FAIR,
        Member {
            fenced: true,
            ..READ
        },
        Member {
            fenced: true,
            ..WRITE
        },
    ];
    let mut last = vec![0; 4];
    for _ in 0..2 {
        let Acquired::Held { tokens } = fixture.take_all(&fenced, U1, 0).await else {
            panic!("it is free or its own");
        };
        let tokens: Vec<u64> = tokens
            .into_iter()
            .map(|token| token.map_or(0, |token| token.get()))
            .collect();
        assert_eq!(tokens[1], 0, "it asked for none");
        for index in [0, 2, 3] {
            assert!(tokens[index] > last[index] && tokens[index] < 1 << 53);
            let key = fenced[index].token_key();
            let kept: String = fixture.ask(&["GET", &key]).await;
            assert_eq!(kept, tokens[index].to_string());
        }
        last = tokens;
    }
    // A refused attempt uses up no token.
    let (at, _) = fixture.take_none(&fenced, U2, 0).await;
    assert_eq!(at, 0);
    let kept: String = fixture.ask(&["GET", &fenced[3].token_key()]).await;
    assert_eq!(kept, last[3].to_string());
}

#[tokio::test]
async fn a_foreign_key_is_named_by_its_member_and_none_is_taken() {
    let mut fixture = Fixture::new().await;
    let fenced = ALL.map(|member| Member {
        fenced: true,
        ..member
    });
    for (index, member) in fenced.into_iter().enumerate() {
        let mut foreign = member.side_keys();
        foreign.extend([member.name.to_owned(), member.token_key()]);
        for key in foreign {
            let _: () = fixture.ask(&["FLUSHALL"]).await;
            fixture.make(&["SET", &key, "theirs"]).await;
            let before = fixture.keys().await;
            match fixture.try_all(&fenced, U1).await {
                Err(error) => {
                    assert_eq!(code(&error), Some("WRONGTYPE"), "{key}: {error}");
                    let number = format!(" member {}", index + 1);
                    assert!(error.to_string().contains(&number), "{key}: {error}");
                    assert_eq!(fixture.keys().await, before, "{key}");
                }
                // The script had no reason to read this part of the queue of a free lock without waiters.
                Ok(_) => {
                    assert!(key.contains("timeout") || key.contains("alive"), "{key}");
                    let kept: String = fixture.ask(&["GET", &key]).await;
                    assert_eq!(kept, "theirs");
                }
            }
        }
    }
    // A place in the queue that cannot be taken also leaves everything unchanged.
    for key in FAIR.side_keys() {
        let _: () = fixture.ask(&["FLUSHALL"]).await;
        fixture.taken(FAIR, U2).await;
        fixture.make(&["SET", &key, "theirs"]).await;
        let before = fixture.keys().await;
        let error = fixture.try_all(&ALL, U1).await.unwrap_err();
        assert_eq!(code(&error), Some("WRONGTYPE"), "{error}");
        assert!(error.to_string().contains(" member 2"), "{error}");
        assert_eq!(fixture.keys().await, before, "{key}");
    }
}

/// An operator overwrote one key. The other members are still released.
#[tokio::test]
async fn a_foreign_key_keeps_no_other_member_from_being_released() {
    let mut fixture = Fixture::new().await;
    for (index, lost) in ALL.into_iter().enumerate() {
        let _: () = fixture.ask(&["FLUSHALL"]).await;
        fixture.take_all(&ALL, U1, 0).await;
        fixture.make(&["SET", lost.name, "theirs"]).await;
        let Value::Array(replies) = fixture.release_all(&ALL, U1).await else {
            panic!("a reply for each");
        };
        for (at, reply) in replies.iter().enumerate() {
            let expected = if at == index { -1 } else { 0 };
            assert_eq!(*reply, Value::Int(expected), "{at} of {index}");
        }
        let left = fixture.keys().await;
        assert_eq!(left[lost.name], ["theirs"]);
        // The lease of a lost read hold expires by itself.
        assert!(left.len() == 1 || (lost.kind == "read" && left.len() == 2));
    }
}

#[tokio::test]
async fn a_full_server_lets_go_of_many() {
    let mut fixture = Fixture::new().await;
    fixture.take_all(&ALL, U1, 0).await;
    fixture.taken(member("fair", "G"), U2).await;
    let others = [member("fair", "G"), member("write", "V")];
    fixture.take_none(&others, U3, 0).await;
    let before = fixture.keys().await;
    fixture.fill().await;
    let free = [PLAIN.kind, FAIR.kind, READ.kind, WRITE.kind].map(|kind| member(kind, "N"));
    for one in free {
        let refused = fixture.try_all(&[one], U4).await.unwrap_err();
        assert_eq!(code(&refused), Some("OOM"), "{refused}");
        assert_eq!(fixture.keys().await, before);
    }
    assert_eq!(fixture.release_all(&ALL, U1).await, list(&[0; 4]));
    assert_eq!(fixture.release_all(&others, U3).await, list(&[0, -1]));
    assert_eq!(fixture.server.keys().await, ["G"]);
}

/// With any one right missing, the attempt fails with an error, and its undoing leaves nothing behind that this user
/// could remove.
#[tokio::test]
async fn a_missing_right_leaves_no_hold_without_an_end() {
    let mut fixture = Fixture::new().await;
    for right in ["hset", "pexpire", "set", "lrem", "zrem", "zscore", "lindex"] {
        let _: () = fixture.ask(&["FLUSHALL"]).await;
        // The holder is the head of the queue, and a waiting writer.
        fixture.taken(FAIR, U2).await;
        fixture.take_none(&[FAIR], U1, 0).await;
        fixture.release_all(&[FAIR], U2).await;
        fixture.taken(WRITE, U2).await;
        fixture.take_none(&[WRITE], U1, 0).await;
        fixture.release_all(&[WRITE], U2).await;
        let mut user = fixture.user(&format!("-{right}")).await;
        let fenced = ALL.map(|member| Member {
            fenced: true,
            ..member
        });
        let (keys, args) = acquire(&fenced, U1, 0);
        let taken = user
            .run("multi_acquire", &words(&keys), &words(&args))
            .await;
        let error = taken.expect_err(right);
        // The error must not say that nothing was executed.
        assert!(
            !crate::conn::error_reply::was_not_executed(&error),
            "{right}: {error}"
        );
        for member in ALL {
            assert_ne!(fixture.pttl_of(member.name).await, -1, "{right}: for ever");
        }
        let (keys, args) = release(&ALL, U1);
        let released = user
            .run("multi_release", &words(&keys), &words(&args))
            .await;
        let may_have_failed = ["lindex", "lrem", "zrem", "zscore"].contains(&right);
        assert!(released.is_ok() || may_have_failed, "{right}: {released:?}");
        for member in ALL {
            let is_free = fixture.pttl_of(member.name).await == -2;
            assert!(is_free, "{right}: {} is held", member.name);
        }
    }
}
