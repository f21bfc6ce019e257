DROP TABLE discarded_message;
DROP TABLE horizon;
DROP INDEX held_message_event;
DROP INDEX held_message_due;
ALTER TABLE held_message DROP COLUMN next_retry_at;
ALTER TABLE held_message DROP COLUMN attempts;
DROP INDEX processed_event_purge;
ALTER TABLE processed_event DROP COLUMN payload;
ALTER TABLE processed_event DROP COLUMN event_time;
