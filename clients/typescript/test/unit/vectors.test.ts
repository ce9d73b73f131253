// Holds the generated profiles and the sender's rules against spec/, which other implementations wrote.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { classify, codeOf, type Class } from "../../dist/contract/classify.js";
import { isKey, mint } from "../../dist/contract/mint.js";
import { next } from "../../dist/contract/schedule.js";
import { profiles } from "../../dist/contract/profiles.js";
import { effectsOf } from "../../dist/contract/refusal.js";
import { rules } from "../../dist/contract/rules.js";
import { toldWait } from "../../dist/contract/wait.js";

const read = (path: string) => JSON.parse(readFileSync(new URL(`../../../../spec/${path}`, import.meta.url), "utf8"));

test("the profiles are what spec/contract.md says", () => {
  execFileSync(process.execPath, [fileURLToPath(new URL("../../scripts/profiles.mjs", import.meta.url)), "--check"]);
});

test("answers are classified as the vectors say", () => {
  const full = (found: Class | undefined): unknown =>
    found ? { class: found.class, reason: found.reason ?? null, max: found.max ?? null, then: short(found.then) } : null;
  const short = (found: Class | undefined) => (found ? { class: found.class, reason: found.reason ?? null } : null);
  const { vectors, codes } = read("vectors/classification.json");
  assert.ok(vectors.length > 600 && codes.length > 30);
  for (const { name, profile, status, code, expect } of vectors) {
    const found = classify(rules[profile]!, status, [code]);
    assert.deepEqual(full(found), expect, name);
  }
  for (const { name, body, body_base64, expect } of codes) {
    const text = body ?? Buffer.from(body_base64, "base64").toString("utf8");
    assert.equal(codeOf(text), expect, name);
  }
});

test("attempts are timed as the vectors say", () => {
  const { vectors } = read("vectors/schedules.json");
  assert.ok(vectors.length > 200);
  for (const { name, schedule, progress, cause, u, expect } of vectors) {
    const { jitter } = schedule;
    const own = {
      base: schedule.base_ms, factor: schedule.factor, cap: schedule.cap_ms, blocked: schedule.blocked_ms,
      jitter: jitter === "none" ? 0 : jitter === "full" ? "full" as const : jitter.ratio,
      ...optional("burst", schedule.burst_attempts), ...optional("burstBudget", schedule.burst_budget_ms),
      ...optional("period", schedule.period_ms), ...optional("maxAttempts", schedule.max_attempts),
      ...optional("maxAge", schedule.max_age_ms),
    };
    const so_far = {
      attempts: progress.attempts, inBurst: progress.attempts_in_burst, burstElapsed: progress.burst_elapsed_ms,
      age: progress.age_ms,
    };
    const found = next(own, so_far, cause.told_ms ?? cause, u);
    const said = "after" in found ? { after_ms: found.after } : "period" in found
      ? { period_ms: found.period } : { give_up: found.giveUp };
    assert.deepEqual(said, expect, name);
  }
});

function optional(name: string, value: number | null): Record<string, number> {
  return value === null ? {} : { [name]: value };
}

test("the profiles' own schedules are those of the vectors", () => {
  const { vectors } = read("vectors/schedules.json");
  const walker = vectors.find((vector: { name: string }) => vector.name === "walker attempt 1, u 0.5").schedule;
  const { schedule } = profiles.walker;
  assert.deepEqual(
    [schedule.base, schedule.factor, schedule.cap, { ratio: schedule.jitter }, schedule.burst, schedule.period, schedule.maxAge],
    [walker.base_ms, walker.factor, walker.cap_ms, walker.jitter, walker.burst_attempts, walker.period_ms, walker.max_age_ms],
  );
});

test("minted keys have their profile's format, and keys are accepted as the vectors say", () => {
  for (const profile of Object.values(profiles)) {
    const minted = new Set(Array.from({ length: 50 }, () => mint(profile.mint, 1_469_918_176_385)));
    assert.equal(minted.size, 50, profile.name);
    for (const key of minted) assert.ok(isKey(profile.format, key), `${profile.name}: ${key}`);
  }
  assert.match(mint("ulid", 1_469_918_176_385), /^01ARYZ6S41/);
  let held = 0;
  for (const { name, policy, headers, expect } of read("vectors/keys.json").vectors) {
    const isPlain = policy.sources.length === 1 && policy.syntax === "bare" && headers?.length === 1 && !policy.shared;
    if (!isPlain || !["uuid4-lower", "token255", "printable255", "any255"].includes(policy.format)) continue;
    const value = headers[0][1];
    if (value !== value.trim() || headers[0][0].toLowerCase() !== policy.sources[0].slice(7).toLowerCase()) continue;
    assert.equal(isKey(policy.format, value), expect.key === value, name);
    held++;
  }
  assert.ok(held > 20, `${held} vectors`);
});

