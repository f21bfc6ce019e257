DROP TABLE discarded_message;
DROP TABLE horizon;
ALTER TABLE held_message DROP INDEX held_message_event, DROP INDEX held_message_due,
    DROP COLUMN next_retry_at, DROP COLUMN attempts;
ALTER TABLE processed_event DROP INDEX processed_event_purge, DROP COLUMN payload, DROP COLUMN event_time;
