"""Makes so many records in a store's file from one that is in it, with short bodies and keys that follow from their numbers.

Writes without a journal: a file in which this breaks off is thrown away.
"""
import sqlite3
import sys

path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
db = sqlite3.connect(path, isolation_level=None)
for pragma in ("journal_mode = DELETE", "journal_mode = OFF", "synchronous = OFF", "cache_size = -65536"):
    db.execute("PRAGMA " + pragma)
made = {
    "fence": f"{first} + n",
    "key": "'key-' || printf('%032d', n)",
    "hash": "randomblob(16)",
    "rotation": "randomblob(16)",
    "body": "x'7b7d'",
    "expires_at": "pattern.expires_at + n / 100",
}
names = [row[1] for row in db.execute("PRAGMA table_info(semel_record)")]
values = [made.get(name, "pattern." + name) for name in names]
db.execute("BEGIN")
db.execute("CREATE TEMP TABLE pattern AS SELECT * FROM semel_record LIMIT 1")
db.execute(
    f"INSERT INTO semel_record ({', '.join(names)}) "
    f"WITH RECURSIVE s(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n + 1 < {count}) "
    f"SELECT {', '.join(values)} FROM s, pattern"
)
db.execute(f"UPDATE semel_meta SET value = {first + count + 1_000_000} WHERE name = 'fence_ceiling'")
db.execute("COMMIT")
db.execute("PRAGMA journal_mode = WAL")
db.close()
