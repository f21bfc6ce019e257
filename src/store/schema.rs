diesel::table! {
    processed_event (consumer, event_id) {
        consumer -> Text,
        event_id -> Text,
        event_type -> Text,
        payload_digest -> Binary,
        message_id -> Text,
        occurred_at -> Nullable<Timestamp>,
        processed_at -> Timestamp,
        event_time -> Nullable<Timestamp>,
        payload -> Nullable<Text>,
    }
}

diesel::table! {
    held_message (id) {
        id -> BigInt,
        consumer -> Text,
        queue -> Text,
        hold_key -> Binary,
        message_id -> Text,
        event_id -> Nullable<Text>,
        event_type -> Nullable<Text>,
        state -> Text,
        reason -> Text,
        detail -> Text,
        body -> Binary,
        copies -> BigInt,
        enqueued_at -> Nullable<Timestamp>,
        first_held_at -> Timestamp,
        last_held_at -> Timestamp,
        attempts -> Integer,
        next_retry_at -> Nullable<Timestamp>,
    }
}

diesel::table! {
    #[sql_name = "horizon"]
    horizons (consumer, event_type) {
        consumer -> Text,
        event_type -> Text,
        horizon -> Timestamp,
        event_time -> Text,
    }
}

diesel::table! {
    discarded_message (id) {
        id -> BigInt,
        held_id -> BigInt,
        consumer -> Text,
        queue -> Text,
        message_id -> Text,
        event_id -> Nullable<Text>,
        event_type -> Nullable<Text>,
        reason -> Text,
        detail -> Text,
        copies -> BigInt,
        body_digest -> Binary,
        discarded_by -> Text,
        note -> Text,
        discarded_at -> Timestamp,
    }
}

diesel::allow_tables_to_appear_in_same_query!(held_message, processed_event);
