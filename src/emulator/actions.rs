//! One function an action: parameters in, fields of the answer out. Receiving is split in two, so
//! that the HTTP face can wait in between.

use serde_json::{Value, json};

use super::answer::{Refusal, received};
use super::broker::{Broker, NamedQueue, Subscription};
use super::queue::{Attributes, UnixMillis};
use crate::cmq::{
    ApiErrorCode, MAX_BATCH_MESSAGES, MAX_POLLING_WAIT_SECONDS, Parameters, is_valid_name,
};

/// Longest delay of a message, in seconds (12 hours).
const MAX_DELAY_SECONDS: u32 = 43_200;

/// What an action answers, and which queues may have got messages.
pub struct Done {
    pub fields: Value,
    pub woken_queues: Vec<String>,
}

impl From<Value> for Done {
    fn from(fields: Value) -> Self {
        Self { fields, woken_queues: Vec::new() }
    }
}

/// A receive that may have to wait.
pub struct ReceiveRequest {
    pub queue: String,
    pub limit: usize,
    pub polling_wait_seconds: u32,
    batch: bool,
}

impl ReceiveRequest {
    /// The request, if `action` is one that receives.
    pub fn read(
        broker: &mut Broker,
        action: &str,
        parameters: &Parameters,
    ) -> Result<Option<Self>, Refusal> {
        let batch = match action {
            "ReceiveMessage" => false,
            "BatchReceiveMessage" => true,
            _ => return Ok(None),
        };
        let queue = queue_name(parameters)?.to_owned();
        let limit = match batch {
            true => {
                required(parameters, "numOfMsg")?;
                number(parameters, "numOfMsg", 1, 1..=MAX_BATCH_MESSAGES as u32)? as usize
            }
            false => 1,
        };
        let default_wait = broker.queue(&queue)?.queue.attributes().polling_wait_seconds;
        let waits = 0..=MAX_POLLING_WAIT_SECONDS;
        let polling_wait_seconds = number(parameters, "pollingWaitSeconds", default_wait, waits)?;
        Ok(Some(Self { queue, limit, polling_wait_seconds, batch }))
    }

    /// What can be received now; `None` when there is nothing.
    pub fn try_receive(
        &self,
        broker: &mut Broker,
        now: UnixMillis,
    ) -> Result<Option<Value>, Refusal> {
        let messages = broker.queue(&self.queue)?.queue.receive(now, self.limit);
        let list: Vec<Value> = messages.iter().map(received).collect();
        Ok(match (list.is_empty(), self.batch) {
            (true, _) => None,
            (false, true) => Some(json!({ "msgInfoList": list })),
            (false, false) => list.into_iter().next(),
        })
    }
}

/// Carries out any action that does not wait.
pub fn perform(
    broker: &mut Broker,
    now: UnixMillis,
    action: &str,
    parameters: &Parameters,
    address: &str,
) -> Result<Done, Refusal> {
    match action {
        "SendMessage" => send(broker, now, parameters),
        "BatchSendMessage" => batch_send(broker, now, parameters),
        "DeleteMessage" => delete(broker, now, parameters),
        "BatchDeleteMessage" => batch_delete(broker, now, parameters),
        "PublishMessage" => publish(broker, now, parameters),
        "BatchPublishMessage" => batch_publish(broker, now, parameters),
        "QueryQueueRoute" => {
            broker.queue(queue_name(parameters)?)?;
            Ok(json!({ "addr": [address] }).into())
        }
        "QueryTopicRoute" => match broker.has_topic(topic_name(parameters)?) {
            true => Ok(json!({ "addr": [address] }).into()),
            false => Err(super::broker::BrokerError::NoSuchTopic.into()),
        },
        "CreateQueue" => create_queue(broker, now, parameters),
        "SetQueueAttributes" => set_attributes(broker, now, parameters),
        "GetQueueAttributes" => get_attributes(broker, now, parameters),
        "ListQueue" => list_queues(broker, parameters),
        "DeleteQueue" => {
            broker.delete_queue(queue_name(parameters)?)?;
            Ok(json!({}).into())
        }
        "RewindQueue" => rewind(broker, now, parameters),
        "CreateTopic" => {
            let topic = topic_name(parameters)?;
            broker.create_topic(topic);
            Ok(json!({ "topicId": format!("topic-{topic}") }).into())
        }
        "Subscribe" => subscribe(broker, parameters),
        _ => Err(Refusal::unknown_action()),
    }
}

fn send(broker: &mut Broker, now: UnixMillis, parameters: &Parameters) -> Result<Done, Refusal> {
    let queue = queue_name(parameters)?;
    let body = required(parameters, "msgBody")?;
    let delay = number(parameters, "delaySeconds", 0, 0..=MAX_DELAY_SECONDS)?;
    let id = broker.send(now, queue, body, delay)?;
    Ok(Done { fields: json!({ "msgId": id }), woken_queues: vec![queue.to_owned()] })
}

