// Computes every value of fingerprints.json, scopes.json and timestamps.json again, with Node's own JSON, numbers,
// dates and crypto and with the npm package `canonicalize`. It writes nothing. See README.md for how to run it.
import assert from "node:assert/strict";
import { createHash, createHmac } from "node:crypto";
import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const modules = process.argv[2];
assert(modules, "usage: node crosscheck.mjs PATH_OF_NODE_MODULES");
const { default: canonicalize } = await import(pathToFileURL(resolve(modules, "canonicalize/lib/canonicalize.js")));
const vectors = resolve(fileURLToPath(import.meta.url), "../../vectors");
const read = (file) => JSON.parse(readFileSync(resolve(vectors, file), "utf8"));
const sha256 = (...parts) => createHash("sha256").update(Buffer.concat(parts.map((p) => Buffer.from(p)))).digest("hex");
const lp = (content) => {
  const bytes = Buffer.from(content);
  const length = Buffer.alloc(8);
  length.writeBigUInt64BE(BigInt(bytes.length));
  return Buffer.concat([length, bytes]);
};

// RFC 8785 once more, without a package: ECMAScript's sort compares UTF-16 units, and JSON.stringify does the rest.
function plain(value) {
  if (Array.isArray(value)) return `[${value.map(plain).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${plain(value[name])}`).join(",")}}`;
}

const tokens = (pointer) =>
  pointer.split("/").slice(1).map((token) => token.replaceAll("~1", "/").replaceAll("~0", "~"));
const has = (value, token) =>
  Array.isArray(value)
    ? /^(0|[1-9][0-9]*)$/.test(token) && Number(token) < value.length
    : value !== null && typeof value === "object" && Object.hasOwn(value, token);
function find(document, way) {
  for (const token of way) {
    if (!has(document, token)) return [];
    document = document[token];
  }
  return [document];
}
function points(document, exclude, include) {
  for (const pointer of exclude) {
    const way = tokens(pointer);
    const last = way.pop();
    const [parent] = find(document, way);
    if (parent === undefined || !has(parent, last)) continue;
    if (Array.isArray(parent)) parent[last] = null;
    else delete parent[last];
  }
  if (include.length === 0) return document;
  const sorted = [...include].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
  return sorted.flatMap((pointer) => find(document, tokens(pointer)).map((value) => [pointer, value]));
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const count = { json: 0, raw: 0, none: 0, refused: 0, rawByRule: 0, scopes: 0, identities: 0, timestamps: 0 };

for (const v of read("fingerprints.json").vectors) {
  const body = v.body_base64 === undefined ? Buffer.from(v.body) : Buffer.from(v.body_base64, "base64");
  const type = v.content_type?.replace(/;.*/s, "").trim().toLowerCase();
  let document;
  try {
    assert(type === undefined || type === "application/json" || type.endsWith("+json"));
    document = JSON.parse(utf8.decode(body));
    canonicalize(document); // throws for numbers beyond a double and for unpaired surrogates
  } catch {
    document = undefined;
  }
  // What Node parses and the contract still keeps raw: doubled members, big integers, 128 levels.
  const byRule = /two members of one name|two empty names|integer|128|too deep|doubled member/.test(v.name);
  if (v.expect.problem !== undefined) {
    assert(document === undefined || byRule, v.name);
    count.refused += 1;
    continue;
  }
  let content = body;
  if (v.expect.form === "json") {
    assert.notEqual(document, undefined, v.name);
    const result = points(document, v.exclude, v.include);
    assert.equal(canonicalize(result), v.expect.canonical, v.name);
    assert.equal(plain(result), v.expect.canonical, v.name);
    assert.equal(canonicalize(JSON.parse(v.expect.canonical)), v.expect.canonical, v.name);
    content = Buffer.from(v.expect.canonical);
  } else {
    assert.equal(v.expect.canonical, null, v.name);
    assert.equal(v.expect.form, body.length === 0 ? "none" : "raw", v.name);
    assert(document === undefined || byRule, v.name);
    if (document !== undefined) count.rawByRule += 1;
  }
  count[v.expect.form] += 1;
  assert.equal(v.expect.payload_hash, sha256(content), v.name);
  const letter = { none: "n", json: "j", raw: "r" }[v.expect.form];
  const parts = {
    method: () => ["m", lp(v.method)],
    route: () => ["r", lp(v.route)],
    params: () => ["p", lp(Buffer.concat(v.params.flat().map(lp)))],
    query: () => ["q", lp(v.query)],
    principal: () => ["s", lp(v.principal)],
    body: () => ["b", lp(Buffer.concat([Buffer.from(letter), content]))],
  };
  let message = content;
  if (v.inputs.length !== 1 || v.inputs[0] !== "body") {
    const framed = Object.keys(parts).filter((name) => v.inputs.includes(name)).flatMap((name) => parts[name]());
    message = Buffer.concat([lp("semel.fingerprint.1"), ...framed.map((part) => Buffer.from(part))]);
  }
  const hash = v.secret_hex === null ? createHash("sha256") : createHmac("sha256", Buffer.from(v.secret_hex, "hex"));
  assert.equal(v.expect.fingerprint, hash.update(message).digest("hex"), v.name);
}

for (const v of read("scopes.json").vectors) {
  if (v.identity !== undefined) {
    assert.equal(v.expect, `${v.identity}:${sha256(v.credential)}`, v.name);
    count.identities += 1;
    continue;
  }
  const named = v.host?.replace(/^([^:]*|\[.*\]):\d+$/, "$1").replace(/\.$/, "").toLowerCase() ?? null;
  const isAddress = named !== null && (named === "localhost" || isIP(named.replace(/^\[(.*)\]$/, "$1")) !== 0);
  const host = isAddress ? "" : named;
  const all = [["t", v.tenant], ["p", v.principal], ["e", v.endpoint], ["h", host]];
  const parts = all.filter(([, part]) => part !== null);
  assert.equal(v.expect, sha256(lp("semel.scope.1"), ...parts.flatMap(([name, part]) => [name, lp(part)])), v.name);
  count.scopes += 1;
}

for (const v of read("timestamps.json").vectors) {
  if (v.expect_ms === null || v.text.includes(":60")) continue; // Date.parse is laxer, and knows no second 60
  const text = v.text.toUpperCase().replace(" ", "T").replace(/(\.\d{1,3})\d*/, "$1");
  assert.equal(Date.parse(text), v.expect_ms, v.name);
  count.timestamps += 1;
}

console.log(count);
