// Runs the scenarios of spec/once.json against a service, as spec/once.md says.

import assert from "node:assert/strict";
import { createHash, randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import http from "node:http";
import pg from "pg";
import { eventually } from "./support.mjs";

export const suite = JSON.parse(readFileSync(new URL("../../../../spec/once.json", import.meta.url), "utf8"));

/** JSON in ASCII, as a header's value has to be. */
const ascii = (value) =>
  JSON.stringify(value).replace(/[^\x20-\x7e]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

function sendRequest(base, { path, headers, body }) {
  return new Promise((resolve, reject) => {
    const request = http.request(`${base}${path}`, { method: "POST", agent: false }, (response) => {
      const parts = [];
      response.on("data", (part) => parts.push(part));
      response.on("error", reject);
      response.on("end", () => {
        const lines = [];
        for (let at = 0; at < response.rawHeaders.length; at += 2) {
          lines.push([response.rawHeaders[at].toLowerCase(), response.rawHeaders[at + 1]]);
        }
        resolve({ status: response.statusCode, lines, headers: response.headers, body: Buffer.concat(parts) });
      });
    });
    request.on("error", reject);
    for (const [name, value] of Object.entries(headers)) request.setHeader(name, value);
    request.end(body);
  });
}

const bytesOf = ({ body, body_base64, body_repeat }, otherwise) =>
  body_repeat
    ? Buffer.from(body_repeat.text.repeat(body_repeat.times))
    : body_base64 !== undefined
      ? Buffer.from(body_base64, "base64")
      : Buffer.from(body ?? otherwise);

class Scenario {
  constructor(scenario, service, database) {
    Object.assign(this, { scenario, service, database });
    this.names = { key: randomUUID(), now: new Date().toISOString() };
    this.run = `once_${randomUUID().replaceAll("-", "")}`;
    this.answers = {};
    this.pending = {};
    this.locks = {};
    this.attempts = [];
  }

  fill(text) {
    return text.replace(/\{(\w+)\}/g, (all, name) => this.names[name] ?? all);
  }

  request(wanted) {
    if (wanted.attempts) this.attempts = wanted.attempts;
    const headers = { "x-once": ascii({ run: this.run, attempts: this.attempts }) };
    const add = (name, value) => {
      const before = headers[name.toLowerCase()];
      headers[name.toLowerCase()] = before === undefined ? value : [before, value].flat();
    };
    add("content-type", wanted.content_type ?? "application/json");
    if (wanted.user !== null) add("x-user", wanted.user ?? "alice");
    if (wanted.tenant) add("x-tenant", wanted.tenant);
    if (wanted.key !== null) add(wanted.key_header ?? "Idempotency-Key", this.fill(wanted.key_as ?? wanted.key ?? "{key}"));
    for (const [name, value] of wanted.headers ?? []) add(name, this.fill(value));
    const query = wanted.query ? `?${wanted.query}` : "";
    const body = wanted.body === undefined ? wanted : { ...wanted, body: this.fill(wanted.body) };
    return { path: `/${wanted.profile ?? "ietf"}${wanted.path ?? "/orders/1"}${query}`, headers, body: bytesOf(body, '{"amount":5}') };
  }

  begin(wanted) {
    const answer = sendRequest(this.service.base(), this.request(wanted));
    answer.catch(() => {});
    return answer;
  }

  async step(step) {
    if (step.send) return this.check(step, this.begin(step.send));
    if (step.start) this.pending[step.as] = this.begin(step.start);
    else if (step.finish) await this.check({ as: step.finish, ...step }, this.pending[step.finish]);
    else if (step.lock !== undefined) await this.lock(step.lock);
    else if (step.unlock !== undefined) await this.unlock(step.unlock);
    else if (step.held !== undefined) await this.waitHeld(step.held);
    else if (step.sql) await this.operate(step);
    else if (step.commit) this.service.arm(step.commit);
    else assert.fail(`no such step: ${JSON.stringify(step)}`);
  }

  async lock(number) {
    const client = new pg.Client({ connectionString: this.database.url });
    await client.connect();
    await client.query("SELECT pg_advisory_lock($1)", [number]);
    this.locks[number] = client;
  }

  async unlock(number) {
    await this.locks[number]?.end();
    delete this.locks[number];
  }

  async waitHeld(number) {
    const sql = `SELECT count(*)::int AS n FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = $1
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`;
    await eventually(`a handler waits for lock ${number}`, async () => (await this.database.query(sql, [number]))[0].n > 0);
  }

  async operate({ sql, host, as }) {
    const { key } = this.names;
    // The operations speak of alice without a tenant at the endpoint create-order.
    const part = (letter, text) => Buffer.concat([Buffer.from(letter), lengthPrefixed(text)]);
    const parts = [part("p", "alice"), part("e", "create-order"), ...(host === undefined ? [] : [part("h", host)])];
    const scope = sha256(Buffer.concat([lengthPrefixed("semel.scope.1"), ...parts]));
    const values = {
      id: `'\\x${sha256(Buffer.concat([scope, Buffer.from(key)])).subarray(0, 16).toString("hex")}'::bytea`,
      scope: `'\\x${scope.toString("hex")}'::bytea`,
      key: `'${key}'`,
      endpoint: "'create-order'",
      principal: "'alice'",
    };
    const rows = await this.database.query(suite.operations[sql].replace(/\{(\w+)\}/g, (_, name) => values[name]));
    if (as) this.names[as] = Object.values(rows[0])[0];
  }

  async check({ as, expect = {} }, pending) {
    if (expect.no_answer) {
      await assert.rejects(pending, "the connection should have broken");
      return this.service.restarted();
    }
    const answer = await pending;
    if (as) this.answers[as] = answer;
    const seen = `${answer.status} ${JSON.stringify(answer.lines)} ${answer.body.subarray(0, 500)}`;
    const header = (name) => answer.lines.filter(([one]) => one === name).map(([, value]) => value);
    const equal = (got, wanted, what) => assert.deepEqual(got, wanted, `${what}: ${seen}`);
    if (expect.status !== undefined) equal(answer.status, expect.status, "status");
    if (expect.replayed !== undefined) equal(header("idempotency-replayed"), expect.replayed ? ["true"] : [], "replayed");
    if (expect.guarantee) equal(header("semel-guarantee"), [expect.guarantee], "guarantee");
    if (expect.problem) {
      equal(header("link"), [`</.well-known/semel/problems/${expect.problem}>; rel="describedby"`], "problem");
    }
    if (expect.should_retry) equal(header("x-should-retry"), [expect.should_retry], "should retry");
    for (const [name, value] of Object.entries(expect.headers ?? {})) equal(header(name), [value], name);
    if (expect.lines) {
      const wanted = new Set(expect.lines.map(([name]) => name));
      equal(answer.lines.filter(([name]) => wanted.has(name)), expect.lines, "lines");
    }
    for (const name of expect.absent ?? []) equal(header(name), [], name);
    if (expect.body !== undefined || expect.body_base64 !== undefined || expect.body_repeat) {
      assert.ok(answer.body.equals(bytesOf(expect, "")), `body: ${seen}`);
    }
    if (expect.json) {
      const body = JSON.parse(answer.body);
      for (const [name, value] of Object.entries(expect.json)) equal(body[name], value, name);
    }
    for (const [name, value] of Object.entries(expect.details ?? {})) equal(JSON.parse(answer.body).details[name], value, name);
    if (expect.same_as) {
      equal(answer.status, this.answers[expect.same_as].status, "status of the first");
      assert.ok(answer.body.equals(this.answers[expect.same_as].body), `body of the first: ${seen}`);
    }
  }

  async count() {
    for (const [name, wanted] of Object.entries(this.scenario.effects ?? {})) {
      const sql = "SELECT count(*)::int AS n FROM once_effect WHERE run = $1 AND name = $2";
      const [{ n }] = await this.database.query(sql, [this.run, name]);
      assert.equal(n, wanted, `effects of ${name}`);
    }
    if (this.scenario.runs === undefined) return;
    const [{ n }] = await this.database.query(`SELECT CASE WHEN is_called THEN last_value ELSE 0 END::int AS n FROM "${this.run}"`);
    assert.equal(n, this.scenario.runs, "runs of the handler");
  }
}

const sha256 = (bytes) => createHash("sha256").update(bytes).digest();
const lengthPrefixed = (text) => {
  const length = Buffer.alloc(8);
  length.writeBigUInt64BE(BigInt(Buffer.byteLength(text)));
  return Buffer.concat([length, Buffer.from(text)]);
};

/** Runs one scenario. The service has base(), arm(how) and restarted(). */
export async function runScenario(scenario, service, database) {
  const running = new Scenario(scenario, service, database);
  await database.query(`CREATE SEQUENCE "${running.run}"`);
  try {
    for (const step of scenario.steps) await running.step(step);
    await running.count();
  } finally {
    for (const number of Object.keys(running.locks)) await running.unlock(number);
    await Promise.allSettled(Object.values(running.pending));
  }
}
