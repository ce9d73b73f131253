// The feed's processes: PostgreSQL, the broker, the sweeper and the service. `node start.mjs` runs them until Ctrl-C; see run.sh.
import { randomBytes } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import pg from "pg";
import { addPostgres, answers, freePort, migrate, run, Stack } from "../stack.mjs";

const here = (path) => new URL(path, import.meta.url).pathname;

export async function startFeed({ folder, port, semel }) {
  await mkdir(folder, { recursive: true });
  const [database, broker, admin] = [await freePort(), await freePort(), await freePort()];
  const stack = new Stack();
  const url = addPostgres(stack, folder, database, pg);
  await stack.start("postgres");
  await migrate(pg, url, "feed", semel, await readFile(here("schema.sql"), "utf8"));
  const secret = `${folder}/secret`;
  await writeFile(secret, randomBytes(32).toString("hex"), { mode: 0o600, flag: "wx" }).catch((error) => {
    if (error.code !== "EEXIST") throw error;
  });
  await writeFile(`${folder}/broker.toml`, `[broker]
listen = "127.0.0.1:${broker}"
admin = "127.0.0.1:${admin}"
store = "sqlite:${folder}/broker.db"
identity = "jwt:${secret},tenant=mesh"
cors = { origins = ["http://127.0.0.1:${port}", "http://localhost:${port}"] }
`);
  const quiet = { RUST_LOG: "warn" };
  stack.add("broker", { command: semel, args: ["serve", "broker", "--config", `${folder}/broker.toml`], env: quiet, isReady: answers(`http://127.0.0.1:${admin}/readyz`) });
  await stack.start("broker");
  const say = (...args) => run(semel, ["broker", ...args, "--admin", `http://127.0.0.1:${admin}`]);
  await say("meshes", "add", "feed");
  await say("members", "add", "feed-service", "--mesh", "feed", "--role", "owner");
  await say("topics", "add", "posts", "--mesh", "feed");
  await say("subscriptions", "add", "feed-service", "--mesh", "feed", "--topic", "posts");
  stack.add("sweeper", { command: semel, args: ["gate", "sweep", "--store", url("feed"), "--when", process.env.FEED_SWEEP ?? "every 6h"] });
  stack.add("service", {
    command: process.execPath,
    args: [here("dist/src/service.js")],
    env: { DATABASE_URL: url("feed", "feed_service"), BROKER_URL: `http://127.0.0.1:${broker}`, SECRET_FILE: secret, PORT: String(port), PAGE: "dist/page" },
    isReady: answers(`http://127.0.0.1:${port}/healthz`),
  });
  await stack.start("sweeper");
  await stack.start("service");
  return { stack, origin: `http://127.0.0.1:${port}`, database: url("feed"), broker: `http://127.0.0.1:${broker}`, admin: `http://127.0.0.1:${admin}`, secret };
}

if (process.argv[1] === here("start.mjs")) {
  process.chdir(here("."));
  const feed = await startFeed({ folder: process.env.FEED_DATA ?? "/var/tmp/semel-feed", port: Number(process.env.PORT ?? 3000), semel: process.env.SEMEL_BIN ?? "semel" });
  console.log(`\nThe feed is at ${feed.origin}: open it in two windows. Ctrl-C ends it; what was written stays.`);
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => void feed.stack.stop().then(() => process.exit()));
}
