//! What a lone event cannot do without: being sent, being handed out to a poll that waits for it, and a
//! transaction of its own.

use std::time::{Duration, Instant};

use clap::Args;

use crate::one_by_one::Connection;
use crate::quantile;

#[derive(Args)]
pub struct RoundTripsArguments {
    #[arg(long)]
    url: String,
    #[arg(long)]
    endpoint: String,
    /// An empty queue
    #[arg(long, default_value = "bare")]
    queue: String,
    #[arg(long, default_value_t = 200)]
    count: u64,
}

pub fn round_trips(arguments: &RoundTripsArguments) {
    let RoundTripsArguments { url, endpoint, queue, count } = arguments;
    let mut connection = Connection::open(url);
    connection.prepare();
    let mut micros = Vec::new();
    actix::System::new().block_on(async {
        let (sender, receiver) = (crate::client(endpoint), crate::client(endpoint));
        for number in 0..*count {
            let poll = actix::spawn({
                let (receiver, queue) = (receiver.clone(), queue.clone());
                async move { receiver.receive_message(&queue, 10).await }
            });
            // The poll has to be there before the message.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let start = Instant::now();
            sender.send_message(queue, "lone", 0).await.unwrap();
            let message = poll.await.unwrap().unwrap().unwrap();
            connection.transact(&format!("evt-{number}"), 1);
            micros.push(start.elapsed().as_micros() as u64);
            receiver.delete_message(queue, &message.receipt_handle).await.unwrap();
        }
    });
    micros.sort_unstable();
    println!(r#"{{"p50":{},"p99":{}}}"#, quantile(&micros, 0.5), quantile(&micros, 0.99));
}
