//! Addresses that outlive the actor behind them.

use std::sync::{Arc, PoisonError, RwLock};

use actix::dev::ToEnvelope;
use actix::{Actor, Addr, Handler, Message};

/// A lasting way to an actor: whoever restarts the actor points the link at the new one, and the
/// holders of the link never notice. While there is no actor, what is sent is dropped, which for a
/// delivery means that the queue brings it again.
pub struct Link<A: Actor>(Arc<RwLock<Option<Addr<A>>>>);

impl<A: Actor> Link<A> {
    /// A link that leads nowhere yet.
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Points the link at an actor.
    pub fn point_at(&self, address: Addr<A>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }

    /// Points the link nowhere.
    pub fn forget(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The actor that the link points at now.
    pub fn address(&self) -> Option<Addr<A>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends without waiting. Memory is bounded by the permits that travel in the messages, not by
    /// the mailbox.
    pub fn send<M>(&self, message: M)
    where
        M: Message + Send + 'static,
        M::Result: Send,
        A: Handler<M>,
        A::Context: ToEnvelope<A, M>,
    {
        if let Some(address) = self.address() {
            address.do_send(message);
        }
    }
}

impl<A: Actor> Clone for Link<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
