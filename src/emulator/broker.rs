//! The queues and topics of one emulator. Pure like [`super::queue`]: handed the time, no I/O.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::queue::{Attributes, Queue, SendError, UnixMillis};
use crate::cmq::is_valid_name;

/// A queue with what the protocol tells about it.
pub struct NamedQueue {
    /// The queue itself.
    pub queue: Queue,
    /// `queueId` of the protocol.
    pub id: String,
    /// When it was made.
    pub created_at: UnixMillis,
    /// When its attributes were last set.
    pub modified_at: UnixMillis,
}

/// A topic's way into a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Name of the subscription, unique within its topic.
    pub name: String,
    /// The queue that gets the messages.
    pub queue: String,
    /// A message is passed on when it has one of these tags; without any, each message is.
    pub tags: Vec<String>,
}

/// Why the broker did not do as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// No queue of that name.
    #[error("queue is not existed")]
    NoSuchQueue,
    /// No topic of that name.
    #[error("topic is not existed")]
    NoSuchTopic,
    /// The name is taken by a queue or subscription that is set otherwise.
    #[error("{0} is already existed")]
    AlreadyExists(&'static str),
    /// The message was not taken.
    #[error(transparent)]
    Send(#[from] SendError),
}

/// All queues and topics.
#[derive(Default)]
pub struct Broker {
    queues: BTreeMap<String, NamedQueue>,
    topics: BTreeMap<String, Vec<Subscription>>,
    next_id: u64,
}

impl Broker {
    /// Makes a queue. Making it again with the same attributes changes nothing.
    ///
    /// # Errors
    /// It exists with other attributes.
    pub fn create_queue(
        &mut self,
        now: UnixMillis,
        name: &str,
        attributes: Attributes,
    ) -> Result<&NamedQueue, BrokerError> {
        if !self.queues.contains_key(name) {
            let id = format!("queue-{}", self.fresh_id());
            let queue = Queue::new(attributes);
            let named = NamedQueue { queue, id, created_at: now, modified_at: now };
            self.queues.insert(name.to_owned(), named);
        }
        let named = &self.queues[name];
        match named.queue.attributes() == &attributes {
            true => Ok(named),
            false => Err(BrokerError::AlreadyExists("queue")),
        }
    }

    /// The queue of that name.
    ///
    /// # Errors
    /// There is none.
    pub fn queue(&mut self, name: &str) -> Result<&mut NamedQueue, BrokerError> {
        self.queues.get_mut(name).ok_or(BrokerError::NoSuchQueue)
    }

    /// Deletes a queue with its messages and the subscriptions that lead to it.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn delete_queue(&mut self, name: &str) -> Result<(), BrokerError> {
        self.queues.remove(name).ok_or(BrokerError::NoSuchQueue)?;
        for subscriptions in self.topics.values_mut() {
            subscriptions.retain(|subscription| subscription.queue != name);
        }
        Ok(())
    }

    /// All queues by name.
    pub fn queues(&self) -> impl Iterator<Item = (&str, &NamedQueue)> {
        self.queues.iter().map(|(name, queue)| (name.as_str(), queue))
    }

    /// Sends one message to a queue and returns its id.
    ///
    /// # Errors
    /// No such queue, or it refuses the message.
    pub fn send(
        &mut self,
        now: UnixMillis,
        queue: &str,
        body: &str,
        delay_seconds: u32,
    ) -> Result<String, BrokerError> {
        let id = self.fresh_message_id();
        self.queue(queue)?.queue.send(now, id.clone(), body.to_owned(), delay_seconds)?;
        Ok(id)
    }

    /// Makes a topic; making it again changes nothing.
    pub fn create_topic(&mut self, name: &str) {
        self.topics.entry(name.to_owned()).or_default();
    }

    /// Whether there is a topic of that name.
    pub fn has_topic(&self, name: &str) -> bool {
        self.topics.contains_key(name)
    }

    /// Lets `topic` pass messages on to a queue.
    ///
    /// # Errors
    /// No such topic or queue, or a subscription of that name that is set otherwise.
    pub fn subscribe(
        &mut self,
        topic: &str,
        subscription: Subscription,
    ) -> Result<(), BrokerError> {
        self.queue(&subscription.queue)?;
        let subscriptions = self.topics.get_mut(topic).ok_or(BrokerError::NoSuchTopic)?;
        match subscriptions.iter().find(|existing| existing.name == subscription.name) {
            Some(existing) if *existing == subscription => Ok(()),
            Some(_) => Err(BrokerError::AlreadyExists("subscription")),
            None => {
                subscriptions.push(subscription);
                Ok(())
            }
        }
    }

    /// Publishes one message: each queue whose subscription matches a tag gets a copy. Returns the
    /// message id and the names of those queues.
    ///
    /// # Errors
    /// No such topic, or a queue refuses the message.
    pub fn publish(
        &mut self,
        now: UnixMillis,
        topic: &str,
        body: &str,
        tags: &[&str],
    ) -> Result<(String, Vec<String>), BrokerError> {
        let subscriptions = self.topics.get(topic).ok_or(BrokerError::NoSuchTopic)?;
        let queues: Vec<String> = subscriptions
            .iter()
            .filter(|s| s.tags.is_empty() || s.tags.iter().any(|tag| tags.contains(&tag.as_str())))
            .map(|s| s.queue.clone())
            .collect();
        let id = self.fresh_message_id();
        for queue in &queues {
            self.queue(queue)?.queue.send(now, id.clone(), body.to_owned(), 0)?;
        }
        Ok((id, queues))
    }

    fn fresh_message_id(&mut self) -> String {
        format!("Msg-{}", self.fresh_id())
    }

    fn fresh_id(&mut self) -> String {
        self.next_id += 1;
        format!("{:08X}", self.next_id)
    }
}

