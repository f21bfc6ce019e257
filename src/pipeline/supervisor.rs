//! Notices when an actor ends, and starts it again.
//!
//! actix's own Supervisor does not survive a panic, so actors are started here: from a factory, in a
//! task that catches the panic, with a heart that beats as long as the actor's own context runs. The
//! supervisor watches from another thread than the actors', so that a blocked thread is noticed, too;
//! the actors of a blocked thread go on in a new one.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix::dev::ContextFutureSpawner;
use actix::fut::wrap_future;
use actix::{Actor, ActorContext, Arbiter, AsyncContext, Context};
use futures_util::FutureExt;
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::link::Link;

/// First and longest pause before an actor is started again.
const RESTART_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// How actors are watched.
#[derive(Debug, Clone, Copy)]
pub struct Supervision {
    /// An actor whose heart has not beaten for this long is frozen.
    pub frozen_after: Duration,
    /// An actor that was restarted more often than this within `restart_window` ends the service.
    pub max_restarts: usize,
    /// See `max_restarts`.
    pub restart_window: Duration,
}

/// How an actor ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// It stopped by itself.
    Stopped,
    /// It stopped because of an error.
    Failed(String),
    /// It panicked.
    Panicked(String),
    /// It made no progress; whether it ever ends is not known.
    Frozen,
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped"),
            Self::Failed(reason) => write!(f, "failed: {reason}"),
            Self::Panicked(message) => write!(f, "panicked: {message}"),
            Self::Frozen => f.write_str("frozen: no progress within its heartbeat"),
        }
    }
}

/// What an actor is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ActorState {
    /// At work.
    Running,
    /// Ended; it will be started again after a pause.
    BackingOff,
}

/// What can be seen of an actor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActorStatus {
    /// For example `receiver/orders` or `applier/points.awarded/0`.
    pub name: String,
    /// What it is doing.
    pub state: ActorState,
    /// How often it was started again.
    pub restarts: u64,
    /// How it ended last.
    pub last_ending: Option<String>,
}

/// What is done to an actor on purpose, to try the supervisor.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disturbance {
    Stop,
    Fail,
    Panic,
    /// The actor's context waits for ever, its thread goes on.
    Hang,
    /// The actor's thread is blocked until the process ends.
    Block,
}

/// The sign of life of one incarnation of an actor.
#[derive(Clone)]
pub struct Heart(Arc<Mutex<Pulse>>);

struct Pulse {
    last_beat: Instant,
    /// When the work under way must have ended.
    due: Option<Instant>,
    failure: Option<String>,
    disturbance: Option<Disturbance>,
}

impl Heart {
    /// A heart that beats for the first time.
    pub(super) fn new() -> Self {
        let last_beat = Instant::now();
        Self(Arc::new(Mutex::new(Pulse { last_beat, due: None, failure: None, disturbance: None })))
    }

    /// Announces work that must end within `limit`; an actor that is overdue is frozen.
    pub fn work_begins(&self, limit: Duration) {
        self.pulse().due = Some(Instant::now() + limit);
    }

    /// The announced work has ended.
    pub fn work_ended(&self) {
        self.pulse().due = None;
    }

    /// Why the actor stops: to be said before it stops.
    pub fn fail(&self, reason: impl Into<String>) {
        self.pulse().failure = Some(reason.into());
    }

    fn pulse(&self) -> MutexGuard<'_, Pulse> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_frozen(&self, after: Duration) -> bool {
        let pulse = self.pulse();
        pulse.last_beat.elapsed() > after || pulse.due.is_some_and(|due| Instant::now() > due)
    }

    fn beat(&self) -> Option<Disturbance> {
        let mut pulse = self.pulse();
        pulse.last_beat = Instant::now();
        pulse.disturbance.take()
    }
}

struct Ended {
    ward: usize,
    incarnation: u64,
    ending: Ending,
}

type Start = Box<dyn Fn(&Arbiter, Heart, Box<dyn FnOnce(Ending) + Send>) + Send>;

/// One supervised actor.
struct Ward {
    start: Start,
    forget: Box<dyn Fn() + Send>,
    heart: Heart,
    incarnation: u64,
    /// The thread that it runs in, by number.
    thread: u64,
    restarts: VecDeque<Instant>,
    backoff: Backoff,
    start_at: Option<Instant>,
}

/// Starts actors, and starts them again.
pub struct Supervisor {
    supervision: Supervision,
    wards: Vec<Ward>,
    board: Board,
    arbiter: Arbiter,
    thread: u64,
    last_look: Instant,
    endings: (UnboundedSender<Ended>, UnboundedReceiver<Ended>),
}

