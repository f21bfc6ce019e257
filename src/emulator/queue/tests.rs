use super::*;
use proptest::prelude::*;

const START: UnixMillis = 1_764_547_200_000;

fn queue(change: impl FnOnce(&mut Attributes)) -> Queue {
    let mut attributes = Attributes::default();
    change(&mut attributes);
    attributes.check().unwrap();
    Queue::new(attributes)
}

fn send(queue: &mut Queue, now: UnixMillis, id: &str) {
    queue.send(now, id.into(), format!("body of {id}"), 0).unwrap();
}

fn ids(received: &[Received]) -> Vec<&str> {
    received.iter().map(|message| message.message_id.as_str()).collect()
}

#[test]
fn messages_come_oldest_first_and_once_while_invisible() {
    let mut queue = queue(|_| {});
    for id in ["a", "b", "c"] {
        send(&mut queue, START, id);
    }
    assert_eq!(ids(&queue.receive(START, 2)), ["a", "b"]);
    assert_eq!(ids(&queue.receive(START, 16)), ["c"]);
    assert_eq!(queue.receive(START + 29_999, 16), []);
}

#[test]
fn an_undeleted_message_comes_again_and_its_old_handle_is_dead() {
    let mut queue = queue(|attributes| attributes.visibility_timeout_seconds = 5);
    send(&mut queue, START, "a");
    let first = queue.receive(START, 1).remove(0);
    assert_eq!(first.next_visible_at, START + 5_000);
    assert_eq!(queue.delete(START + 5_000, &first.receipt_handle), Err(DeadHandle));
    let second = queue.receive(START + 5_000, 1).remove(0);
    assert_eq!(second.message_id, "a");
    assert_eq!((second.receive_count, second.first_received_at), (2, START));
    assert_ne!(second.receipt_handle, first.receipt_handle);
    assert_eq!(queue.delete(START + 5_001, &first.receipt_handle), Err(DeadHandle));
    assert_eq!(queue.delete(START + 5_001, &second.receipt_handle), Ok(()));
    assert_eq!(queue.delete(START + 5_002, &second.receipt_handle), Err(DeadHandle));
    assert_eq!(queue.receive(START + 60_000, 1), []);
}

#[test]
fn a_delay_hides_a_message_and_counts_towards_its_unacknowledged_time() {
    let mut queue = queue(|attributes| attributes.max_unacked_seconds = 30);
    queue.send(START, "a".into(), "x".into(), 10).unwrap();
    queue.send(START, "b".into(), "x".into(), 40).unwrap();
    assert_eq!(queue.counts(START).delayed, 2);
    assert_eq!(queue.next_wake(), Some(START + 10_000));
    assert_eq!(queue.receive(START + 9_999, 1), []);
    assert_eq!(ids(&queue.receive(START + 10_000, 1)), ["a"]);
    assert_eq!(queue.counts(START + 40_000), Counts { expired: 2, ..Counts::default() });
}

#[test]
fn what_stays_undeleted_for_the_maximum_unacknowledged_time_is_gone() {
    let mut queue = queue(|attributes| attributes.max_unacked_seconds = 30);
    send(&mut queue, START, "a");
    let handle = queue.receive(START + 29_000, 1).remove(0).receipt_handle;
    assert_eq!(queue.counts(START + 29_999).inactive, 1);
    assert_eq!(queue.delete(START + 30_000, &handle), Err(DeadHandle));
    assert_eq!(queue.counts(START + 30_000), Counts { expired: 1, ..Counts::default() });
}

#[test]
fn rewinding_brings_deleted_messages_back_within_the_window() {
    let mut queue = queue(|attributes| attributes.rewind_seconds = 60);
    for (offset, id) in [(0, "a"), (1_000, "b")] {
        send(&mut queue, START + offset, id);
    }
    for message in queue.receive(START + 2_000, 16) {
        queue.delete(START + 2_000, &message.receipt_handle).unwrap();
    }
    assert_eq!(queue.counts(START + 2_000).rewindable, 2);
    assert_eq!(queue.rewind(START + 3_000, START + 1_000), 1);
    assert_eq!(ids(&queue.receive(START + 3_000, 16)), ["b"]);
    assert_eq!(queue.rewind(START + 70_000, START), 0);
}

#[test]
fn without_a_rewind_window_deleted_messages_are_gone() {
    let mut queue = queue(|_| {});
    send(&mut queue, START, "a");
    let handle = queue.receive(START, 1).remove(0).receipt_handle;
    queue.delete(START, &handle).unwrap();
    assert_eq!(queue.rewind(START, 0), 0);
}

