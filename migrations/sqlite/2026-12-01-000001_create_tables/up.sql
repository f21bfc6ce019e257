-- Times are UTC. Text compares byte by byte (the BINARY collation is SQLite's default).
CREATE TABLE processed_event (
    consumer       TEXT      NOT NULL,
    event_id       TEXT      NOT NULL,
    event_type     TEXT      NOT NULL,
    payload_digest BLOB      NOT NULL CHECK (length(payload_digest) = 32),
    message_id     TEXT      NOT NULL,
    occurred_at    TIMESTAMP,
    processed_at   TIMESTAMP NOT NULL,
    PRIMARY KEY (consumer, event_id)
) WITHOUT ROWID;

CREATE TABLE held_message (
    id             INTEGER   NOT NULL PRIMARY KEY AUTOINCREMENT,
    consumer       TEXT      NOT NULL,
    queue          TEXT      NOT NULL,
    -- Copies of one message, or of one event, fold into one row.
    hold_key       BLOB      NOT NULL CHECK (length(hold_key) = 32),
    message_id     TEXT      NOT NULL,
    event_id       TEXT,
    event_type     TEXT,
    state          TEXT      NOT NULL CHECK (state IN ('retrying', 'quarantined')),
    reason         TEXT      NOT NULL,
    detail         TEXT      NOT NULL,
    body           BLOB      NOT NULL,
    copies         BIGINT    NOT NULL DEFAULT 1,
    enqueued_at    TIMESTAMP,
    first_held_at  TIMESTAMP NOT NULL,
    last_held_at   TIMESTAMP NOT NULL,
    UNIQUE (consumer, queue, hold_key)
);
