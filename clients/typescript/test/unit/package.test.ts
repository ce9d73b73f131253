// Checks that every entry the package names can be imported.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

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
