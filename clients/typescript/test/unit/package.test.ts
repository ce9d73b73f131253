// Checks that every entry the package names can be imported.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const manifest = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8"));

test("every entry of the package can be imported", async () => {
  for (const name of Object.keys(manifest.exports)) {
    if (name.endsWith(".json")) continue;
    assert.ok(await import(`semel${name.slice(1)}`), name);
  }
});

test("the package has no runtime dependency", () => {
  assert.equal(manifest.dependencies, undefined);
});

test("the reference says what the types say", () => {
  execFileSync(process.execPath, [fileURLToPath(new URL("../../scripts/reference.mjs", import.meta.url)), "--check"]);
});
