-- That the sums of a complete statement were exported and taken away: the Unix second (8 octets), and a MAC over the statement's number and
-- that. Its row and the MACs of its parts stay, since the MAC of the statement behind it is over them.
ALTER TABLE usage_statement ADD COLUMN removed BYTEA;
