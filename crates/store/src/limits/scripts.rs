//! What Redis runs, one script for each way of counting: Redis runs a script alone, so that checking and consuming are
//! one step. Scripts decide as [`super::window`] does and give back bare counts; words and waits are made from those in
//! one place for all backends. Every key that a script writes is given its expiry in the same script.

/// Counts a request. `KEYS`: the pair. `ARGV`: bucket, weight, limit, life, whole weight. Gives:
/// counted, bucket, current, previous.
pub(crate) const REQUEST: &str = r"
local known = redis.call('HMGET', KEYS[1], 'bucket', 'current', 'previous')
local bucket, weight, whole = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[5])
local last = tonumber(known[1])
local current, previous = 0, 0
if last then
  if bucket <= last then
    -- Another process's clock was ahead: its bucket counts, from its beginning.
    if bucket < last then weight = whole end
    bucket, current, previous = last, tonumber(known[2]), tonumber(known[3])
  elseif bucket == last + 1 then
    previous = tonumber(known[2])
  end
end
if current + math.ceil(previous * weight / whole) >= tonumber(ARGV[3]) then
  return {0, bucket, current, previous}
end
redis.call('HSET', KEYS[1], 'bucket', string.format('%.0f', bucket),
  'current', string.format('%.0f', current + 1), 'previous', string.format('%.0f', previous))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {1, bucket, current + 1, previous}
";

/// Charges an id in an aligned window. `KEYS`: tries by id. `ARGV`: id, limit, tries at most, life. Gives: step, units
/// taken. The counter is how many ids there are, so that a refund cannot be forgotten.
pub(crate) const ID_WINDOW: &str = r"
local tries = tonumber(redis.call('HGET', KEYS[1], ARGV[1]))
local used = redis.call('HLEN', KEYS[1])
if tries then
  if tries >= tonumber(ARGV[3]) then return {3, used} end
  redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
  return {1, used}
end
if used >= tonumber(ARGV[2]) then return {2, used} end
redis.call('HSET', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {0, used + 1}
";

/// Charges an id within the last window. `KEYS`: ids by first time, tries by id. `ARGV`: id, limit, tries at most, life,
/// now, floor, cleared at most. Gives: step, units taken, the time of the id whose leaving helps (-1: none).
pub(crate) const NEW_KEY: &str = r"
local id, limit, now, floor = ARGV[1], tonumber(ARGV[2]), ARGV[5], ARGV[6]
local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', floor, 'LIMIT', 0, ARGV[7])
if #gone > 0 then
  redis.call('ZREM', KEYS[1], unpack(gone))
  redis.call('HDEL', KEYS[2], unpack(gone))
end
local used = redis.call('ZCOUNT', KEYS[1], '(' .. floor, '+inf')
local function leaving(index)
  local found = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. floor, '+inf', 'WITHSCORES', 'LIMIT', index, 1)
  return tonumber(found[2]) or -1
end
local at = tonumber(redis.call('ZSCORE', KEYS[1], id))
if at and at > tonumber(floor) then
  local tries = tonumber(redis.call('HGET', KEYS[2], id)) or 1
  if tries >= tonumber(ARGV[3]) then return {3, used, at} end
  redis.call('HSET', KEYS[2], id, string.format('%.0f', tries + 1))
  return {1, used, leaving(0)}
end
if used >= limit then return {2, used, leaving(used - limit)} end
redis.call('ZADD', KEYS[1], now, id)
redis.call('HSET', KEYS[2], id, 1)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return {0, used + 1, leaving(0)}
";
