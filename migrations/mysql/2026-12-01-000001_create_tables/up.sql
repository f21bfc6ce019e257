-- Times are UTC. Keys are VARBINARY, for every text collation of MySQL 5.7 takes "a" and "a " for one.
-- Each statement commits by itself, so each can be run again.
CREATE TABLE IF NOT EXISTS processed_event (
    consumer       VARBINARY(64)  NOT NULL,
    event_id       VARBINARY(512) NOT NULL,
    event_type     VARBINARY(255) NOT NULL,
    payload_digest BINARY(32)     NOT NULL,
    message_id     MEDIUMTEXT     NOT NULL,
    occurred_at    DATETIME(6),
    processed_at   DATETIME(6)    NOT NULL,
    PRIMARY KEY (consumer, event_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS held_message (
    id             BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    consumer       VARBINARY(64)  NOT NULL,
    queue          VARBINARY(64)  NOT NULL,
    -- Copies of one message, or of one event, fold into one row.
    hold_key       BINARY(32)     NOT NULL,
    message_id     MEDIUMTEXT     NOT NULL,
    event_id       VARBINARY(512),
    event_type     VARBINARY(255),
    state          VARCHAR(16)    NOT NULL CHECK (state IN ('retrying', 'quarantined')),
    reason         VARCHAR(64)    NOT NULL,
    detail         MEDIUMTEXT     NOT NULL,
    body           LONGBLOB       NOT NULL,
    copies         BIGINT         NOT NULL DEFAULT 1,
    enqueued_at    DATETIME(6),
    first_held_at  DATETIME(6)    NOT NULL,
    last_held_at   DATETIME(6)    NOT NULL,
    UNIQUE (consumer, queue, hold_key)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
