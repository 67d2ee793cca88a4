-- Which key server leases rates: the one with the last epoch, for as long as it renews the row.

CREATE TABLE lessor (
    id BIGINT PRIMARY KEY CHECK (id = 1),
    epoch BIGINT NOT NULL,
    -- How often it was renewed.
    renewed BIGINT NOT NULL,
    -- The process that holds it, NULL if it was given up; and its name for people.
    holder BYTEA,
    name TEXT NOT NULL,
    -- Numbers of routers, with commas, that may use something which it or one before it leased.
    routers TEXT NOT NULL
);
INSERT INTO lessor (id, epoch, renewed, holder, name, routers) VALUES (1, 0, 0, NULL, '', '');