fn batch_send(
    broker: &mut Broker,
    now: UnixMillis,
    parameters: &Parameters,
) -> Result<Done, Refusal> {
    let queue = queue_name(parameters)?;
    let bodies = parameters.array("msgBody")?;
    let delay = number(parameters, "delaySeconds", 0, 0..=MAX_DELAY_SECONDS)?;
    // All or nothing: a body that the queue refuses must not leave its neighbours behind.
    let limit = broker.queue(queue)?.queue.attributes().max_message_bytes as usize;
    if bodies.iter().any(|body| body.is_empty() || body.len() > limit) {
        return Err(Refusal::out_of_range("msgBody"));
    }
    let ids: Vec<Value> = bodies
        .iter()
        .map(|body| Ok(json!({ "msgId": broker.send(now, queue, body, delay)? })))
        .collect::<Result<_, Refusal>>()?;
    Ok(Done { fields: json!({ "msgList": ids }), woken_queues: vec![queue.to_owned()] })
}

fn delete(broker: &mut Broker, now: UnixMillis, parameters: &Parameters) -> Result<Done, Refusal> {
    let handle = required(parameters, "receiptHandle")?;
    let queue = &mut broker.queue(queue_name(parameters)?)?.queue;
    queue.delete(now, handle).map_err(|_| Refusal::dead_handle())?;
    Ok(json!({}).into())
}

fn batch_delete(
    broker: &mut Broker,
    now: UnixMillis,
    parameters: &Parameters,
) -> Result<Done, Refusal> {
    let handles = parameters.array("receiptHandle")?;
    let queue = &mut broker.queue(queue_name(parameters)?)?.queue;
    let dead = Refusal::dead_handle();
    let failures: Vec<Value> = handles
        .iter()
        .filter(|handle| queue.delete(now, handle).is_err())
        .map(|handle| {
            json!({ "code": dead.code, "message": dead.message(), "receiptHandle": handle })
        })
        .collect();
    let code = match failures.len() {
        0 => return Ok(json!({}).into()),
        failed if failed == handles.len() => ApiErrorCode::BATCH_DELETE_FAILED,
        _ => ApiErrorCode::BATCH_DELETE_PARTLY_FAILED,
    };
    let message = format!("delete message {} handles failed", failures.len());
    Ok(json!({ "code": code, "message": message, "errorList": failures }).into())
}

fn publish(broker: &mut Broker, now: UnixMillis, parameters: &Parameters) -> Result<Done, Refusal> {
    let body = required(parameters, "msgBody")?;
    let tags = optional_array(parameters, "msgTag")?;
    let (id, woken_queues) = broker.publish(now, topic_name(parameters)?, body, &tags)?;
    Ok(Done { fields: json!({ "msgId": id }), woken_queues })
}

fn batch_publish(
    broker: &mut Broker,
    now: UnixMillis,
    parameters: &Parameters,
) -> Result<Done, Refusal> {
    let topic = topic_name(parameters)?;
    let tags = optional_array(parameters, "msgTag")?;
    let mut ids = Vec::new();
    let mut woken_queues = Vec::new();
    for body in parameters.array("msgBody")? {
        let (id, queues) = broker.publish(now, topic, body, &tags)?;
        ids.push(json!({ "msgId": id }));
        woken_queues.extend(queues);
    }
    Ok(Done { fields: json!({ "msgList": ids }), woken_queues })
}

fn create_queue(
    broker: &mut Broker,
    now: UnixMillis,
    parameters: &Parameters,
) -> Result<Done, Refusal> {
    let attributes = attributes(parameters, Attributes::default())?;
    let queue = broker.create_queue(now, queue_name(parameters)?, attributes)?;
    Ok(json!({ "queueId": queue.id }).into())
}

fn set_attributes(
    broker: &mut Broker,
    now: UnixMillis,
    parameters: &Parameters,
) -> Result<Done, Refusal> {
    let named = broker.queue(queue_name(parameters)?)?;
    named.queue.set_attributes(attributes(parameters, *named.queue.attributes())?);
    named.modified_at = now;
    Ok(json!({}).into())
}

fn get_attributes(
    broker: &mut Broker,
    now: UnixMillis,
    parameters: &Parameters,
) -> Result<Done, Refusal> {
    let NamedQueue { queue, created_at, modified_at, .. } =
        broker.queue(queue_name(parameters)?)?;
    let counts = queue.counts(now);
    let attributes = queue.attributes();
    Ok(json!({
        "maxMsgHeapNum": attributes.max_messages,
        "pollingWaitSeconds": attributes.polling_wait_seconds,
        "visibilityTimeout": attributes.visibility_timeout_seconds,
        "maxMsgSize": attributes.max_message_bytes,
        "msgRetentionSeconds": attributes.max_unacked_seconds,
        "rewindSeconds": attributes.rewind_seconds,
        "createTime": *created_at / 1_000,
        "lastModifyTime": *modified_at / 1_000,
        "activeMsgNum": counts.active,
        "inactiveMsgNum": counts.inactive,
        "delayMsgNum": counts.delayed,
        "rewindmsgNum": counts.rewindable,
        "minMsgTime": queue.oldest_sent_at().unwrap_or(0) / 1_000,
        "expiredMsgNum": counts.expired,
    })
    .into())
}

