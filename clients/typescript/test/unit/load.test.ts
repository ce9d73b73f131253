// What a day without a network leaves behind, and how large the package is.
import assert from "node:assert/strict";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { build, type Plugin } from "esbuild";
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { Outbox } from "semel/outbox";
import { delay } from "../../dist/contract/schedule.js";
import { profiles } from "../../dist/contract/profiles.js";
import { Device, Gate, Tab } from "../support/world.js";

test("after a day without a network 500 messages are sent in order, and no sooner than the schedule allows", async () => {
  const device = new Device();
  const gate = new Gate(device);
  gate.isReached = false;
  const tab = new Tab(device, gate.fetch);
  const outbox = Outbox.open({ name: "day", profile: "mesh", credentials: "none", environment: tab.environment });
  const lanes = ["a", "b", "c", "d", "e"];
  const sent: Record<string, string[]> = Object.fromEntries(lanes.map((lane) => [lane, []]));
  for (let n = 0; n < 500; n++) {
    const lane = lanes[n % lanes.length]!;
    outbox.send("https://api.example/x", { init: { method: "POST", body: "{}" }, id: `m${n}`, lane });
    sent[lane]!.push(`m${n}`);
  }
  await device.advance(86_400_000);
  // Not in the moment of an attempt: the network's return does not pass over the first delay.
  await device.advance(5000);
  gate.isReached = true;
  // The service comes back slowly: for the first minute it refuses.
  const back = device.now;
  gate.reply = () => (device.now < back + 60_000 ? { status: 503 } : undefined);
  tab.page.dispatchEvent(new Event("online"));
  await device.advance(60_000);
  // By then each lane's first message has failed so often that its delays have reached the cap: the network's return allows
  // one attempt besides.
  const { schedule } = profiles.mesh;
  const most = lanes.length * (1 + Math.ceil(60_000 / delay(schedule, 30, 0.5)));
  assert.ok(gate.arrivals.length <= most, `${gate.arrivals.length} requests in the first minute, ${most} allowed`);
  assert.ok(gate.arrivals.length >= lanes.length, "the network's return is used");
  await device.until(() => gate.effects.length === 500, 3_600_000, 5000);
  for (const lane of lanes) assert.deepEqual(gate.effects.filter((key) => sent[lane]!.includes(key)), sent[lane]);
  outbox.dispose();
});

const dist = fileURLToPath(new URL("../../dist/", import.meta.url));

/** The size of a part as bundlers cut it: without the modules that earlier parts have loaded, and without those that come later. */
async function gzipped(entry: string, loaded: Set<string>): Promise<number> {
  const plugin: Plugin = {
    name: "parts",
    setup: ({ onResolve }) =>
      onResolve({ filter: /^\./ }, ({ kind, resolveDir, path }) => {
        const isElsewhere = kind === "dynamic-import" || (kind !== "entry-point" && loaded.has(resolve(resolveDir, path)));
        return isElsewhere ? { path, external: true } : undefined;
      }),
  };
  const { outputFiles, metafile } = await build({
    entryPoints: [resolve(dist, entry)], bundle: true, minify: true, format: "esm", target: "es2022", write: false,
    metafile: true, absWorkingDir: dist, plugins: [plugin],
  });
  for (const input of Object.keys(metafile.inputs)) loaded.add(resolve(dist, input));
  return gzipSync(outputFiles[0]!.contents, { level: 9 }).length;
}

test("the package is small", async () => {
  const page = new Set<string>();
  const sizes = {
    accepts: await gzipped("outbox/index.js", page),
    sends: await gzipped("outbox/sending.js", page),
    requeues: await gzipped("outbox/requeue.js", page),
    fetchOnce: await gzipped("semel/index.js", new Set()),
    events: await gzipped("events/index.js", new Set()),
  };
  console.log(`gzipped: ${JSON.stringify(sizes)}`);
  assert.ok(sizes.fetchOnce <= 2048, `fetchOnce: ${sizes.fetchOnce}`);
  assert.ok(sizes.events <= 1350, `events: ${sizes.events}`);
  // What a page loads before it accepts; then what it loads in the background to send; then what few pages ever load.
  assert.ok(sizes.accepts <= 8000, `outbox: ${sizes.accepts}`);
  assert.ok(sizes.accepts + sizes.sends <= 16_000, `outbox with its sender: ${sizes.accepts + sizes.sends}`);
  assert.ok(sizes.requeues <= 2500, `requeue: ${sizes.requeues}`);
});
