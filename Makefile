# Everything here finds or fetches a server by itself: see scripts/find-server.

SERVER = LOCKSET_SERVER_BIN="$$(scripts/find-server)"
VALKEY = LOCKSET_SERVER_BIN="$$(scripts/find-server --valkey)"

.PHONY: help help-all examples examples-build soak demo cli-demo top-demo top-frame failover desk config order pool leader test test-nonsense test-alone test-later \
        test-alerts test-tls test-valkey test-valkey-short test-virtual test-doc test-acl test-scripts test-stalls interop interop-all model sim check check-format package \
        bench bench-observability bench-far bench-many bench-shards bench-peers bench-peers-build bench-peers-draw bench-peers-check
.PHONY: nemesis mutants mutants-core properties

help:
	@echo "make demo         100 participants, 90 seats: with and without the lock"
	@echo "make cli-demo     the command line on a real server: run, busy, a kill, a loss, free"
	@echo "make top-demo     the live view of locks, while a holder is killed"
	@echo "make examples     the small examples and the web service, each beside a server of its own"
	@echo "make check        formatting, lints, documentation"
	@echo "make test         the tests, on redis-server or valkey-server, whichever is found"
	@echo "make interop      Rust and Java on the same locks: the tests against the real Redisson"
	@echo "make sim          the engine in virtual time, in worlds full of faults"
	@echo "make nemesis      processes, real servers and faults, and a check of what all of them wrote down"
	@echo "make bench        our ratios against the floor, measured in one run"
	@echo "make package      the packages as they would be published"
	@echo "make help-all     the other targets, and the settings of these"

help-all:
	@echo "make demo         TOPOLOGY=cluster, sentinel or redlock kills servers in the middle of it;"
	@echo "                  TOP=1 (desk, order too): slower, with the live view of locks in front"
	@echo "make top-frame    one frame of the live view"
	@echo "make failover     what a failover costs: outage, forgotten grants, two who hold one lock"
	@echo "make soak         load and a fault every 5 s, 10 minutes on each topology: memory and connections;"
	@echo "                  TOPOLOGY=server and SOAK=60 for a short one"
	@echo "make desk         a queue over several processes: in turn with the fair lock, not without"
	@echo "make config       many readers, one writer, no torn read: the read-write lock"
	@echo "make order        orders over shared stock: several locks of several kinds as one"
	@echo "make pool         3 licences, 20 workers, one process killed: with the semaphore none over-issued"
	@echo "make leader       an election: a leader killed, one frozen before a write, one that resigns"
	@echo "make examples     the service also on PostgreSQL, where scripts/find-postgres finds one"
	@echo "make test-nonsense  against a server that answers nonsense; each measures its own process"
	@echo "make test-alone   the tests that work hard, or measure fairness; test-later: models, more worlds"
	@echo "make test-tls     the tests that need a server that speaks TLS, as Debian's Redis does"
	@echo "make test-alerts  the alert rules, by promtool"
	@echo "make test-valkey  all tests on Valkey; test-valkey-short: those that depend on the server"
	@echo "make test-acl     the same work by a user who may do nothing but what docs/rights.md lists"
	@echo "make test-scripts the suites of reentrant locks without plain commands in place of scripts"
	@echo "make test-stalls  the suite, stopped with its servers for STALL=0.8 s every EVERY=4 s: a test must outlast that"
	@echo "make interop-all  interop with an old Redisson, one in between and the newest"
	@echo "make model        the protocol as a model, larger than in the tests, explored to its end"
	@echo "make sim          OPERATIONS=10000000; SEED=7 begins with that one; with pairs of mechanisms and each fault at"
	@echo "                  each moment, and 100 000 calls of scripts on a simulated and a real server"
	@echo "make nemesis      NEMESIS=600 for this many seconds each, SEED=7, TOPOLOGY=server for one of them"
	@echo "make mutants      mistakes put in one by one: does a test find each? Some minutes; MUTANTS=name or --missing"
	@echo "make mutants-core cargo-mutants over the pure files, where it is installed; MUTANTS=hold/ for some of them"
	@echo "make properties   random input for all that reads bytes, and random lives of holds: CASES=20000 of each"
	@echo "make bench        bench-observability is a part of it"
	@echo "make bench-far    servers 1 ms and 20 ms away, against the floor at the same distance: 4 minutes"
	@echo "make bench-many   a million holds of one client, and new names for a minute: 3 GB, 3 minutes"
	@echo "make bench-shards clusters of 3, 6 and 9 primaries: processor time of the servers for a grant"
	@echo "make bench-peers  lockset, Redisson, rslock, redsync, redis-py and redlock at the same jobs;"
	@echo "                  ROUNDS=1 SECONDS=0.3 RESULTS=/tmp/peers for a quick look"