#[test]
fn bodies_and_numbers_of_messages_have_limits() {
    let mut queue = queue(|attributes| {
        attributes.max_message_bytes = 1_024;
        attributes.max_messages = 1;
    });
    let mut send = |body: String| queue.send(START, "a".into(), body, 0);
    assert_eq!(send(String::new()), Err(SendError::BodyEmpty));
    assert_eq!(send("x".repeat(1_025)), Err(SendError::BodyTooLong));
    assert_eq!(send("x".repeat(1_024)), Ok(()));
    assert_eq!(send("x".into()), Err(SendError::QueueFull));
}

#[test]
fn attributes_out_of_range_are_named() {
    let mut attributes = Attributes { visibility_timeout_seconds: 0, ..Attributes::default() };
    assert_eq!(attributes.check(), Err("visibilityTimeout"));
    attributes.visibility_timeout_seconds = 43_201;
    assert_eq!(attributes.check(), Err("visibilityTimeout"));
}

/// The same queue written the slow and obvious way: every message in one list.
#[derive(Default)]
struct Naive {
    messages: Vec<NaiveMessage>,
    expired: u64,
}

struct NaiveMessage {
    id: String,
    since: UnixMillis,
    hidden_until: UnixMillis,
    handle: Option<String>,
    gone: bool,
}

impl Naive {
    fn advance(&mut self, now: UnixMillis, attributes: &Attributes) {
        for message in self.messages.iter_mut().filter(|message| !message.gone) {
            if message.since + u64::from(attributes.max_unacked_seconds) * 1_000 <= now {
                message.gone = true;
                self.expired += 1;
            }
            if message.hidden_until <= now {
                message.handle = None;
            }
        }
    }

    fn receivable(&self, now: UnixMillis, limit: usize) -> Vec<String> {
        let visible = self.messages.iter().filter(|m| !m.gone && m.hidden_until <= now);
        visible.take(limit).map(|m| m.id.clone()).collect()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send { delay_seconds: u32 },
    Receive { limit: usize },
    Delete { nth_handle: usize },
    Wait { millis: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..4u32).prop_map(|delay_seconds| Step::Send { delay_seconds }),
        (1..=16usize).prop_map(|limit| Step::Receive { limit }),
        (0..40usize).prop_map(|nth_handle| Step::Delete { nth_handle }),
        (0..4_000u64).prop_map(|millis| Step::Wait { millis }),
    ]
}

proptest! {
    #[test]
    fn any_run_of_steps_ends_as_in_the_naive_queue(steps in prop::collection::vec(step(), 1..120)) {
        let mut queue = queue(|attributes| {
            attributes.visibility_timeout_seconds = 3;
            attributes.max_unacked_seconds = 30;
        });
        let mut naive = Naive::default();
        let mut handles: Vec<String> = Vec::new();
        let mut now = START;
        for (number, step) in steps.into_iter().enumerate() {
            let attributes = *queue.attributes();
            naive.advance(now, &attributes);
            match step {
                Step::Send { delay_seconds } => {
                    let id = format!("Msg-{number}");
                    queue.send(now, id.clone(), "x".into(), delay_seconds).unwrap();
                    let hidden_until = now + u64::from(delay_seconds) * 1_000;
                    naive.messages.push(NaiveMessage {
                        id, since: now, hidden_until, handle: None, gone: false,
                    });
                }
                Step::Receive { limit } => {
                    let expected = naive.receivable(now, limit);
                    let received = queue.receive(now, limit);
                    prop_assert_eq!(ids(&received), expected);
                    for got in received {
                        let message = naive.messages.iter_mut().find(|m| m.id == got.message_id);
                        let message = message.unwrap();
                        message.hidden_until = now + 3_000;
                        message.handle = Some(got.receipt_handle.clone());
                        handles.push(got.receipt_handle);
                    }
                }
                Step::Delete { nth_handle } if nth_handle < handles.len() => {
                    let handle = &handles[nth_handle];
                    let alive = |m: &&mut NaiveMessage| !m.gone && m.handle.as_ref() == Some(handle);
                    let message = naive.messages.iter_mut().find(alive);
                    let expected = message.map(|m| m.gone = true).ok_or(DeadHandle);
                    prop_assert_eq!(queue.delete(now, handle), expected);
                }
                Step::Delete { .. } => {}
                Step::Wait { millis } => now += millis,
            }
        }
        naive.advance(now, &queue.attributes().clone());
        let alive = naive.messages.iter().filter(|m| !m.gone).count();
        let counts = queue.counts(now);
        prop_assert_eq!(counts.active + counts.inactive + counts.delayed, alive);
        prop_assert_eq!(counts.inactive, queue.handles.len());
        prop_assert_eq!(counts.expired, naive.expired);
    }
}
