-- Most requests bring one entry. Whether such a request is done follows from its lane's watermark, and its row is written
-- once: nothing is updated for each entry when a batch ends.
-- NULL: an entry of before, or one that came back. Its request is told when it is done.
ALTER TABLE relay_item ADD COLUMN alone bigint;

-- Batches that were applied, for the retention of requests that are not told.
CREATE TABLE relay_done (
    lane  bigint NOT NULL,
    lo    bigint NOT NULL,
    hi    bigint NOT NULL,
    at_ms bigint NOT NULL,
    PRIMARY KEY (lane, hi),
    CHECK (lo < hi)
);
CREATE INDEX relay_done_at ON relay_done (at_ms);

-- What waits of a principal is found by the lanes it has entries in.
DROP INDEX relay_request_open;
CREATE INDEX relay_item_principal ON relay_item (principal, lane, seq);
CREATE INDEX relay_held_parked ON relay_held (principal) WHERE state = 'parked';
