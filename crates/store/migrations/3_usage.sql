-- What routers reported, and the statements of it. Numbers of packets and octets are totals; times are Unix seconds.
--
-- None of it is authenticated but statements: whoever can write to the database can change what no statement has yet.

CREATE TABLE usage_head (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    -- The last statement, and whether all of its time is in its sums.
    statement BIGINT NOT NULL,
    closed_before BIGINT NOT NULL,
    is_complete BIGINT NOT NULL,
    -- How many totals have been added to sums.
    moved BIGINT NOT NULL,
    -- How often any of these tables was changed: a database in which that falls was set back.
    steps BIGINT NOT NULL
);
INSERT INTO usage_head (id, statement, closed_before, is_complete, moved, steps) VALUES (1, 0, 0, 1, 0, 0);

CREATE TABLE usage_router (
    router BIGINT PRIMARY KEY,
    -- Up to when it has reported everything; NULL if it has not said so, and time was not closed since it is known.
    confirmed_through BIGINT,
    -- The list of revocations that it has of another database than this one.
    list_ahead BIGINT
);

-- Routers' memories of totals, and how many records there are of each.
CREATE TABLE usage_journal (
    journal BYTEA PRIMARY KEY,
    router BIGINT NOT NULL,
    records BIGINT NOT NULL
);
CREATE INDEX usage_journal_router ON usage_journal (router);

-- How many records there are of each who pays, without sums.
CREATE TABLE usage_payer (
    principal BIGINT PRIMARY KEY,
    records BIGINT NOT NULL
);

CREATE TABLE usage_record (
    router BIGINT NOT NULL,
    journal BYTEA NOT NULL,
    account BYTEA NOT NULL,
    -- 0: a total that a router reported; 1: how much of one is in sums; 2: the sum of a month; 3: that of what came late on a day.
    kind BIGINT NOT NULL,
    principal BIGINT NOT NULL,
    delegation BIGINT,
    sub_delegation BIGINT,
    begins_at BIGINT,
    ends_at BIGINT,
    -- That a sum is on.
    statement BIGINT,
    packets BIGINT NOT NULL,
    octets BIGINT NOT NULL,
    PRIMARY KEY (router, journal, account)
);
CREATE INDEX usage_record_account ON usage_record (account);
CREATE INDEX usage_record_ends_at ON usage_record (kind, ends_at);
CREATE INDEX usage_record_router ON usage_record (kind, router, ends_at);
CREATE INDEX usage_record_statement ON usage_record (statement, principal);

CREATE TABLE usage_statement (
    number BIGINT PRIMARY KEY,
    -- The time that it closes: key epochs that had ended before, and on no earlier statement.
    closed_after BIGINT NOT NULL,
    closed_before BIGINT NOT NULL,
    made_at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    -- JSON: up to when each router had confirmed then, or null.
    routers TEXT NOT NULL,
    -- Over all of this, its parts, and the statement before, once it is complete.
    mac BYTEA
);

-- What of a complete statement is of one who pays: a MAC over these sums.
CREATE TABLE usage_part (
    statement BIGINT NOT NULL,
    principal BIGINT NOT NULL,
    mac BYTEA NOT NULL,
    PRIMARY KEY (statement, principal)
);
