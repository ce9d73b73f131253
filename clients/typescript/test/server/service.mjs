// The test service of spec/once.md: node service.mjs --port P --postgres URL --driver pg --framework express. Port and URL
// may also come from PORT and DATABASE_URL.

import { serve as serveHono } from "@hono/node-server";
import express from "express";
import fastify from "fastify";
import { Hono } from "hono";
import { parseArgs } from "node:util";
import { expressHandler, fastifyRoute, honoHandler, Once } from "semel/server";
import { drivers } from "./drivers.mjs";

const { values } = parseArgs({
  options: {
    port: { type: "string", default: process.env.PORT },
    postgres: { type: "string", default: process.env.DATABASE_URL },
    driver: { type: "string", default: "pg" },
    framework: { type: "string", default: "express" },
  },
});
const { database, rows } = drivers[values.driver](values.postgres);

/** Does in its transaction what the request's X-Once header says. */
async function handle(tx, script) {
  const { run, attempts } = JSON.parse(script);
  // The sequence's number is drawn for good, also where the transaction is rolled back.
  const [{ n }] = await rows(tx, `SELECT nextval('"${run}"')::int AS n`);
  const attempt = attempts[Math.min(n, attempts.length) - 1];
  for (const name of attempt.effects ?? []) {
    await rows(tx, "INSERT INTO once_effect (run, name) VALUES ($1::text, $2::text)", run, name);
  }
  if (attempt.hold !== undefined) await rows(tx, `SELECT pg_advisory_xact_lock_shared(${attempt.hold})::text AS held`);
  if (attempt.raise_sql) await rows(tx, `SELECT once_raise('${attempt.raise_sql}')::text AS raised`);
  if (attempt.swallow_sql) await rows(tx, `SELECT once_raise('${attempt.swallow_sql}')::text AS raised`).catch(() => {});
  if (attempt.statement) await rows(tx, attempt.statement);
  if (attempt.raise) throw new Error(attempt.raise);
  const { status, headers, body, body_base64, body_repeat } = attempt.answer;
  return {
    status,
    headers: headers ?? [],
    body: body_repeat ? body_repeat.text.repeat(body_repeat.times) : body_base64 ? Buffer.from(body_base64, "base64") : body,
  };
}

const identify = (header) => {
  const [principal, tenant] = [header("x-user"), header("x-tenant")];
  return principal ? { principal, ...(tenant && { tenant }) } : undefined;
};

const route = (header) => ({ endpoint: "create-order", identify: (request) => identify((name) => header(request, name)) });
const profiles = ["ietf", "stripe", "walker", "agents", "scores", "feed", "mesh"];
const port = Number(values.port);
const ready = () => console.log("ready");

if (values.framework === "express") {
  const app = express();
  app.get("/ready", (request, response) => response.send("ready"));
  const header = (request, name) => request.headers[name];
  for (const profile of profiles) {
    const once = new Once(database, { profile });
    app.post(`/${profile}/orders/:id`, expressHandler(once, route(header), (tx, request) => handle(tx, header(request, "x-once"))));
  }
  app.use((error, request, response, next) => {
    console.error(error);
    response.status(500).send("Internal Server Error");
  });
  app.listen(port, "127.0.0.1", ready);
} else if (values.framework === "fastify") {
  const app = fastify({ bodyLimit: 4 << 20 });
  app.get("/ready", async () => "ready");
  app.addContentTypeParser("application/octet-stream", { parseAs: "buffer" }, (request, body, done) => done(null, body));
  const header = (request, name) => request.headers[name];
  for (const profile of profiles) {
    const once = new Once(database, { profile });
    app.post(`/${profile}/orders/:id`, fastifyRoute(once, route(header), (tx, request) => handle(tx, header(request, "x-once"))));
  }
  await app.listen({ port, host: "127.0.0.1" });
  ready();
} else if (values.framework === "hono") {
  const app = new Hono();
  app.get("/ready", (c) => c.text("ready"));
  const header = (c, name) => c.req.header(name);
  for (const profile of profiles) {
    const once = new Once(database, { profile });
    app.post(`/${profile}/orders/:id`, honoHandler(once, route(header), (tx, c) => handle(tx, header(c, "x-once"))));
  }
  serveHono({ fetch: app.fetch, port, hostname: "127.0.0.1" }, ready);
} else {
  throw new Error(`no framework is called ${values.framework}`);
}
