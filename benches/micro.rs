//! What an event costs in hapax itself, piece by piece. `cargo bench --bench micro`

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use hapax::cmq::signature::{SignatureMethod, Target, sign};
use hapax::cmq::{MAX_BATCH_MESSAGES, Parameters, answer};
use hapax::emulator::queue::{Attributes, Queue};
use hapax::event::{Digest, Envelope, json};
use hapax::pipeline::shard_of;

const BODY_BYTES: [usize; 2] = [200, 10_000];

fn body(bytes: usize) -> String {
    let start = r#"{"event_id":"evt-0000000001","event_type":"points.awarded","payload":{"account_id":1,"points":10,"note":""#;
    let note = "x".repeat(bytes.saturating_sub(start.len() + 3));
    format!("{start}{note}\"}}}}")
}

/// A BatchDeleteMessage with as many handles as it may have.
fn signing(criterion: &mut Criterion) {
    let mut parameters = Parameters::for_action("BatchDeleteMessage");
    parameters.push("queueName", "orders");
    let handles: Vec<String> =
        (0..MAX_BATCH_MESSAGES).map(|n| format!("3423452345{n:054}")).collect();
    parameters.push_array("receiptHandle", handles.iter().map(String::as_str));
    for (name, value) in [("Nonce", "4711"), ("Timestamp", "1767225600"), ("SecretId", "AKIDtest")]
    {
        parameters.push(name, value);
    }
    let target = Target { method: "POST", host: "127.0.0.1:80", path: "/v2/index.php" };
    criterion.bench_function("sign/a delete of 16", |bencher| {
        bencher
            .iter(|| sign(target, black_box(&parameters), SignatureMethod::HmacSha256, "secret"));
    });
    criterion.bench_function("encode/a delete of 16", |bencher| {
        bencher.iter(|| black_box(&parameters).to_urlencoded());
    });
}

/// An answer with as many messages as it may have.
fn decoding(criterion: &mut Criterion) {
    for bytes in BODY_BYTES {
        let message = |n: usize| {
            serde_json::json!({
                "msgId": format!("Msg-{n}"), "msgBody": body(bytes), "receiptHandle": format!("{n:064}"),
                "enqueueTime": 1, "firstDequeueTime": 1, "nextVisibleTime": 2, "dequeueCount": 1,
            })
        };
        let messages: Vec<_> = (0..MAX_BATCH_MESSAGES).map(message).collect();
        let answer = serde_json::json!({
            "code": 0, "message": "", "requestId": "1", "clientRequestId": 1, "msgInfoList": messages,
        });
        let answer = answer.to_string();
        let mut group = criterion.benchmark_group("decode an answer of 16");
        group.throughput(Throughput::Elements(MAX_BATCH_MESSAGES as u64));
        group.bench_function(format!("{bytes} B each"), |bencher| {
            bencher.iter(|| answer::received_list(black_box(answer.as_bytes())).ok().unwrap());
        });
    }
}

fn events(criterion: &mut Criterion) {
    let envelope = Envelope::default();
    for bytes in BODY_BYTES {
        let body = body(bytes);
        criterion.bench_function(&format!("open an event/{bytes} B"), |bencher| {
            bencher.iter(|| envelope.open(black_box(&body)).ok().unwrap());
        });
        let json = json::parse(&body).ok().unwrap();
        let payload = json.member("payload").unwrap();
        criterion.bench_function(&format!("digest/{bytes} B"), |bencher| {
            bencher.iter(|| Digest::of("points.awarded", black_box(payload)).ok().unwrap());
        });
    }
}

fn routing(criterion: &mut Criterion) {
    criterion.bench_function("find the shard", |bencher| {
        bencher.iter(|| shard_of(black_box("evt-0000000001"), 7));
    });
}

/// The emulator's queue, with a backlog behind what is moved.
fn emulator(criterion: &mut Criterion) {
    const BACKLOG: usize = 100_000;
    let mut queue = Queue::new(Attributes::default());
    for n in 0..BACKLOG {
        queue.send(0, format!("Msg-{n}"), body(200), 0).unwrap();
    }
    let mut group = criterion.benchmark_group("emulator");
    group.throughput(Throughput::Elements(MAX_BATCH_MESSAGES as u64));
    group.bench_function("send, receive and delete 16", |bencher| {
        let bodies = || (0..MAX_BATCH_MESSAGES).map(|n| (format!("Msg-{n}"), body(200))).collect();
        let pass = |messages: Vec<(String, String)>| {
            for (id, body) in messages {
                queue.send(1, id, body, 0).unwrap();
            }
            for received in queue.receive(1, MAX_BATCH_MESSAGES) {
                queue.delete(1, &received.receipt_handle).unwrap();
            }
        };
        bencher.iter_batched(bodies, pass, BatchSize::SmallInput);
    });
}

criterion_group!(micro, signing, decoding, events, routing, emulator);
criterion_main!(micro);