# scripts/build shows how far a build is. PROFILE=dev takes what the tests have built.
PROFILE = release
BUILT = --profile $(PROFILE) $(if $(filter dev,$(PROFILE)),--workspace --all-features)
FOLDER = $${CARGO_TARGET_DIR:-target}/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
EXAMPLE = $(SERVER) && export LOCKSET_SERVER_BIN && \
	  scripts/build "the example $(1) ($(PROFILE))" $(BUILT) --example $(1) && \
	  $(if $(TOP),$(WATCHED)) "$(FOLDER)/examples/$(1)"

# With the features that the tests have built it with: an example brings those of the tests, which nothing else does.
CLI = scripts/build "the command line" --workspace --all-features --bin lockset --example quickstart

# TOP=1: so much slower, with the live view in front; what the example says comes at its end.
PACE_seats = 25
PACE_desk = 150
PACE_order = 20
WATCHED = $(CLI) && export PACE=$(or $(PACE),$(PACE_$(1))) \
	  LOCKSET="$${CARGO_TARGET_DIR:-target}/debug/lockset" && scripts/with-server scripts/with-top

demo:
	@$(call EXAMPLE,seats)

desk config order pool leader failover soak:
	@$(call EXAMPLE,$@)

top-demo top-frame:
	@$(SERVER) && export LOCKSET_SERVER_BIN && $(CLI) && \
	  LOCKSET="$${CARGO_TARGET_DIR:-target}/debug/lockset" scripts/with-server scripts/$@

cli-demo:
	@$(SERVER) && export LOCKSET_SERVER_BIN && $(CLI) && \
	  LOCKSET="$${CARGO_TARGET_DIR:-target}/debug/lockset" scripts/with-server scripts/cli-demo

# Those of the README and the guide, in a few seconds each after the build. The service is a workspace of
# its own.
SMALL = quickstart job fencing transfer config_cache metrics
SERVICE = --locked --manifest-path examples/service/Cargo.toml --target-dir "$${CARGO_TARGET_DIR:-target}"
examples examples-build: PROFILE = dev
examples-build:
	@scripts/build "the examples" --workspace --all-features --examples
	@scripts/build "the web service" $(SERVICE) --tests --bin transaction
examples: examples-build
	@$(SERVER) && export LOCKSET_SERVER_BIN && \
	  for example in $(SMALL); do \
	    echo "== $$example" && scripts/with-server "$(FOLDER)/examples/$$example" || exit 1; \
	  done
	@echo "== a web service and a transaction" && $(SERVER) && export LOCKSET_SERVER_BIN && \
	  cargo test --quiet $(SERVICE) && scripts/with-server "$(FOLDER)/transaction" && \
	  if LOCKSET_POSTGRES_BIN=$$(scripts/find-postgres); then \
	    echo "== the web service on PostgreSQL" && export LOCKSET_POSTGRES_BIN && \
	    cargo test --quiet $(SERVICE) --test seats --test frozen -- --ignored; \
	  elif [ "$$CI" = true ]; then exit 1; \
	  else echo "not run: the web service on PostgreSQL"; fi

# Most tests wait more than they work, so there are more at a time than processors; those that work hard and those
# that measure come alone. Some tests only, $(ONLY) = their modules. scripts/report-tests reads how many run at a time.
# What works in virtual time and what compiles has no bound in real time, so it runs beside the others, with what they
# leave of the processors. A test of tests/house compares these lists with the files.
THREADS = 16
# Of the suite in its whole. Where hard ones come together, as with test-acl, so many fail on a busy machine.
MANY = 32
ALONE = hammer:: fairness::
# The other programs, in groups that run beside each other: most of them wait.
WITH_LIBS = house interop day
OF_CLI = cli
OF_VIEWS = operators top
OF_NEMESIS = short
OF_TESTKIT = cluster proxy replicated sentinels server tls wait
# They explore the protocol and share no code with the rest.
MODELS = lock redlock rwlock semaphore
WORKSPACE = scripts/test
# The small examples and the demos are no tests: `make examples` builds them, and clippy has checked them.
LIBS = --lib --bins --example laptop --example orders $(WITH_LIBS:%=--test %)
# What OF_CLI runs is shown as it goes.
BESIDE_CLI = OF_VIEWS OF_NEMESIS OF_TESTKIT
# Those too that have a time of their own.
BUILT_TESTS = $(LIBS) $(foreach group,OF_CLI $(BESIDE_CLI),$($(group):%=--test %)) $(MODELS:%=--test %) --test simulated --test suite --test nonsense
# Alone, but built as the whole is: without --workspace its dependencies have other features.
SUITE = $(WORKSPACE) --test suite
TEST_SUITE = echo "testing on $$LOCKSET_SERVER_BIN, $(MANY) at a time" && \
	  $(SUITE) -- --test-threads $(MANY) $(ALONE:%=--skip %) $(ONLY)
