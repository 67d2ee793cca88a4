-- Octets a second over all routers to which the holder of a capability limits a delegation of it, beside what is in `rate`.
CREATE TABLE delegation_limit (
    id BYTEA PRIMARY KEY,
    principal BIGINT NOT NULL,
    delegation BIGINT,
    octets_per_second BIGINT NOT NULL,
    burst_octets BIGINT,
    offline TEXT NOT NULL,
    change BIGINT NOT NULL,
    made BIGINT NOT NULL,
    content BYTEA NOT NULL,
    mac BYTEA NOT NULL
);
CREATE INDEX delegation_limit_principal ON delegation_limit (principal);