/// A queue as the command line declares it: `NAME[:KEY=VALUE,…]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSpec {
    /// Name of the queue.
    pub name: String,
    /// What it is set to.
    pub attributes: Attributes,
}

impl FromStr for QueueSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const KEYS: &str = "visibility_timeout, max_unacked, polling_wait, rewind, \
                            max_message_bytes, max_messages";
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let mut attributes = Attributes::default();
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let (key, value) =
                setting.split_once('=').ok_or(format!("{setting:?} is not KEY=VALUE"))?;
            let field = match key {
                "visibility_timeout" => &mut attributes.visibility_timeout_seconds,
                "max_unacked" => &mut attributes.max_unacked_seconds,
                "polling_wait" => &mut attributes.polling_wait_seconds,
                "rewind" => &mut attributes.rewind_seconds,
                "max_message_bytes" => &mut attributes.max_message_bytes,
                "max_messages" => &mut attributes.max_messages,
                _ => return Err(format!("there is no {key:?}; the keys are {KEYS}")),
            };
            *field = value.parse().map_err(|_| format!("{key}={value:?} is not a number"))?;
        }
        attributes.check().map_err(|name| format!("{name} is out of its range"))?;
        Ok(Self { name: checked_name(name)?, attributes })
    }
}

/// A topic as the command line declares it: `NAME[:QUEUE[=TAG|TAG…],…]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSpec {
    /// Name of the topic.
    pub name: String,
    /// The queues that it passes messages on to.
    pub subscriptions: Vec<Subscription>,
}

impl FromStr for TopicSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, subscriptions) = text.split_once(':').unwrap_or((text, ""));
        let subscriptions = subscriptions
            .split(',')
            .filter(|subscription| !subscription.is_empty())
            .map(|subscription| {
                let (queue, tags) = subscription.split_once('=').unwrap_or((subscription, ""));
                let tags = tags.split('|').filter(|tag| !tag.is_empty()).map(str::to_owned);
                let queue = checked_name(queue)?;
                Ok(Subscription { name: queue.clone(), queue, tags: tags.collect() })
            })
            .collect::<Result<_, String>>()?;
        Ok(Self { name: checked_name(name)?, subscriptions })
    }
}

fn checked_name(name: &str) -> Result<String, String> {
    match is_valid_name(name) {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "{name:?} is not a name: it must begin with a letter and hold letters, digits and -, \
             64 at most"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_declared_by_name_and_settings() {
        let spec: QueueSpec = "orders:visibility_timeout=5,max_unacked=60".parse().unwrap();
        assert_eq!(spec.name, "orders");
        assert_eq!(spec.attributes.visibility_timeout_seconds, 5);
        assert_eq!(spec.attributes.max_unacked_seconds, 60);
        assert_eq!("q".parse::<QueueSpec>().unwrap().attributes, Attributes::default());
        for bad in ["", "1q", "q:visibility_timeout", "q:x=1", "q:rewind=x", "q:max_unacked=1"] {
            assert!(bad.parse::<QueueSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_topic_passes_messages_on_by_tag() {
        let mut broker = Broker::default();
        for queue in ["all", "points"] {
            broker.create_queue(0, queue, Attributes::default()).unwrap();
        }
        let spec: TopicSpec = "events:all,points=award|refund".parse().unwrap();
        broker.create_topic(&spec.name);
        for subscription in spec.subscriptions {
            broker.subscribe("events", subscription).unwrap();
        }
        let mut publish = |tags: &[&str]| broker.publish(0, "events", "x", tags).unwrap().1;
        assert_eq!(publish(&[]), ["all"]);
        assert_eq!(publish(&["refund"]), ["all", "points"]);
        assert_eq!(publish(&["other"]), ["all"]);
        let points = &mut broker.queue("points").unwrap().queue;
        assert_eq!(points.receive(0, 16).len(), 1);
        assert_eq!(broker.publish(0, "none", "x", &[]), Err(BrokerError::NoSuchTopic));
    }

    #[test]
    fn making_a_queue_again_is_harmless_unless_it_differs() {
        let mut broker = Broker::default();
        let first = broker.create_queue(0, "q", Attributes::default()).unwrap().id.clone();
        let again = broker.create_queue(0, "q", Attributes::default()).unwrap().id.clone();
        assert_eq!(first, again);
        let other = Attributes { rewind_seconds: 1, ..Attributes::default() };
        let error = broker.create_queue(0, "q", other).err();
        assert_eq!(error, Some(BrokerError::AlreadyExists("queue")));
    }
}
