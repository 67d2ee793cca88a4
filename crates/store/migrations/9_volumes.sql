-- Octets of a calendar month to which the holder of a capability limits a delegation of it, and which month is used up.
CREATE TABLE delegation_volume (
    id BYTEA PRIMARY KEY,
    principal BIGINT NOT NULL,
    delegation BIGINT NOT NULL,
    month_octets BIGINT,
    used_up_month BIGINT,
    change BIGINT NOT NULL,
    made BIGINT NOT NULL,
    content BYTEA NOT NULL,
    mac BYTEA NOT NULL
);
CREATE INDEX delegation_volume_principal ON delegation_volume (principal);

-- Months of principals with all that they pay (delegation -1), and of delegations while they are limited.
CREATE TABLE usage_of_month (
    principal BIGINT NOT NULL,
    delegation BIGINT NOT NULL,
    begins_at BIGINT NOT NULL,
    owner BIGINT NOT NULL,
    octets BIGINT NOT NULL,
    PRIMARY KEY (principal, delegation, begins_at, owner)
);
INSERT INTO usage_of_month (principal, delegation, begins_at, owner, octets)
    SELECT principal, -1, begins_at, owner, octets FROM usage_month;
DROP TABLE usage_month;
ALTER TABLE usage_of_month RENAME TO usage_month;