AT_A_TIME = -- --test-threads $(THREADS)
TEST_OTHERS = echo "and the other programs, $(THREADS) at a time of each group" && \
	  scripts/beside "$(WORKSPACE) $(LIBS) $(AT_A_TIME)" \
	    $(foreach group,$(BESIDE_CLI),"$(WORKSPACE) $($(group):%=--test %) $(AT_A_TIME)") \
	    "$(WORKSPACE) $(OF_CLI:%=--test %) $(AT_A_TIME)"
VIRTUAL = $(MAKE) --keep-going --no-print-directory test-virtual test-doc
test:
	@$(SERVER) && export LOCKSET_SERVER_BIN && $(WORKSPACE) --no-run --quiet $(BUILT_TESTS) && \
	  scripts/beside 'nice -n 19 $(VIRTUAL)' '$(TEST_SUITE); suite=$$?; $(TEST_OTHERS) && exit $$suite'

# The seeded defects, which test the worlds, and the second half of the worlds: CI has the time.
LATER = mutants:: no_promise_is_broken_in_any_world_of_the_second_half
test-virtual:
	@$(WORKSPACE) --test simulated -- $(LATER:%=--skip %)
test-later:
	@$(WORKSPACE) $(MODELS:%=--test %)
	@$(WORKSPACE) --test simulated -- $(LATER)
test-doc:
	@$(WORKSPACE) --doc

# What they measure is their own process: each part has one of its own. They wait more than they work.
NONSENSE = $(WORKSPACE) --test nonsense --
NONSENSE_ENDLESS = $(NONSENSE) --exact endless_replies_are_bounded_in_memory_and_time
NONSENSE_SECURED = $(NONSENSE) secured::
NONSENSE_OTHERS = $(NONSENSE) --skip endless_replies_are_bounded_in_memory_and_time --skip secured::
test-nonsense:
	@$(SERVER) && export LOCKSET_SERVER_BIN && \
	  scripts/beside '$(NONSENSE_ENDLESS)' '$(NONSENSE_SECURED)' '$(NONSENSE_OTHERS)'

# Those that work so hard that others would be late, or measure who gets a lock: on a machine with nothing else to do.
test-alone:
	@$(SERVER) && export LOCKSET_SERVER_BIN && \
	  echo "those that work hard or measure, 1 at a time" && $(SUITE) -- --test-threads 1 $(ALONE)

# Where the server of `test` was built without TLS these fail, and say so.
TLS = -- --test-threads 4 --ignored
test-tls:
	@$(SERVER) && export LOCKSET_SERVER_BIN && echo "testing TLS on $$LOCKSET_SERVER_BIN, 4 at a time" && \
	  $(WORKSPACE) --test suite --test cli $(TLS) tls:: && $(WORKSPACE) --test tls $(TLS)

# What Prometheus itself says of the rules.
test-alerts:
	@promtool=$$(scripts/find-promtool) && PATH="$$(dirname "$$promtool"):$$PATH" \
	  $(WORKSPACE) --test house -- --ignored

# No doctest needs a server, and nothing in virtual time has one.
test-valkey:
	@$(VALKEY) && export LOCKSET_SERVER_BIN && $(TEST_SUITE) && $(TEST_OTHERS) && \
	  $(MAKE) --no-print-directory test-nonsense test-alone

# What depends on the server: scripts, replies, expiry, messages, rights, replication, redirections.
test-valkey-short: ONLY = contract:: conformance:: wire:: fair:: rwlock:: multilock:: foreign:: retention:: \
	  limits:: rights:: replicas:: cluster:: sentinel:: cost::
test-valkey-short:
	@$(VALKEY) && export LOCKSET_SERVER_BIN && echo "testing on $$LOCKSET_SERVER_BIN, $(THREADS) at a time" && \
	  $(WORKSPACE) --lib --test suite -- --test-threads $(THREADS) $(ALONE:%=--skip %) $(ONLY)

