// What the scenarios cannot show from outside: who polls, who holds connections, who may run, and what is said when the
// database is away.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";
import pg from "pg";
import { authorizationCaller, Once, pgDatabase, sharedCaller } from "semel/server";
import { drivers } from "./drivers.mjs";
import { startProxy } from "./proxy.mjs";
import { eventually, freePort, makeDatabase } from "./support.mjs";

let database;
const pools = [];

function newPool(options = {}) {
  const pool = new pg.Pool({ connectionString: database.url, max: 10, ...options });
  pool.on("error", () => {});
  pools.push(pool);
  return pool;
}

before(async () => {
  database = await makeDatabase("behaviour", ["CREATE TABLE effect (key text NOT NULL)"]);
});
after(async () => {
  await Promise.all(pools.map((pool) => pool.end()));
  await database?.drop();
});

const request = (key, more = {}) => ({
  endpoint: "create-order",
  caller: { principal: "alice" },
  headers: [["Idempotency-Key", key]],
  body: '{"amount":5}',
  ...more,
});
const insert = (key, reply = { status: 201, body: "ok" }) => async (tx) => {
  await tx.query("INSERT INTO effect (key) VALUES ($1)", [key]);
  return reply;
};
const effects = async (key) => Number((await database.query("SELECT count(*) AS n FROM effect WHERE key = $1", [key]))[0].n);
const problem = (answer) => JSON.parse(answer.body).type.replace("urn:semel:problem:", "");

/** A handler that waits to be let go. */
function held(key) {
  let release;
  let entered;
  const isEntered = new Promise((resolve) => (entered = resolve));
  const gate = new Promise((resolve) => (release = resolve));
  const handler = async (tx) => {
    await tx.query("INSERT INTO effect (key) VALUES ($1)", [key]);
    entered();
    await gate;
    return { status: 201, body: "ok" };
  };
  return { handler, release, isEntered };
}

/** Counts the statements that a database runs by themselves. */
function counted(inner) {
  const seen = { looks: 0, transactions: 0 };
  const query = (sql, params) => {
    if (sql.includes("semel.look")) seen.looks++;
    return inner.query(sql, params);
  };
  const transaction = (work) => {
    seen.transactions++;
    return inner.transaction(work);
  };
  return { database: { ...inner, query, transaction }, seen };
}

test("those who wait for another process share one poller, and hold no connection", async () => {
  const key = randomUUID();
  const first = held(key);
  const holder = new Once(pgDatabase(newPool())).run(request(key), first.handler);
  await first.isEntered;
  const pool = newPool({ max: 2 });
  const { database: watched, seen } = counted(pgDatabase(pool));
  const other = new Once(watched);
  const waiting = Array.from({ length: 100 }, () => other.run(request(key), insert(key)));
  // 10 + 20 + 40 + 80 + 160 + 250 + 250: seven looks in about 0.8 s; a hundred pollers would make hundreds.
  await eventually("the poller looks again", () => seen.looks >= 7);
  assert.ok(seen.looks <= 12, `${seen.looks} looks`);
  assert.equal(seen.transactions, 1, "one of them entered");
  assert.ok(pool.totalCount - pool.idleCount <= 1, "a connection is in use for a look only");
  first.release();
  const answers = await Promise.all([holder, ...waiting]);
  assert.deepEqual(new Set(answers.map(({ status, body }) => `${status} ${body}`)), new Set(["201 ok"]));
  assert.equal(answers.filter(({ replayed }) => replayed).length, 100);
  assert.equal(await effects(key), 1);
});

test("one handler per key and process runs, and the others ask the database nothing meanwhile", async () => {
  const key = randomUUID();
  const first = held(key);
  const { database: watched, seen } = counted(pgDatabase(newPool()));
  const once = new Once(watched);
  const all = [once.run(request(key), first.handler)];
  await first.isEntered;
  for (let at = 0; at < 50; at++) all.push(once.run(request(key), insert(key)));
  const stranger = once.run(request(key, { body: '{"amount":6}' }), insert(key));
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.deepEqual(seen, { looks: 0, transactions: 1 });
  first.release();
  assert.equal((await Promise.all(all)).filter(({ replayed }) => replayed).length, 50);
  assert.equal(problem(await stranger), "fingerprint-mismatch");
  assert.deepEqual(seen, { looks: 0, transactions: 2 });
});

