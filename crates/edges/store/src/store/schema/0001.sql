-- Who and what an entry is booked on, once each: entries and sums carry its number. '' means none.
CREATE TABLE subject (
    subject      INTEGER PRIMARY KEY,
    team         TEXT NOT NULL,
    issuer       TEXT NOT NULL,
    caller       TEXT NOT NULL,
    key          TEXT NOT NULL,
    alias        TEXT NOT NULL,
    served_alias TEXT NOT NULL,
    model        TEXT NOT NULL,
    UNIQUE (team, issuer, caller, key, alias, served_alias, model)
) STRICT;

-- One row per record of a request. Kind 0 is how the request ended: at most one per id, by the primary key. Ids sort by
-- time, so that rows are appended. `detail` is what is shown but never summed: fields with | between them, see row.rs.
CREATE TABLE ledger (
    id            TEXT    NOT NULL,
    kind          INTEGER NOT NULL,
    at_ms         INTEGER NOT NULL,
    subject       INTEGER NOT NULL,
    outcome       TEXT    NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    detail        TEXT    NOT NULL,
    PRIMARY KEY (id, kind)
) STRICT, WITHOUT ROWID;

CREATE INDEX ledger_at ON ledger (at_ms);

-- Sums of the ledger per quarter of an hour and subject, changed in the transaction that adds the entries. A quarter of
-- an hour, because every zone's days and hours begin on one.
CREATE TABLE usage (
    quarter       INTEGER NOT NULL,
    subject       INTEGER NOT NULL,
    requests      INTEGER NOT NULL,
    ok            INTEGER NOT NULL,
    failed        INTEGER NOT NULL,
    cancelled     INTEGER NOT NULL,
    orphaned      INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    PRIMARY KEY (quarter, subject)
) STRICT, WITHOUT ROWID;

-- For people with a SQL prompt.
CREATE VIEW entries AS
SELECT l.id, l.kind, l.at_ms, s.team, s.issuer, s.caller, s.key, s.alias, s.served_alias, s.model, l.outcome,
       l.prompt_tokens, l.cached_tokens, l.output_tokens, l.detail
FROM ledger l JOIN subject s USING (subject);

CREATE TABLE keys (
    id             TEXT PRIMARY KEY NOT NULL,
    version        INTEGER NOT NULL,
    mac            BLOB,
    previous_mac   BLOB,
    previous_until INTEGER,
    sha256         BLOB UNIQUE,
    team           TEXT NOT NULL,
    caller         TEXT NOT NULL,
    aliases        TEXT,
    limits         TEXT NOT NULL,
    admin          INTEGER NOT NULL,
    created_ms     INTEGER NOT NULL,
    expires_ms     INTEGER,
    revoked_ms     INTEGER,
    last4          TEXT NOT NULL,
    last_used_ms   INTEGER
) STRICT;

CREATE TABLE shift (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    name       TEXT NOT NULL,
    generation INTEGER NOT NULL,
    who        TEXT NOT NULL,
    at_ms      INTEGER NOT NULL
) STRICT;

CREATE TABLE audit (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms   INTEGER NOT NULL,
    who     TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail  TEXT NOT NULL
) STRICT;

CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'audit rows are never changed'); END;

CREATE TRIGGER audit_is_never_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'audit rows are never deleted'); END;

-- What other processes have to read anew: raised in the transaction of the change. Apart from `PRAGMA data_version`,
-- which every ledger commit moves too.
CREATE TABLE generation (
    topic      TEXT PRIMARY KEY NOT NULL,
    generation INTEGER NOT NULL
) STRICT;

INSERT INTO generation (topic, generation) VALUES ('keys', 0), ('shift', 0);
