//! Tests the state of a hold by tables, and its invariants over random sequences of events.

use std::rc::Rc;

use proptest::prelude::*;

use super::lease::RENEWED_TOGETHER;
use super::*;
use crate::api::options::LeasePolicy;
use crate::engine::hint::Hint;
use crate::engine::hold::effects::{Agreed, NextOwner, ReleaseStep};
use crate::engine::hold::share_lease::local_deadline;
use crate::engine::hold::state::readers::JOINS_MAX;
use crate::observe::group::Group;

const LEASE: Duration = Duration::from_secs(30);
const REPLY: Duration = Duration::from_secs(1);

fn at(millis: u64) -> Tick {
    Tick::ZERO.after(Duration::from_millis(millis))
}

fn secs(seconds: u64) -> Tick {
    at(seconds * 1_000)
}

impl HoldState {
    fn apply(&mut self, now: Tick, event: Event) -> Effects {
        event(self, now)
    }

    pub(in crate::engine::hold) fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the server is known to have what the shares need.
    pub(in crate::engine::hold) fn is_settled(&self) -> bool {
        self.counts.is_settled()
    }
}

/// The owners of readers that joined are in no order.
impl std::hash::Hash for Readers {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        format!("{self:?}").hash(hasher);
    }
}

pub(in crate::engine::hold) fn new_hold(policy: LeasePolicy, mode: Mode) -> NewHold {
    NewHold {
        owner: Owner::new(),
        number: 1,
        sent: secs(100),
        moved: Hint::default().mark(),
        handover: None,
        policy,
        mode,
        tokens: Tokens::granted(Some(FencingToken::from(7)), 2),
        replication: None,
        give_up: REPLY,
        group: Group::NONE,
        is_joinable: false,
        call: None,
    }
}

/// No current token, though spare ones are left.
fn unfenced() -> Tokens {
    let current = None;
    Tokens {
        current,
        ..new_hold(LeasePolicy::Renewed(LEASE), Mode::Exclusive).tokens
    }
}

/// A hold that was granted at 100 s.
fn held_in(mode: Mode) -> HoldState {
    let new = new_hold(LeasePolicy::Renewed(LEASE), mode);
    let (mut state, _) = HoldState::new(secs(100), &new);
    assert_eq!(state.apply(secs(100), guarded()), Effects::default());
    state
}

fn held() -> HoldState {
    held_in(Mode::Exclusive)
}

fn renewed() -> ShareLease {
    ShareLease::renewed(LEASE)
}

fn renewed_until(lease: Duration, end: Tick) -> ShareLease {
    ShareLease {
        end,
        ..ShareLease::renewed(lease)
    }
}

/// Whether the last guard has gone, and the server has to release the hold.
fn is_released(effects: &Effects, state: &HoldState) -> bool {
    effects.ended == Some(Phase::Released) && !state.is_kept()
}

/// A change of a hold, at a time.
type Event = Rc<dyn Fn(&mut HoldState, Tick) -> Effects>;

fn event(change: impl Fn(&mut HoldState, Tick) -> Effects + 'static) -> Event {
    Rc::new(change)
}

/// As [`event`], for a change without effects.
fn quiet(change: impl Fn(&mut HoldState, Tick) + 'static) -> Event {
    event(move |state, now| {
        change(state, now);
        Effects::default()
    })
}

fn lost(reason: LostReason) -> Event {
    event(move |state, now| state.lose(now, reason))
}

/// A release of a share in this mode. Its owner does not matter while no reader has joined.
fn released(mode: Mode) -> Event {
    released_by(&Owner::new(), mode)
}

fn released_by(owner: &Owner, mode: Mode) -> Event {
    released_by_then(owner, mode, Tick::ZERO)
}

fn released_by_then(owner: &Owner, mode: Mode, kept_until: Tick) -> Event {
    let owner = owner.clone();
    event(move |state, now| state.release_share(now, &owner, mode, renewed(), kept_until))
}

/// A release by a guard that asks to keep the hold at the server until `kept_until`.
fn released_early(mode: Mode, kept_until: Tick) -> Event {
    released_by_then(&Owner::new(), mode, kept_until)
}

fn forgotten(mode: Mode) -> Event {
    forgotten_by(&Owner::new(), mode)
}

fn forgotten_by(owner: &Owner, mode: Mode) -> Event {
    let owner = owner.clone();
    event(move |state, _| state.forget_share(&owner, mode, renewed()))
}

/// The server's answer after which it has the hold in this mode, or does not have it.
fn settled(mode: Option<Mode>) -> Event {
    let answered = Answered {
        mode,
        is_found: true,
        first_sent: secs(101),
        is_repeated: false,
    };
    event(move |state, now| state.answered(now, answered))
}

fn reentry(now: Tick, state: &HoldState, mode: Mode) -> Event {
    reentry_with(now, state, mode, renewed())
}

fn reentry_with(now: Tick, state: &HoldState, mode: Mode, share: ShareLease) -> Event {
    entered(state.owner().clone(), mode, share, agreed(now, LEASE))
}

fn agreed(sent: Tick, lease: Duration) -> Option<Agreed> {
    let token = None;
    Some(Agreed { sent, lease, token })
}

fn entered(owner: Owner, mode: Mode, share: ShareLease, agreed: Option<Agreed>) -> Event {
    event(move |state, now| state.add_share(now, &owner, mode, share, agreed))
}

/// The server's confirmation of a renewal that was sent at `sent`.
fn confirmed(sent: Tick, lease: Duration) -> Event {
    event(move |state, now| {
        state.renewed(now, sent, lease);
        Effects::default()
    })
}

