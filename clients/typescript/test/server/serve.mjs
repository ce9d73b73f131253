// A demo for tests in any language: node serve.mjs --port P --postgres URL. POST /orders inserts one row into `orders`.
// With --die-at STEP the process kills itself there: begun, entered, handling, handled, left or committed.

import express from "express";
import { parseArgs } from "node:util";
import pg from "pg";
import { expressHandler, Once, pgDatabase } from "semel/server";

const { values } = parseArgs({
  options: { port: { type: "string" }, postgres: { type: "string" }, "die-at": { type: "string" } },
});
const die = (step) => step === values["die-at"] && process.kill(process.pid, "SIGKILL");
const pool = new pg.Pool({ connectionString: values.postgres, max: 10 });
pool.on("error", () => {});
await pool.query("CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL)");

const once = new Once(pgDatabase(pool), { onStep: die });
const route = {
  endpoint: "create-order",
  identify: (request) => ({ principal: request.get("X-User") ?? "alice" }),
};
const app = express();
app.post(
  "/orders",
  expressHandler(once, route, async (tx, request) => {
    const { rows } = await tx.query("INSERT INTO orders (item) VALUES ($1) RETURNING id", [String(request.body.item)]);
    die("handling");
    return { status: 201, headers: { location: `/orders/${rows[0].id}` }, json: { id: Number(rows[0].id) } };
  }),
);
app.listen(Number(values.port), "127.0.0.1", () => console.log("ready"));
