// What the tests share: a feed of their own, people who send requests by hand, and questions to the database.
import { randomUUID } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { freePort, until } from "../../stack.mjs";
import { startFeed } from "../start.mjs";

export { until };

export async function openFeed() {
  const folder = await mkdtemp(join(tmpdir(), "semel-feed-"));
  const feed = await startFeed({ folder, port: await freePort(), semel: process.env.SEMEL_BIN ?? "semel" });
  const ask = async (sql, params) => {
    const client = new pg.Client({ connectionString: feed.database });
    // A server that is killed is the test's own doing.
    client.on("error", () => {});
    await client.connect();
    try {
      return (await client.query(sql, params)).rows;
    } finally {
      await client.end();
    }
  };
  const close = async () => {
    await feed.stack.stop();
    await rm(folder, { recursive: true, force: true });
  };
  return { ...feed, ask, close };
}

/** Somebody with one device who sends requests by hand. */
export async function signIn({ origin }, name) {
  const answer = await fetch(`${origin}/api/session`, { method: "POST", body: JSON.stringify({ name }) });
  const { id, token } = await answer.json();
  const send = async (method, path, body, { key = randomUUID(), tx = randomUUID(), headers = {} } = {}) => {
    const given = { Authorization: `Bearer ${token}`, "Content-Type": "application/json", "Idempotency-Key": key, "X-Client-Tx-Id": tx, ...headers };
    const sent = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
    const response = await fetch(origin + path, { method, headers: sent, ...(body && { body: JSON.stringify(body) }) });
    const text = await response.text();
    return { status: response.status, headers: response.headers, body: text ? JSON.parse(text) : undefined };
  };
  const post = async (words, options) => {
    const id = options?.id ?? randomUUID();
    return { id, ...(await send("POST", "/api/posts", { id, words }, options)) };
  };
  return { id, name, token, send, post };
}
