//! One attempt to take a lock or several, and its undoing.
//!
//! What undoes an attempt exists before the attempt is sent. So a future that is dropped while the
//! answer is under way, or an attempt that never got one, is cancelled on the lane it took, behind
//! it; a grant nobody takes is released at once; a place in a queue is given up.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::confirm::Confirmed;
use super::handover::Kept;
use super::{LockRequest, Party};
use crate::clock::Tick;
use crate::conn::{Lane, sent};
use crate::counts::{Counts, Mode};
use crate::error::{Error, Result};
use crate::fencing::FencingToken;
use crate::hint::Mark;
use crate::hold::local::HANDOFFS_MAX;
use crate::hold::protocol::{AcquireTerms, HolderRef, Queue};
use crate::hold::{Hold, NewHold, Share};
use crate::owner::Owner;
use crate::script::reply::{self, Acquired, AcquiredAll};
use crate::script::{Call, CallBudget, Executed, Failure, catalog};

/// A would-be holder: one holder id for each lock, for all attempts of one wait.
pub(super) struct Attempt<'a> {
    pub(super) party: Party<'a>,
    /// Of each lock, the number in the holder id and the id itself.
    pub(super) holders: Vec<(u64, Arc<str>)>,
    /// When it began to wait.
    since: Tick,
    /// Whether it takes a place in a queue when it is refused, and until when it waits.
    waits: Option<Tick>,
    /// The lane of an attempt whose outcome is not known.
    pub(super) unanswered: Option<Lane>,
    /// Whether it may have left this client.
    pub(super) has_left: AtomicBool,
    /// The lock at whose queue it may have a place at the server.
    pub(super) queued_at: Option<usize>,
    /// Whether it is known as one that the server may have.
    pub(super) is_loose: bool,
    /// What it knows of that, where the lock may be handed to it.
    pub(super) kept: Option<Kept>,
}

/// What a grant is counted from.
pub(super) struct Grant {
    /// When the request was sent that led to it.
    pub(super) sent: Tick,
    /// A mark of moves, taken before that.
    pub(super) moved: Mark,
    /// The lease that is certain from then on, if the lock was handed over.
    pub(super) handed: Option<Duration>,
    /// So many more tokens follow each of its own.
    pub(super) spare: u32,
}

/// What became of an attempt, or of a wait.
pub(crate) enum Outcome {
    /// One share of each lock, in the order of the requests; released when dropped.
    Granted(Vec<Share>),
    Refused {
        /// The first lock that was refused.
        at: usize,
        /// The rest of its holder's lease, if the server told it.
        remaining: Option<Duration>,
        /// Another task of the same owner got one of several locks meanwhile, so it can be entered.
        is_owned: bool,
    },
}

impl Outcome {
    pub(super) fn refused(at: usize, remaining: Option<Duration>) -> Self {
        Self::Refused {
            at,
            remaining,
            is_owned: false,
        }
    }
}

impl<'a> Attempt<'a> {
    /// For one attempt.
    pub(super) fn single(party: Party<'a>) -> Self {
        Self::new(party, None)
    }

    pub(super) fn waiting(party: Party<'a>, deadline: Option<Tick>) -> Self {
        Self::new(party, Some(deadline.unwrap_or(Tick::NEVER)))
    }

    fn new(party: Party<'a>, waits: Option<Tick>) -> Self {
        let core = party.core();
        Self {
            party,
            holders: party.requests.iter().map(|_| core.new_holder()).collect(),
            since: core.clock.now(),
            waits,
            unanswered: None,
            has_left: AtomicBool::new(false),
            queued_at: None,
            is_loose: false,
            kept: None,
        }
    }

    /// Where this attempt is told that it is worth asking for a lock again.
    pub(super) fn channel(&self, at: usize) -> String {
        let request = &self.party.requests[at];
        request.protocol.channel(&request.name, &self.holders[at].1)
    }

