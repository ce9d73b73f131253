// Runs every vector of spec/vectors that concerns a service, and holds problems and presets against the contract's tables.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const internal = (name) => import(new URL(`../../dist/server/${name}.js`, import.meta.url));
const { readKey, isRandomUuid } = await internal("key");
const { fingerprintOf, hashedPrincipal, hostOf, readBody, scopeOf, sha256 } = await internal("fingerprint");
const { endOf, lifetimeMs, preset, withRetryWindow } = await internal("profile");
const { judgeAge, parseTimestamp } = await internal("time");
const { PROBLEMS, Problem, renderProblem } = await internal("problem");
const { filterHeaders, packHeaders, unpackHeaders } = await internal("headers");
const { pathParams } = await internal("http");
const { isUncommitted, sqlState } = await internal("errors");

const spec = (path) => readFileSync(new URL(`../../../../spec/${path}`, import.meta.url), "utf8");
const vectors = (file) => JSON.parse(spec(`vectors/${file}`)).vectors;
const bytes = (vector) => Buffer.from(vector.body_base64 ?? vector.body ?? "", vector.body_base64 === undefined ? "utf8" : "base64");

/** Runs every vector of a list, and tells all that fail. */
function each(list, least, check) {
  const failures = [];
  for (const vector of list) {
    try {
      check(vector);
    } catch (error) {
      failures.push(`${vector.name}: ${error.message}`);
    }
  }
  assert.deepEqual(failures, []);
  assert.ok(list.length >= least, `only ${list.length} vectors`);
}

const refused = (make) => {
  try {
    return make();
  } catch (error) {
    if (error instanceof Problem) return { problem: error.slug };
    throw error;
  }
};

test("keys are read as the vectors say", () => {
  each(vectors("keys.json"), 300, (vector) => {
    // Node gives the bytes of a header as Latin-1 characters.
    const latin1 = ([name, value]) => [name, Buffer.from(value, vector.headers_base64 ? "base64" : "utf8").toString("latin1")];
    const headers = (vector.headers_base64 ?? vector.headers).map(latin1);
    const policy = { requireHeaders: [], ...vector.policy };
    const got = refused(() => {
      const found = readKey(policy, headers, bytes(vector));
      if (found && policy.shared && !isRandomUuid(found.key)) throw new Problem("key-too-weak");
      return found ?? { key: null };
    });
    assert.deepEqual(got, vector.expect);
  });
});

test("scopes are those of the vectors", () => {
  each(vectors("scopes.json"), 50, (vector) => {
    if (vector.identity) return assert.equal(hashedPrincipal(vector.identity, vector.credential), vector.expect);
    const part = (value) => value ?? undefined;
    const host = vector.host === undefined || vector.host === null ? undefined : hostOf(vector.host);
    const parts = { tenant: part(vector.tenant), principal: part(vector.principal), endpoint: part(vector.endpoint), host };
    assert.equal(scopeOf(parts).toString("hex"), vector.expect);
  });
});

test("fingerprints are those of the vectors", () => {
  each(vectors("fingerprints.json"), 300, (vector) => {
    const secret = vector.secret_hex === null ? undefined : Buffer.from(vector.secret_hex, "hex");
    const got = refused(() => {
      const form = readBody(vector, vector.content_type ?? undefined, bytes(vector));
      return {
        form: form.form,
        canonical: form.form === "json" ? Buffer.from(form.content).toString("utf8") : null,
        fingerprint: fingerprintOf(vector, { ...vector, principal: vector.principal ?? "" }, form, secret).toString("hex"),
        payload_hash: sha256(form.content).toString("hex"),
      };
    });
    assert.deepEqual(got, vector.expect);
  });
});

// In the vectors a layer asks whether the handler settled; here the library settles itself, so an answer that would be
// "not-settled" is committed with its record, unless its status cannot be recorded at all.
test("answers end the transaction as the vectors say", () => {
  const atomic = vectors("dispositions.json").filter(({ guarantee, event }) => guarantee === "atomic" && event.status);
  each(atomic, 100, ({ profile: name, event, expect }) => {
    const profile = preset(name);
    const isReleased = event.status >= 500 || profile.releases(event.status);
    const wanted = { settle: "commit", release: "roll-back", "not-settled": isReleased ? "refuse" : "commit" }[expect];
    assert.equal(endOf(profile, event.status, event.outcome ?? undefined), wanted);
  });
});

test("timestamps are read as the vectors say", () => {
  each(vectors("timestamps.json"), 100, ({ text, expect_ms }) => assert.equal(parseTimestamp(text) ?? null, expect_ms));
});

test("old actions are judged as the vectors say", () => {
  // No preset uses the two options about the time of submission.
  const plain = vectors("staleness.json").filter((vector) => vector.submitted_gap_ms === null && vector.submitted === "ignore");
  each(plain, 20, (vector) => {
    const guard = { generatedAt: "", capMs: vector.cap_ms, graceMs: vector.grace_ms };
    assert.equal(judgeAge(guard, vector.generated_at, vector.now), vector.expect.verdict);
  });
});

test("problems are those of the contract", () => {
  const rows = [...spec("contract.md").matchAll(/^\| `([a-z-]+)` \| ([0-9]{3}) \| ([a-z-]+) \| (.+) \|$/gm)];
  const listed = new Map(rows.map(([, slug, status, retry, title]) => [slug, [Number(status), retry, title]]));
  for (const [slug, kind] of Object.entries(PROBLEMS)) assert.deepEqual(kind, listed.get(slug), slug);
});

