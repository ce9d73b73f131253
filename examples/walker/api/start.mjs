// The API's processes: PostgreSQL, the sweeper and the service. `node start.mjs` runs them until Ctrl-C; see run.sh.
import { randomBytes } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import pg from "pg";
import { addPostgres, answers, freePort, migrate, Stack } from "../../stack.mjs";

const here = (path) => new URL(path, import.meta.url).pathname;

export async function startWalker({ folder, port, semel, sweeper = {} }) {
  await mkdir(folder, { recursive: true });
  const stack = new Stack();
  const url = addPostgres(stack, folder, await freePort(), pg);
  await stack.start("postgres");
  await migrate(pg, url, "walker", semel, await readFile(here("schema.sql"), "utf8"));
  const secret = `${folder}/secret`;
  await writeFile(secret, randomBytes(32).toString("hex"), { mode: 0o600, flag: "wx" }).catch((error) => {
    if (error.code !== "EEXIST") throw error;
  });
  stack.add("sweeper", { command: semel, args: ["gate", "sweep", "--store", url("walker"), "--when", "daily 03:00"], ...sweeper });
  stack.add("service", {
    command: process.execPath,
    args: [here("dist/service.js")],
    env: { DATABASE_URL: url("walker", "walker_service"), SECRET_FILE: secret, PORT: String(port) },
    isReady: answers(`http://127.0.0.1:${port}/healthz`),
  });
  await stack.start("sweeper");
  await stack.start("service");
  return { stack, origin: `http://127.0.0.1:${port}`, database: url("walker") };
}

if (process.argv[1] === here("start.mjs")) {
  const { WALKER_DATA = "/var/tmp/semel-walker", PORT = "3100", SEMEL_BIN = "semel" } = process.env;
  const walker = await startWalker({ folder: WALKER_DATA, port: Number(PORT), semel: SEMEL_BIN });
  console.log(`\nThe API is at ${walker.origin}, its document at ${walker.origin}/openapi.json. Ctrl-C ends it; what was written stays.`);
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => void walker.stack.stop().then(() => process.exit()));
}