test("a waiter whose client has gone never runs the handler", async () => {
  const key = randomUUID();
  const first = held(key);
  const once = new Once(pgDatabase(newPool()));
  const failing = once.run(request(key), async (tx) => {
    await first.handler(tx);
    throw new Error("fails after all");
  });
  await first.isEntered;
  const gone = new AbortController();
  let ran = 0;
  const waiting = once.run(request(key, { signal: gone.signal }), async () => {
    ran++;
    return {};
  });
  gone.abort();
  first.release();
  await assert.rejects(failing, /fails after all/);
  assert.equal(problem(await waiting), "in-flight");
  assert.equal(ran, 0);
  assert.equal(await effects(key), 0);
});

test("a caller that has gone when its turn comes never runs the handler", async () => {
  const gone = AbortSignal.abort();
  const answer = await new Once(pgDatabase(newPool())).run(request(randomUUID(), { signal: gone }), () => assert.fail("it ran"));
  assert.equal(problem(answer), "in-flight");
});

test("past the wait a duplicate is told 409 with Retry-After, in this process and in another", async () => {
  const key = randomUUID();
  const first = held(key);
  const once = new Once(pgDatabase(newPool()), { waitMs: 300 });
  const holder = once.run(request(key), first.handler);
  await first.isEntered;
  const other = new Once(pgDatabase(newPool()), { waitMs: 300 });
  for (const one of [once, other]) {
    const answer = await one.run(request(key), insert(key));
    assert.equal(answer.status, 409);
    assert.equal(problem(answer), "in-flight");
    assert.deepEqual(answer.headers.find(([name]) => name === "retry-after"), ["retry-after", "1"]);
  }
  first.release();
  assert.equal((await holder).status, 201);
  assert.equal(await effects(key), 1);
});

test("a frozen holder loses its key after its hold time, and its late commit fails", async () => {
  const key = randomUUID();
  const first = held(key);
  const frozen = new Once(pgDatabase(newPool()), { holdMs: 300 }).run(request(key), first.handler);
  await first.isEntered;
  const other = await new Once(pgDatabase(newPool())).run(request(key), insert(key, { status: 201, body: "other" }));
  assert.equal(other.body.toString(), "other");
  first.release();
  assert.equal(problem(await frozen), "store-unavailable");
  assert.equal(await effects(key), 1);
});

for (const isolation of ["read committed", "repeatable read", "serializable"]) {
  test(`40 requests of one key in two pools at ${isolation} take effect once`, async () => {
    const key = randomUUID();
    const both = [new Once(pgDatabase(newPool(), { isolation })), new Once(pgDatabase(newPool(), { isolation }))];
    const answers = await Promise.all(Array.from({ length: 40 }, (_, at) => both[at % 2].run(request(key), insert(key))));
    assert.deepEqual(new Set(answers.map(({ status, body }) => `${status} ${body}`)), new Set(["201 ok"]));
    assert.equal(await effects(key), 1);
  });
}

/** A driver that takes the rollback of a failed transaction for a commit, as Prisma does. */
function unconfirmed(pool, { beforeCommit, afterCommit }) {
  return {
    query: async (sql, params) => (await pool.query(sql, params)).rows,
    async transaction(work) {
      const client = await pool.connect();
      try {
        await client.query("BEGIN");
        const result = await work(client, async (sql, params) => (await client.query(sql, params)).rows);
        await beforeCommit(client);
        await client.query("COMMIT");
        await afterCommit();
        return result;
      } catch (error) {
        await client.query("ROLLBACK");
        throw error;
      } finally {
        client.release();
      }
    },
  };
}

