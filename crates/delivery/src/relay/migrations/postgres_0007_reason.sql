-- Why somebody did something by hand. A relay of an earlier release goes on beside this one, and says no reason.
ALTER TABLE relay_audit ADD COLUMN reason text;
