-- Purging finds what finished long ago by when it finished, and does not look at all that finished since.

DROP INDEX outbox_purge;
CREATE INDEX outbox_purge ON outbox (coalesce(delivered_at, aborted_at))
    WHERE payload IS NOT NULL AND status IN ('done', 'aborted');