test("what another process committed after a rollback that passed for a commit is the answer, for those who wait too", async () => {
  const key = randomUUID();
  const other = new Once(pgDatabase(newPool()));
  let waiting;
  let once;
  const database = unconfirmed(newPool(), {
    // Nobody awaits this statement; that it fails makes a rollback of the commit.
    beforeCommit: (client) => client.query("SELECT 1 / 0").catch(() => {}),
    afterCommit: async () => {
      waiting = once.run(request(key), () => assert.fail("it ran"));
      await other.run(request(key), insert(key, { status: 201, body: "the other's" }));
    },
  });
  once = new Once(database);
  const first = await once.run(request(key), insert(key, { status: 201, body: "rolled back" }));
  assert.deepEqual([first.body.toString(), first.replayed], ["the other's", true]);
  assert.equal((await waiting).body.toString(), "the other's");
  assert.equal(await effects(key), 1);
});

test("a driver that does not confirm commits gives the first answer as it is", async () => {
  const key = randomUUID();
  const hooks = { beforeCommit: async () => {}, afterCommit: async () => {} };
  const once = new Once(unconfirmed(newPool(), hooks));
  const reply = { status: 201, body: "ok", headers: [["Set-Cookie", "a=b"]] };
  const first = await once.run(request(key), insert(key, reply));
  assert.equal(first.replayed, false);
  assert.ok(first.headers.some(([name]) => name.toLowerCase() === "set-cookie"), "headers that are not kept are given once");
  assert.equal((await once.run(request(key), insert(key, reply))).replayed, true);
  assert.equal(await effects(key), 1);
});

test("serializable conflicts between two keys are run again, and both take effect", async () => {
  await database.query("CREATE TABLE total (n int NOT NULL)");
  const once = new Once(pgDatabase(newPool(), { isolation: "serializable" }));
  const add = async (tx) => {
    const { rows } = await tx.query("SELECT count(*)::int AS n FROM total");
    await new Promise((resolve) => setTimeout(resolve, 20));
    await tx.query("INSERT INTO total (n) VALUES ($1)", [rows[0].n]);
    return { json: rows[0] };
  };
  const answers = await Promise.all([randomUUID(), randomUUID(), randomUUID()].map((key) => once.run(request(key), add)));
  assert.deepEqual(answers.map(({ body }) => JSON.parse(body).n).sort(), [0, 1, 2]);
});

test("a database that cannot be reached is 503, and the handler does not run", async () => {
  const pool = newPool({ connectionString: `postgres://postgres@127.0.0.1:${await freePort()}/none` });
  const answer = await new Once(pgDatabase(pool)).run(request(randomUUID()), () => assert.fail("it ran"));
  assert.equal(answer.status, 503);
  assert.equal(problem(answer), "store-unavailable");
});

test("a COMMIT whose answer is lost while the database stays away is never answered by guess", async () => {
  const key = randomUUID();
  const proxy = await startProxy(new URL(database.url));
  const url = new URL(database.url);
  [url.hostname, url.port] = ["127.0.0.1", String(proxy.port)];
  const once = new Once(pgDatabase(newPool({ connectionString: url.href })), { waitMs: 500 });
  proxy.arm("kill-after", () => proxy.close());
  const answer = await once.run(request(key), insert(key));
  assert.equal(answer.status, 503);
  assert.equal(problem(answer), "settlement-pending");
  assert.equal(await effects(key), 1, "it was committed after all");
  const retry = await new Once(pgDatabase(newPool())).run(request(key), insert(key));
  assert.equal(retry.replayed, true);
  assert.equal(retry.body.toString(), "ok");
});

test("a driver that takes the rollback of a failed transaction for a commit is caught by the record", async () => {
  const key = randomUUID();
  const pool = newPool();
  const careless = {
    query: async (sql, params) => (await pool.query(sql, params)).rows,
    async transaction(work) {
      const client = await pool.connect();
      try {
        await client.query("BEGIN");
        const result = await work(client, async (sql, params) => (await client.query(sql, params)).rows);
        // A statement that nobody waited for fails between leave and COMMIT.
        await client.query("SELECT 1/0").catch(() => {});
        await client.query("COMMIT");
        return result;
      } finally {
        client.release(true);
      }
    },
  };
  await assert.rejects(new Once(careless).run(request(key), insert(key)), /rolled back at COMMIT/);
  assert.equal(await effects(key), 0);
});

