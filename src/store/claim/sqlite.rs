//! SQLite: a statement a claim.

use super::*;

/// In-process, so a statement a row costs no round trip.
pub fn insert(
    connection: &mut SqliteConnection,
    consumer: &str,
    claims: &[NewClaim<'_>],
    processed_at: NaiveDateTime,
) -> QueryResult<HashSet<String>> {
    use processed_event as p;
    let mut fresh = HashSet::with_capacity(claims.len());
    for claim in claims {
        let inserted = diesel::insert_into(p::table)
            .values((
                p::consumer.eq(consumer),
                p::event_id.eq(claim.event_id),
                p::event_type.eq(claim.event_type),
                p::payload_digest.eq(claim.payload_digest),
                p::message_id.eq(claim.message_id),
                p::occurred_at.eq(claim.occurred_at),
                p::processed_at.eq(processed_at),
                p::event_time.eq(claim.event_time),
                p::payload.eq(claim.payload),
            ))
            .on_conflict((p::consumer, p::event_id))
            .do_nothing()
            .execute(connection)?;
        if inserted == 1 {
            fresh.insert(claim.event_id.to_owned());
        }
    }
    Ok(fresh)
}
