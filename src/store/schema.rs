diesel::table! {
    processed_event (consumer, event_id) {
        consumer -> Text,
        event_id -> Text,
        event_type -> Text,
        payload_digest -> Binary,
        message_id -> Text,
        occurred_at -> Nullable<Timestamp>,
        processed_at -> Timestamp,
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
    }
}
