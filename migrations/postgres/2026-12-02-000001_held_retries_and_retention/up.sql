-- The time that is fixed with the event's id; rows without one are never purged.
ALTER TABLE processed_event ADD COLUMN event_time TIMESTAMP;
-- The payload as JSON text, where the event type keeps it.
ALTER TABLE processed_event ADD COLUMN payload TEXT;
CREATE INDEX processed_event_purge ON processed_event (consumer, event_type, event_time)
    WHERE event_time IS NOT NULL;

-- Tries from the table, and when the next is due while the state is 'retrying'.
ALTER TABLE held_message ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE held_message ADD COLUMN next_retry_at TIMESTAMP;
CREATE INDEX held_message_due ON held_message (consumer, state, next_retry_at);
CREATE INDEX held_message_event ON held_message (consumer, event_id);

-- Claims of events before the horizon may be gone, so such events are never applied.
CREATE TABLE horizon (
    consumer   TEXT COLLATE "C" NOT NULL,
    event_type TEXT COLLATE "C" NOT NULL,
    horizon    TIMESTAMP        NOT NULL,
    -- Where the events' time comes from; another source would tell other times.
    event_time TEXT             NOT NULL,
    PRIMARY KEY (consumer, event_type)
);

-- Held messages that a person discarded.
CREATE TABLE discarded_message (
    id           BIGINT           NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    held_id      BIGINT           NOT NULL,
    consumer     TEXT COLLATE "C" NOT NULL,
    queue        TEXT COLLATE "C" NOT NULL,
    message_id   TEXT             NOT NULL,
    event_id     TEXT COLLATE "C",
    event_type   TEXT COLLATE "C",
    reason       TEXT             NOT NULL,
    detail       TEXT             NOT NULL,
    copies       BIGINT           NOT NULL,
    body_digest  BYTEA            NOT NULL CHECK (octet_length(body_digest) = 32),
    discarded_by TEXT             NOT NULL,
    note         TEXT             NOT NULL,
    discarded_at TIMESTAMP        NOT NULL
);
