-- Times are UTC. Text compares byte by byte (collation "C").
CREATE TABLE processed_event (
    consumer       TEXT COLLATE "C" NOT NULL,
    event_id       TEXT COLLATE "C" NOT NULL,
    event_type     TEXT COLLATE "C" NOT NULL,
    payload_digest BYTEA            NOT NULL CHECK (octet_length(payload_digest) = 32),
    message_id     TEXT             NOT NULL,
    occurred_at    TIMESTAMP,
    processed_at   TIMESTAMP        NOT NULL,
    PRIMARY KEY (consumer, event_id)
);

CREATE TABLE held_message (
    id             BIGINT           NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer       TEXT COLLATE "C" NOT NULL,
    queue          TEXT COLLATE "C" NOT NULL,
    -- Copies of one message, or of one event, fold into one row.
    hold_key       BYTEA            NOT NULL CHECK (octet_length(hold_key) = 32),
    message_id     TEXT             NOT NULL,
    event_id       TEXT COLLATE "C",
    event_type     TEXT COLLATE "C",
    state          TEXT             NOT NULL CHECK (state IN ('retrying', 'quarantined')),
    reason         TEXT             NOT NULL,
    detail         TEXT             NOT NULL,
    body           BYTEA            NOT NULL,
    copies         BIGINT           NOT NULL DEFAULT 1,
    enqueued_at    TIMESTAMP,
    first_held_at  TIMESTAMP        NOT NULL,
    last_held_at   TIMESTAMP        NOT NULL,
    UNIQUE (consumer, queue, hold_key)
);
