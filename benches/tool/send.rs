//! Events that tell by their ids when they were sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[derive(Args)]
pub struct SendArguments {
    #[arg(long)]
    endpoint: String,
    #[arg(long, default_value = "orders")]
    queue: String,
    /// How many messages
    #[arg(long)]
    messages: u64,
    /// Number of the first event
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Accounts that they are about, at random
    #[arg(long, default_value_t = 100_000)]
    accounts: u64,
    /// Event types, `points.awarded` and then `points.awarded.1` and so on
    #[arg(long, default_value_t = 1)]
    types: u64,
    /// How many of a hundred messages are copies of an earlier event
    #[arg(long, default_value_t = 0)]
    duplicates_percent: u64,
    /// Ids that are spread over the index, as UUIDs are, instead of ascending ones
    #[arg(long)]
    random_ids: bool,
    /// Length of a body in bytes
    #[arg(long, default_value_t = 200)]
    body_bytes: usize,
    /// Messages a second; as fast as possible if not given
    #[arg(long)]
    rate: Option<f64>,
    /// Messages a request; no more than are due are sent
    #[arg(long, default_value_t = 16)]
    batch: u64,
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

/// Requests at the same time.
const SENDERS: usize = 4;
/// Copies are of events at most so many messages ago.
const COPIED_WITHIN: u64 = 1_000;

/// What the next message is about.
struct Source {
    arguments: SendArguments,
    next: AtomicU64,
}

impl Source {
    /// The numbers of the next messages: as many as fit a request and are due.
    fn take(&self, start: Instant) -> Option<std::ops::Range<u64>> {
        let SendArguments { messages, rate, batch, .. } = self.arguments;
        let due = match rate {
            None => messages,
            Some(rate) => messages.min((start.elapsed().as_secs_f64() * rate) as u64 + 1),
        };
        let mut taken = 0..0;
        let advance = |next: u64| {
            taken = next..(next + batch).min(due).max(next);
            Some(taken.end)
        };
        let _ = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, advance);
        (taken.start < messages).then_some(taken)
    }

    /// The message that first brought the event that this one brings: itself, or an earlier one.
    fn original(&self, message: u64) -> u64 {
        let SendArguments { seed, duplicates_percent, .. } = self.arguments;
        let mut random = StdRng::seed_from_u64(seed ^ message);
        match message > 0 && random.random_range(0..100) < duplicates_percent {
            true => {
                self.original(random.random_range(message.saturating_sub(COPIED_WITHIN)..message))
            }
            false => message,
        }
    }

    fn body(&self, message: u64, now_micros: u128) -> String {
        let arguments = &self.arguments;
        let number = arguments.first + self.original(message);
        let mut about = StdRng::seed_from_u64(number);
        let account = about.random_range(1..=arguments.accounts);
        let points = about.random_range(1..100);
        let kind = match number % arguments.types {
            0 => String::new(),
            n => format!(".{n}"),
        };
        // Copies have to have equal ids, so the time of sending is only in ids at a given rate.
        let id = match (arguments.rate, arguments.random_ids) {
            (Some(_), _) => format!("evt-{number:010}-{now_micros}"),
            (None, true) => format!("{:032x}", about.random::<u128>()),
            (None, false) => format!("evt-{number:010}"),
        };
        let mut body = format!(
            r#"{{"event_id":"{id}","event_type":"points.awarded{kind}","payload":{{"account_id":{account},"points":{points},"note":""#
        );
        while body.len() + 3 < arguments.body_bytes {
            body.push('x');
        }
        body.push_str("\"}}");
        body
    }
}

pub fn send(arguments: SendArguments) {
    assert!(arguments.rate.is_none() || arguments.duplicates_percent == 0);
    let client = crate::client(&arguments.endpoint);
    let source = Arc::new(Source { arguments, next: AtomicU64::new(0) });
    let start = Instant::now();
    actix::System::new().block_on(async {
        let senders = (0..SENDERS).map(|_| {
            let (source, client) = (source.clone(), client.clone());
            actix::spawn(async move {
                while let Some(numbers) = source.take(start) {
                    if numbers.is_empty() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        continue;
                    }
                    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
                    let bodies: Vec<String> = numbers.map(|n| source.body(n, now)).collect();
                    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
                    let queue = &source.arguments.queue;
                    client.batch_send_message(queue, &bodies, 0).await.unwrap();
                }
            })
        });
        futures_util::future::join_all(senders).await.into_iter().for_each(|end| end.unwrap());
    });
    println!(r#"{{"seconds":{:.3}}}"#, start.elapsed().as_secs_f64());
}
