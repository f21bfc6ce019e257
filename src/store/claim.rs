//! Claims: one row per event in `processed_event`, inserted in the transaction that applies the event.

use std::collections::{HashMap, HashSet};

use chrono::NaiveDateTime;
use diesel::prelude::*;
use diesel::result::QueryResult;

use super::connection::DbConnection;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
use super::schema::processed_event;

/// The claim of one event.
#[derive(Debug, Clone, Copy)]
pub struct NewClaim<'a> {
    /// The idempotency key; distinct within one call of [`claim`].
    pub event_id: &'a str,
    /// The event's type.
    pub event_type: &'a str,
    /// SHA-256 of the event.
    pub payload_digest: &'a [u8],
    /// The message that brought it.
    pub message_id: &'a str,
    /// When it happened, UTC, by the producer's word.
    pub occurred_at: Option<NaiveDateTime>,
    /// The time that is fixed with the id, UTC; a row without one is never purged.
    pub event_time: Option<NaiveDateTime>,
    /// The payload, where it is to be kept.
    pub payload: Option<&'a str>,
}

/// What a claim found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The row is new: the event is to be applied in this transaction.
    Fresh,
    /// The event was applied before, with this digest.
    Known(Vec<u8>),
    /// The row was there and vanished again (a purge); the transaction must be redone.
    Vanished,
}

/// Ids that are claimed now, and digests of those that were before.
struct Found {
    fresh: HashSet<String>,
    known: HashMap<String, Vec<u8>>,
}

/// The digests of the applied ones among some ids, by id; a macro over the connections of two backends.
#[cfg(any(feature = "sqlite", feature = "mysql"))]
macro_rules! digests {
    ($connection:expr, $consumer:expr, $ids:expr) => {{
        let ids: Vec<&str> = $ids;
        let rows: Vec<(String, Vec<u8>)> = match ids.is_empty() {
            true => Vec::new(),
            false => processed_event::table
                .filter(processed_event::consumer.eq($consumer))
                .filter(processed_event::event_id.eq_any(ids))
                .select((processed_event::event_id, processed_event::payload_digest))
                .load($connection)?,
        };
        rows.into_iter().collect::<HashMap<String, Vec<u8>>>()
    }};
}

/// Claims events for `consumer`; the answers are in the claims' order. Rows are locked in the order of
/// their ids, whatever order they come in, so that two batches cannot wait for each other.
///
/// Only a conflict on the claim's own key counts as known; any other violation is an error.
///
/// Takes one round trip if all are fresh, and another for the digests of those that are known.
/// `expects_known` is a guess at whether there are any. MySQL takes two more round trips where it is
/// wrong; the answers are the same.
///
/// # Errors
/// The database's.
pub fn claim(
    connection: &mut DbConnection,
    consumer: &str,
    claims: &[NewClaim<'_>],
    expects_known: bool,
) -> QueryResult<Vec<Claim>> {
    #[cfg(not(feature = "mysql"))]
    let _ = expects_known;
    let processed_at = chrono::Utc::now().naive_utc();
    let mut sorted = claims.to_vec();
    sorted.sort_unstable_by_key(|claim| claim.event_id);
    let Found { fresh, known } = match connection {
        #[cfg(feature = "sqlite")]
        DbConnection::Sqlite(inner) => {
            let fresh = sqlite::insert(inner, consumer, &sorted, processed_at)?;
            let known = digests!(inner, consumer, ids_without(&sorted, &fresh));
            Found { fresh, known }
        }
        #[cfg(feature = "postgres")]
        DbConnection::Postgres(inner) => {
            let fresh = postgres::insert(inner, consumer, &sorted, processed_at)?;
            let known = postgres::digests(inner, consumer, ids_without(&sorted, &fresh))?;
            Found { fresh, known }
        }
        #[cfg(feature = "mysql")]
        DbConnection::Mysql(inner) => {
            mysql::claim(inner, consumer, &sorted, processed_at, expects_known)?
        }
    };
    let answer = |claim: &NewClaim<'_>| match known.get(claim.event_id) {
        _ if fresh.contains(claim.event_id) => Claim::Fresh,
        Some(digest) => Claim::Known(digest.clone()),
        None => Claim::Vanished,
    };
    Ok(claims.iter().map(answer).collect())
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn ids_without<'a>(claims: &[NewClaim<'a>], known: &HashSet<String>) -> Vec<&'a str> {
    claims.iter().map(|claim| claim.event_id).filter(|id| !known.contains(*id)).collect()
}

#[cfg(feature = "sqlite")]
mod sqlite {
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
}

#[cfg(feature = "postgres")]
mod postgres {
    use diesel::pg::Pg;
    use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
    use diesel::sql_types::{Array, Binary, Nullable, Text, Timestamp};

    use super::*;

