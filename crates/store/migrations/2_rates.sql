-- Octets a second over all routers, of a principal or of one of its delegations; octets at once at each router, or what it takes by
-- itself.
CREATE TABLE rate (
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
CREATE INDEX rate_principal ON rate (principal);
