// What the tests share: an API of their own, walkers who send requests by hand, and questions to the database.
import { randomUUID } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { freePort, until } from "../../../stack.mjs";
import { startWalker } from "../start.mjs";

export { until };
export const DAY = 86_400_000;
export const HOUR = 3_600_000;
export const ago = (ms) => new Date(Date.now() - ms).toISOString();

export async function openWalker(options = {}) {
  const folder = await mkdtemp(join(tmpdir(), "semel-walker-"));
  const walker = await startWalker({ folder, port: await freePort(), semel: process.env.SEMEL_BIN ?? "semel", ...options });
  const ask = async (sql, params) => {
    const client = new pg.Client({ connectionString: walker.database });
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
    await walker.stack.stop();
    await rm(folder, { recursive: true, force: true });
  };
  return { ...walker, ask, close, folder };
}

/** A walker with some points who sends requests by hand. */
export async function signIn(api, name, points) {
  const answer = await fetch(`${api.origin}/session`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ name }) });
  const { walkerId, token } = await answer.json();
  if (points !== undefined) await api.ask("UPDATE walker SET tree_points_banked = $2 WHERE id = $1", [walkerId, points]);
  const send = async (method, path, body, { key, headers = {} } = {}) => {
    const given = { Authorization: `Bearer ${token}`, "Content-Type": "application/json", ...(key && { "Idempotency-Key": key }), ...headers };
    const response = await fetch(api.origin + path, { method, headers: given, ...(body && { body: JSON.stringify(body) }) });
    const text = await response.text();
    return { status: response.status, headers: response.headers, text, body: JSON.parse(text) };
  };
  const act = (path, body = {}, { key = randomUUID(), ...more } = {}) => send("POST", path, { clientGeneratedAt: new Date().toISOString(), ...body }, { key, ...more });
  return {
    walkerId, token, send, act,
    allocate: (allocations, options, more) => act("/tree/allocate", { allocations, ...more }, options),
    start: (questId) => send("POST", "/quest/start", { questId }),
    advance: (questId, step, options, more) => act(`/quest/${questId}/step/${step}/advance`, more, options),
    complete: (questId, options, more) => act("/quest/complete", { questId, ...more }, options),
    tree: async () => (await send("GET", "/tree/state")).body,
    available: async () => (await send("GET", "/quest/available")).body.quests,
  };
}
