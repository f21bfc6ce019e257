//! A model of the protocol, explored completely: a queue with visibility time-outs and handles, consumers
//! that may crash at any step, commits of unknown outcome, lost deletes, a producer that sends an event
//! twice and once with another payload, and a purge. What is broken on purpose is found out.

use stateright::{Checker, HasDiscoveries, Model, Property};

/// What is done as hapax does it, or wrongly in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    AsBuilt,
    /// The message is deleted when its event is applied, not when it is committed.
    DeleteBeforeCommit,
    /// The claim is committed by itself, before the effect.
    ClaimOutsideTransaction,
    /// Claims go without a horizon.
    PurgeWithoutHorizon,
    /// The horizon is looked at before the claim.
    HorizonBeforeClaim,
    /// Who has a message's handle takes himself for the only one, and claims nothing.
    TrustedHandle,
}

type Payload = char;
/// An event, its copy, and the same id with another payload.
const MESSAGES: [Payload; 3] = ['a', 'a', 'b'];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Message {
    Unsent,
    Visible,
    Received,
    Deleted,
}

/// How far a consumer is with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Claim,
    /// The claim was fresh, its transaction is open.
    CheckHorizon,
    Apply,
    Commit,
    Hold,
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Work {
    message: usize,
    step: Step,
    /// Whether its handle is the message's newest, so that it can delete it.
    has_handle: bool,
}

/// What is left of each kind of trouble; that makes every run end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Troubles {
    crashes: u8,
    time_outs: u8,
    unknown_commits: u8,
    lost_deletes: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    messages: [Message; MESSAGES.len()],
    consumers: [Option<Work>; 2],
    /// The committed claim.
    claim: Option<Payload>,
    /// Who has an uncommitted claim; others wait.
    claimant: Option<usize>,
    /// Payloads of committed effects.
    effects: Vec<Payload>,
    held: [bool; MESSAGES.len()],
    has_horizon: bool,
    has_purged: bool,
    troubles: Troubles,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Send(usize),
    Receive(usize, usize),
    Proceed(usize),
    CommitOfUnknownOutcome(usize, bool),
    LoseDelete(usize),
    Crash(usize),
    TimeOut(usize),
    AdvanceHorizon,
    Purge,
}

struct Protocol(Variant);

impl Protocol {
    fn is(&self, variant: Variant) -> bool {
        self.0 == variant
    }

    fn first_step(&self) -> Step {
        match self.0 {
            Variant::HorizonBeforeClaim => Step::CheckHorizon,
            Variant::TrustedHandle => Step::Apply,
            _ => Step::Claim,
        }
    }

    /// Whether the consumer can take its next step: an uncommitted claim of another's is waited for.
    fn can_proceed(&self, state: &State, consumer: usize) -> bool {
        state.consumers[consumer].is_some_and(|work| {
            work.step != Step::Claim || state.claimant.is_none_or(|other| other == consumer)
        })
    }

    fn proceed(&self, state: &mut State, consumer: usize) {
        let mut work = state.consumers[consumer].unwrap();
        let payload = MESSAGES[work.message];
        match work.step {
            Step::Claim => match state.claim {
                Some(applied) => {
                    work.step = if applied == payload { Step::Delete } else { Step::Hold };
                }
                None => {
                    if self.is(Variant::ClaimOutsideTransaction) {
                        state.claim = Some(payload);
                    } else {
                        state.claimant = Some(consumer);
                    }
                    let checked = self.is(Variant::HorizonBeforeClaim);
                    work.step = if checked { Step::Apply } else { Step::CheckHorizon };
                }
            },
            Step::CheckHorizon if state.has_horizon => {
                roll_back(state, consumer);
                work.step = Step::Hold;
            }
            Step::CheckHorizon => {
                let claims_next = self.is(Variant::HorizonBeforeClaim);
                work.step = if claims_next { Step::Claim } else { Step::Apply };
            }
            Step::Apply => {
                if self.is(Variant::DeleteBeforeCommit) {
                    delete(state, work);
                }
                work.step = Step::Commit;
            }
            Step::Commit => {
                commit(state, consumer, payload);
                work.step = Step::Delete;
            }
            Step::Hold => {
                state.held[work.message] = true;
                work.step = Step::Delete;
            }
            Step::Delete => {
                delete(state, work);
                state.consumers[consumer] = None;
                return;
            }
        }
        state.consumers[consumer] = Some(work);
    }
}

fn commit(state: &mut State, consumer: usize, payload: Payload) {
    state.effects.push(payload);
    state.claim = Some(payload);
    if state.claimant == Some(consumer) {
        state.claimant = None;
    }
}

fn roll_back(state: &mut State, consumer: usize) {
    if state.claimant == Some(consumer) {
        state.claimant = None;
    }
}

fn is_worked_on(state: &State, message: usize) -> bool {
    state.consumers.iter().flatten().any(|work| work.message == message && work.has_handle)
}

