// What the server's tests have in common: a database of their own, processes, and a connection for the test itself.

import { execFile, spawn } from "node:child_process";
import { createServer } from "node:net";
import { promisify } from "node:util";
import pg from "pg";

export const run = promisify(execFile);
export const isLong = process.env.SEMEL_TEST_LONG === "1";

function required(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set; see clients/typescript/test.sh`);
  return value;
}

/** The URL of another database on the test's server. */
export function urlOf(database) {
  const url = new URL(required("SEMEL_TEST_POSTGRES"));
  url.pathname = `/${database}`;
  return url.href;
}

/** Makes an empty database with semel's schema; drop() removes it. */
export async function makeDatabase(name, statements = []) {
  const database = `semel_ts_${name}_${process.pid}`;
  const admin = new pg.Client({ connectionString: required("SEMEL_TEST_POSTGRES") });
  await admin.connect();
  await admin.query(`CREATE DATABASE ${database}`);
  // A superuser who is called like the schema would make every table there.
  await admin.query(`ALTER DATABASE ${database} SET search_path = public`);
  const url = urlOf(database);
  await run(required("SEMEL_BIN"), ["migrate", "--store", url]);
  const pool = new pg.Pool({ connectionString: url, max: 5 });
  // The database may be dropped while a connection is idle.
  pool.on("error", () => {});
  for (const statement of statements) await pool.query(statement);
  return {
    url,
    pool,
    query: async (sql, params) => (await pool.query(sql, params)).rows,
    async drop() {
      await pool.end();
      await admin.query(`DROP DATABASE ${database} WITH (FORCE)`);
      await admin.end();
    },
  };
}

export async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Waits for a condition, not for a time. */
export async function eventually(what, condition, seconds = 60) {
  for (const until = Date.now() + seconds * 1000; ; ) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > until) throw new Error(`not within ${seconds} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Starts a program, and waits for its first line. */
export async function start(command, args, env = {}) {
  const child = spawn(command, args, { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "pipe"] });
  let output = "";
  child.stderr.on("data", (part) => (output += part));
  const exited = new Promise((resolve) => child.once("exit", (code, signal) => resolve(signal ?? code)));
  await new Promise((resolve, reject) => {
    child.stdout.once("data", resolve);
    exited.then((how) => reject(new Error(`${command} ${args.join(" ")} ended (${how}) before it was ready: ${output}`)));
  });
  child.stdout.resume();
  return {
    exited,
    output: () => output,
    async kill(signal = "SIGKILL") {
      child.kill(signal);
      return exited;
    },
  };
}
