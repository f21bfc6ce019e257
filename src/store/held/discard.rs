//! Giving a held message up, with a trace.

use diesel::prelude::*;
use diesel::result::QueryResult;

use super::super::connection::DbConnection;
use super::super::schema::{discarded_message as d, held_message as h};
use super::HeldMessage;

/// Who gives a message up, and why.
#[derive(Debug, Clone, Copy)]
pub struct Discard<'a> {
    /// The person, as far as is known.
    pub by: &'a str,
    /// Why, in his words.
    pub note: &'a str,
    /// SHA-256 of the body.
    pub body_digest: &'a [u8],
}

/// Moves what is known of a message, but for its body, to `discarded_message`. Returns whether it was
/// still held. Belongs in a transaction.
///
/// # Errors
/// The database's.
pub fn discard(
    tx: &mut DbConnection,
    consumer: &str,
    message: &HeldMessage,
    discard: Discard<'_>,
) -> QueryResult<bool> {
    if diesel::delete(h::table.find(message.id)).execute(tx)? == 0 {
        return Ok(false);
    }
    diesel::insert_into(d::table)
        .values((
            d::held_id.eq(message.id),
            d::consumer.eq(consumer),
            d::queue.eq(&message.queue),
            d::message_id.eq(&message.message_id),
            d::event_id.eq(&message.event_id),
            d::event_type.eq(&message.event_type),
            d::reason.eq(&message.reason),
            d::detail.eq(&message.detail),
            d::copies.eq(message.copies),
            d::body_digest.eq(discard.body_digest),
            d::discarded_by.eq(discard.by),
            d::note.eq(discard.note),
            d::discarded_at.eq(chrono::Utc::now().naive_utc()),
        ))
        .execute(tx)?;
    Ok(true)
}