/// A handle that another receive has replaced deletes nothing.
fn delete(state: &mut State, work: Work) {
    if work.has_handle && state.messages[work.message] == Message::Received {
        state.messages[work.message] = Message::Deleted;
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            messages: [Message::Unsent, Message::Unsent, Message::Unsent],
            consumers: [None; 2],
            claim: None,
            claimant: None,
            effects: Vec::new(),
            held: [false; MESSAGES.len()],
            has_horizon: false,
            has_purged: false,
            troubles: Troubles { crashes: 1, time_outs: 2, unknown_commits: 1, lost_deletes: 1 },
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (index, message) in state.messages.iter().enumerate() {
            match message {
                Message::Unsent => actions.push(Action::Send(index)),
                Message::Visible => {
                    let idle = (0..2).filter(|consumer| state.consumers[*consumer].is_none());
                    actions.extend(idle.map(|consumer| Action::Receive(consumer, index)));
                }
                Message::Received => {
                    // Nobody works on it any more: its time-out is certain. Otherwise it is trouble.
                    if !is_worked_on(state, index) || state.troubles.time_outs > 0 {
                        actions.push(Action::TimeOut(index));
                    }
                }
                Message::Deleted => {}
            }
        }
        for consumer in 0..2 {
            let Some(work) = state.consumers[consumer] else { continue };
            if self.can_proceed(state, consumer) {
                actions.push(Action::Proceed(consumer));
            }
            if state.troubles.crashes > 0 {
                actions.push(Action::Crash(consumer));
            }
            if work.step == Step::Commit && state.troubles.unknown_commits > 0 {
                actions.push(Action::CommitOfUnknownOutcome(consumer, true));
                actions.push(Action::CommitOfUnknownOutcome(consumer, false));
            }
            if work.step == Step::Delete && state.troubles.lost_deletes > 0 {
                actions.push(Action::LoseDelete(consumer));
            }
        }
        if !state.has_horizon && !self.is(Variant::PurgeWithoutHorizon) {
            actions.push(Action::AdvanceHorizon);
        }
        let may_purge = state.has_horizon || self.is(Variant::PurgeWithoutHorizon);
        if may_purge && !state.has_purged && state.claim.is_some() {
            actions.push(Action::Purge);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Send(message) => state.messages[message] = Message::Visible,
            Action::Receive(consumer, message) => {
                state.messages[message] = Message::Received;
                let (step, has_handle) = (self.first_step(), true);
                state.consumers[consumer] = Some(Work { message, step, has_handle });
            }
            Action::Proceed(consumer) => self.proceed(&mut state, consumer),
            Action::CommitOfUnknownOutcome(consumer, takes_place) => {
                state.troubles.unknown_commits -= 1;
                let mut work = state.consumers[consumer].unwrap();
                match takes_place {
                    true => commit(&mut state, consumer, MESSAGES[work.message]),
                    false => roll_back(&mut state, consumer),
                }
                work.step = self.first_step();
                state.consumers[consumer] = Some(work);
            }
            Action::LoseDelete(consumer) => {
                state.troubles.lost_deletes -= 1;
                state.consumers[consumer] = None;
            }
            Action::Crash(consumer) => {
                state.troubles.crashes -= 1;
                roll_back(&mut state, consumer);
                state.consumers[consumer] = None;
            }
            Action::TimeOut(message) => {
                if is_worked_on(&state, message) {
                    state.troubles.time_outs -= 1;
                }
                state.messages[message] = Message::Visible;
                for work in state.consumers.iter_mut().flatten() {
                    work.has_handle &= work.message != message;
                }
            }
            Action::AdvanceHorizon => state.has_horizon = true,
            Action::Purge => {
                state.claim = None;
                state.has_purged = true;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("applied at most once", |_, state: &State| state.effects.len() <= 1),
            Property::always("never deleted before it is safe", |_, state: &State| {
                state.messages.iter().enumerate().all(|(index, message)| {
                    // A payload that was not the applied one is held: no conflict is silent.
                    *message != Message::Deleted
                        || state.effects.contains(&MESSAGES[index])
                        || state.held[index]
                })
            }),
            Property::eventually("everything is settled", |_, state: &State| {
                state.messages.iter().all(|message| *message == Message::Deleted)
            }),
            Property::sometimes("an event is applied and its conflict held", |_, state: &State| {
                state.effects == ['a'] && state.held == [false, false, true]
            }),
            Property::sometimes("an old event is refused", |_, state: &State| {
                state.effects.is_empty() && state.held == [true, true, true]
            }),
        ]
    }
}

#[test]
fn as_built_everything_is_applied_once_or_held() {
    let start = std::time::Instant::now();
    let checker = Protocol(Variant::AsBuilt).checker().spawn_bfs().join();
    println!("{} states in {:.1} s", checker.unique_state_count(), start.elapsed().as_secs_f32());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 10_000, "the model has shrunk");
}

#[test]
fn each_broken_variant_is_found_out() {
    let once = "applied at most once";
    let safe = "never deleted before it is safe";
    for (variant, property) in [
        (Variant::DeleteBeforeCommit, safe),
        (Variant::ClaimOutsideTransaction, safe),
        (Variant::PurgeWithoutHorizon, once),
        (Variant::HorizonBeforeClaim, once),
        (Variant::TrustedHandle, once),
    ] {
        let checker =
            Protocol(variant).checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let path = checker.discovery(property).unwrap_or_else(|| panic!("{variant:?} passes"));
        let actions = path.into_actions();
        println!("{variant:?}: {} steps: {actions:?}", actions.len());
    }
}