# What docs/rights.md lists, on all keys.
RIGHTS = resetchannels -@all ~* $$(grep '^|' docs/rights.md | grep -o '`[&+][^`]*`' | tr -d '`\\' | tr '\n' ' ')

test-acl:
	@$(SERVER) && export LOCKSET_SERVER_BIN LOCKSET_TEST_RIGHTS="$(RIGHTS)" && \
	  echo "testing on $$LOCKSET_SERVER_BIN with $$LOCKSET_TEST_RIGHTS, $(THREADS) at a time" && \
	  $(SUITE) -- --test-threads $(THREADS) \
	    --skip hammer:: --skip limits:: --skip rights:: --skip faults:: --skip redlock \
	    conformance:: cancellation:: interleavings:: fair:: rwlock:: multilock:: wire::

# Clients that the suites make by themselves are denied RESTORE; the others are told to use scripts alone.
test-scripts:
	@$(SERVER) && export LOCKSET_SERVER_BIN LOCKSET_TEST_NATIVE=0 LOCKSET_TEST_RIGHTS="~* &* +@all -restore" && \
	  echo "testing on $$LOCKSET_SERVER_BIN without RESTORE, $(THREADS) at a time" && \
	  $(SUITE) -- --test-threads $(THREADS) \
	    --skip hammer:: --skip limits:: --skip rights:: --skip native:: --skip redlock \
	    conformance:: cancellation:: interleavings:: faults:: undoing:: cost:: handoff:: wire::

# Not with those that come alone.
STALL = 0.8
EVERY = 4
test-stalls:
	@$(SERVER) && export LOCKSET_SERVER_BIN && $(SUITE) --no-run --quiet && \
	  scripts/with-stalls $(STALL) $(EVERY) $(SUITE) -- --test-threads $(MANY) $(ALONE:%=--skip %) $(ONLY)

# They wait more than they work. The holder is no test, but the other process of some.
INTEROP = $(WORKSPACE) --test interop -- --ignored --test-threads 4 \
	  --skip rust_process::holder

interop:
	@scripts/build-interop
	@$(SERVER) && export LOCKSET_SERVER_BIN && echo "testing on $$LOCKSET_SERVER_BIN, 4 at a time" && $(INTEROP)

# An old one, one in between and the newest.
interop-all: interop-3.16.4 interop-3.27.1 interop-4.7.0

# What an older one does otherwise: docs/redisson.md says how. Else all tests.
FIVE_MINUTES = killed::java_is_killed_while_it_waits::fair killed::rust_is_killed_while_it_holds::fair \
	  defects::the_ghost defects::a_waiter_that_spins
MAPPED = prefix::a_prefix_is_the_name_mappers
OTHERWISE = $(FIVE_MINUTES) $(MAPPED)::fair killed::a_reader_of_ours
OTHERWISE_3.27.1 = $(OTHERWISE) $(MAPPED)::multi \
	  cluster::java_waits_for_rust::fair cluster::java_waits_for_rust::write \
	  cluster::java_waits_for_rust::multi cluster::rust_waits_for_java::fair \
	  cluster::rust_waits_for_java::read cluster::rust_waits_for_java::multi
OTHERWISE_3.16.4 = $(OTHERWISE) $(MAPPED)::read $(MAPPED)::write cluster:: \
	  ::fenced tokens_grow java_never_mistakes multi

interop-%:
	@LOCKSET_REDISSON=$* scripts/build-interop
	@$(SERVER) && export LOCKSET_SERVER_BIN LOCKSET_REDISSON=$* && \
	  echo "testing with Redisson $* on $$LOCKSET_SERVER_BIN, 4 at a time" && $(INTEROP) $(OTHERWISE_$*:%=--skip %)

check-format:
	cargo fmt --all --check
	cargo fmt --manifest-path examples/service/Cargo.toml --check

check: check-format
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	cargo clippy --workspace --test nonsense --all-features -- -D warnings
	cargo clippy --package lockset -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --exclude lockset-cli --no-deps --all-features

# Some minutes and some GB: the tests explore the smaller ones.
model:
	@scripts/build "the model" --release --package lockset-model && \
	  cargo run --quiet --release --package lockset-model

