-- Each ALTER is done once, however often this is run: MySQL has no ADD COLUMN IF NOT EXISTS.
-- event_time is the time that is fixed with the event's id; rows without one are never purged. payload is
-- JSON text, where the event type keeps it.
SET @alter_processed_event = IF(
    (SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'processed_event' AND column_name = 'event_time') = 0,
    'ALTER TABLE processed_event ADD COLUMN event_time DATETIME(6), ADD COLUMN payload LONGTEXT,
        ADD INDEX processed_event_purge (consumer, event_type, event_time)',
    'DO 0');
PREPARE alter_processed_event FROM @alter_processed_event;
EXECUTE alter_processed_event;
DEALLOCATE PREPARE alter_processed_event;

-- Tries from the table, and when the next is due while the state is 'retrying'.
SET @alter_held_message = IF(
    (SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'held_message' AND column_name = 'attempts') = 0,
    'ALTER TABLE held_message ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0,
        ADD COLUMN next_retry_at DATETIME(6),
        ADD INDEX held_message_due (consumer, state, next_retry_at),
        ADD INDEX held_message_event (consumer, event_id)',
    'DO 0');
PREPARE alter_held_message FROM @alter_held_message;
EXECUTE alter_held_message;
DEALLOCATE PREPARE alter_held_message;

-- Claims of events before the horizon may be gone, so such events are never applied.
CREATE TABLE IF NOT EXISTS horizon (
    consumer   VARBINARY(64)  NOT NULL,
    event_type VARBINARY(255) NOT NULL,
    horizon    DATETIME(6)    NOT NULL,
    -- Where the events' time comes from; another source would tell other times.
    event_time VARCHAR(255)   NOT NULL,
    PRIMARY KEY (consumer, event_type)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Held messages that a person discarded.
CREATE TABLE IF NOT EXISTS discarded_message (
    id           BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    held_id      BIGINT         NOT NULL,
    consumer     VARBINARY(64)  NOT NULL,
    queue        VARBINARY(64)  NOT NULL,
    message_id   MEDIUMTEXT     NOT NULL,
    event_id     VARBINARY(512),
    event_type   VARBINARY(255),
    reason       VARCHAR(64)    NOT NULL,
    detail       MEDIUMTEXT     NOT NULL,
    copies       BIGINT         NOT NULL,
    body_digest  BINARY(32)     NOT NULL,
    discarded_by MEDIUMTEXT     NOT NULL,
    note         MEDIUMTEXT     NOT NULL,
    discarded_at DATETIME(6)    NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
