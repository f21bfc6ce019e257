//! PostgreSQL: one statement for all claims, which answers by row.

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
    let found: Vec<(String, Option<Vec<u8>>)> = LookUp { consumer, event_ids }.load(connection)?;
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
