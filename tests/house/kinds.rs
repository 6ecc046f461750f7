//! Every place that has something for each kind of lock or synchronizer says so for all kinds.
//!
//! A new kind is added to [`KINDS`] first. The test then fails until each place names it, or the table below says why
//! not. The table in ARCHITECTURE.md names the same files, for readers.

use std::collections::BTreeSet;
use std::path::Path;

/// The modules of the public kinds.
const KINDS: [&str; 12] = [
    "reentrant",
    "fair",
    "rwlock",
    "multilock",
    "redlock",
    "semaphore",
    "plain_semaphore",
    "latch",
    "barrier",
    "election",
    "once",
    "job",
];

/// Kinds that are made of others: what holds for those holds for them.
const OF_LOCKS: &str = "once job";
const NO_LOCKS: &str = "semaphore plain_semaphore latch barrier election";
const WITHOUT_LEASES: &str = "plain_semaphore latch barrier election";

struct Place {
    file: &'static str,
    /// A text of the file for each kind that it names.
    names: &'static [(&'static str, &'static str)],
    /// Why it names no others.
    others: &'static [(&'static str, &'static str)],
}

const MADE_OF_REENTRANT: (&str, &str) = ("redlock once job", "made of reentrant locks");
const MADE_OF_LOCKS: (&str, &str) = (OF_LOCKS, "made of reentrant locks");