fn list_queues(broker: &Broker, parameters: &Parameters) -> Result<Done, Refusal> {
    const DEFAULT_LIMIT: u32 = 20;
    const MAX_LIMIT: u32 = 50;
    let offset = number(parameters, "offset", 0, 0..=u32::MAX)? as usize;
    let limit = number(parameters, "limit", DEFAULT_LIMIT, 1..=MAX_LIMIT)? as usize;
    let word = parameters.get("searchWord").unwrap_or("");
    let matching: Vec<Value> = broker
        .queues()
        .filter(|(name, _)| name.contains(word))
        .map(|(name, queue)| json!({ "queueId": queue.id, "queueName": name }))
        .collect();
    let total = matching.len();
    let page: Vec<Value> = matching.into_iter().skip(offset).take(limit).collect();
    Ok(json!({ "totalCount": total, "queueList": page }).into())
}

fn rewind(broker: &mut Broker, now: UnixMillis, parameters: &Parameters) -> Result<Done, Refusal> {
    let name = queue_name(parameters)?;
    let from: u64 = required(parameters, "startConsumeTime")?
        .parse()
        .map_err(|_| wrong_type("startConsumeTime"))?;
    let queue = &mut broker.queue(name)?.queue;
    if queue.attributes().rewind_seconds == 0 {
        return Err(Refusal::parameters(10110, "the queue has no rewind window"));
    }
    queue.rewind(now, from.saturating_mul(1_000));
    Ok(Done { fields: json!({}), woken_queues: vec![name.to_owned()] })
}

fn subscribe(broker: &mut Broker, parameters: &Parameters) -> Result<Done, Refusal> {
    if parameters.get("protocol").is_some_and(|protocol| protocol != "queue") {
        return Err(Refusal::parameters(10110, "only subscriptions of protocol queue are served"));
    }
    let name = required(parameters, "subscriptionName")?.to_owned();
    let queue = required(parameters, "endpoint")?.to_owned();
    let tags = optional_array(parameters, "filterTag")?.into_iter().map(str::to_owned).collect();
    let fields = json!({ "subscriptionId": format!("subsc-{name}") });
    broker.subscribe(topic_name(parameters)?, Subscription { name, queue, tags })?;
    Ok(fields.into())
}

fn attributes(parameters: &Parameters, mut attributes: Attributes) -> Result<Attributes, Refusal> {
    let fields = [
        ("maxMsgHeapNum", &mut attributes.max_messages),
        ("pollingWaitSeconds", &mut attributes.polling_wait_seconds),
        ("visibilityTimeout", &mut attributes.visibility_timeout_seconds),
        ("maxMsgSize", &mut attributes.max_message_bytes),
        ("msgRetentionSeconds", &mut attributes.max_unacked_seconds),
        ("rewindSeconds", &mut attributes.rewind_seconds),
    ];
    for (name, field) in fields {
        *field = number(parameters, name, *field, 0..=u32::MAX)?;
    }
    attributes.check().map_err(Refusal::out_of_range)?;
    Ok(attributes)
}

fn queue_name(parameters: &Parameters) -> Result<&str, Refusal> {
    name(parameters, "queueName")
}

fn topic_name(parameters: &Parameters) -> Result<&str, Refusal> {
    name(parameters, "topicName")
}

fn name<'a>(parameters: &'a Parameters, key: &str) -> Result<&'a str, Refusal> {
    let name = required(parameters, key)?;
    match is_valid_name(name) {
        true => Ok(name),
        false => Err(Refusal::out_of_range(key)),
    }
}

fn required<'a>(parameters: &'a Parameters, name: &str) -> Result<&'a str, Refusal> {
    parameters.get(name).ok_or_else(|| Refusal::missing(name))
}

fn number(
    parameters: &Parameters,
    name: &str,
    default: u32,
    range: std::ops::RangeInclusive<u32>,
) -> Result<u32, Refusal> {
    let Some(text) = parameters.get(name) else { return Ok(default) };
    let number: u32 = text.parse().map_err(|_| wrong_type(name))?;
    match range.contains(&number) {
        true => Ok(number),
        false => Err(Refusal::out_of_range(name)),
    }
}

fn wrong_type(name: &str) -> Refusal {
    Refusal::parameters(10360, format!("parameter {name} error type"))
}

fn optional_array<'a>(parameters: &'a Parameters, name: &str) -> Result<Vec<&'a str>, Refusal> {
    match parameters.array(name) {
        Err(crate::cmq::ArrayError::Missing(_)) => Ok(Vec::new()),
        result => Ok(result?),
    }
}