test("a statement that fails between leave and COMMIT is not taken for a commit", async () => {
  const key = randomUUID();
  let client;
  const fail = (step) => step === "left" && client.query("SELECT 1/0").catch(() => {});
  const answer = await new Once(pgDatabase(newPool()), { onStep: fail }).run(request(key), (tx) => insert(key)((client = tx)));
  assert.equal(answer.status, 500);
  assert.equal(problem(answer), "not-settled");
  assert.equal(await effects(key), 0);
});

test("a handler that ends its transaction by itself is told of, and so is what it may have written since", async () => {
  const key = randomUUID();
  const answer = await new Once(pgDatabase(newPool())).run(request(key), async (tx) => {
    await tx.query("ROLLBACK");
    return insert(key)(tx);
  });
  assert.deepEqual([answer.status, problem(answer)], [500, "not-settled"]);
  assert.match(answer.body.toString(), /what it wrote since may stand/);
  assert.equal(await effects(key), 1, "it is outside of the transaction, as the guide says");
  const open = await new Once(pgDatabase(newPool())).run(request(randomUUID()), async (tx) => {
    await tx.query("SAVEPOINT s");
    return insert(key)(tx);
  });
  assert.match(open.body.toString(), /rolled back/);
});

test("a connection that breaks while the handler waits for something else does not end the process", async () => {
  const key = randomUUID();
  const answer = await new Once(pgDatabase(newPool())).run(request(key), async (tx) => {
    const { rows } = await tx.query("SELECT pg_backend_pid() AS pid");
    await database.query("SELECT pg_terminate_backend($1)", [rows[0].pid]);
    await eventually("the server has ended the connection", async () => {
      const sql = "SELECT count(*)::int AS n FROM pg_stat_activity WHERE pid = $1";
      return (await database.query(sql, [rows[0].pid]))[0].n === 0;
    });
    await new Promise((resolve) => setTimeout(resolve, 50));
    return { status: 201 };
  });
  assert.equal(answer.status, 503);
  assert.equal(problem(answer), "store-unavailable");
});

test("a deferred constraint that fails at COMMIT is the handler's own error, and nothing is committed", async () => {
  await database.query("CREATE TABLE parent (id int PRIMARY KEY)");
  await database.query("CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)");
  for (const [once, rows] of [
    [new Once(pgDatabase(newPool())), (tx) => tx.query("INSERT INTO child VALUES (1)")],
    [new Once(drivers.prisma(database.url).database), (tx) => tx.$executeRawUnsafe("INSERT INTO child VALUES (1)")],
  ]) {
    const key = randomUUID();
    await assert.rejects(
      once.run(request(key), async (tx) => {
        await rows(tx);
        return { status: 201 };
      }),
    );
    assert.deepEqual(await database.query("SELECT * FROM child"), []);
  }
});

test("a key used under a former name of its endpoint is still known", async () => {
  const key = randomUUID();
  const once = new Once(pgDatabase(newPool()));
  await once.run(request(key, { endpoint: "old-name" }), insert(key));
  const renamed = request(key, { endpoint: "new-name", was: ["old-name"] });
  assert.equal((await once.run(renamed, insert(key))).replayed, true);
  assert.equal(await effects(key), 1);
});

test("a record of an older secret, and of none, is still compared", async () => {
  const [key, old, fresh] = [randomUUID(), Buffer.from("old"), Buffer.from("fresh")];
  const by = (...secrets) => new Once(pgDatabase(newPool()), { secrets });
  await by(old).run(request(key), insert(key));
  assert.equal((await by(fresh, old).run(request(key), insert(key))).replayed, true);
  assert.equal(problem(await by(fresh, old).run(request(key, { body: "{}" }), insert(key))), "fingerprint-mismatch");
  assert.equal(problem(await by(fresh).run(request(key), insert(key))), "fingerprint-mismatch");
  assert.equal(problem(await by().run(request(key), insert(key))), "outcome-unknown", "it proves nothing either way");
  assert.equal(await effects(key), 1);
});

test("the same request under another credential is refused, not run again", async () => {
  const key = randomUUID();
  const once = new Once(pgDatabase(newPool()));
  await once.run(request(key, { caller: authorizationCaller("Bearer one") }), insert(key));
  const rotated = await once.run(request(key, { caller: authorizationCaller("Bearer two") }), insert(key));
  assert.equal(problem(rotated), "credential-changed");
  assert.equal(await effects(key), 1);
});

