//! MySQL and MariaDB: one plain INSERT, which answers as a whole.

use diesel::mysql::Mysql;
use diesel::query_builder::{AstPass, QueryFragment, QueryId};
use diesel::result::{DatabaseErrorKind, Error};
use diesel::sql_types::{Binary, Nullable, Text, Timestamp};

use super::*;

/// MySQL tells of a statement with many rows only how many it inserted. So they are inserted by one
/// plain statement, which fails as a whole and leaves nothing if one of them is known; then what is
/// known is looked up, and the rest inserted. When another transaction is faster with one of them,
/// the next look-up finds that row, for each statement of a READ COMMITTED transaction sees what is
/// committed by then. Nothing here turns an error into silence, as INSERT IGNORE and ON DUPLICATE
/// KEY UPDATE would for every unique key.
pub fn claim(
    connection: &mut MysqlConnection,
    consumer: &str,
    claims: &[NewClaim<'_>],
    processed_at: NaiveDateTime,
    expects_known: bool,
) -> QueryResult<Found> {
    let all: Vec<&str> = claims.iter().map(|claim| claim.event_id).collect();
    let mut known = match expects_known {
        true => digests!(connection, consumer, all.clone()),
        false => HashMap::new(),
    };
    loop {
        let unknown: Vec<&NewClaim<'_>> =
            claims.iter().filter(|claim| !known.contains_key(claim.event_id)).collect();
        let Err(error) = insert(connection, consumer, &unknown, processed_at) else {
            let fresh = unknown.iter().map(|claim| claim.event_id.to_owned()).collect();
            return Ok(Found { fresh, known });
        };
        if !is_duplicate_claim(&error) {
            return Err(error);
        }
        let before = known.len();
        known = digests!(connection, consumer, all.clone());
        if known.len() <= before {
            // The row that was in the way is gone again: neither fresh nor known.
            return Ok(Found { fresh: HashSet::new(), known });
        }
    }
}

/// One plain statement. Its text depends on how many claims there are; it stays prepared, which
/// saves a round trip, for numbers that are powers of two: a lone event, and full batches as they
/// are by default. More of these texts would cost the server memory for each connection.
struct InsertClaims<'a> {
    consumer: &'a str,
    processed_at: NaiveDateTime,
    claims: &'a [&'a NewClaim<'a>],
}

impl QueryFragment<Mysql> for InsertClaims<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Mysql>) -> QueryResult<()> {
        if !self.claims.len().is_power_of_two() {
            out.unsafe_to_cache_prepared();
        }
        out.push_sql(
            "INSERT INTO processed_event (consumer, processed_at, event_id, event_type, \
             payload_digest, message_id, occurred_at, event_time, payload) VALUES ",
        );
        for (index, claim) in self.claims.iter().enumerate() {
            out.push_sql(if index == 0 { "(" } else { ", (" });
            out.push_bind_param::<Text, _>(self.consumer)?;
            out.push_sql(", ");
            out.push_bind_param::<Timestamp, _>(&self.processed_at)?;
            out.push_sql(", ");
            out.push_bind_param::<Text, _>(claim.event_id)?;
            out.push_sql(", ");
            out.push_bind_param::<Text, _>(claim.event_type)?;
            out.push_sql(", ");
            out.push_bind_param::<Binary, _>(claim.payload_digest)?;
            out.push_sql(", ");
            out.push_bind_param::<Text, _>(claim.message_id)?;
            out.push_sql(", ");
            out.push_bind_param::<Nullable<Timestamp>, _>(&claim.occurred_at)?;
            out.push_sql(", ");
            out.push_bind_param::<Nullable<Timestamp>, _>(&claim.event_time)?;
            out.push_sql(", ");
            out.push_bind_param::<Nullable<Text>, _>(&claim.payload)?;
            out.push_sql(")");
        }
        Ok(())
    }
}

impl QueryId for InsertClaims<'_> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<C> RunQueryDsl<C> for InsertClaims<'_> {}

fn insert(
    connection: &mut MysqlConnection,
    consumer: &str,
    claims: &[&NewClaim<'_>],
    processed_at: NaiveDateTime,
) -> QueryResult<()> {
    match claims.is_empty() {
        true => Ok(()),
        false => InsertClaims { consumer, processed_at, claims }.execute(connection).map(drop),
    }
}

/// `Duplicate entry '…' for key 'PRIMARY'`, or `'processed_event.PRIMARY'` since MySQL 8.0.19.
fn is_duplicate_claim(error: &Error) -> bool {
    match error {
        Error::DatabaseError(DatabaseErrorKind::UniqueViolation, information) => {
            information.message().ends_with("PRIMARY'")
        }
        _ => false,
    }
}