test("presets have the numbers of the contract", () => {
  const rows = new Map(
    spec("contract.md")
      .split("\n")
      .map((line) => line.replace(/^\| | \|$/g, "").split(" | "))
      .filter((cells) => cells.length === 8)
      .map(([name, ...cells]) => [name, cells]),
  );
  const inWords = (ms) =>
    [["d", 86400000], ["h", 3600000], ["m", 60000]]
      .map(([unit, size]) => {
        const count = Math.floor(ms / size);
        ms -= count * size;
        return count === 0 ? "" : `${count}${unit}`;
      })
      .join("") || "0s";
  ["ietf", "stripe", "walker", "agents", "scores", "feed", "mesh"].forEach((name, at) => {
    const profile = preset(name);
    const expect = (row, got) => assert.equal(got, rows.get(row)?.[at], `${name}, ${row}`);
    expect("format", profile.key.format);
    expect("syntax", profile.key.syntax);
    expect("presence", profile.key.presence);
    expect("error form", profile.form);
    expect("retry window", inWords(profile.retryWindowMs));
    expect("skew", inWords(profile.skewMs));
    expect("margin", inWords(profile.marginMs));
    expect("record lives", inWords(lifetimeMs(profile)));
    expect("counted from", profile.anchor);
    expect("replay", profile.duplicate === undefined ? "verbatim" : `duplicate ${profile.duplicate}`);
    expect("minted keys", profile.mints);
  });
  assert.equal(lifetimeMs(withRetryWindow(preset("ietf"), 7 * 86400000)), 7 * 86400000 + 600000 + 86400000);
});

test("headers survive packing, in order and byte for byte", () => {
  const lines = [["x-part", "one"], ["x-part", ""], ["location", "/a"], ["x-bytes", "caf\u00e9 \u00ff"], ["x-part", "two"]];
  assert.deepEqual(unpackHeaders(packHeaders(lines)), lines);
  assert.equal(packHeaders([["ab", "c"]]).toString("hex"), "0002616200000001" + "63");
  assert.throws(() => unpackHeaders(packHeaders(lines).subarray(0, -1)));
  for (const line of [["x", "a\r\nb"], ["x y", "a"], ["x", "\u20ac"]]) assert.throws(() => packHeaders([line]), TypeError);
});

test("what belongs to one person, moment or connection is not kept", () => {
  const dropped = ["Set-Cookie", "Date", "Semel-Note", "Proxy-Thing", "WWW-Authenticate", "Content-Length", "X-Hop", "Connection"];
  const lines = [...dropped.map((name) => [name, name === "Connection" ? "close, x-hop" : "v"]), ["Location", "/a"]];
  assert.deepEqual(filterHeaders(lines), [["location", "/a"]]);
});

test("problems are written in each profile's form", () => {
  const problem = new Problem("in-flight", "wait", { retryAfterMs: 1500, fields: { a: 1 } });
  const body = (name) => renderProblem(preset(name), problem, "r1").body.toString();
  assert.deepEqual(JSON.parse(body("ietf")), {
    type: "urn:semel:problem:in-flight",
    title: "A request with this key is being processed",
    status: 409,
    detail: "wait",
    retry: "same-key",
    request_id: "r1",
    retry_after: 2,
    details: { a: 1 },
  });
  assert.equal(JSON.parse(body("walker")).error, "IDEMPOTENCY_IN_FLIGHT");
  assert.deepEqual(JSON.parse(body("feed")), { error: "Request already being processed", retry_after: 1500 });
  assert.equal(body("agents"), "Request is being processed");
  assert.equal(JSON.parse(body("scores")).message, "A request with this key is being processed: wait");
  assert.deepEqual(JSON.parse(body("mesh")), { reason: problem.message, a: 1, error: "in_flight" });
  assert.deepEqual(renderProblem(preset("stripe"), problem, "").headers.at(-1), ["stripe-should-retry", "true"]);
});

test("path parameters are read as they stand in the path", () => {
  assert.deepEqual(pathParams("/orders/:id/refund", "/api/orders/a%2Fb/refund"), [["id", "a%2Fb"]]);
  assert.deepEqual(pathParams("/files/*path", "/files/a/b"), [["path", "a/b"]]);
  assert.deepEqual(pathParams("/orders", "/orders"), []);
  assert.throws(() => pathParams("/a{/:x}", "/a"), TypeError);
});

test("errors of every driver are told apart", () => {
  assert.equal(sqlState(Object.assign(new Error(), { code: "40001" })), "40001");
  assert.equal(sqlState({ code: "P2010", meta: { driverAdapterError: { cause: { originalCode: "SM004" } } } }), "SM004");
  assert.equal(sqlState({ code: "P2034" }), "40001");
  assert.equal(sqlState(new Error("wrapped", { cause: { code: "25P02" } })), "25P02");
  for (const code of ["ECONNRESET", "EPIPE", "P2028"]) assert.equal(sqlState({ code }), undefined, code);
  for (const code of ["40001", "23505", "SM004", "25P02"]) assert.equal(isUncommitted({ code }), true, code);
  for (const code of ["40003", "57P01", "08006", "ECONNRESET"]) assert.equal(isUncommitted({ code }), false, code);
});
