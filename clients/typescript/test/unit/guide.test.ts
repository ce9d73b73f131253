// Runs the program of docs/guides/client-browser.md as it stands there.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Outbox, type OutboxOptions } from "semel/outbox";
import { Device, Gate, Tab } from "../support/world.js";

test("the guide's first program does what the guide says", async () => {
  const guide = readFileSync(new URL("../../../../docs/guides/client-browser.md", import.meta.url), "utf8");
  const program = /```js\n([\s\S]*?)```/.exec(guide)![1]!.replace(/^import .*\n/gm, "");
  const device = new Device();
  const gate = new Gate(device);
  const { environment } = new Tab(device, gate.fetch);
  const said: unknown[][] = [];
  const run = new Function("Outbox", "session", "console", `return (async () => { ${program} })()`);
  const opened = { open: (options: OutboxOptions) => Outbox.open({ ...options, environment }) };
  let isDone = false;
  run(opened, { user: "anna", token: "t" }, { log: (...words: unknown[]) => said.push(words) }).then(() => (isDone = true));
  await device.until(() => isDone);
  const [arrival] = gate.arrivals;
  assert.equal(arrival!.headers.get("authorization"), "Bearer t");
  assert.deepEqual(said.map(([word]) => word), ["queued", "done", true]);
  assert.deepEqual(said[2], [true, "done", "once", `{"key":"${arrival!.key}"}`]);
});
