// Starts the processes of an application, each when the one before it is ready, and again after it was killed. What run.sh starts for
// people and what the tests kill is therefore the same.
import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

export const here = (path) => new URL(path, import.meta.url).pathname;

/** Waits for a condition, not for a time. */
export async function until(what, condition, seconds = 60) {
  for (const end = Date.now() + seconds * 1000; ; ) {
    const value = await Promise.resolve().then(condition).catch(() => undefined);
    if (value) return value;
    if (Date.now() > end) throw new Error(`not within ${seconds} s: ${what}`);
    await sleep(50);
  }
}

export async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Runs a program to its end, and fails with what it said. */
export async function run(command, args, options = {}) {
  const child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe"], ...options });
  let said = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (part) => (said += part));
  const code = await new Promise((resolve, reject) => child.once("error", reject).once("exit", resolve));
  if (code !== 0) throw new Error(`${command} ${args.join(" ")} failed: ${said}`);
  return said;
}

export class Stack {
  #parts = new Map();

  /** `isReady` is asked until it is true; `env` goes on top of ours. */
  add(name, { command, args = [], env = {}, isReady = () => true }) {
    this.#parts.set(name, { command, args, env, isReady, child: undefined, said: "" });
  }

  names() {
    return [...this.#parts.keys()];
  }

  said(name) {
    return this.#parts.get(name).said;
  }

  async start(name) {
    const part = this.#parts.get(name);
    await until(`${name} runs: ${part.said}`, async () => {
      if (!part.child || part.child.exitCode !== null || part.child.signalCode !== null) {
        part.child = spawn(part.command, part.args, { env: { ...process.env, ...part.env }, stdio: ["ignore", "pipe", "pipe"] });
        for (const stream of [part.child.stdout, part.child.stderr]) stream.on("data", (text) => (part.said = (part.said + text).slice(-8000)));
        await sleep(100);
      }
      return part.isReady();
    }).catch((error) => {
      throw new Error(`${error.message}\n${part.said}`);
    });
  }

  /** Ends a process without a word, and waits until it is gone. */
  async kill(name, signal = "SIGKILL") {
    const { child } = this.#parts.get(name);
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    await gone;
  }

  async stop() {
    for (const name of this.names().reverse()) await this.kill(name, "SIGINT");
  }
}

export const answers = (url) => () => fetch(url, { signal: AbortSignal.timeout(2000) }).then(({ ok }) => ok);

/** A PostgreSQL in this folder. */
export function addPostgres(stack, folder, port, pg) {
  const url = (database, user = "postgres") => `postgres://${user}@127.0.0.1:${port}/${database}`;
  stack.add("postgres", {
    command: here("./postgres.sh"),
    args: [folder, String(port)],
    isReady: async () => {
      const client = new pg.Client({ connectionString: url("postgres"), connectionTimeoutMillis: 2000 });
      client.on("error", () => {});
      await client.connect();
      await client.end();
      return true;
    },
  });
  return url;
}

/** Makes a database with semel's schema and then runs an application's own. */
export async function migrate(pg, url, database, semel, schema) {
  const admin = new pg.Client({ connectionString: url("postgres") });
  await admin.connect();
  const known = await admin.query("SELECT FROM pg_database WHERE datname = $1", [database]);
  if (known.rowCount === 0) await admin.query(`CREATE DATABASE ${database}`);
  await admin.end();
  await run(semel, ["migrate", "--store", url(database)]);
  const client = new pg.Client({ connectionString: url(database) });
  await client.connect();
  await client.query(schema);
  await client.end();
}