    /// Whether an attempt may still arrive, so that its holder ids are not to be used.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.unanswered.is_some()
    }

    /// Asks the server, as one who heads the local queue of the lock at `at`; an attempt that gets no
    /// answer is repeated as it is.
    pub(super) async fn ask(
        &mut self,
        at: usize,
        lane: Lane,
        budget: CallBudget,
    ) -> Result<Outcome> {
        let core = self.party.core();
        let scripts = &core.scripts;
        loop {
            // Of the call, which may be sent again later as it is.
            let asked = core.clock.now();
            let moved = core.locals.moved.mark();
            let spare = self.spare_tokens();
            let call = self.acquire(at, asked, spare);
            if self.unanswered.replace(lane).is_none() {
                *self.has_left.get_mut() = false;
            }
            self.loosen();
            let run = core.while_open(scripts.run(lane, &call, budget));
            let answer = match sent::track(&self.has_left, run).await {
                Some(Ok(answer)) => answer,
                None => return Err(self.closed()),
                Some(Err(failure)) => {
                    if failure.executed == Executed::No {
                        self.unanswered = None;
                    }
                    return Err(self.error(failure));
                }
            };
            if answer.repeated
                && !scripts
                    .transport
                    .earlier_commands_settled(lane, call.route())
            {
                // An attempt that may still arrive must never meet its holder id in use: this one
                // is undone, and the next asks under another and behind that.
                self.start_over();
                self.party.left(budget.deadline).await;
                continue;
            }
            let tokens = match self.read(&answer.value)? {
                AcquiredAll::Held { tokens } => tokens,
                AcquiredAll::Elsewhere {
                    member,
                    remaining,
                    until_ms,
                } => {
                    self.unanswered = None;
                    if let Some(until_ms) = until_ms {
                        self.kept = Some(Kept {
                            sent: answer.sent,
                            moved,
                            until_ms,
                        });
                    }
                    let has_place = self.heartbeat(member, at, asked).is_some();
                    // A place it had elsewhere was given up; one it had here is still there.
                    self.queued_at = self.queued_at.filter(|queued| *queued == member);
                    if has_place {
                        self.queued_at = Some(member);
                    }
                    if answer.repeated && self.holders.len() > 1 {
                        // The attempt that got no answer may have been granted, and then one of
                        // the locks was lost: the others are left from it.
                        self.unanswered = Some(lane);
                        self.start_over();
                        self.party.left(budget.deadline).await;
                    }
                    return Ok(Outcome::refused(member, remaining));
                }
            };
            match self.confirmed(answer.sent).await {
                Confirmed::Yes => {}
                Confirmed::Ended => {
                    // Whatever is left of it is undone.
                    self.start_over();
                    self.party.left(budget.deadline).await;
                    return Ok(Outcome::refused(at, Some(Duration::ZERO)));
                }
                Confirmed::No(error) => {
                    self.give_back(lane, budget).await;
                    return Err(error);
                }
                // Undone when this is dropped: the server may be silent for long.
                Confirmed::Unknown(error) => return Err(error),
            }
            if core.is_closed() {
                // Nothing is renewed any more.
                self.give_back(lane, budget).await;
                return Err(self.closed());
            }
            let grant = Grant {
                sent: answer.sent,
                moved,
                handed: None,
                spare,
            };
            return Ok(Outcome::Granted(self.granted(grant, &tokens)));
        }
    }

    /// Releases a grant that is not handed out, and waits for the server to do so.
    async fn give_back(&mut self, lane: Lane, budget: CallBudget) {
        let scripts = &self.party.core().scripts;
        if scripts.run(lane, &self.release(), budget).await.is_ok() {
            self.unanswered = None;
            self.queued_at = None;
        }
    }

    /// Has undone what may be left of this attempt, and is another that has waited as long.
    pub(super) fn start_over(&mut self) {
        let since = self.since;
        *self = Self::new(self.party, self.waits);
        self.since = since;
    }

    /// How long a place is kept that it takes where it is refused. Only where it would go on asking
    /// without waiting for others of this client, and not when it asks for the last time.
    fn heartbeat(&self, member: usize, at: usize, now: Tick) -> Option<Duration> {
        let request = &self.party.requests[member];
        let takes_place = self.waits.is_some_and(|until| now < until)
            && request.protocol.waits_at_server()
            && (member == at || request.protocol.queue() == Queue::Server);
        takes_place.then_some(request.core.timing.heartbeat)
    }

    /// From here on it is the holds that have to be given back.
    pub(super) fn granted(&mut self, grant: Grant, tokens: &[Option<FencingToken>]) -> Vec<Share> {
        self.unanswered = None;
        self.queued_at = None;
        self.kept = None;
        let members = self.party.requests.iter().zip(self.party.locals);
        let shares = members
            .zip(self.holders.iter().zip(tokens))
            .map(|((request, local), ((number, holder), token))| {
                let granted = NewHold {
                    owner: request.options.owner.clone().unwrap_or_else(Owner::new),
                    number: *number,
                    holder: Arc::clone(holder),
                    sent: grant.sent,
                    moved: grant.moved,
                    handover: grant.handed,
                    policy: request.policy,
                    mode: request.mode,
                    token: *token,
                    spare_tokens: token.map_or(0..0, |token| {
                        let next = token.get() + 1;
                        next..next + u64::from(grant.spare)
                    }),
                    replication: request.options.replication,
                    give_up: request.give_up(),
                };
                Hold::granted(
                    &request.core,
                    local,
                    request.protocol,
                    &request.name,
                    granted,
                )
            })
            .collect();
        self.fasten();
        shares
    }

    fn closed(&self) -> Error {
        self.of_locks(Error::closed(self.party.requests[0].operation))
    }

    /// How many tokens to ask for beside its own: for those it may pass the lock on to.
    fn spare_tokens(&self) -> u32 {
        let ([request], [local]) = (self.party.requests, self.party.locals) else {
            return 0;
        };
        let may_pass = request.options.fenced
            && request.mode == Mode::Exclusive
            && request.protocol.queue() == Queue::Local
            && local.queue.has_more();
        if may_pass { HANDOFFS_MAX } else { 0 }
    }

    fn acquire(&self, at: usize, now: Tick, spare: u32) -> Call {
        let terms = |member: usize, request: &LockRequest| AcquireTerms {
            publish: request.core.channels().publish(),
            mode: request.mode,
            lease: request.policy.lease(),
            tokens: u32::from(request.options.fenced) * (1 + spare),
            is_new: true,
            heartbeat: self.heartbeat(member, at, now),
            accepts_handover: self.may_be_handed(),
            waited: self.since.until(now),
        };
        if let ([request], [(_, holder)]) = (self.party.requests, &*self.holders) {
            let holder = holder_ref(request, holder, Counts::one(request.mode));
            return request.protocol.acquire(&holder, &terms(0, request));
        }
        let publish = self.party.core().channels().publish();
        let queued = self.queued_at.map_or(0, |member| member + 1).to_string();
        let parts = self
            .members()
            .enumerate()
            .map(|(member, (request, holder))| {
                let holder = holder_ref(request, holder, Counts::one(request.mode));
                request
                    .protocol
                    .acquire_as_member(&holder, &terms(member, request))
            });
        let retention = self.party.core().timing.token_retention.to_string();
        let for_all = [publish, &queued, &retention];
        Call::of_parts(&catalog::MULTI_ACQUIRE, &for_all, parts)
    }

    pub(super) fn release(&self) -> Call {
        let publish = self.party.core().channels().publish();
        if let ([request], [(_, holder)]) = (self.party.requests, &*self.holders) {
            let holder = holder_ref(request, holder, Counts::NONE);
            return request.protocol.release(&holder, Duration::ZERO, publish);
        }
        let parts = self.members().map(|(request, holder)| {
            let holder = holder_ref(request, holder, Counts::NONE);
            request.protocol.release_as_member(&holder, Duration::ZERO)
        });
        Call::of_parts(&catalog::MULTI_RELEASE, &[publish], parts)
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (&'a LockRequest, &Arc<str>)> {
        let holders = self.holders.iter().map(|(_, holder)| holder);
        self.party.requests.iter().zip(holders)
    }

    fn read(&self, value: &redis::Value) -> Result<AcquiredAll> {
        let read = match self.party.requests {
            [request] => request
                .protocol
                .acquired(value)
                .map(|acquired| match acquired {
                    Acquired::Held { token } => AcquiredAll::Held {
                        tokens: vec![token],
                    },
                    other => AcquiredAll::Elsewhere {
                        member: 0,
                        remaining: other.remaining(),
                        until_ms: other.until_ms(),
                    },
                }),
            many => reply::acquired_all(value, many.len()),
        };
        read.map_err(|error| self.of_locks(error.during(self.party.requests[0].operation)))
    }

    fn error(&self, failure: Failure) -> Error {
        let member = failure.member().filter(|_| self.holders.len() > 1);
        let error = failure.into_error(self.party.requests[0].operation);
        match member.and_then(|member| self.party.requests.get(member)) {
            Some(request) => error.of_lock(request.name.as_str()),
            None => self.of_locks(error),
        }
    }

    pub(super) fn of_locks(&self, error: Error) -> Error {
        let names: Vec<_> = self
            .party
            .requests
            .iter()
            .map(|request| request.name.as_str())
            .collect();
        error.of_lock(&names.join(", "))
    }
}

fn holder_ref<'a>(request: &'a LockRequest, holder: &'a str, counts: Counts) -> HolderRef<'a> {
    HolderRef {
        name: &request.name,
        id: holder,
        counts,
        fenced: request.options.fenced,
        token_retention: request.core.timing.token_retention,
    }
}