/// Where the supervisor shows what it sees. Cheap to clone.
#[derive(Clone)]
pub struct Board {
    statuses: Arc<Mutex<Vec<ActorStatus>>>,
    hearts: Arc<Mutex<Vec<Heart>>>,
    given_up: watch::Sender<Option<String>>,
    closed: Arc<AtomicBool>,
}

impl Board {
    /// Every actor's state.
    pub fn statuses(&self) -> Vec<ActorStatus> {
        lock(&self.statuses).clone()
    }

    /// Waits until an actor was restarted too often, and says which and why.
    pub async fn given_up(&self) -> String {
        let mut given_up = self.given_up.subscribe();
        let reason = given_up.wait_for(Option::is_some).await.expect("the board holds the sender");
        reason.clone().unwrap_or_default()
    }

    /// Nothing is started again from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Disturbs the actor of that name at its next heartbeat.
    #[doc(hidden)]
    pub fn disturb(&self, name: &str, disturbance: Disturbance) {
        let found = lock(&self.statuses).iter().position(|status| status.name == name);
        let index = found.unwrap_or_else(|| panic!("there is no actor {name}"));
        lock(&self.hearts)[index].pulse().disturbance = Some(disturbance);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Supervisor {
    /// A supervisor without actors yet.
    pub fn new(supervision: Supervision) -> Self {
        let board = Board {
            statuses: Arc::default(),
            hearts: Arc::default(),
            given_up: watch::Sender::new(None),
            closed: Arc::default(),
        };
        Self {
            supervision,
            wards: Vec::new(),
            board,
            arbiter: Arbiter::new(),
            thread: 0,
            last_look: Instant::now(),
            endings: unbounded_channel(),
        }
    }

    /// Starts an actor from its factory, points `link` at it, and keeps it so.
    pub fn supervise<A>(
        &mut self,
        name: String,
        link: Link<A>,
        factory: impl Fn(Heart) -> A + Send + Sync + 'static,
    ) where
        A: Actor<Context = Context<A>>,
    {
        let beat = self.supervision.frozen_after / 4;
        let factory = Arc::new(factory);
        let forgotten = link.clone();
        let start: Start = Box::new(move |arbiter, heart, ended| {
            let (factory, link) = (factory.clone(), link.clone());
            arbiter.spawn_fn(move || start_here(&*factory, &link, &heart, beat, ended));
        });
        let heart = Heart::new();
        self.wards.push(Ward {
            start,
            forget: Box::new(move || forgotten.forget()),
            heart: heart.clone(),
            incarnation: 0,
            thread: self.thread,
            restarts: VecDeque::new(),
            backoff: Backoff::new(RESTART_PAUSES.0, RESTART_PAUSES.1),
            start_at: None,
        });
        lock(&self.board.hearts).push(heart);
        let state = ActorState::Running;
        lock(&self.board.statuses).push(ActorStatus {
            name,
            state,
            restarts: 0,
            last_ending: None,
        });
        self.start(self.wards.len() - 1);
    }

    /// Where to see how the actors are.
    pub fn board(&self) -> Board {
        self.board.clone()
    }

    /// Watches for ever; to be spawned on another thread than the actors'.
    pub async fn watch(mut self) {
        let mut tick = tokio::time::interval(self.supervision.frozen_after / 4);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let next_start = self.wards.iter().filter_map(|ward| ward.start_at).min();
            let next_start = next_start.unwrap_or_else(|| Instant::now() + RESTART_PAUSES.1);
            tokio::select! {
                Some(ended) = self.endings.1.recv() => self.ended(ended),
                _ = tick.tick() => self.look_for_frozen(),
                () = tokio::time::sleep_until(next_start) => {}
            }
            self.start_what_is_due();
        }
    }

    fn start(&mut self, index: usize) {
        let sender = self.endings.0.clone();
        let ward = &mut self.wards[index];
        ward.thread = self.thread;
        let incarnation = ward.incarnation;
        let ended = move |ending| _ = sender.send(Ended { ward: index, incarnation, ending });
        (ward.start)(&self.arbiter, ward.heart.clone(), Box::new(ended));
    }

    /// After a stop of the whole process (a suspended machine, SIGSTOP) every heart seems to stand
    /// still: then they get one more round.
    fn look_for_frozen(&mut self) {
        let was_asleep = self.last_look.elapsed() > self.supervision.frozen_after / 2;
        self.last_look = Instant::now();
        if was_asleep {
            return;
        }
        for index in 0..self.wards.len() {
            let ward = &self.wards[index];
            if ward.start_at.is_none() && ward.heart.is_frozen(self.supervision.frozen_after) {
                if ward.thread == self.thread {
                    self.leave_thread();
                }
                let incarnation = self.wards[index].incarnation;
                self.ended(Ended { ward: index, incarnation, ending: Ending::Frozen });
            }
        }
    }

    /// Actors go on in a new thread. If the old one ever gets to it, it drops its actors; those that
    /// were not frozen end by that and are started again like the others.
    fn leave_thread(&mut self) {
        let old = std::mem::replace(&mut self.arbiter, Arbiter::new());
        self.thread += 1;
        old.stop();
    }

    fn ended(&mut self, Ended { ward: index, incarnation, ending }: Ended) {
        let closed = self.board.closed.load(Ordering::Relaxed);
        let ward = &mut self.wards[index];
        if ward.incarnation != incarnation || closed {
            return;
        }
        (ward.forget)();
        ward.incarnation += 1;
        ward.heart = Heart::new();
        lock(&self.board.hearts)[index] = ward.heart.clone();
        let now = Instant::now();
        while ward
            .restarts
            .front()
            .is_some_and(|at| now.duration_since(*at) > self.supervision.restart_window)
        {
            ward.restarts.pop_front();
        }
        if ward.restarts.is_empty() {
            ward.backoff.reset();
        }
        ward.restarts.push_back(now);
        let pause = ward.backoff.pause();
        ward.start_at = Some(now + pause);
        let mut statuses = lock(&self.board.statuses);
        let status = &mut statuses[index];
        status.state = ActorState::BackingOff;
        status.restarts += 1;
        status.last_ending = Some(ending.to_string());
        let actor = status.name.as_str();
        tracing::error!(actor, %ending, ?pause, "an actor ended; starting it again");
        if ward.restarts.len() > self.supervision.max_restarts {
            let (count, window) = (ward.restarts.len(), self.supervision.restart_window);
            let reason =
                format!("{actor} ended {count} times within {window:?}, at last: {ending}");
            self.board.given_up.send_replace(Some(reason));
        }
    }

    fn start_what_is_due(&mut self) {
        for index in 0..self.wards.len() {
            let due = self.wards[index].start_at.is_some_and(|at| at <= Instant::now());
            if due {
                self.wards[index].start_at = None;
                self.wards[index].heart.beat();
                lock(&self.board.statuses)[index].state = ActorState::Running;
                self.start(index);
            }
        }
    }
}

/// Runs in the actors' thread.
fn start_here<A>(
    factory: &(impl Fn(Heart) -> A + ?Sized),
    link: &Link<A>,
    heart: &Heart,
    beat: Duration,
    ended: Box<dyn FnOnce(Ending) + Send>,
) where
    A: Actor<Context = Context<A>>,
{
    let actor = match catch_unwind(AssertUnwindSafe(|| factory(heart.clone()))) {
        Ok(actor) => actor,
        Err(panic) => return ended(Ending::Panicked(panic_text(panic.as_ref()))),
    };
    let mut context = Context::new();
    let beating = heart.clone();
    context.run_interval(beat, move |_, context| {
        if let Some(disturbance) = beating.beat() {
            disturb(disturbance, &beating, context);
        }
    });
    link.point_at(context.address());
    let life = AssertUnwindSafe(context.into_future(actor)).catch_unwind();
    let heart = heart.clone();
    actix::spawn(async move {
        ended(match life.await {
            Err(panic) => Ending::Panicked(panic_text(panic.as_ref())),
            Ok(()) => match heart.pulse().failure.take() {
                Some(reason) => Ending::Failed(reason),
                None => Ending::Stopped,
            },
        });
    });
}

fn disturb<A: Actor<Context = Context<A>>>(
    disturbance: Disturbance,
    heart: &Heart,
    context: &mut Context<A>,
) {
    match disturbance {
        Disturbance::Stop => context.stop(),
        Disturbance::Fail => {
            heart.fail("disturbed on purpose");
            context.stop();
        }
        Disturbance::Panic => panic!("disturbed on purpose"),
        Disturbance::Hang => wrap_future::<_, A>(std::future::pending::<()>()).wait(context),
        Disturbance::Block => loop {
            std::thread::park();
        },
    }
}

/// The message of a panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(without a message)".to_owned())
}