/// A hold in each phase.
fn of_each_phase() -> [(&'static str, HoldState); 4] {
    let mut gone = held();
    gone.apply(secs(101), released(Mode::Exclusive));
    let mut left = held();
    left.apply(secs(101), forgotten(Mode::Exclusive));
    let mut lost = held();
    lost.lose(secs(101), LostReason::Revoked);
    [
        ("held", held()),
        ("released", gone),
        ("forgotten", left),
        ("lost", lost),
    ]
}

/// The phase that follows from each phase and each event that may change it.
#[test]
fn only_what_is_held_changes_its_phase() {
    let late = secs(131);
    let table: [(&str, Tick, Event, Phase); 5] = [
        (
            "read in time",
            secs(102),
            event(HoldState::expire_if_due),
            Phase::Held,
        ),
        (
            "read too late",
            late,
            event(HoldState::expire_if_due),
            Phase::Lost(LostReason::Expired),
        ),
        (
            "closed",
            secs(102),
            lost(LostReason::Closed),
            Phase::Lost(LostReason::Closed),
        ),
        ("doubted", secs(102), quiet(HoldState::doubt), Phase::Held),
        (
            "renewed too late",
            late,
            confirmed(secs(110), LEASE),
            Phase::Held,
        ),
    ];
    for (what, now, event, phase) in table {
        for (name, mut state) in of_each_phase() {
            let before = state.phase;
            let effects = state.apply(now, event.clone());
            let expected = if before == Phase::Held { phase } else { before };
            assert_eq!(state.phase, expected, "{name}, {what}");
            let is_over = before != state.phase;
            assert_eq!(effects.ended.is_some(), is_over, "{name}, {what}");
            assert_eq!(effects.lost().is_some(), is_over, "{name}, {what}");
            assert_eq!(effects.wakes_waiters(), is_over, "{name}, {what}");
        }
    }
}

/// Whether the hold is over and released, and the step of its release.
type Ended = (bool, bool, Option<ReleaseStep>);

#[test]
fn the_end_of_a_share_by_what_is_left() {
    use Mode::{Exclusive, Shared};
    let decided = |mode| Some(ReleaseStep::Decided(mode));
    // The first mode, further shares, the event, and its result.
    let table: [(&str, Mode, &[Mode], Event, Ended); 8] = [
        (
            "the only one",
            Exclusive,
            &[],
            released(Exclusive),
            (true, true, decided(Exclusive)),
        ),
        (
            "one of two",
            Exclusive,
            &[Exclusive],
            released(Exclusive),
            (false, false, None),
        ),
        (
            "the last writer",
            Exclusive,
            &[Shared],
            released(Exclusive),
            (false, false, decided(Exclusive)),
        ),
        (
            "a reader beside it",
            Exclusive,
            &[Shared],
            released(Shared),
            (false, false, None),
        ),
        (
            "a reader of two",
            Shared,
            &[Shared],
            released(Shared),
            (false, false, None),
        ),
        (
            "the last reader",
            Shared,
            &[],
            released(Shared),
            (true, true, decided(Shared)),
        ),
        (
            "a downgrade",
            Exclusive,
            &[],
            event(HoldState::downgrade_share),
            (false, false, decided(Exclusive)),
        ),
        (
            "forgotten",
            Exclusive,
            &[],
            forgotten(Exclusive),
            (true, false, None),
        ),
    ];
    for (what, first, others, event, (is_over, ends, release)) in table {
        let mut state = held_in(first);
        for mode in others {
            let granted = reentry(secs(101), &state, *mode);
            assert!(state.apply(secs(101), granted).looks_again, "{what}");
        }
        let effects = state.apply(secs(102), event);
        assert_eq!(effects.ended.is_some(), is_over, "{what}");
        assert_eq!(is_released(&effects, &state), ends, "{what}");
        assert_eq!(effects.release, release, "{what}");
        assert_eq!(state.loss(), None, "{what}");
        assert_eq!(state.is_held(), !is_over, "{what}");
        // A release wakes waiters itself. Without a release they are woken here.
        assert_eq!(
            effects.wakes_waiters(),
            is_over && release.is_none(),
            "{what}"
        );
    }
}

/// A clock that must not be read.
#[derive(Clone, Copy)]
struct Unread;

impl Now for Unread {
    fn tick(self) -> Tick {
        panic!("the clock is read")
    }
}

#[test]
fn what_is_to_be_left_for_no_time_is_given_back_without_a_look_at_the_clock() {
    let mut state = held();
    state.apply(secs(100), guarded());
    let (owner, mode) = (Owner::new(), Mode::Exclusive);
    let effects = state.release_share(Unread, &owner, mode, renewed(), Tick::ZERO);
    assert!(is_released(&effects, &state));
}

#[test]
fn a_re_entry_is_local_and_says_when_to_look() {
    let new = new_hold(LeasePolicy::Fixed(LEASE), Mode::Exclusive);
    let (mut state, _) = HoldState::new(secs(100), &new);
    let end = state.next_check();
    let granted = reentry(secs(101), &state, Mode::Exclusive);
    let effects = state.apply(secs(101), granted);
    assert!(state.is_settled());
    assert!(effects.looks_again, "it is renewed from here on");
    assert!(
        state.next_check() < end,
        "its end was the first thing to look for"
    );
    let left = state.apply(secs(102), released(Mode::Exclusive));
    assert!(left.is_local && left.ended.is_none() && left.release.is_none());
    let mut over = held();
    let (end, granted) = (over.deadline(), reentry(secs(131), &over, Mode::Exclusive));
    over.apply(secs(131), granted);
    assert_eq!(over.deadline(), end, "it came too late");
}

#[test]
fn a_re_entry_needs_a_renewal_where_the_lease_does_not_reach() {
    let can = |state: &HoldState, now, policy: LeasePolicy| {
        let share = ShareLease::of(policy, now, now);
        state.can_be_entered(now, policy.lease(), share)
    };
    let (same, longer) = (LeasePolicy::Renewed(LEASE), LeasePolicy::Renewed(LEASE * 2));
    let state = held();
    assert!(can(&state, secs(101), same) && !can(&state, secs(101), longer));
    assert!(can(&state, secs(114), same) && !can(&state, secs(116), same));
    let fixed = LeasePolicy::Fixed;
    assert!(can(&state, secs(101), fixed(LEASE / 2)) && !can(&state, secs(101), fixed(LEASE)));
    let mut doubted = held();
    doubted.doubt(secs(101));
    assert!(!can(&doubted, secs(101), same));
}

/// A call that has not returned may never be polled again.
#[test]
fn a_hold_without_a_guard_is_not_renewed() {
    let new = new_hold(LeasePolicy::Renewed(LEASE), Mode::Exclusive);
    let (mut state, _) = HoldState::new(secs(100), &new);
    let due = state.renewal_due();
    assert!(due < secs(112));
    assert_eq!(state.next_step(due), Due::Later(state.deadline()));
    state.put_off_check();
    let effects = state.apply(secs(113), guarded());
    assert_eq!(effects, Effects::look_again(true));
    assert_eq!(state.next_check(), due, "it is due by now");
    assert!(matches!(state.next_step(secs(113)), Due::Renew { .. }));
}

/// A task enters its hold again and asks for a longer lease.
#[test]
fn another_lease_counts_from_when_it_was_asked_for_and_only_in_time() {
    let longer = LEASE * 2;
    let entered = |now| {
        let mut state = held();
        let until = secs(102);
        state.lease_sent(until, longer);
        let (owner, share) = (state.owner().clone(), ShareLease::renewed(longer));
        state.add_share(
            now,
            &owner,
            Mode::Exclusive,
            share,
            agreed(secs(101), longer),
        );
        state
    };
    let state = entered(secs(102));
    assert_eq!(state.lease(), longer);
    assert_eq!(state.deadline(), local_deadline(secs(101), longer));
    let state = entered(secs(131));
    assert_eq!(state.deadline(), local_deadline(secs(100), LEASE));
}

#[test]
fn a_share_of_a_lost_hold_ends_without_a_release() {
    let mut state = held();
    state.lose(secs(101), LostReason::Revoked);
    let effects = state.apply(secs(102), released(Mode::Exclusive));
    assert_eq!(effects, Effects::default());
    assert_eq!(state.loss(), Some(LostReason::Revoked));
    assert!(state.counts().is_none());
}

#[test]
fn a_hold_is_kept_for_what_was_forgotten() {
    let mut state = held();
    let granted = reentry(secs(101), &state, Mode::Exclusive);
    state.apply(secs(101), granted);
    let left = state.apply(secs(102), forgotten(Mode::Exclusive));
    assert!(left.ended.is_none());
    assert_eq!(state.target(), Some(Mode::Exclusive));
    let effects = state.apply(secs(103), released(Mode::Exclusive));
    assert!(effects.ended.is_some() && !is_released(&effects, &state));
    assert_eq!(effects.release, None, "nothing releases it");
}

#[test]
fn a_release_is_sent_once_and_only_with_the_last_mode() {
    let mut state = held();
    let granted = reentry(secs(101), &state, Mode::Shared);
    state.apply(secs(101), granted);
    state.apply(secs(102), released(Mode::Exclusive));
    let reader = state.target();
    assert_eq!(state.change_sent(Some(Mode::Exclusive)).release, None);
    state.apply(secs(103), released(Mode::Shared));
    assert_eq!(
        state.change_sent(reader).release,
        None,
        "this mode is outdated"
    );
    let sent = state.change_sent(None).release;
    assert_eq!(sent, Some(ReleaseStep::Sent));
    assert_eq!(state.change_sent(None).release, None);
}

#[test]
fn a_renewal_counts_from_when_it_was_sent_and_only_in_time() {
    let lease = LEASE;
    let mut state = held();
    let end = local_deadline(secs(100), lease);
    assert_eq!(state.deadline(), end);
    for (now, sent, is_in_time) in [(110, 109, true), (111, 105, true), (150, 149, false)] {
        let before = state.deadline();
        let sent = secs(sent);
        let has_moved = state.renewed(secs(now), sent, lease);
        assert_eq!(has_moved, is_in_time, "{now}");
        let granted = local_deadline(sent, lease);
        let expected = if is_in_time {
            before.max(granted)
        } else {
            before
        };
        assert_eq!(state.deadline(), expected, "{now}");
    }
}

/// The renewal of a hold that has nothing else to do before its deadline.
fn renewal_of(state: &HoldState, lease: Duration) -> Due {
    Due::Renew {
        lease,
        deadline: state.deadline(),
        wait: lease / 6,
    }
}

#[test]
fn a_doubt_is_over_with_the_answer_to_a_later_renewal() {
    let lease = LEASE;
    let mut state = held();
    state.doubt(secs(105));
    assert!(state.is_doubted());
    assert_eq!(state.next_step(secs(105)), renewal_of(&state, lease));
    state.renewed(secs(106), secs(104), lease);
    assert!(state.is_doubted(), "it was sent before the doubt");
    state.renewed(secs(106), secs(105), lease);
    assert!(!state.is_doubted());
}

#[test]
fn what_is_due_when() {
    let mut state = held();
    let third = state.deadline().before(LEASE * 2 / 3);
    let Due::Later(check) = state.next_step(secs(101)) else {
        panic!("it is not due");
    };
    assert!(check <= third && check.after(LEASE / RENEWED_TOGETHER) > third);
    assert_eq!(state.next_step(check), renewal_of(&state, LEASE));
    assert_eq!(state.next_step(state.deadline()), Due::Expired);
    state.apply(secs(102), released(Mode::Exclusive));
    assert_eq!(state.next_step(secs(102)), Due::Gone);
}

#[test]
fn a_fixed_lease_is_not_renewed() {
    let new = new_hold(LeasePolicy::Fixed(LEASE), Mode::Exclusive);
    let (mut state, share) = HoldState::new(secs(100), &new);
    let end = local_deadline(secs(100), LEASE);
    assert_eq!(share, ShareLease::fixed(end));
    assert_eq!(state.next_step(secs(120)), Due::Later(end));
    let granted = reentry(secs(110), &state, Mode::Exclusive);
    state.apply(secs(110), granted);
    assert!(state.deadline() > end, "a renewed share beside it");
    state.apply(secs(111), released(Mode::Exclusive));
    assert_eq!(state.deadline(), end, "and without that");
}

#[test]
fn a_hold_is_renewed_up_to_its_max_and_lost_for_that_reason() {
    let max = Duration::from_secs(40);
    let policy = LeasePolicy::RenewedFor { lease: LEASE, max };
    let (mut state, share) = HoldState::new(at(100_010), &new_hold(policy, Mode::Exclusive));
    state.apply(at(100_010), guarded());
    let end = at(140_010);
    assert_eq!(share, renewed_until(LEASE, end));
    let mut asked = Vec::new();
    let mut now = at(100_010);
    while let Due::Later(check) = state.next_step(now) {
        if check == state.deadline() {
            break;
        }
        let Due::Renew { lease, .. } = state.next_step(check) else {
            panic!("it is due at {check:?}");
        };
        asked.push(lease);
        let sent = check;
        state.renewed(check, sent, lease);
        now = check;
    }
    assert_eq!(state.deadline(), end, "not a moment longer");
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert_eq!(asked[0], LEASE);
    assert!(asked[1] < LEASE, "{asked:?}");
    assert_eq!(state.next_step(end.before(REPLY)), Due::Later(end));
    let lost = state.expire_if_due(end).lost();
    assert_eq!(lost, Some(LostReason::MaxHold));
}

#[test]
fn a_hold_that_misses_its_renewals_has_not_reached_its_max() {
    let max = Duration::from_secs(60);
    let policy = LeasePolicy::RenewedFor { lease: LEASE, max };
    for event in [event(HoldState::expire_if_due), lost(LostReason::Expired)] {
        let (mut state, _) = HoldState::new(secs(100), &new_hold(policy, Mode::Exclusive));
        let lost = state.apply(state.deadline(), event).lost();
        assert_eq!(lost, Some(LostReason::Expired));
    }
}

#[test]
fn each_guard_that_it_is_handed_off_to_has_a_max_of_its_own() {
    let max = Duration::from_secs(20);
    let policy = LeasePolicy::RenewedFor { lease: LEASE, max };
    let (mut state, before) = HoldState::new(secs(100), &new_hold(policy, Mode::Exclusive));
    let now = secs(104);
    assert!(state.can_hand_off(now, before, policy, false));
    let after = ShareLease::of(policy, now, now);
    state.apply(
        now,
        handed_off(NextOwner {
            owner: Owner::new(),
            fenced: false,
            give_up: REPLY,
            before,
            after,
            place: None,
            reads_until: None,
        }),
    );
    assert_eq!(state.deadline(), secs(120), "the maximum of the next guard");
    let accepted = state.accept_handoff(now, Mode::Exclusive);
    assert!(accepted.looks_again, "it had not been due before its end");
    assert!(state.next_check() < secs(120), "it is renewed for the next");
    let (sent, lease) = (secs(110), LEASE);
    state.renewed(secs(110), sent, lease);
    assert_eq!(state.deadline(), secs(124));
}

/// The watchdog had only the end of the hold to check, but the next task holds it for longer.
#[test]
fn a_hand_off_that_changes_the_end_of_a_hold_brings_its_renewal_forward() {
    let max = Duration::from_secs(25);
    let policy = LeasePolicy::RenewedFor { lease: LEASE, max };
    let (mut state, before) = HoldState::new(secs(100), &new_hold(policy, Mode::Exclusive));
    assert_eq!(state.next_check(), secs(125));
    let now = secs(101);
    let next = NextOwner {
        owner: Owner::new(),
        fenced: false,
        give_up: REPLY,
        before,
        after: ShareLease::of(policy, now, now),
        place: None,
        reads_until: None,
    };
    state.apply(now, handed_off(next));
    let accepted = state.accept_handoff(now, Mode::Exclusive);
    assert_eq!(accepted, Effects::look_again(true));
    assert!(state.next_check() > now && state.next_check() < secs(106));
}

/// The call gets its guard.
fn guarded() -> Event {
    let sticky = Duration::ZERO;
    event(move |state, now| state.make_guard(now, sticky))
}

/// A hold that two guards of one owner have since 100 s. `share` is the lease of the second guard.
fn held_twice(share: ShareLease) -> HoldState {
    let mut state = held();
    let entered = reentry_with(secs(100), &state, Mode::Exclusive, share);
    state.apply(secs(100), entered);
    state
}

#[test]
fn a_release_before_its_time_leaves_it_and_later_ones_do_not() {
    let (kept_until, none) = (secs(110), None);
    let end = |now| {
        let mut state = held();
        let effects = state.apply(now, released_early(Mode::Exclusive, kept_until));
        let decided = Some(ReleaseStep::Decided(Mode::Exclusive));
        assert!(effects.ended.is_some() && effects.release == decided);
        assert!(!state.is_settled(), "the server has to hear of this");
        assert_eq!(is_released(&effects, &state), state.kept_for(now).is_none());
        assert_eq!(state.is_kept(), state.kept_for(now).is_some());
        assert_eq!(state.kept_for(kept_until), none, "its time is over");
        state.kept_for(now)
    };
    assert_eq!(end(secs(102)), Some(Duration::from_secs(8)));
    assert_eq!(end(kept_until), none, "after its time");
    let mut lost = held();
    lost.lose(secs(101), LostReason::Revoked);
    lost.apply(secs(102), released_early(Mode::Exclusive, kept_until));
    assert_eq!(lost.kept_for(secs(102)), none);
}

/// The other guard ends by its lease, by its `max_hold` or by a release.
#[test]
fn what_one_of_two_guards_asked_for_stands_until_both_are_gone() {
    let (lease, end) = (LEASE, secs(103));
    let fixed = ShareLease::fixed(end);
    for (other, lost) in [
        (fixed, Some(LostReason::Expired)),
        (renewed_until(lease, end), Some(LostReason::MaxHold)),
        (renewed(), None),
    ] {
        let mut state = held_twice(other);
        let effects = state.apply(secs(102), released_early(Mode::Exclusive, secs(110)));
        assert!(
            effects.ended.is_none() && !state.is_kept(),
            "a guard is left"
        );
        let offer = state.can_hand_off(secs(102), other, LeasePolicy::Renewed(lease), false);
        assert!(!offer, "it stays until then");
        let effects = match lost {
            Some(_) => state.expire_if_due(end),
            None => state.apply(end, released(Mode::Exclusive)),
        };
        assert!(effects.ended.is_some() && !is_released(&effects, &state));
        assert_eq!(effects.lost(), lost);
        assert_eq!(
            state.kept_for(end),
            Some(Duration::from_secs(7)),
            "{lost:?}"
        );
    }
}

/// The other guard stays and sends no request. Otherwise calls for the lock would wait for the request of the
/// downgrade.
#[test]
fn a_downgrade_that_was_not_sent_is_over_when_the_hold_is_left() {
    let (lease, end) = (LEASE, secs(103));
    let mut state = held_twice(renewed_until(lease, end));
    state.apply(secs(102), released_early(Mode::Exclusive, secs(110)));
    let decided = state.downgrade_share(secs(102)).release;
    assert_eq!(decided, Some(ReleaseStep::Decided(Mode::Exclusive)));
    let lost = state.expire_if_due(end).lost();
    assert_eq!(lost, Some(LostReason::MaxHold));
    assert_eq!(state.needed_change(end), ServerChange::Downgrade);
    let sent = state.change_sent(Some(Mode::Shared)).release;
    assert_eq!(sent, Some(ReleaseStep::Sent));
    state.apply(end, settled(Some(Mode::Shared)));
    let left = ServerChange::Keep(Duration::from_secs(7));
    assert_eq!(state.needed_change(end), left);
}

/// The server no longer has the hold, or the client is closed.
#[test]
fn what_is_lost_at_the_server_is_not_left() {
    for reason in [LostReason::Revoked, LostReason::Closed, LostReason::Expired] {
        let mut state = held_twice(renewed());
        state.apply(secs(102), released_early(Mode::Exclusive, secs(200)));
        let lost_at = if reason == LostReason::Expired {
            secs(140)
        } else {
            secs(103)
        };
        let effects = state.lose(lost_at, reason);
        assert_eq!(effects.lost(), Some(reason));
        assert!(!state.is_kept() && state.kept_for(lost_at).is_none());
    }
}

/// A guard that is dropped during a shutdown ends its hold at the server. The request of an earlier guard counts.
#[test]
fn what_was_asked_for_before_a_shutdown_is_left_with_the_last_guard() {
    let closed = || {
        let mut state = held_twice(renewed());
        state.apply(secs(102), released_early(Mode::Exclusive, secs(110)));
        state.lose(secs(103), LostReason::Closed);
        assert_eq!(state.needed_change(secs(103)), ServerChange::Nothing);
        state
    };
    let mut dropped = closed();
    dropped.apply(secs(104), released_early(Mode::Exclusive, secs(200)));
    let left = ServerChange::Keep(Duration::from_secs(6));
    assert_eq!(dropped.needed_change(secs(104)), left);
    let mut forgotten = closed();
    forgotten.forget_share(&Owner::new(), Mode::Exclusive, renewed());
    assert_eq!(forgotten.needed_change(secs(104)), ServerChange::Nothing);
}

/// A writer that asked to keep the hold ends, and then a reader. No request reaches the server between the two.
#[test]
fn what_was_read_last_is_left_as_a_readers() {
    let end = secs(103);
    let read_last = |share: ShareLease| {
        let mut state = held();
        let entered = reentry_with(secs(100), &state, Mode::Shared, share);
        state.apply(secs(100), entered);
        state.apply(secs(102), released_early(Mode::Exclusive, secs(110)));
        state
    };
    let left = ServerChange::Keep(Duration::from_secs(7));
    let longest = renewed_until(LEASE, end);
    for (share, how, sent) in [
        (renewed(), released(Mode::Shared), None),
        // The guard of the other share is still there.
        (
            longest,
            event(HoldState::expire_if_due),
            Some(ReleaseStep::Sent),
        ),
    ] {
        let mut state = read_last(share);
        assert!(state.apply(end, how).ended.is_some() && state.is_kept());
        assert_eq!(state.needed_change(end), ServerChange::Downgrade);
        let over = secs(110);
        assert_eq!(state.needed_change(over), ServerChange::Release);
        let downgrade = state.change_sent(Some(Mode::Shared));
        assert_eq!(downgrade.release, sent);
        state.apply(end, settled(Some(Mode::Shared)));
        assert_eq!(state.needed_change(end), left);
        state.apply(end, settled(None));
        assert_eq!(state.needed_change(end), ServerChange::Nothing);
    }
    let mut written = read_last(renewed());
    written.apply(end, reentry(end, &written, Mode::Exclusive));
    written.apply(end, released(Mode::Shared));
    written.apply(end, released(Mode::Exclusive));
    assert_eq!(written.needed_change(end), left, "written last");
    let mut in_doubt = read_last(renewed());
    in_doubt.apply(end, released(Mode::Shared));
    in_doubt.may_be_released(secs(102));
    assert_eq!(in_doubt.needed_change(end), left, "it may have been left");
}

/// Readers that were handed their shares may never come.
#[test]
fn what_was_asked_for_before_a_shutdown_is_left_if_no_reader_has_come() {
    let until = secs(110);
    let closed = |has_come: bool| {
        let (mut state, first, second) = joined();
        state.apply(secs(100), joins_with(&Owner::new(), has_come));
        let asked = |owner, kept_until| released_by_then(owner, Mode::Shared, kept_until);
        state.apply(secs(101), asked(&first, until));
        state.apply(secs(101), asked(&second, Tick::ZERO));
        state.lose(secs(103), LostReason::Closed);
        state.needed_change(secs(103))
    };
    assert_eq!(closed(false), ServerChange::Keep(Duration::from_secs(7)));
    assert_eq!(closed(true), ServerChange::Nothing, "its guard comes first");
}

/// So the server still has the hold when the other guard ends, even if the client notices that late.
#[test]
fn a_renewal_reaches_what_a_released_guard_asked_for() {
    let (lease, end) = (LEASE, secs(140));
    let renewed_at = |kept_until: Tick| {
        let mut state = held_twice(renewed_until(lease, end));
        state.apply(secs(102), released_early(Mode::Exclusive, kept_until));
        match state.next_step(secs(120)) {
            Due::Renew { lease, .. } => lease,
            other => panic!("{other:?}"),
        }
    };
    assert!(renewed_at(Tick::ZERO) < Duration::from_secs(21));
    assert_eq!(renewed_at(secs(160)), LEASE);
}

/// A hold that was granted at 100 s to a reader, and joined by another reader.
fn joined() -> (HoldState, Owner, Owner) {
    let new = NewHold {
        is_joinable: true,
        tokens: unfenced(),
        ..new_hold(LeasePolicy::Renewed(LEASE), Mode::Shared)
    };
    let (mut state, _) = HoldState::new(secs(100), &new);
    let (first, other) = (state.owner().clone(), Owner::new());
    assert!(
        !state.can_be_joined(secs(100), LEASE, REPLY),
        "not taken yet"
    );
    state.apply(secs(100), guarded());
    assert!(state.can_be_joined(secs(100), LEASE, REPLY));
    state.apply(secs(100), joins(&other));
    (state, first, other)
}

fn joins(owner: &Owner) -> Event {
    joins_with(owner, true)
}

fn joins_with(owner: &Owner, is_claimed: bool) -> Event {
    let owner = owner.clone();
    event(move |state, _| state.join(owner.clone(), LEASE, is_claimed))
}

#[test]
fn a_hold_of_readers_that_have_not_come_is_not_renewed() {
    let new = NewHold {
        is_joinable: true,
        tokens: unfenced(),
        ..new_hold(LeasePolicy::Renewed(LEASE), Mode::Shared)
    };
    let (mut state, _) = HoldState::new(secs(100), &new);
    state.apply(secs(100), guarded());
    let (first, owner) = (state.owner().clone(), Owner::new());
    state.apply(secs(100), joins_with(&owner, false));
    assert!(state.has_guard() && state.next_check() < state.deadline());
    state.apply(secs(100), released_by(&first, Mode::Shared));
    assert!(!state.has_guard());
    assert_eq!(state.next_check(), state.deadline(), "it ends by itself");
    state.accept_handoff(secs(101), Mode::Shared);
    assert!(state.next_check() < state.deadline(), "its task has come");
}

fn handed_off(next: NextOwner) -> Event {
    quiet(move |state, _| state.hand_off(next.clone()))
}

fn deferred(first: &Owner, until: Tick) -> Event {
    handed_off(NextOwner {
        owner: first.clone(),
        fenced: false,
        give_up: REPLY,
        before: renewed(),
        after: renewed(),
        place: None,
        reads_until: Some(until),
    })
}

/// A hold that was granted at 100 s to a writer, and passed on for 5 ms to a reader, which has taken it.
fn read_by_write_hold() -> (HoldState, Owner) {
    let new = NewHold {
        tokens: unfenced(),
        ..new_hold(LeasePolicy::Renewed(LEASE), Mode::Exclusive)
    };
    let (mut state, share) = HoldState::new(secs(100), &new);
    let first = Owner::new();
    assert!(state.is_written() && state.can_pass_to_readers(secs(100), share, LEASE));
    state.apply(secs(100), deferred(&first, at(100_005)));
    assert_eq!(state.next_check(), at(100_005));
    assert!(!state.has_guard(), "its task has not come");
    let accepted = state.accept_handoff(secs(100), Mode::Shared);
    assert_eq!(accepted, Effects::default(), "it is checked before anyway");
    (state, first)
}

#[test]
fn a_write_hold_that_readers_have_is_read() {
    let (mut state, first) = read_by_write_hold();
    assert!(state.is_downgrade_deferred() && state.is_exclusive() && !state.is_written());
    assert!(state.is_of(&first) && state.shares_of(&first, Mode::Shared) == 1);
    assert!(state.can_be_joined(secs(100), LEASE, REPLY));
    assert!(!state.can_be_joined(at(100_005), LEASE, REPLY), "too late");
    let other = Owner::new();
    state.apply(secs(100), joins(&other));
    let policy = LeasePolicy::Renewed(LEASE);
    let can_go_on = |state: &HoldState| state.can_hand_off(secs(100), renewed(), policy, false);
    assert!(!can_go_on(&state), "two have it");
    let left = state.apply(secs(100), released_by(&first, Mode::Shared));
    assert!(left.is_local && left.ended.is_none());
    assert!(can_go_on(&state));
    let mut released = state;
    let last = released.apply(secs(100), released_by(&other, Mode::Shared));
    assert!(last.ended.is_some() && is_released(&last, &released));
    assert_eq!(released.target(), None);
}

/// The next writer has the hold as the first writer had it.
#[test]
fn a_deferred_downgrade_is_none_if_a_writer_is_next() {
    let (mut state, first) = read_by_write_hold();
    let owner = Owner::new();
    state.apply(
        secs(100),
        handed_off(NextOwner {
            owner: owner.clone(),
            fenced: true,
            give_up: REPLY,
            before: renewed(),
            after: renewed(),
            place: None,
            reads_until: None,
        }),
    );
    state.accept_handoff(secs(100), Mode::Exclusive);
    assert!(state.is_written() && !state.is_downgrade_deferred());
    assert!(state.is_of(&owner) && !state.is_of(&first));
    assert_eq!(state.token(), Some(FencingToken::from(8)), "a later one");
    assert!(!state.can_be_joined(secs(100), LEASE, REPLY));
    // A request to end the deferral comes too late.
    assert_eq!(state.end_deferral(), Effects::default());
    assert!(state.downgrade_due() > at(100_006) && state.is_written());
    assert_eq!(state.target(), Some(Mode::Exclusive));
}

#[test]
fn who_still_reads_when_a_downgrade_is_due_has_a_read_hold() {
    let (mut state, first) = read_by_write_hold();
    let other = Owner::new();
    state.apply(secs(100), joins(&other));
    let over = state.end_deferral();
    let decided = Effects {
        release: Some(ReleaseStep::Decided(Mode::Exclusive)),
        ..Effects::default()
    };
    assert_eq!(over, decided);
    let mode = Some(Mode::Shared);
    assert_eq!((state.target(), state.is_settled()), (mode, false));
    assert!(!state.is_exclusive() && !state.is_downgrade_deferred());
    assert_eq!(state.end_deferral(), Effects::default());
    let sent = state.change_sent(mode);
    assert_eq!(sent.release, Some(ReleaseStep::Sent));
    state.apply(at(100_007), settled(mode));
    assert!(state.is_settled());
    assert!(
        state
            .apply(at(100_008), released_by(&first, Mode::Shared))
            .is_local
    );
    assert!(
        state
            .apply(at(100_009), released_by(&other, Mode::Shared))
            .ended
            .is_some()
    );
}

/// Before and after the downgrade at the server, readers may read.
#[test]
fn readers_join_while_the_server_is_told_that_they_read() {
    let (mut state, _) = read_by_write_hold();
    state.end_deferral();
    assert!(state.can_be_joined(at(100_002), LEASE, REPLY));
}

#[test]
fn a_hold_that_is_not_certain_goes_to_no_reader() {
    let cases = [
        ("recalled", quiet(|state, _| state.recall())),
        ("doubted", quiet(HoldState::doubt)),
        ("lost", lost(LostReason::Revoked)),
    ];
    let new = new_hold(LeasePolicy::Renewed(LEASE), Mode::Exclusive);
    for (what, before) in cases {
        let (mut state, share) = HoldState::new(secs(100), &new);
        assert!(state.can_pass_to_readers(secs(100), share, LEASE), "{what}");
        state.apply(secs(100), before);
        assert!(
            !state.can_pass_to_readers(secs(100), share, LEASE),
            "{what}"
        );
    }
    let (state, share) = HoldState::new(secs(100), &new);
    assert!(
        !state.can_pass_to_readers(secs(100), share, LEASE * 2),
        "another lease"
    );
    assert!(
        !state.can_pass_to_readers(secs(115), share, LEASE),
        "little is left"
    );
    let fixed = NewHold {
        policy: LeasePolicy::Fixed(LEASE),
        ..new
    };
    let (state, share) = HoldState::new(secs(100), &fixed);
    assert!(
        !state.can_pass_to_readers(secs(100), share, LEASE),
        "a fixed lease"
    );
}

/// Tasks that never take their share do not keep the hold renewed.
#[test]
fn a_hold_is_renewed_for_readers_that_have_come() {
    let new = NewHold {
        tokens: unfenced(),
        ..new_hold(LeasePolicy::Renewed(LEASE), Mode::Exclusive)
    };
    let (mut state, _) = HoldState::new(secs(100), &new);
    let first = Owner::new();
    state.apply(secs(100), deferred(&first, at(100_005)));
    state.end_deferral();
    assert_eq!(state.next_check(), state.deadline());
    // The reader comes after the watchdog has put off the next check.
    let accepted = state.accept_handoff(secs(101), Mode::Shared);
    let check = state.next_check();
    assert!(check < state.deadline());
    assert_eq!(accepted, Effects::look_again(true));
}

/// Each of these events keeps readers from joining.
#[test]
fn a_hold_that_is_not_certain_takes_no_readers() {
    let soon = secs(100);
    let cases: [(&str, Vec<Event>); 6] = [
        ("recalled", vec![quiet(|state, _| state.recall())]),
        ("doubted", vec![quiet(HoldState::doubt)]),
        ("lost", vec![lost(LostReason::Revoked)]),
        (
            "released",
            vec![released(Mode::Shared), released(Mode::Shared)],
        ),
        ("forgotten", vec![forgotten(Mode::Shared)]),
        (
            "with a token",
            vec![quiet(|state, _| state.raise_token(FencingToken::from(9)))],
        ),
    ];
    for (what, before) in cases {
        let (mut state, ..) = joined();
        assert!(state.can_be_joined(soon, LEASE, REPLY), "{what}");
        for event in before {
            state.apply(soon, event);
        }
        assert!(!state.can_be_joined(soon, LEASE, REPLY), "{what}");
    }
    let (state, ..) = joined();
    assert!(
        !state.can_be_joined(soon, LEASE * 2, REPLY),
        "another lease"
    );
    assert!(!state.can_be_joined(soon, LEASE, REPLY * 2), "less patient");
    assert!(!state.can_be_joined(at(100_005), LEASE, REPLY), "too late");
    for (is_joinable, mode) in [(false, Mode::Shared), (true, Mode::Exclusive)] {
        let new = NewHold {
            is_joinable,
            tokens: unfenced(),
            ..new_hold(LeasePolicy::Renewed(LEASE), mode)
        };
        let (mut state, _) = HoldState::new(soon, &new);
        state.apply(soon, guarded());
        assert!(!state.can_be_joined(soon, LEASE, REPLY), "{mode:?}");
    }
}

/// The share that is left may end before the share of a reader that joins.
#[test]
fn nobody_joins_when_no_share_with_its_lease_is_left() {
    let (mut state, first, other) = joined();
    let share = ShareLease::renewed(LEASE * 2);
    let agreed = agreed(secs(100), LEASE * 2);
    state.add_share(secs(100), &other, Mode::Shared, share, agreed);
    for owner in [first, other] {
        assert!(state.can_be_joined(secs(100), LEASE, REPLY), "one has it");
        state.apply(secs(100), released_by(&owner, Mode::Shared));
    }
    assert!(state.is_held() && !state.can_be_joined(secs(100), LEASE, REPLY));
}

/// The call may learn of its grant late.
#[test]
fn readers_join_from_the_guard_on() {
    let new = NewHold {
        is_joinable: true,
        tokens: unfenced(),
        ..new_hold(LeasePolicy::Renewed(LEASE), Mode::Shared)
    };
    let (mut state, _) = HoldState::new(secs(100), &new);
    state.apply(at(100_020), guarded());
    assert!(state.can_be_joined(at(100_020), LEASE, REPLY));
    state.apply(at(100_024), guarded());
    assert!(!state.can_be_joined(at(100_025), LEASE, REPLY), "once");
}

/// Half of the lease is over when the answer comes.
#[test]
fn a_hold_with_little_left_takes_no_readers() {
    let new = NewHold {
        is_joinable: true,
        tokens: unfenced(),
        ..new_hold(LeasePolicy::Renewed(LEASE), Mode::Shared)
    };
    for (now, can_join) in [(secs(115), false), (secs(114), true)] {
        let (mut state, _) = HoldState::new(now, &new);
        state.apply(now, guarded());
        assert_eq!(state.can_be_joined(now, LEASE, REPLY), can_join);
    }
}

#[test]
fn the_last_of_those_that_joined_gives_it_back() {
    for last_is_first in [false, true] {
        let (mut state, first, other) = joined();
        let (one, last) = if last_is_first {
            (other, first)
        } else {
            (first, other)
        };
        let left = state.apply(secs(101), released_by(&one, Mode::Shared));
        let stays = Effects {
            is_local: true,
            ..Effects::default()
        };
        assert_eq!(left, stays, "nothing is to be done");
        assert!(!state.is_of(&one) && state.is_of(&last));
        assert!(state.is_held() && state.is_settled());
        let over = state.apply(secs(102), released_by(&last, Mode::Shared));
        assert!(over.ended.is_some() && is_released(&over, &state) && !over.is_local);
        assert_eq!(over.release, Some(ReleaseStep::Decided(Mode::Shared)));
        assert!(!state.is_settled(), "the server has to hear of it");
    }
}

#[test]
fn it_is_renewed_for_those_who_stay() {
    let (mut state, first, _) = joined();
    state.apply(secs(101), released_by(&first, Mode::Shared));
    let Due::Renew { lease, .. } = state.next_step(secs(111)) else {
        panic!("a reader is left");
    };
    assert_eq!(lease, LEASE);
}

#[test]
fn all_who_joined_lose_it() {
    let (mut state, first, other) = joined();
    let lost = state.lose(secs(101), LostReason::Revoked);
    assert!(lost.ended.is_some() && lost.lost() == Some(LostReason::Revoked));
    for owner in [first, other] {
        let late = state.apply(secs(102), released_by(&owner, Mode::Shared));
        assert_eq!(late, Effects::default());
        assert_eq!(state.loss(), Some(LostReason::Revoked));
    }
    assert!(state.counts().is_none());
}

/// The hold stays at the server for the forgotten reader, which needs no request.
#[test]
fn one_that_is_forgotten_stays_at_the_server_when_the_others_have_gone() {
    let (mut state, first, other) = joined();
    state.apply(secs(101), forgotten_by(&first, Mode::Shared));
    assert!(state.is_held() && state.is_settled());
    let over = state.apply(secs(102), released_by(&other, Mode::Shared));
    assert!(over.ended.is_some() && !is_released(&over, &state) && over.release.is_none());
    assert!(state.is_settled(), "it is what the server has");
    assert_eq!(state.target(), Some(Mode::Shared));
}

#[test]
fn a_handed_over_hold_is_renewed_after_its_grace() {
    let new = NewHold {
        handover: Some(Duration::from_secs(2)),
        ..new_hold(LeasePolicy::Renewed(LEASE), Mode::Exclusive)
    };
    let (mut state, _) = HoldState::new(secs(100), &new);
    state.apply(secs(100), guarded());
    assert_eq!(state.next_step(secs(100)), Due::Later(at(100_100)));
    let Due::Renew { lease, wait, .. } = state.next_step(at(100_100)) else {
        panic!("its whole lease is asked for");
    };
    assert_eq!(lease, LEASE);
    assert!(
        wait * 2 <= at(100_100).until(state.deadline()),
        "and once more"
    );
    let sent = at(100_100);
    state.renewed(sent, sent, lease);
    assert!(matches!(state.next_step(at(100_200)), Due::Later(_)));
    // With enough time left, it is renewed as early as any other hold.
    let long = NewHold {
        handover: Some(LEASE),
        ..new
    };
    let (mut state, _) = HoldState::new(secs(100), &long);
    state.apply(secs(100), guarded());
    assert_eq!(state.next_step(secs(110)), renewal_of(&state, lease));
}

/// An unanswered request may be executed later, and then its lease counts.
#[test]
fn a_request_without_an_answer_lasts_at_the_server() {
    let (lease, until) = (LEASE * 2, secs(110));
    let mut state = held();
    assert_eq!(state.server_end(), secs(130));
    state.lease_sent(until, lease);
    assert_eq!(state.server_end(), secs(170));
    let until = secs(102);
    state.lease_sent(until, lease);
    assert_eq!(state.server_end(), secs(170));
    // The answered request was executed by now, so its lease ends 60 s from now at the latest.
    let before = secs(130);
    state.lease_answered(secs(103), before);
    assert_eq!(state.server_end(), secs(163));
    let before = secs(170);
    state.lease_answered(secs(103), before);
    assert_eq!(state.server_end(), secs(163), "never later");
}

#[test]
fn only_what_is_certain_is_handed_off() {
    let offer =
        |state: &HoldState, now, policy, fenced| state.can_hand_off(now, renewed(), policy, fenced);
    let same = LeasePolicy::Renewed(LEASE);
    let state = held();
    assert!(offer(&state, secs(101), same, true));
    let others = [
        LeasePolicy::Fixed(LEASE),
        LeasePolicy::Fixed(LEASE * 2),
        LeasePolicy::Renewed(LEASE * 2),
    ];
    for other in others {
        assert!(!offer(&state, secs(101), other, false), "{other:?}");
    }
    assert!(!offer(&state, secs(116), same, false), "half of it is over");
    for (what, event) in [
        ("doubted", quiet(HoldState::doubt)),
        ("lost", lost(LostReason::Revoked)),
        ("entered", reentry(secs(101), &state, Mode::Exclusive)),
        ("downgraded", event(HoldState::downgrade_share)),
        ("forgotten", forgotten(Mode::Exclusive)),
    ] {
        let mut state = held();
        state.apply(secs(101), event);
        assert!(!offer(&state, secs(101), same, false), "{what}");
    }
    // The server has answered that it has the hold in this mode, or does not have it.
    for (mode, offered) in [(Some(Mode::Exclusive), true), (None, false)] {
        let mut state = held();
        state.apply(secs(101), settled(mode));
        assert_eq!(offer(&state, secs(101), same, false), offered, "{mode:?}");
    }
}

#[test]
fn a_hand_off_changes_the_owner_and_the_token_and_puts_renewals_off() {
    let mut state = held();
    state.apply(secs(100), guarded());
    assert!(state.has_guard());
    let owner = Owner::new();
    let handed_off = |fenced| {
        handed_off(NextOwner {
            owner: owner.clone(),
            fenced,
            give_up: LEASE,
            before: renewed(),
            after: renewed(),
            place: None,
            reads_until: None,
        })
    };
    state.apply(secs(101), handed_off(true));
    assert_eq!((state.owner(), state.give_up()), (&owner, LEASE));
    assert_eq!(state.token(), Some(FencingToken::from(8)));
    assert!(!state.has_guard());
    let check = state.next_check();
    assert_eq!(
        check,
        state.deadline(),
        "not renewed for a task that may be gone"
    );
    let accepted = state.accept_handoff(secs(102), Mode::Exclusive);
    assert!(!accepted.looks_again, "the check stays as planned");
    state.apply(secs(103), handed_off(false));
    let accepted = state.accept_handoff(secs(115), Mode::Exclusive);
    assert!(
        accepted.looks_again && state.next_check() <= secs(115),
        "it is due by now"
    );
    state.apply(secs(116), handed_off(true));
    assert_eq!(state.token(), Some(FencingToken::from(9)));
    let same = LeasePolicy::Renewed(LEASE);
    let can = state.can_hand_off(secs(102), renewed(), same, true);
    assert!(!can, "no token is left");
    state.apply(secs(117), handed_off(false));
    assert_eq!(state.token(), None);
    let sent = secs(118);
    state.renewed(secs(119), sent, LEASE);
    let accepted = state.accept_handoff(secs(120), Mode::Exclusive);
    assert!(accepted.looks_again, "the renewal put the check off");
    let check = state.next_check();
    assert!(check > secs(120) && check < state.deadline());
    state.apply(secs(121), handed_off(false));
    state.renewed(secs(123), secs(122), LEASE);
    // The task that the hold was handed to does not come.
    state.apply(secs(124), handed_off(false));
    let accepted = state.accept_handoff(secs(125), Mode::Exclusive);
    assert!(accepted.looks_again, "it is put off for any of them");
}

/// A hold since 100 s, with a guard that allows the hold to stay for 10 s.
fn sticky(policy: LeasePolicy) -> (HoldState, ShareLease) {
    let new = new_hold(policy, Mode::Exclusive);
    let (mut state, share) = HoldState::new(secs(100), &new);
    let sticky = Duration::from_secs(10);
    state.make_guard(secs(100), sticky);
    (state, share)
}

#[test]
fn only_one_certain_renewed_share_is_left_to_the_client() {
    let left = |change: &dyn Fn(&mut HoldState)| {
        let (mut state, share) = sticky(LeasePolicy::Renewed(LEASE));
        change(&mut state);
        state.can_be_left(secs(101), share)
    };
    let event = |event: Event| {
        left(&move |state: &mut HoldState| {
            state.apply(secs(100), event.clone());
        })
    };
    assert_eq!(left(&|_| {}), Some((secs(111), renewed())));
    assert_eq!(event(quiet(|state, _| state.recall())), None);
    assert_eq!(event(quiet(HoldState::doubt)), None);
    assert_eq!(event(lost(LostReason::Revoked)), None);
    let kept = left(&|state: &mut HoldState| state.kept_until = secs(105));
    assert_eq!(kept, None, "it is kept for longer");
    assert_eq!(event(forgotten(Mode::Exclusive)), None);
    let entered = left(&|state: &mut HoldState| {
        let reentry = reentry(secs(100), state, Mode::Exclusive);
        state.apply(secs(100), reentry);
    });
    assert_eq!(entered, None, "a guard is left");
    let last_token = left(&|state: &mut HoldState| state.extras.change().tokens.spare = 8..8);
    assert_eq!(last_token, None, "the next task has no token");
    let (state, share) = sticky(LeasePolicy::Fixed(LEASE));
    assert_eq!(state.can_be_left(secs(101), share), None, "never renewed");
    assert_eq!(
        held().can_be_left(secs(101), renewed()),
        None,
        "not asked for"
    );
}

#[test]
fn what_is_left_to_the_client_is_nobodys_and_renewed() {
    let max = Duration::from_secs(20);
    let policy = LeasePolicy::RenewedFor { lease: LEASE, max };
    for policy in [LeasePolicy::Renewed(LEASE), policy] {
        let (mut state, before) = sticky(policy);
        assert!(state.is_sticky() && !held().is_sticky());
        let owner = state.owner().clone();
        let (end, after) = state.can_be_left(secs(101), before).unwrap();
        state.leave_to_client(before, after, end);
        assert!(*state.owner() != owner && !state.has_guard());
        assert_eq!(
            state.counts(),
            Counts::one(Mode::Exclusive),
            "the server has it"
        );
        assert!(state.next_check() < state.deadline(), "it is renewed");
        assert_eq!(state.stays_until(), end);
        assert!(state.next_check() <= end, "its stay ends in time");
        let mut over = state.clone();
        over.end_stay();
        assert!(over.stays_until() == Tick::NEVER && !over.has_guard());
        let next = LeasePolicy::Renewed(LEASE);
        let taken = state.can_hand_off(secs(102), after, next, true);
        assert!(taken, "the next task can have it");
        assert_eq!(state.can_be_left(secs(102), after), None, "not twice");
        assert!(!state.is_sticky(), "the next guard asks again");
        let sticky = Duration::from_secs(10);
        state.make_guard(secs(102), sticky);
        assert_eq!(state.stays_until(), Tick::NEVER, "somebody has it");
        let again = state.can_be_left(secs(103), after);
        assert_eq!(again, Some((end, after)), "for as long as the first time");
        assert_eq!(state.can_be_left(end, after), None);
    }
}

/// A step of a random run: the milliseconds that pass, the kind of event, and a number for its details.
type Step = (u64, u8, u64);

/// The expected state of the hold after the steps so far.
struct Model {
    state: HoldState,
    now: Tick,
    /// The shares of live guards.
    shares: Vec<(Owner, Mode, ShareLease)>,
    joins: u32,
    /// Whether readers have a write hold, and until when more readers may join.
    is_downgrade_deferred: bool,
    joined_until: Tick,
    /// The number of shares that were handed to tasks that have not come.
    unclaimed: usize,
    /// Whether a reader was forgotten, so that no other joins.
    is_closed: bool,
    forgotten: Option<Mode>,
    /// The end of the longest lease that the server has granted.
    granted_until: Tick,
    /// The last renewal that was sent.
    renewal: Option<(Tick, Duration)>,
    /// Releases that were decided on and not sent.
    unsent: u32,
    overs: u32,
    losses: u32,
}

/// The name of the event that leaves a hold to its client.
const LEFT: &str = "left to the client";

fn accepted(mode: Mode) -> (&'static str, Event) {
    (
        "accepted",
        event(move |state, now| state.accept_handoff(now, mode)),
    )
}

/// Sends a request for this lease, which is executed by `until` or never.
fn sends(until: Tick, lease: Duration) -> Event {
    quiet(move |state, _| state.lease_sent(until, lease))
}

impl Model {
    fn new(mode: Mode, is_joinable: bool) -> Self {
        let new = NewHold {
            is_joinable,
            tokens: unfenced(),
            ..new_hold(LeasePolicy::Renewed(LEASE), mode)
        };
        let (mut state, _) = HoldState::new(secs(100), &new);
        state.apply(secs(100), guarded());
        Self {
            granted_until: state.deadline(),
            shares: vec![(state.owner().clone(), mode, renewed())],
            state,
            now: secs(100),
            joins: 0,
            is_downgrade_deferred: false,
            joined_until: at(100_005),
            unclaimed: 0,
            is_closed: false,
            forgotten: None,
            renewal: None,
            unsent: 0,
            overs: 0,
            losses: 0,
        }
    }

    /// Takes out the share that the number selects.
    fn end_one(&mut self, number: u64) -> Option<(Owner, Mode, ShareLease)> {
        let count = u64::try_from(self.shares.len()).unwrap();
        let at = usize::try_from(number.checked_rem(count)?).unwrap();
        Some(self.shares.swap_remove(at))
    }

    fn grant(&mut self, sent: Tick, lease: Duration) {
        self.granted_until = self.granted_until.max(local_deadline(sent, lease));
    }

    /// The next event, if it is possible now.
    fn event(&mut self, kind: u8, number: u64) -> Option<(&'static str, Event)> {
        let mode = [Mode::Exclusive, Mode::Shared][usize::from(number % 2 == 1)];
        let lease = Duration::from_millis(1_000 + number % 60_000);
        let sent = self.now.before(Duration::from_millis(number % 50_000));
        Some(match kind {
            0 => ("the clock is read", event(HoldState::expire_if_due)),
            1 => ("revoked", lost(LostReason::Revoked)),
            2 => ("doubted", quiet(HoldState::doubt)),
            4 => ("settled", settled(self.state.target())),
            5 => {
                let target = self.state.target();
                ("sent", event(move |state, _| state.change_sent(target)))
            }
            // A task that has not come takes its share before it releases it.
            6..=9 if self.unclaimed > 0 && self.unclaimed == self.shares.len() => {
                self.unclaimed -= 1;
                accepted(Mode::Shared)
            }
            9 if self.state.is_downgrade_deferred() => self.downgrade_due(),
            6..=8 => {
                let (owner, mode, lease) = self.end_one(number)?;
                let kept_until = match number % 3 {
                    0 => self.now.after(Duration::from_millis(number % 20_000)),
                    _ => Tick::ZERO,
                };
                let release = move |state: &mut HoldState, now| {
                    state.release_share(now, &owner, mode, lease, kept_until)
                };
                ("released", event(release))
            }
            9 => {
                let (owner, mode, lease) = self.end_one(number)?;
                self.is_closed |= mode == Mode::Shared;
                self.forgotten = self.forgotten.into_iter().chain([mode]).min();
                let forget =
                    move |state: &mut HoldState, _| state.forget_share(&owner, mode, lease);
                ("forgotten", event(forget))
            }
            10 => {
                let mut shares = self.shares.iter();
                let at = shares.position(|(_, mode, _)| *mode == Mode::Exclusive)?;
                if self.state.loss().is_some() {
                    // The share has ended.
                    self.shares.swap_remove(at);
                } else {
                    self.shares[at].1 = Mode::Shared;
                }
                ("downgraded", event(HoldState::downgrade_share))
            }
            11..=13 => {
                let Due::Renew { lease, .. } = self.state.next_step(self.now) else {
                    return None;
                };
                self.renewal = Some((self.now, lease));
                ("a renewal is sent", sends(self.now, lease))
            }
            14..=16 => {
                let (sent, lease) = self.renewal.take()?;
                self.grant(sent, lease);
                ("renewed", confirmed(sent, lease))
            }
            17 => ("a lease is asked for", sends(self.now.after(REPLY), lease)),
            18..=20 => {
                let share = match number % 5 {
                    0 => ShareLease::fixed(local_deadline(sent, lease)),
                    1 => renewed_until(lease, self.now.after(lease * 2)),
                    _ => ShareLease::renewed(lease),
                };
                let is_local = self.state.can_be_entered(self.now, lease, share);
                if !is_local {
                    self.state.lease_sent(self.now, lease);
                    self.grant(sent, lease);
                }
                // An owner with a share. An owner that only reads is not allowed to write.
                let count = u64::try_from(self.shares.len()).unwrap();
                let at = usize::try_from(number.checked_rem(count)?).unwrap();
                let owner = self.shares[at].0.clone();
                let writes = self.state.is_written();
                let mode = if writes { mode } else { Mode::Shared };
                if !self.state.is_held() || self.now >= self.state.deadline() {
                    return None;
                }
                self.shares.push((owner.clone(), mode, share));
                let agreed = agreed(sent, lease).filter(|_| !is_local);
                ("entered", entered(owner, mode, share, agreed))
            }
            21 => {
                let before = self.shares.first()?.2;
                let lease = before.renewed.unwrap_or(lease);
                let policy = if number.is_multiple_of(2) {
                    LeasePolicy::Renewed(lease)
                } else {
                    let max = lease * 2;
                    LeasePolicy::RenewedFor { lease, max }
                };
                if !self.state.can_hand_off(self.now, before, policy, false) {
                    return None;
                }
                assert_eq!(self.shares.len(), 1, "no other has it");
                assert!(!self.state.is_doubted() && self.state.is_settled());
                assert!(self.now >= self.state.kept_until, "before its time");
                let after = ShareLease::of(policy, self.now, self.now);
                let owner = Owner::new();
                self.shares[0] = (owner.clone(), Mode::Exclusive, after);
                (self.is_downgrade_deferred, self.joins, self.unclaimed) = (false, 0, 0);
                let next = NextOwner {
                    owner,
                    fenced: false,
                    give_up: REPLY,
                    before,
                    after,
                    place: None,
                    reads_until: None,
                };
                ("handed off", handed_off(next))
            }
            22 | 23 => {
                let sticky = lease * (number % 2) as u32;
                (
                    "guarded",
                    event(move |state, now| state.make_guard(now, sticky)),
                )
            }
            24 => {
                let before = self.shares.first()?.2;
                let (end, after) = self.state.can_be_left(self.now, before)?;
                assert_eq!(self.shares.len(), 1, "no other has it");
                assert!(!self.state.is_doubted() && self.state.is_settled());
                assert!(self.now >= self.state.kept_until && self.now < end);
                assert!(!self.state.is_recalled(), "a waiter wants it");
                self.shares[0].2 = after;
                let leave =
                    move |state: &mut HoldState, _| state.leave_to_client(before, after, end);
                (LEFT, quiet(leave))
            }
            25 if number.is_multiple_of(4) => ("recalled", quiet(|state, _| state.recall())),
            26..=29 => {
                if !self.state.can_be_joined(self.now, LEASE, REPLY) {
                    return None;
                }
                assert!(self.state.is_held() && self.state.counts.at_server.is_some());
                assert!(self.now < self.joined_until, "so long after its grant");
                assert!(self.joins < JOINS_MAX && !self.is_closed);
                assert!(self.shares.iter().all(|(_, mode, _)| *mode == Mode::Shared));
                let owner = Owner::new();
                self.shares.push((owner.clone(), Mode::Shared, renewed()));
                self.joins += 1;
                let is_claimed = number.is_multiple_of(3);
                self.unclaimed += usize::from(!is_claimed);
                ("joined", joins_with(&owner, is_claimed))
            }
            30 | 31 => {
                let (_, _, share) = self.shares.first()?;
                if !self.state.can_pass_to_readers(self.now, *share, LEASE) {
                    return None;
                }
                assert_eq!(self.shares.len(), 1, "no other has it");
                assert!(!self.state.is_doubted() && self.state.is_settled());
                assert!(self.now >= self.state.kept_until && !self.state.is_recalled());
                let first = Owner::new();
                self.shares[0] = (first.clone(), Mode::Shared, renewed());
                (self.is_downgrade_deferred, self.joins, self.unclaimed) = (true, 0, 1);
                self.joined_until = self.now.after(Duration::from_millis(5));
                ("deferred", deferred(&first, self.joined_until))
            }
            32 => self.downgrade_due(),
            33 => {
                self.unclaimed = self.unclaimed.checked_sub(1)?;
                accepted(Mode::Shared)
            }
            _ => accepted(Mode::Exclusive),
        })
    }

    fn downgrade_due(&mut self) -> (&'static str, Event) {
        self.is_downgrade_deferred &= !self.state.is_held();
        ("a downgrade is due", event(|state, _| state.end_deferral()))
    }

    fn step(&mut self, (millis, kind, number): Step) {
        self.now = self.now.after(Duration::from_millis(millis));
        let target = self.state.target();
        let Some((what, event)) = self.event(kind, number) else {
            return;
        };
        let (before, deadline) = (self.state.phase, self.state.deadline());
        let effects = self.state.apply(self.now, event);
        if what == LEFT {
            // The hold has a new owner, which belongs to no task.
            self.shares[0].0 = self.state.owner().clone();
        }
        let after = self.state.target();
        assert!(
            after.is_none() || target.is_some() && after >= target,
            "the server never has to have more: {what}"
        );
        self.check(before, deadline, effects, what);
    }

    fn unsent_after(&self, effects: Effects) -> u32 {
        let is_decided = matches!(effects.release, Some(ReleaseStep::Decided(_)));
        self.unsent + u32::from(is_decided)
    }

    fn check(&mut self, before: Phase, deadline: Tick, effects: Effects, what: &str) {
        let state = &self.state;
        self.overs += u32::from(effects.ended.is_some());
        self.losses += u32::from(effects.lost().is_some());
        let is_lost = matches!(state.phase, Phase::Lost(_));
        assert!(
            before == Phase::Held || state.phase == before,
            "never back: {what}"
        );
        assert_eq!(self.overs, u32::from(!state.is_held()), "told once: {what}");
        assert_eq!(self.losses, u32::from(is_lost), "told once: {what}");
        // Shares.
        let mut counts = Counts::default();
        let modes = self.shares.iter().map(|(_, mode, _)| *mode);
        modes.for_each(|mode| counts.raise(mode));
        assert_eq!(state.counts(), counts, "{what}");
        assert!(
            !self.is_downgrade_deferred || counts.of(Mode::Exclusive) == 0,
            "a writer among readers: {what}"
        );
        assert!(
            counts.of(Mode::Exclusive) == 0 || state.is_written(),
            "{what}"
        );
        if self.unclaimed > 0 && self.unclaimed == self.shares.len() && !state.is_doubted() {
            assert_eq!(state.next_check_of_lease(), state.deadline(), "{what}");
        }
        for (owner, mode, _) in &self.shares {
            let of_owner = self.shares.iter();
            let of_owner = of_owner.filter(|(other, of, _)| (other, of) == (owner, mode));
            let count = u32::try_from(of_owner.count()).unwrap();
            if self.joins > 0 || self.is_downgrade_deferred {
                assert_eq!(state.shares_of(owner, *mode), count, "{what}");
            }
            assert!(state.is_of(owner) || !state.is_held(), "{what}");
        }
        if effects.is_local {
            assert!(
                effects.ended.is_none() && effects.release.is_none(),
                "{what}"
            );
        }
        let strongest = counts.strongest().into_iter().chain(self.forgotten).min();
        let target = match strongest {
            Some(Mode::Shared) if self.is_downgrade_deferred => Some(Mode::Exclusive),
            strongest => strongest,
        };
        assert_eq!(state.target(), target, "{what}");
        assert!(
            !state.is_held() || !counts.is_none(),
            "it has no holder: {what}"
        );
        // Deadlines.
        assert!(state.deadline() <= self.granted_until, "{what}");
        if deadline <= self.now {
            assert!(state.deadline() <= deadline, "it came too late: {what}");
        }
        if state.is_held() {
            let ends = self.shares.iter().map(|(.., lease)| lease.end);
            assert!(state.deadline() <= ends.max().unwrap(), "{what}");
            assert!(state.deadline() <= state.server_end(), "{what}");
        }
        if let Due::Renew { lease, .. } = state.next_step(self.now) {
            let ends = self.shares.iter().map(|(.., lease)| lease.end);
            let end = ends.max().unwrap().max(state.deadline());
            let end = end.max(state.kept_until);
            let reached = local_deadline(self.now, lease);
            assert!(
                reached <= end.after(Duration::from_millis(1)),
                "longer than it is held: {what}"
            );
        }
        if effects.lost() == Some(LostReason::MaxHold) {
            let ends = self.shares.iter().map(|(.., lease)| *lease);
            let last = ends.max_by_key(|lease| lease.end).unwrap();
            assert!(last.renewed.is_some() && self.now >= last.end);
        }
        if effects.ended.is_some() && state.is_kept() {
            assert!(self.now < state.kept_until, "{what}");
            assert!(
                !is_released(&effects, state),
                "it must not be undone: {what}"
            );
            if effects.lost().is_some() {
                let ends = self.shares.iter().map(|(.., lease)| lease.end);
                assert!(ends.max().unwrap() <= self.now, "the server has it: {what}");
            } else {
                assert_eq!(self.unsent_after(effects), 1, "a release is due: {what}");
            }
        }
        // Releases.
        match effects.release {
            Some(ReleaseStep::Decided(_)) => self.unsent += 1,
            Some(ReleaseStep::Sent) => self.unsent -= 1,
            None => {}
        }
        assert_eq!(
            self.unsent,
            u32::from(state.counts.is_release_unsent),
            "{what}"
        );
        if is_released(&effects, state) {
            assert!(counts.is_none() && self.forgotten.is_none(), "{what}");
            assert_eq!(self.unsent, 1, "a release is due: {what}");
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_the_invariants_stand(
        is_shared in any::<bool>(),
        steps in prop::collection::vec((0_u64..8_000, 0_u8..36, any::<u64>()), 1..80),
    ) {
        let mode = [Mode::Exclusive, Mode::Shared][usize::from(is_shared)];
        let mut model = Model::new(mode, false);
        for step in steps {
            model.step(step);
        }
    }

    /// A write hold goes to readers, and some join while they can. Then anything may happen.
    #[test]
    fn whatever_happens_to_readers_of_a_write_hold_the_invariants_stand(
        joining in prop::collection::vec((0_u64..2, prop_oneof![26_u8..34, 0..26_u8], any::<u64>()), 1..12),
        steps in prop::collection::vec((0_u64..8_000, 0_u8..36, any::<u64>()), 1..60),
    ) {
        let mut model = Model::new(Mode::Exclusive, false);
        let begin = std::iter::once((0, 30, 0));
        for step in begin.chain(joining).chain(steps) {
            model.step(step);
        }
    }

    /// Some readers join while they can, then anything may happen.
    #[test]
    fn whatever_happens_to_readers_that_join_the_invariants_stand(
        joining in prop::collection::vec((0_u64..2, prop_oneof![26_u8..30, 0..26_u8], any::<u64>()), 1..12),
        steps in prop::collection::vec((0_u64..8_000, 0_u8..36, any::<u64>()), 1..60),
    ) {
        let mut model = Model::new(Mode::Shared, true);
        for step in joining.into_iter().chain(steps) {
            model.step(step);
        }
    }
}

/// No script gives such a token, but a damaged reply may contain one.
#[test]
fn the_largest_token_is_followed_by_no_smaller_one() {
    let mut tokens = Tokens::granted(Some(FencingToken::from(u64::MAX)), 16);
    tokens.pass_on(true);
    assert_eq!(tokens.current, None);
}
