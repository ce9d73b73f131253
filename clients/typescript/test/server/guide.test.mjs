// Runs the programs of docs/guides/once-node.md as they stand there.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { spawn } from "node:child_process";
import { eventually, freePort, makeDatabase, run } from "./support.mjs";

const guide = await readFile(new URL("../../../../docs/guides/once-node.md", import.meta.url), "utf8");
const place = fileURLToPath(new URL("target/", import.meta.url));
const blocks = new Map(
  [...guide.matchAll(/```js\n\/\/ (\w+\.mjs)\n([\s\S]*?)```/g)].map(([, name, code]) => [name, code]),
);
let database;

before(async () => {
  const [, table] = /```sql\n([\s\S]*?)```/.exec(guide);
  database = await makeDatabase("guide", [table]);
  await mkdir(place, { recursive: true });
  for (const [name, code] of blocks) await writeFile(place + name, code);
});
after(() => database?.drop());

const orders = async (item) => Number((await database.query("SELECT count(*) AS n FROM orders WHERE item = $1", [item]))[0].n);

test("the guide has a program for each way", () => {
  assert.deepEqual([...blocks.keys()].sort(), ["express.mjs", "fastify.mjs", "hono.mjs", "plain.mjs", "prisma.mjs"]);
});

for (const name of ["express.mjs", "prisma.mjs", "fastify.mjs", "hono.mjs"]) {
  test(`${name} takes effect once`, async () => {
    const port = await freePort();
    const env = { ...process.env, DATABASE_URL: database.url, PORT: String(port) };
    const child = spawn(process.execPath, [place + name], { env, stdio: ["ignore", "inherit", "inherit"] });
    const exited = new Promise((resolve) => child.once("exit", resolve));
    try {
      const [key, item] = [randomUUID(), randomUUID()];
      const post = (headers = {}) =>
        fetch(`http://localhost:${port}/orders`, {
          method: "POST",
          headers: { "content-type": "application/json", "idempotency-key": key, "x-user": "alice", ...headers },
          body: JSON.stringify({ item }),
        });
      const first = await eventually(`${name} answers`, () => post().catch(() => undefined));
      assert.equal(first.status, 201);
      const text = await first.text();
      const second = await post();
      assert.equal(second.headers.get("idempotency-replayed"), "true");
      assert.equal(await second.text(), text);
      assert.equal((await post({ "x-user": "" })).status, 401);
      assert.equal(await orders(item), 1);
    } finally {
      child.kill();
      await exited;
    }
  });
}

test("plain.mjs takes effect once", async () => {
  const key = randomUUID();
  const output = [];
  for (let time = 0; time < 2; time++) {
    const { stdout } = await run(process.execPath, [`${place}plain.mjs`, key], { env: { ...process.env, DATABASE_URL: database.url } });
    output.push(stdout.split(" "));
  }
  assert.deepEqual([output[0][0], output[1][0]], ["false", "true"]);
  assert.equal(output[0][1], output[1][1]);
});

test("postgres.js and Drizzle are connected as the tests do it", async () => {
  const source = await readFile(new URL("drivers.mjs", import.meta.url), "utf8");
  const shown = [...guide.matchAll(/```js\n((?:const|export)[\s\S]*?)```/g)].map(([, code]) => code);
  assert.equal(shown.length, 2);
  for (const code of shown) assert.ok(source.includes(code), code);
});
