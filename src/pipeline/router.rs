//! Turns bodies into events and finds the Applier for each. No I/O.

use std::collections::HashMap;
use std::sync::Arc;

use actix::prelude::*;

use super::applier::Applier;
use super::budget::Budget;
use super::delivery::{Delivery, Hold, Work};
use super::link::Link;
use super::observer::Observation;
use super::quarantine::Quarantine;
use crate::event::{Event, Malformed, Pointer};
use crate::store::HoldReason;

/// The messages of one poll. The answer is how many of them were kept.
#[derive(Message)]
#[rtype(result = "usize")]
pub struct Incoming(pub Vec<Delivery>);

/// Where the events of one type go.
#[derive(Clone)]
pub struct Route {
    /// The type's place among the budget's shares.
    pub share: usize,
    /// One Applier a shard.
    pub shards: Vec<Link<Applier>>,
    /// Where in the payload it says whose event it is.
    pub partition_key: Option<Pointer>,
}

/// The actor, one a queue.
pub struct Router {
    routes: HashMap<String, Route>,
    quarantine: Link<Quarantine>,
    budget: Arc<Budget>,
}

impl Router {
    /// A router over the given routes by event type.
    pub fn new(
        routes: HashMap<String, Route>,
        quarantine: Link<Quarantine>,
        budget: Arc<Budget>,
    ) -> Self {
        Self { routes, quarantine, budget }
    }

    fn route(&self, delivery: Delivery) -> bool {
        match delivery.queue.reader.read(&delivery.message.msg_body) {
            Ok(event) => self.pass_on(event, delivery),
            Err(Malformed(detail)) => {
                let reason = HoldReason::Malformed;
                self.quarantine.send(Hold { delivery, event: None, reason, detail });
                true
            }
        }
    }

    fn pass_on(&self, event: Event, delivery: Delivery) -> bool {
        let Some(route) = self.routes.get(&event.event_type) else {
            let detail = format!("no applier for the event type {:?}", event.event_type);
            let reason = HoldReason::UnknownType;
            self.quarantine.send(Hold { delivery, event: Some(event), reason, detail });
            return true;
        };
        let Some(share) = self.budget.take_share(route.share) else {
            (delivery.queue.observer)(&Observation::Dropped {
                queue: &delivery.queue.name,
                message_id: &delivery.message.msg_id,
                why: "its event type has as many messages in memory as it may",
            });
            return false;
        };
        let place = route.partition_key.as_ref();
        let partition_key = place.and_then(|pointer| event.payload.scalar(pointer));
        let key = partition_key.as_deref().unwrap_or(&event.id);
        let shard = shard_of(key, route.shards.len());
        let work = Work { event, partition_key, delivery, failures: 0, share };
        route.shards[shard].send(work);
        true
    }
}

/// The shard, of so many, to which events of that key go.
pub fn shard_of(key: &str, shards: usize) -> usize {
    (stable_hash(key) % shards as u64) as usize
}

/// FNV-1a, 64 bits: the same in every process and version, so that copies of an event, or events of
/// one partition key, meet in one shard.
fn stable_hash(key: &str) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    key.bytes().fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

impl Actor for Router {
    type Context = Context<Self>;
}

impl Handler<Incoming> for Router {
    type Result = usize;

    fn handle(&mut self, Incoming(deliveries): Incoming, _: &mut Self::Context) -> usize {
        deliveries.into_iter().map(|delivery| usize::from(self.route(delivery))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        // Test vectors of draft-eastlake-fnv.
        for (text, hash) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(stable_hash(text), hash, "{text}");
        }
    }
}