test("a shared caller needs keys that nobody can guess", async () => {
  const once = new Once(pgDatabase(newPool()));
  assert.equal(problem(await once.run(request("order-1", { caller: sharedCaller("all") }), () => assert.fail())), "key-too-weak");
  assert.equal((await once.run(request(randomUUID(), { caller: sharedCaller("all") }), insert("shared"))).status, 201);
});

test("new keys over the limit are refused, and known ones are not", async () => {
  const keys = [randomUUID(), randomUUID(), randomUUID()];
  const once = new Once(pgDatabase(newPool()), { limit: { count: 2, windowMs: 3_600_000 } });
  const by = { caller: { principal: randomUUID() } };
  const statuses = [];
  for (const key of [...keys, keys[0]]) statuses.push((await once.run(request(key, by), insert(key))).status);
  assert.deepEqual(statuses, [201, 201, 429, 201]);
});

test("a request first sent before the retry window is refused where old ones are", async () => {
  const sent = (at) => ({ headers: [["Idempotency-Key", randomUUID()], ["Idempotency-First-Sent", at]] });
  const once = new Once(pgDatabase(newPool()), { refuseOld: true });
  const none = () => assert.fail("it ran");
  assert.equal(problem(await once.run(request("", sent("2020-01-01T00:00:00Z")), none)), "too-old");
  assert.equal(problem(await once.run(request("", sent("2999-01-01T00:00:00Z")), none)), "first-sent-in-future");
  assert.equal(problem(await once.run(request("", sent("yesterday")), none)), "timestamp-invalid");
  assert.equal((await once.run(request("", sent(new Date().toISOString())), insert("old"))).status, 201);
});

const hasBouncer = process.env.SEMEL_TEST_PGBOUNCER !== "missing";
if (hasBouncer) test("behind pgbouncer in transaction mode, pg and Prisma take effect once", async () => {
  const port = await freePort();
  const { hostname, port: target, pathname, username } = new URL(database.url);
  const { writeFile, mkdtemp, chmod } = await import("node:fs/promises");
  const directory = await mkdtemp("/tmp/semel-pgbouncer-");
  const settings = `[databases]
* = host=${hostname} port=${target || 5432} user=${username}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
`;
  await chmod(directory, 0o755);
  await writeFile(`${directory}/pgbouncer.ini`, settings);
  // It refuses to run as root.
  const isRoot = process.getuid() === 0;
  const { spawn } = await import("node:child_process");
  const child = isRoot
    ? spawn("runuser", ["-u", "nobody", "--", "pgbouncer", `${directory}/pgbouncer.ini`], { stdio: "ignore" })
    : spawn("pgbouncer", [`${directory}/pgbouncer.ini`], { stdio: "ignore" });
  try {
    const url = `postgres://${username}@127.0.0.1:${port}${pathname}`;
    await eventually("pgbouncer answers", async () => {
      if (child.exitCode !== null) throw new Error(`pgbouncer ended with ${child.exitCode}`);
      const client = new pg.Client({ connectionString: url });
      client.on("error", () => {});
      return client.connect().then(
        () => client.end().then(() => true),
        () => false,
      );
    });
    const prisma = drivers.prisma(url);
    const runs = [
      [new Once(pgDatabase(newPool({ connectionString: url }))), (key) => insert(key)],
      [
        new Once(prisma.database),
        (key) => async (tx) => {
          await tx.$executeRawUnsafe("INSERT INTO effect (key) VALUES ($1)", key);
          return { status: 201, body: "ok" };
        },
      ],
    ];
    for (const [once, handler] of runs) {
      for (let time = 0; time < 5; time++) {
        const key = randomUUID();
        const answers = await Promise.all(Array.from({ length: 20 }, () => once.run(request(key), handler(key))));
        assert.deepEqual(new Set(answers.map(({ status, body }) => `${status} ${body}`)), new Set(["201 ok"]));
        assert.equal(await effects(key), 1);
      }
    }
  } finally {
    child.kill("SIGTERM");
    await new Promise((resolve) => (child.exitCode === null ? child.once("exit", resolve) : resolve()));
  }
});
