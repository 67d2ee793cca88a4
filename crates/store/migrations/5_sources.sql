-- Where packets of a principal, or of one of its delegations, may come from: prefixes in ascending order with a space between, none for
-- any. `delegates` says of a principal which sources its delegations may name, `own` or `any`.
CREATE TABLE source (
    id BYTEA PRIMARY KEY,
    principal BIGINT NOT NULL,
    delegation BIGINT,
    prefixes TEXT NOT NULL,
    delegates TEXT NOT NULL,
    change BIGINT NOT NULL,
    made BIGINT NOT NULL,
    content BYTEA NOT NULL,
    mac BYTEA NOT NULL
);
CREATE INDEX source_principal ON source (principal);
