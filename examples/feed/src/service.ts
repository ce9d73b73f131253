// The service: the page, the session, reading the feed, and the four actions, each once for each key.
import { randomUUID } from "node:crypto";
import { readFile } from "node:fs/promises";
import { serve } from "@hono/node-server";
import { serveStatic } from "@hono/node-server/serve-static";
import { Hono, type Context } from "hono";
import pg from "pg";
import { honoHandler, Once, pgDatabase } from "semel/server";
import { actAs, actions, readFeed } from "./actions.js";
import { Live } from "./live.js";
import { MESH, Sessions, TOPIC } from "./session.js";

const { DATABASE_URL, BROKER_URL = "http://127.0.0.1:7430", SECRET_FILE = "", PORT = "3000", PAGE = "dist/page" } = process.env;

const pool = new pg.Pool({ connectionString: DATABASE_URL, max: 20 });
// A connection that breaks while it is idle is no reason to end.
pool.on("error", () => {});
const sessions = new Sessions((await readFile(SECRET_FILE, "utf8")).trim());
const live = new Live(pool, BROKER_URL, sessions);
// The feed's profile: both headers are required, and a person has 1,000 new keys an hour over all routes.
const once = new Once(pgDatabase<pg.PoolClient>(pool), { profile: "feed" });
const app = new Hono();

/** Who asks: a valid token of somebody who is still there. */
async function identify(c: Context): Promise<{ principal: string } | undefined> {
  const me = sessions.personOf(c.req.header("Authorization"));
  if (me === undefined) return undefined;
  return (await pool.query("SELECT FROM person WHERE id = $1", [me])).rowCount === 1 ? { principal: me } : undefined;
}

for (const [endpoint, { method, path, run }] of Object.entries(actions)) {
  const handler = honoHandler<pg.PoolClient>(once, { endpoint, identify }, async (tx, c: Context) => {
    const me = sessions.personOf(c.req.header("Authorization"))!;
    await actAs(tx, me);
    const body = await c.req.json().catch(() => undefined);
    return run(tx, { me, body, post: c.req.param("post") ?? "", clientTxId: c.req.header("X-Client-Tx-Id")! });
  });
  app.on(method, path, async (c) => {
    const answer = await handler(c);
    live.wake();
    return answer;
  });
}

/** A name is a natural key: signing in twice is the same person. */
app.post("/api/session", async (c) => {
  const name = String((await c.req.json().catch(() => ({}))).name ?? "").trim();
  if (name.length < 1 || name.length > 40) return c.json({ error: "A name has 1 to 40 characters" }, 400);
  const me = randomUUID();
  await actingAs(me, (tx) => tx.query("INSERT INTO person (id, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING", [me, name]));
  const [person] = (await pool.query("SELECT id, name FROM person WHERE name = $1", [name])).rows;
  live.wake();
  return c.json({ ...person, token: sessions.open(person.id) });
});

app.get("/api/feed", async (c) => {
  const caller = await identify(c);
  if (caller === undefined) return c.json({ error: "Sign in first" }, 401);
  return c.json({ posts: await readFeed(pool) });
});

/** Leaving needs no key: whoever is gone stays gone. Posts, likes, comments and keys go with the row. */
app.delete("/api/me", async (c) => {
  const me = sessions.personOf(c.req.header("Authorization"));
  if (me === undefined) return c.json({ error: "Sign in first" }, 401);
  await actingAs(me, async (tx) => {
    const left = await tx.query("DELETE FROM person WHERE id = $1", [me]);
    if (left.rowCount === 1) await tx.query("INSERT INTO event (body) VALUES ($1)", [JSON.stringify({ left: me })]);
  });
  live.wake();
  return c.body(null, 204);
});

/** A transaction in which one person acts. */
async function actingAs<T>(me: string, work: (tx: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await pool.connect();
  let isClean = false;
  try {
    await client.query("BEGIN");
    await actAs(client, me);
    const result = await work(client);
    await client.query("COMMIT");
    isClean = true;
    return result;
  } finally {
    client.release(!isClean);
  }
}

app.get("/api/settings", (c) => c.json({ broker: `${BROKER_URL}/v1/meshes/${MESH}/topics/${TOPIC}/events` }));
app.get("/healthz", (c) => c.text("ok\n"));
app.use("/*", serveStatic({ root: PAGE }));

app.onError((error, c) => {
  console.error(error.message);
  return c.json({ error: "The feed cannot do this just now" }, 503, { "Retry-After": "1" });
});

void live.run();
serve({ fetch: app.fetch, hostname: "127.0.0.1", port: Number(PORT) }, ({ port }) => console.log(`listening on http://127.0.0.1:${port}`));
