-- One schema for SQLite and PostgreSQL: BIGINT, TEXT and BYTEA mean the same in both.
--
-- `content` is what counts: a row of `docs/wire/capabilities.md` ("The database"), authenticated by `mac` together with `change`, the
-- number of the change that last wrote it. The other columns say the same for people and their queries; one that says something else
-- is refused. Times are Unix seconds.

CREATE TABLE head (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    number BIGINT NOT NULL
);
INSERT INTO head (id, number) VALUES (1, 0);

-- Every change, with who made it and why: what followers read, and what an auditor does. `total` is masked.
CREATE TABLE change (
    number BIGINT PRIMARY KEY,
    timeline BIGINT NOT NULL,
    issued_at BIGINT NOT NULL,
    kind TEXT NOT NULL,
    principal BIGINT,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    digest BYTEA NOT NULL,
    content BYTEA NOT NULL,
    total BYTEA NOT NULL,
    mac BYTEA NOT NULL
);
CREATE INDEX change_principal ON change (principal);

CREATE TABLE account (
    id BYTEA PRIMARY KEY,
    principal BIGINT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    generation BIGINT NOT NULL,
    change BIGINT NOT NULL,
    made BIGINT NOT NULL,
    content BYTEA NOT NULL,
    mac BYTEA NOT NULL
);

CREATE TABLE closed_account (
    id BYTEA PRIMARY KEY,
    principal BIGINT NOT NULL UNIQUE,
    generation BIGINT NOT NULL,
    change BIGINT NOT NULL,
    made BIGINT NOT NULL,
    content BYTEA NOT NULL,
    mac BYTEA NOT NULL
);

-- What an account may use: grants, and delegations of them.
CREATE TABLE capability (
    id BYTEA PRIMARY KEY,
    principal BIGINT NOT NULL,
    waypoint TEXT NOT NULL,
    epoch_exponent BIGINT NOT NULL,
    delegation BIGINT,
    sub_delegation BIGINT,
    destinations TEXT,
    not_before BIGINT NOT NULL,
    not_after BIGINT NOT NULL,
    change BIGINT NOT NULL,
    made BIGINT NOT NULL,
    content BYTEA NOT NULL,
    mac BYTEA NOT NULL
);
CREATE INDEX capability_principal ON capability (principal);
CREATE INDEX capability_not_after ON capability (not_after);

CREATE TABLE revocation (
    id BYTEA PRIMARY KEY,
    principal BIGINT NOT NULL,
    delegation BIGINT,
    sub_delegation BIGINT,
    expires_at BIGINT,
    change BIGINT NOT NULL,
    made BIGINT NOT NULL,
    content BYTEA NOT NULL,
    mac BYTEA NOT NULL
);
CREATE INDEX revocation_principal ON revocation (principal);
CREATE INDEX revocation_expires_at ON revocation (expires_at);

CREATE TABLE invitation (
    id BYTEA PRIMARY KEY,
    principal BIGINT NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    not_after BIGINT NOT NULL,
    change BIGINT NOT NULL,
    made BIGINT NOT NULL,
    content BYTEA NOT NULL,
    mac BYTEA NOT NULL
);
CREATE INDEX invitation_principal ON invitation (principal);

-- When a principal's number got another owner.
CREATE TABLE reopening (
    id BYTEA PRIMARY KEY,
    principal BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    reopened_at BIGINT NOT NULL,
    change BIGINT NOT NULL,
    made BIGINT NOT NULL,
    content BYTEA NOT NULL,
    mac BYTEA NOT NULL
);

-- Until when secrets of grants that were withdrawn may be good.
CREATE TABLE withdrawn_secret (
    id BYTEA PRIMARY KEY,
    principal BIGINT NOT NULL,
    epoch_exponent BIGINT NOT NULL,
    good_until BIGINT NOT NULL,
    change BIGINT NOT NULL,
    made BIGINT NOT NULL,
    content BYTEA NOT NULL,
    mac BYTEA NOT NULL
);