    /// One statement for a batch of any size, prepared once: its text does not depend on the size.
    struct InsertClaims<'a> {
        consumer: &'a str,
        processed_at: NaiveDateTime,
        event_ids: Vec<&'a str>,
        event_types: Vec<&'a str>,
        digests: Vec<&'a [u8]>,
        message_ids: Vec<&'a str>,
        occurred_at: Vec<Option<NaiveDateTime>>,
        event_times: Vec<Option<NaiveDateTime>>,
        payloads: Vec<Option<&'a str>>,
    }

    impl QueryFragment<Pg> for InsertClaims<'_> {
        fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
            out.push_sql(
                "INSERT INTO processed_event (consumer, processed_at, event_id, event_type, \
                 payload_digest, message_id, occurred_at, event_time, payload) SELECT ",
            );
            out.push_bind_param::<Text, _>(self.consumer)?;
            out.push_sql(", ");
            out.push_bind_param::<Timestamp, _>(&self.processed_at)?;
            out.push_sql(", * FROM unnest(");
            out.push_bind_param::<Array<Text>, _>(&self.event_ids)?;
            out.push_sql(", ");
            out.push_bind_param::<Array<Text>, _>(&self.event_types)?;
            out.push_sql(", ");
            out.push_bind_param::<Array<Binary>, _>(&self.digests)?;
            out.push_sql(", ");
            out.push_bind_param::<Array<Text>, _>(&self.message_ids)?;
            out.push_sql(", ");
            out.push_bind_param::<Array<Nullable<Timestamp>>, _>(&self.occurred_at)?;
            out.push_sql(", ");
            out.push_bind_param::<Array<Nullable<Timestamp>>, _>(&self.event_times)?;
            out.push_sql(", ");
            out.push_bind_param::<Array<Nullable<Text>>, _>(&self.payloads)?;
            out.push_sql(") ON CONFLICT (consumer, event_id) DO NOTHING RETURNING event_id");
            Ok(())
        }
    }

    impl QueryId for InsertClaims<'_> {
        type QueryId = InsertClaims<'static>;
    }

    impl Query for InsertClaims<'_> {
        type SqlType = Text;
    }

    impl<C> RunQueryDsl<C> for InsertClaims<'_> {}

    /// A look-up an id: for `event_id = ANY(…)` PostgreSQL reads all of the consumer's rows as long as it
    /// has no statistics of the table, which grows fast in its first minutes.
    struct LookUp<'a> {
        consumer: &'a str,
        event_ids: Vec<&'a str>,
    }

    impl QueryFragment<Pg> for LookUp<'_> {
        fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
            out.push_sql(
                "SELECT given.event_id, (SELECT payload_digest FROM processed_event AS p \
                 WHERE p.consumer = ",
            );
            out.push_bind_param::<Text, _>(self.consumer)?;
            out.push_sql(" AND p.event_id = given.event_id) FROM unnest(");
            out.push_bind_param::<Array<Text>, _>(&self.event_ids)?;
            out.push_sql(") AS given (event_id)");
            Ok(())
        }
    }

    impl QueryId for LookUp<'_> {
        type QueryId = LookUp<'static>;
    }

    impl Query for LookUp<'_> {
        type SqlType = (Text, Nullable<Binary>);
    }

    impl<C> RunQueryDsl<C> for LookUp<'_> {}

    /// The digests of the applied ones among some ids, by id.
    pub fn digests(
        connection: &mut PgConnection,
        consumer: &str,
        event_ids: Vec<&str>,
    ) -> QueryResult<HashMap<String, Vec<u8>>> {
        if event_ids.is_empty() {
            return Ok(HashMap::new());
        }
        let found: Vec<(String, Option<Vec<u8>>)> =
            LookUp { consumer, event_ids }.load(connection)?;
        Ok(found.into_iter().filter_map(|(id, digest)| Some((id, digest?))).collect())
    }

    pub fn insert(
        connection: &mut PgConnection,
        consumer: &str,
        claims: &[NewClaim<'_>],
        processed_at: NaiveDateTime,
    ) -> QueryResult<HashSet<String>> {
        let statement = InsertClaims {
            consumer,
            processed_at,
            event_ids: claims.iter().map(|claim| claim.event_id).collect(),
            event_types: claims.iter().map(|claim| claim.event_type).collect(),
            digests: claims.iter().map(|claim| claim.payload_digest).collect(),
            message_ids: claims.iter().map(|claim| claim.message_id).collect(),
            occurred_at: claims.iter().map(|claim| claim.occurred_at).collect(),
            event_times: claims.iter().map(|claim| claim.event_time).collect(),
            payloads: claims.iter().map(|claim| claim.payload).collect(),
        };
        Ok(statement.load::<String>(connection)?.into_iter().collect())
    }
}

#[cfg(feature = "mysql")]
mod mysql {
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
}