const PLACES: &[Place] = &[
    Place {
        file: "src/script/catalog.rs",
        names: &[
            ("reentrant", "reentrant_acquire"),
            ("fair", "fair_acquire"),
            ("rwlock", "write_acquire"),
            ("multilock", "multi_acquire"),
            ("semaphore", "semaphore_acquire"),
            ("plain_semaphore", "plain_acquire"),
            ("latch", "latch_init"),
            ("barrier", "barrier_arrive"),
            ("election", "leader_proclaim"),
        ],
        others: &[MADE_OF_REENTRANT],
    },
    Place {
        file: "src/engine/keys.rs",
        names: &[
            ("reentrant", "redisson_lock__channel"),
            ("fair", "redisson_lock_queue"),
            ("rwlock", "redisson_rwlock"),
            ("semaphore", "lockset_sem_queue"),
            ("plain_semaphore", "lockset_sem_holds"),
            ("latch", "redisson_countdownlatch"),
            ("barrier", "lockset_barrier"),
            ("election", "lockset_leader"),
        ],
        others: &[MADE_OF_REENTRANT, ("multilock", "the keys of its members")],
    },
    Place {
        file: "src/lib.rs",
        names: &[
            ("reentrant", "pub use reentrant::"),
            ("fair", "pub use fair::"),
            ("rwlock", "pub use rwlock::"),
            ("multilock", "pub use multilock::"),
            ("redlock", "pub use redlock::"),
            ("semaphore", "pub use semaphore::"),
            ("plain_semaphore", "pub use plain_semaphore::"),
            ("latch", "pub use latch::"),
            ("barrier", "pub use barrier::"),
            ("election", "pub use election::"),
            ("once", "pub use once::"),
            ("job", "pub use job::"),
        ],
        others: &[],
    },
    Place {
        file: "src/api/traits/impls.rs",
        names: &[
            ("reentrant", "ReentrantLock"),
            ("fair", "FairLock"),
            ("rwlock", "ReadSide"),
            ("multilock", "MultiLock"),
            ("redlock", "RedlockLock"),
        ],
        others: &[(NO_LOCKS, "no lock"), (OF_LOCKS, "no guard that is held")],
    },
    Place {
        file: "src/observe/counts.rs",
        names: &[
            ("reentrant", "reentrant: Grants"),
            ("fair", "fair: Grants"),
            ("rwlock", "read: Grants"),
            ("semaphore", "semaphore: Grants"),
        ],
        others: &[
            MADE_OF_REENTRANT,
            ("multilock", "counts once for each member"),
            (WITHOUT_LEASES, "grants of locks and permits are counted"),
        ],
    },
    Place {
        file: "src/observe/counts.rs",
        names: &[
            ("reentrant", "\"reentrant\""),
            ("fair", "\"fair\""),
            ("rwlock", "\"read\""),
            ("semaphore", "\"semaphore\""),
            ("multilock", "\"multi\""),
            ("redlock", "\"redlock\""),
        ],
        others: &[
            (WITHOUT_LEASES, "the label `kind` is for locks and permits"),
            (OF_LOCKS, "counted as reentrant"),
        ],
    },
    Place {
        file: "operator/src/recognize.rs",
        names: &[("reentrant", "may_be_of_lock"), ("rwlock", "mode")],
        others: &[
            MADE_OF_REENTRANT,
            ("fair", "its hash is that of a reentrant lock"),
            ("multilock", "its members are recognized"),
            (
                NO_LOCKS,
                "operator/src/counted.rs, operator/src/barrier.rs do that",
            ),
        ],
    },
    Place {
        file: "operator/src/info.rs",
        names: &[
            ("reentrant", "Exclusive"),
            ("fair", "Fair"),
            ("rwlock", "ReadWrite"),
            ("semaphore", "Semaphore"),
            ("plain_semaphore", "PlainSemaphore"),
            ("latch", "Latch"),
            ("barrier", "Barrier"),
            ("election", "Election"),
        ],
        others: &[MADE_OF_REENTRANT, ("multilock", "its members are shown")],
    },
    Place {
        file: "operator/src/evict.rs",
        names: &[
            ("reentrant", "ReentrantLock"),
            ("fair", "FairLock"),
            ("rwlock", "RwLock"),
            ("semaphore", "Semaphore"),
        ],
        others: &[
            MADE_OF_REENTRANT,
            ("multilock", "its members are taken away"),
            (WITHOUT_LEASES, "operators take locks and permits away"),
        ],
    },
    Place {
        file: "src/observe/announce.rs",
        names: &[
            ("reentrant", "core.locals"),
            ("fair", "core.locals"),
            ("rwlock", "core.locals"),
            ("multilock", "core.locals"),
        ],
        others: &[
            MADE_OF_REENTRANT,
            (NO_LOCKS, "no hold of the engine, so not announced"),
        ],
    },
    Place {
        file: "src/multilock.rs",
        names: &[
            ("reentrant", "ReentrantLock"),
            ("fair", "FairLock"),
            ("rwlock", "ReadSide WriteSide"),
            ("multilock", "MultiLock"),
        ],
        others: &[
            ("redlock", "several servers, so no member"),
            (NO_LOCKS, "no lock, so no member"),
            (OF_LOCKS, "no lock, so no member"),
        ],
    },
    Place {
        file: "macros/src/locks.rs",
        names: &[
            ("reentrant", "Reentrant"),
            ("fair", "Fair"),
            ("rwlock", "Read"),
            ("multilock", "all"),
            ("semaphore", "semaphore"),
        ],
        others: &[
            ("redlock", "its client is a `Redlock`, no `Client`"),
            (WITHOUT_LEASES, "the body runs under a lock or a permit"),
            (OF_LOCKS, "`try` and `at_least` of a lock do that"),
        ],
    },
    Place {
        file: "cli/src/held.rs",
        names: &[
            ("reentrant", "client.lock("),
            ("fair", "fair_lock"),
            ("rwlock", "rw_lock"),
            ("multilock", "MultiLock"),
            ("redlock", "quorum.lock("),
            ("semaphore", "semaphore"),
        ],
        others: &[
            (
                "plain_semaphore latch barrier election job",
                "nothing that a command runs under",
            ),
            ("once", "a verb of its own"),
        ],
    },
    Place {
        file: "sim/src/world/plan.rs",
        names: &[
            ("reentrant", "Reentrant"),
            ("fair", "Fair"),
            ("rwlock", "Write"),
            ("multilock", "Multi"),
            ("redlock", "Redlock"),
            ("semaphore", "Permits"),
            ("latch", "Latch"),
            ("barrier", "Barrier"),
            ("election", "Lead"),
            ("once", "Once"),
        ],
        others: &[
            ("plain_semaphore", "tests of its own on real servers"),
            ("job", "made of reentrant locks"),
        ],
    },
    Place {
        file: "sim/src/conformance/calls.rs",
        names: &[
            ("reentrant", "reentrant_"),
            ("fair", "fair_"),
            ("rwlock", "write_"),
            ("multilock", "multi"),
            ("semaphore", "semaphore_"),
            ("plain_semaphore", "plain_"),
            ("latch", "latch_"),
            ("barrier", "barrier_"),
            ("election", "leader_"),
        ],
        others: &[MADE_OF_REENTRANT],
    },
    Place {
        file: "checks/nemesis/src/worker.rs",
        names: &[
            ("reentrant", "client.lock("),
            ("fair", "fair_lock"),
            ("rwlock", "rw_lock"),
            ("multilock", "MultiLock"),
            ("redlock", "Redlock"),
            ("semaphore", "semaphore"),
            ("election", "election"),
        ],
        others: &[
            (
                "plain_semaphore latch barrier",
                "its histories are of guards that are held",
            ),
            MADE_OF_LOCKS,
        ],
    },
    Place {
        file: "checks/model/src/cases.rs",
        names: &[
            ("reentrant", "lock::"),
            ("fair", "is_fair"),
            ("rwlock", "rwlock::"),
            ("redlock", "redlock::"),
        ],
        others: &[
            ("multilock", "its members are modelled"),
            ("semaphore", "checks/model/src/semaphore"),
            (WITHOUT_LEASES, "one script a call, which names its caller"),
            MADE_OF_LOCKS,
        ],
    },
    Place {
        file: "checks/mutants/list.json",
        names: &[
            ("reentrant", "reentrant"),
            ("fair", "fair"),
            ("rwlock", "rw"),
            ("redlock", "redlock"),
            ("semaphore", "semaphore"),
            ("latch", "latch"),
            ("barrier", "barrier"),
            ("election", "leader_proclaim"),
        ],
        others: &[
            ("multilock", "mutants of its members"),
            ("plain_semaphore", "no mutant yet"),
            MADE_OF_LOCKS,
        ],
    },
    Place {
        file: "tests/suite/primitive.rs",
        names: &[
            ("reentrant", "ReentrantLock"),
            ("fair", "FairLock"),
            ("rwlock", "WriteSide"),
            ("multilock", "MultiLock"),
            ("redlock", "RedlockLock"),
        ],
        others: &[
            (NO_LOCKS, "tests/suite/kinds"),
            (OF_LOCKS, "tests/suite/kinds"),
        ],
    },
    Place {
        file: "tests/suite/kinds/mod.rs",
        names: &[
            ("fair", "mod fair"),
            ("rwlock", "mod rwlock"),
            ("multilock", "mod multilock"),
            ("redlock", "mod redlock"),
            ("semaphore", "mod semaphore"),
            ("plain_semaphore", "mod plain_semaphore"),
            ("latch", "mod latch"),
            ("barrier", "mod barrier"),
            ("election", "mod election"),
            ("once", "mod once"),
        ],
        others: &[
            ("reentrant", "the tests of every lock are its own"),
            ("job", "with `once`"),
        ],
    },
    Place {
        file: "tests/interop/kind.rs",
        names: &[
            ("reentrant", "eentrant"),
            ("fair", "air"),
            ("rwlock", "rite"),
            ("multilock", "ulti"),
        ],
        others: &[
            ("redlock", "Redisson deprecates its own"),
            (
                "semaphore plain_semaphore latch",
                "tests/interop/synchronizers.rs",
            ),
            ("barrier election job", "Redisson has none"),
            ("once", "tests/interop/once.rs"),
        ],
    },
    Place {
        file: "docs/rights.md",
        names: &[
            ("reentrant", "app:*"),
            ("fair", "redisson_lock_queue"),
            ("rwlock", "redisson_rwlock"),
            ("semaphore", "lockset_sem_queue"),
            ("plain_semaphore", "redisson_sc:"),
            ("latch", "lockset_latch_opened"),
            ("barrier", "lockset_barrier"),
            ("election", "lockset_leader"),
        ],
        others: &[
            MADE_OF_REENTRANT,
            ("multilock", "the rights of its members"),
        ],
    },
    Place {
        file: "lua/README.md",
        names: &[
            ("reentrant", "| acquire |"),
            ("fair", "| fair acquire"),
            ("rwlock", "| write acquire"),
            ("multilock", "| multi acquire"),
            ("semaphore", "the name, a semaphore"),
            ("plain_semaphore", "the name, a plain semaphore"),
            ("latch", "the name, a latch"),
            ("barrier", "`lockset_barrier"),
            ("election", "`lockset_leader"),
        ],
        others: &[MADE_OF_REENTRANT],
    },
    Place {
        file: "README.md",
        names: &[
            ("reentrant", "client.lock("),
            ("fair", "fair_lock"),
            ("rwlock", "rw_lock"),
            ("multilock", "MultiLock"),
            ("redlock", "Redlock"),
            ("semaphore", "client.semaphore"),
            ("latch", "client.latch"),
            ("barrier", "client.barrier"),
            ("election", "client.election"),
            ("once", "`once`"),
        ],
        others: &[
            ("plain_semaphore", "for Redisson's alone: docs/redisson.md"),
            ("job", "in the guide"),
        ],
    },
    Place {
        file: "docs/guide.md",
        names: &[
            ("reentrant", "client.lock("),
            ("fair", "fair_lock"),
            ("rwlock", "rw_lock"),
            ("multilock", "MultiLock"),
            ("redlock", "Redlock"),
            ("semaphore", "semaphore"),
            ("plain_semaphore", "plain_semaphore"),
            ("latch", "latch"),
            ("barrier", "barrier"),
            ("election", "election"),
            ("once", "once"),
            ("job", ".job("),
        ],
        others: &[],
    },
    Place {
        file: "docs/redisson.md",
        names: &[
            ("reentrant", "getLock("),
            ("fair", "getFairLock"),
            ("rwlock", "getReadWriteLock"),
            ("multilock", "getMultiLock"),
            ("semaphore", "getPermitExpirableSemaphore"),
            ("plain_semaphore", "getSemaphore"),
            ("latch", "getCountDownLatch"),
            ("once", "client.once"),
        ],
        others: &[("redlock barrier election job", "Redisson has none")],
    },
];

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn every_place_names_every_kind_or_says_why_not() {
    let mut wrong = Vec::new();
    for Place {
        file,
        names,
        others,
    } in PLACES
    {
        let text = read(file);
        for (kind, word) in *names {
            if !text.contains(word) {
                wrong.push(format!("{file} does not name {kind}: no {word:?}"));
            }
        }
        let left_out = others.iter().flat_map(|(kinds, why)| {
            assert!(why.len() > 5, "{file}: {kinds}: a reason");
            kinds.split(' ')
        });
        let mut said: Vec<&str> = names.iter().map(|(kind, _)| *kind).collect();
        said.extend(left_out);
        for kind in KINDS {
            let times = said.iter().filter(|said| **said == kind).count();
            if times != 1 {
                wrong.push(format!("{file} is listed {times} times for {kind}"));
            }
        }
        if let Some(unknown) = said.iter().find(|said| !KINDS.contains(said)) {
            wrong.push(format!("{file} is listed for {unknown}, which is no kind"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A module at the top of `src` is a kind, or one of a few that serve all.
#[test]
fn every_module_of_a_kind_is_listed() {
    const OTHERS: [&str; 12] = [
        // A lock of one of the kinds.
        "any_lock",
        "api",
        "client",
        "conn",
        "engine",
        "fence",
        "observe",
        "operator",
        "script",
        "simulated",
        "testing",
        "watchdog",
    ];
    let library = read("src/lib.rs");
    let modules: BTreeSet<&str> = library
        .lines()
        .map(|line| line.strip_prefix("pub ").unwrap_or(line))
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    let listed: BTreeSet<&str> = KINDS.into_iter().chain(OTHERS).collect();
    assert_eq!(modules, listed);
}

/// The table for readers has the same places.
#[test]
fn the_architecture_lists_every_place() {
    let page = read("ARCHITECTURE.md");
    let (_, section) = page.split_once("## How to add a primitive").expect("it");
    let missing: Vec<_> = PLACES
        .iter()
        .filter(|place| !section.contains(place.file.trim_start_matches("tests/suite/")))
        .map(|place| place.file)
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