# Worlds drawn from seeds, on all cores, until so many calls have come to their end: $(SEED) begins with that one.
OPERATIONS = 10000000
sim:
	@$(SERVER) && export LOCKSET_SERVER_BIN LOCKSET_OPERATIONS=$(OPERATIONS) $(if $(SEED),LOCKSET_SEED=$(SEED)) && \
	  cargo test --release -p lockset-sim --test simulated --test day --lib -- --ignored --nocapture --test-threads 1

NEMESIS = 60
nemesis:
	@$(SERVER) && export LOCKSET_SERVER_BIN && \
	  scripts/build "the nemesis" --release --package lockset-nemesis && \
	  cargo run --quiet --release --package lockset-nemesis -- $(NEMESIS) $(or $(SEED),1) $(TOPOLOGY)

mutants:
	@$(SERVER) && export LOCKSET_SERVER_BIN && scripts/mutants $(MUTANTS)

CASES = 20000
properties:
	@PROPTEST_CASES=$(CASES) cargo test --workspace --all-features --lib --quiet -- $(PROPERTIES)

# Those that draw their input at random.
PROPERTIES = record:: conn::url:: conn::link::wire:: conn::cluster::map:: engine::keys:: \
	  hold::state:: hold::subscription::

mutants-core:
	@scripts/mutants-core $(MUTANTS)

# Builds the attribute and the library, without the features that only tests bring. The other three depend on
# a version that is not published yet, and their builds would compile the library once more each, with other features:
# RELEASING.md does that before a release. All five go as far as the upload.
BUILT_PACKAGES = --package lockset-macros --package lockset
PACKAGES = $(BUILT_PACKAGES) --package lockset-operator --package lockset-sim --package lockset-cli
package:
	cargo package $(BUILT_PACKAGES) --all-features --allow-dirty
	cargo publish --dry-run --no-verify $(PACKAGES) --allow-dirty
	@cargo package $(PACKAGES) --list --allow-dirty | wc -l | xargs printf '%s files\n'

# Without criterion's times: `cargo bench` has those too.
bench:
	@$(SERVER) && export LOCKSET_SERVER_BIN LOCKSET_BENCH=ratios && cargo bench --package lockset
	@$(MAKE) --no-print-directory bench-observability

# What it costs to be observed: with the features, and beside that the same bench as it is without them.
OBSERVED = cargo bench --quiet --package lockset --bench observability
bench-observability:
	@$(SERVER) && export LOCKSET_SERVER_BIN && \
	  LOCKSET_BENCH_WITHOUT=$$($(OBSERVED) --no-run --message-format json | \
	    grep -o '"executable":"[^"]*"' | cut -d '"' -f 4 | tail -n 1) && \
	  export LOCKSET_BENCH_WITHOUT && $(OBSERVED) --features metrics,tracing

# WHAT=20 for those names alone that have this in them.
bench-far bench-many bench-shards:
	@$(SERVER) && export LOCKSET_SERVER_BIN && \
	  cargo bench --quiet --package lockset --bench $(@:bench-%=%) -- $(WHAT)

# A run of 5 rounds takes 8 minutes and replaces the results that are in the repository.
ROUNDS = 5
SECONDS = 1.5
RESULTS = benches/peers/results
PEERS_OUT = $${CARGO_TARGET_DIR:-target}/bench-peers
PEERS_CARGO = --manifest-path benches/peers/Cargo.toml
PEERS_RUN = cargo run $(PEERS_CARGO) --quiet --release \
	  --target-dir "$(PEERS_OUT)/rust" --package peers-run --

bench-peers:
	@$(SERVER) && export LOCKSET_SERVER_BIN && $(PEERS_RUN) measure --rounds $(ROUNDS) \
	  --seconds $(SECONDS) --out "$(PEERS_OUT)" --results $(RESULTS) $(if $(PEERS),--peers $(PEERS)) $(if $(ADDRESS),--address $(ADDRESS))

# What bench-peers does first, for a machine that is then to be quiet.
bench-peers-build:
	@$(PEERS_RUN) build --out "$(PEERS_OUT)" $(if $(PEERS),--peers $(PEERS))

# Table and plots again, from results.json.
bench-peers-draw:
	@$(PEERS_RUN) draw --results $(RESULTS)

# They are a workspace of their own, which `check` and `test` do not see. In the profile and the folder of
# the tests, of whose compiled dependencies they share most.
PEERS_CHECK = $(PEERS_CARGO) --target-dir "$${CARGO_TARGET_DIR:-target}"
bench-peers-check:
	cargo fmt $(PEERS_CARGO) --all --check
	cargo clippy $(PEERS_CHECK) --all-targets -- -D warnings
	cargo test $(PEERS_CHECK)
