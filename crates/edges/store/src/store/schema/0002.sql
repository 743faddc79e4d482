-- What a key was made as, so that a rotation makes the same again: until now it was not stored, and every new secret
-- said `tg_live_`.
ALTER TABLE keys ADD COLUMN kind TEXT NOT NULL DEFAULT 'live' CHECK (kind IN ('live', 'test'));

-- Milliseconds from the making of a secret to its end; NULL means without end. Until now it was taken from `created_ms`
-- and `expires_ms`, of which a rotation moves only the second: it grew with every rotation. The audit row of the making
-- says what was granted; for a key that has none, what is left is the longest life there is, 90 days.
ALTER TABLE keys ADD COLUMN lifetime_ms INTEGER CHECK (lifetime_ms >= 0);

UPDATE keys SET lifetime_ms = MAX(0, MIN(
    7776000000,
    COALESCE(
        (SELECT a.detail ->> 'expires' FROM audit a WHERE a.action = 'key.create' AND a.subject = keys.id
         ORDER BY a.seq DESC LIMIT 1),
        expires_ms
    ) - created_ms
))
WHERE expires_ms IS NOT NULL;