test("no refusal of a gate speaks for earlier attempts, and those of attempts under way leave them open", () => {
  const contract = readFileSync(new URL("../../../../spec/contract.md", import.meta.url), "utf8");
  const table = contract.slice(contract.indexOf("| slug | status |"), contract.indexOf("The default form is RFC 9457"));
  const slugs = [...table.matchAll(/^\| `([a-z-]+)` \| (\d+) \| ([a-z-]+)/gm)];
  assert.ok(slugs.length > 30);
  const possible = ["in-flight", "too-many-waiters", "outcome-unknown", "superseded", "settlement-pending", "not-settled",
    "upstream-reset", "upstream-timeout", "handler-timeout"];
  for (const [, slug, text, retry] of slugs) {
    const status = Number(text);
    const headers = { "semel-guarantee": "fenced", "x-should-retry": `${retry === "same-key"}` };
    const link = `</.well-known/semel/problems/${slug}>; rel="describedby"`;
    const forms = [
      { status, headers: { ...headers, link }, body: "" },
      { status, headers, body: JSON.stringify({ error: slug!.toUpperCase().replaceAll("-", "_") }) },
      { status, headers: { "semel-guarantee": "fenced" }, body: JSON.stringify({ type: `urn:semel:problem:${slug}` }) },
    ];
    for (const answer of forms) {
      const isWaiting = status === 409 && classify(rules.ietf!, status, [slug!]).class === "retry-after";
      const expected = possible.includes(slug!) ? "possible" : slug === "answer-not-kept" ? "taken" : "unsaid";
      assert.equal(effectsOf(answer, "00000000-0000-4000-8000-000000000001", isWaiting), expected, slug);
    }
  }
});

test("what an answer says of its effects", () => {
  const id = "00000000-0000-4000-8000-000000000001";
  const said = (status: number, headers: Record<string, string>, body = "{}", of = id) =>
    effectsOf({ status, headers, body }, of, false);
  const unkept = (status: number) => `{"type":"urn:semel:problem:answer-not-kept","details":{"originalStatus":${status}}}`;
  assert.equal(said(422, { "idempotency-replayed": "true" }), "all");
  assert.equal(said(422, { "idempotency-replayed": "false" }), "unsaid");
  assert.equal(said(422, { "idempotency-replayed": "true" }, "{}", "order-1"), "unsaid");
  assert.equal(said(201, { "idempotency-replayed": "true" }, "{}", "order-1"), "all");
  assert.equal(said(201, { "semel-guarantee": "fenced" }), "all");
  // A fresh refusal frees the key: an attempt that is still on its way may run.
  assert.equal(said(422, { "semel-guarantee": "fenced" }), "unsaid");
  assert.equal(said(503, { "idempotency-replayed": "true" }), "possible");
  assert.equal(said(201, { "semel-guarantee": "fenced" }, "{}", "order-1"), "unsaid");
  assert.equal(said(202, { "semel-guarantee": "fenced", "semel-outcome": "pending" }), "possible");
  assert.equal(said(422, { "semel-guarantee": "none" }), "unsaid");
  assert.equal(said(502, {}), "possible");
  assert.equal(said(502, { "semel-outcome": "not-applied" }), "unsaid");
  assert.equal(said(409, {}, unkept(201)), "taken");
  assert.equal(said(409, {}, unkept(422)), "unsaid");
  assert.equal(said(409, {}, unkept(500)), "possible");
});

test("both forms of Retry-After are read, and retry_after in a body", () => {
  const now = Date.parse("1994-11-06T08:49:00Z");
  const told = (text: string, body = "") => toldWait((name) => (name === "retry-after" ? text : null), body, now);
  assert.equal(told("42"), 42_000);
  assert.equal(told("Sun, 06 Nov 1994 08:49:37 GMT"), 37_000);
  assert.equal(told("Sun, 06 Nov 1994 08:00:00 GMT"), 0);
  for (const bad of ["", "soon", "-1", "1.5", "Sun, 06 Nov 1994 08:49:37 CET"]) assert.equal(told(bad), null, bad);
  assert.equal(told("", '{"retry_after":1000}'), 1000);
});
