-- The controller's own: which generation is the highest that was ever given out (a lower one may write nothing more),
-- where each alias goes, what was said by hand, and what became of every switch.
CREATE TABLE fence (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    highest INTEGER NOT NULL
) STRICT;

INSERT INTO fence (one, highest) VALUES (1, 0);

-- One row per alias. No targets: it goes nowhere, until `until_ms` if that is known and it is only in a gap.
CREATE TABLE routes (
    alias      TEXT PRIMARY KEY NOT NULL,
    targets    TEXT NOT NULL,
    shift      TEXT NOT NULL,
    until_ms   INTEGER,
    generation INTEGER NOT NULL,
    at_ms      INTEGER NOT NULL
) STRICT;

-- A shift that somebody wants instead of the timetable's.
CREATE TABLE override (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    shift    TEXT NOT NULL,
    made_ms  INTEGER NOT NULL,
    until_ms INTEGER,
    who      TEXT NOT NULL,
    verb     TEXT NOT NULL
) STRICT;

-- Present while nothing new may be begun.
CREATE TABLE pause (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    at_ms INTEGER NOT NULL,
    who   TEXT NOT NULL
) STRICT;

-- `number` is the generation in which a switch began and stays; `generation` is the one that carries it now.
CREATE TABLE switches (
    number     INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    from_shift TEXT NOT NULL,
    to_shift   TEXT NOT NULL,
    at_ms      INTEGER NOT NULL,
    why        TEXT NOT NULL,
    mode       TEXT NOT NULL CHECK (mode IN ('runs', 'paused', 'aborts')),
    failed     TEXT NOT NULL,
    outcome    TEXT CHECK (outcome IN ('complete', 'partly', 'aborted')),
    started_ms INTEGER NOT NULL,
    ended_ms   INTEGER,
    plan       TEXT NOT NULL,
    record     TEXT NOT NULL
) STRICT;

CREATE INDEX switches_outcome ON switches (outcome, number);

-- Written before an effect is carried out, answered once afterwards, otherwise never changed.
CREATE TABLE steps (
    generation  INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    effect      TEXT    NOT NULL,
    at_ms       INTEGER NOT NULL,
    outcome     TEXT,
    answered_ms INTEGER,
    PRIMARY KEY (generation, number)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER steps_are_answered_once BEFORE UPDATE ON steps
WHEN OLD.outcome IS NOT NULL OR NEW.effect <> OLD.effect OR NEW.at_ms <> OLD.at_ms
BEGIN SELECT RAISE(ABORT, 'a step is answered once and otherwise never changed'); END;

-- How long the phases of a start and a stop took, by what was started.
CREATE TABLE measured (
    deployment TEXT    NOT NULL,
    revision   TEXT    NOT NULL,
    phases     TEXT    NOT NULL,
    at_ms      INTEGER NOT NULL,
    PRIMARY KEY (deployment, revision)
) STRICT, WITHOUT ROWID;

INSERT INTO generation (topic, generation) VALUES ('routes', 0), ('lifecycle', 0);
