-- What a provider's billing knows of accounts (without a waypoint) and of their grants: its own ID, the present price tag.
CREATE TABLE billing (
    id BYTEA PRIMARY KEY,
    principal BIGINT NOT NULL,
    waypoint TEXT,
    delegation BIGINT,
    external_id TEXT,
    price TEXT,
    change BIGINT NOT NULL,
    made BIGINT NOT NULL,
    content BYTEA NOT NULL,
    mac BYTEA NOT NULL
);
CREATE INDEX billing_principal ON billing (principal);

-- Octets of a calendar month: beyond the soft limit is reported, beyond the hard one nothing passes. And which month is used up.
CREATE TABLE quota (
    id BYTEA PRIMARY KEY,
    principal BIGINT NOT NULL UNIQUE,
    soft_octets BIGINT,
    hard_octets BIGINT,
    used_up_month BIGINT,
    change BIGINT NOT NULL,
    made BIGINT NOT NULL,
    content BYTEA NOT NULL,
    mac BYTEA NOT NULL
);

-- The sum of each payer over key epochs that begin in a month, from the reports of routers since this version of the tables is there; by
-- the owners that a number had one after the other. What came late for closed time is in no month.
CREATE TABLE usage_month (
    principal BIGINT NOT NULL,
    begins_at BIGINT NOT NULL,
    owner BIGINT NOT NULL,
    octets BIGINT NOT NULL,
    PRIMARY KEY (principal, begins_at, owner)
);

-- What each payer sent in samples of five minutes, by when it was reported, until the month is on a statement. One is rough if what it has was
-- spread over the time for which a router was cut off.
CREATE TABLE usage_sample (
    principal BIGINT NOT NULL,
    owner BIGINT NOT NULL,
    begins_at BIGINT NOT NULL,
    octets BIGINT NOT NULL,
    is_rough BIGINT NOT NULL,
    PRIMARY KEY (principal, owner, begins_at)
);
CREATE INDEX usage_sample_begins_at ON usage_sample (begins_at);

-- The price tags that were in force in the time of a part, and percentiles, covered by its MAC; NULL where a statement was complete before.
ALTER TABLE usage_part ADD COLUMN details BYTEA;
