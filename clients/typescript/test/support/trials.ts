// The trials that every real browser goes through: the traps that are the browser's own, and random kills of tabs.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";
import { launch, type BrowserTab, type Name, type RealBrowser } from "./browsers.js";
import { startSite, type Site } from "./site.js";

const IS_LONG = process.env.SEMEL_TEST_LONG === "1";

async function until(condition: () => boolean | Promise<boolean>, what: string, millis = 60_000): Promise<void> {
  const end = Date.now() + millis;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`it did not happen: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
}

export function defineTrials(name: Name): void {
  let browser: RealBrowser;
  let site: Site;
  const open = () => browser.open(`${site.origin}/`);
  const send = (box: string, lane: string, id: string, wait: "accepted" | "done") =>
    `const sent = box("${box}").send("${site.api}/api/${lane}", { init: { method: "POST", body: "${id}" }, id: "${keyOf(id)}", lane: "${lane}" });
     return await sent.${wait};`;
  const keys = new Map<string, string>();
  /** A gate without identities wants keys that cannot be guessed. */
  const keyOf = (label: string) => {
    if (!keys.has(label)) keys.set(label, randomUUID());
    return keys.get(label)!;
  };
  const count = (id: string) => site.effects.filter(({ body }) => body === id).length;

  before(async () => {
    site = await startSite();
    browser = await launch(name);
  });
  after(async () => {
    await browser?.close();
    await site?.close();
  });

  test(`${name}: a reload while a request is in flight loses nothing and repeats nothing`, async () => {
    const tab = await open();
    site.isSlow = true;
    const requests = site.requests;
    await tab.evaluate(send("reload", "r", "r1", "accepted"));
    await until(() => site.requests > requests, "a request");
    await tab.reload();
    site.isSlow = false;
    await until(() => tab.evaluate(`return (await box("reload").get("${keyOf("r1")}"))?.status === "done"`), "done after the reload");
    assert.equal(count("r1"), 1);
    await tab.kill();
  });

  test(`${name}: a sender that stands still keeps its lock, and another tab takes over`, async () => {
    const [first, second] = [await open(), await open()];
    await first.evaluate(`box("hang")`);
    await until(() => first.evaluate(`return box("hang").getSnapshot().isSender`), "the first tab sends");
    await second.evaluate(`box("hang")`);
    // Chromium tells a page that it is frozen; this stands still without being told, as a stopped process does.
    await first.evaluate(`setTimeout(() => { const end = Date.now() + 9000; while (Date.now() < end); }, 0)`);
    const startedAt = Date.now();
    const done = await second.evaluate<{ status: string }>(send("hang", "h", "h1", "done"));
    assert.equal(done.status, "done");
    assert.ok(Date.now() - startedAt < 8500, `after ${Date.now() - startedAt} ms`);
    assert.equal(count("h1"), 1);
    await first.kill();
    await second.kill();
  });

  test(`${name}: a frozen or blocked tab's messages are sent by another, once`, async () => {
    const [first, second] = [await open(), await open()];
    await second.evaluate(`box("freeze")`);
    site.isSlow = true;
    const requests = site.requests;
    await first.evaluate(send("freeze", "f", "f1", "accepted"));
    await until(() => site.requests > requests, "a request");
    await first.freeze(6000);
    site.isSlow = false;
    await until(() => second.evaluate(`box("freeze").kick(); return (await box("freeze").get("${keyOf("f1")}"))?.status === "done"`), "done");
    assert.equal(count("f1"), 1);
    await first.kill();
    await second.kill();
  });

  test(`${name}: without a network a message is accepted, its promises wait, and they end when the network is back`, async () => {
    const tab = await open();
    site.isDown = true;
    const accepted = await tab.evaluate<{ durable: boolean }>(`
      globalThis.offline = box("offline").send("${site.api}/api/o", { init: { method: "POST", body: "o1" }, id: "${keyOf("o1")}", lane: "o" });
      return await offline.accepted;`);
    assert.equal(accepted.durable, true);
    await until(() => tab.evaluate(`return (await box("offline").get("${keyOf("o1")}")).attempts > 0`), "an attempt");
    site.isDown = false;
    assert.equal(await tab.evaluate(`dispatchEvent(new Event("online")); return (await offline.done).status`), "done");
    assert.equal(count("o1"), 1);
    await tab.kill();
  });

  test(`${name}: two drains at once send each message once`, async () => {
    const [first, second] = [await open(), await open()];
    const ids = [0, 1, 2, 3, 4].map((n) => `d${n}`);
    await first.evaluate(`await box("drains").pause()`);
    for (const id of ids) await first.evaluate(send("drains", "d", id, "accepted"));
    const drain = `await box("drains").resume(); await Promise.all([box("drains").drain(), box("drains").drain()]);`;
    await Promise.all([first.evaluate(drain), second.evaluate(drain)]);
    await until(() => ids.every((id) => count(id)), "all are sent");
    assert.deepEqual(site.effects.filter(({ lane }) => lane === "d").map(({ body }) => body), ids);
    await first.kill();
    await second.kill();
  });

  test(`${name}: mounting twice leaves no lock behind`, async () => {
    const tab = await open();
    const status = await tab.evaluate(`
      const open = () => semel.Outbox.open({ name: "strict", credentials: "none", persist: false });
      open().dispose();
      const outbox = open();
      const { done } = outbox.send("${site.api}/api/s", { init: { method: "POST", body: "s1" } });
      return (await done).status;`);
    assert.equal(status, "done");
    await tab.kill();
  });

  test(`${name}: an upgrade by a newer release is not blocked, and the older one goes on`, async () => {
    const tab = await open();
    await tab.evaluate(send("upgrade", "u", "u1", "done"));
    const version = await tab.evaluate(`return await new Promise((resolve, reject) => {
      const request = indexedDB.open("semel:upgrade", 7);
      request.onsuccess = () => (resolve(request.result.version), request.result.close());
      request.onerror = () => reject(request.error);
    });`);
    assert.equal(version, 7);
    const done = await tab.evaluate<{ status: string; durable: boolean }>(send("upgrade", "u", "u2", "done"));
    assert.deepEqual([done.status, done.durable], ["done", true]);
    await tab.kill();
  });

  test(`${name}: a deleted database is reported, and the next message is stored again`, async () => {
    const tab = await open();
    await tab.evaluate(send("lost", "l", "l1", "done"));
    await tab.evaluate(`await new Promise((resolve) => (indexedDB.deleteDatabase("semel:lost").onsuccess = resolve))`);
    const done = await tab.evaluate<{ status: string; durable: boolean }>(send("lost", "l", "l2", "done"));
    assert.deepEqual([done.status, done.durable], ["done", true]);
    assert.ok(await tab.evaluate(`return events.some(({ type }) => type === "storage-lost")`));
    await tab.kill();
  });

  test(`${name}: a database that the browser closes under the page is opened again, and nothing is lost or sent twice`, async () => {
    const tab = await open();
    await tab.evaluate(send("closed", "x", "x1", "done"));
    const opened = await tab.evaluate<number>(`for (const database of databases) database.close(); return databases.length`);
    const accepted = await tab.evaluate<{ durable: boolean }>(send("closed", "x", "x2", "accepted"));
    assert.equal(accepted.durable, true, "it is kept on the disk, not in memory");
    assert.ok((await tab.evaluate<number>(`return databases.length`)) > opened, "the outbox opened it again");
    // Now between the request and what comes of it.
    site.isSlow = true;
    const requests = site.requests;
    await tab.evaluate(send("closed", "x", "x3", "accepted"));
    await until(() => site.requests > requests, "a request");
    await tab.evaluate(`for (const database of databases) database.close()`);
    site.isSlow = false;
    await until(() => tab.evaluate(`return (await box("closed").get("${keyOf("x3")}"))?.status === "done"`), "done");
    assert.deepEqual(["x1", "x2", "x3"].map(count), [1, 1, 1]);
    await tab.kill();
  });

  test(`${name}: cookies stay at home, and a redirect to a sign-in page is no delivery`, async () => {
    const tab = await open();
    await tab.evaluate(`document.cookie = "session=bert"`);
    await tab.evaluate(send("cookies", "c", "c1", "done"));
    assert.equal(site.effects.find(({ body }) => body === "c1")!.cookie, undefined);
    site.isRedirecting = true;
    await tab.evaluate(send("cookies", "c", "c2", "accepted"));
    // Behind a gate of another origin a redirect is an error of CORS, and is tried again.
    await until(() => tab.evaluate(`const { status, attempts } = await box("cookies").get("${keyOf("c2")}"); return attempts > 0 && status !== "inflight"`), "an attempt");
    site.isRedirecting = false;
    assert.equal(count("c2"), 0);
    await tab.evaluate(`await box("cookies").retry("${keyOf("c2")}")`);
    await until(() => count("c2") === 1, "delivered");
    await tab.kill();
  });

  test(`${name}: a service worker drains with credentials of its own, or says that it has none`, async () => {
    const tab = await open();
    const drain = async (query: string, id: string) => {
      await tab.evaluate(`
        await navigator.serviceWorker.register("/worker.js${query}");
        await navigator.serviceWorker.ready;
        await new Promise((resolve) => setTimeout(resolve, 300));
        globalThis.paged = semel.Outbox.open({ name: "worker", credentials: ({ principal }) => ({ principal }), persist: false, sends: "on-drain" });
        paged.on((event) => events.push(event));
        await paged.send("${site.api}/api/w", { init: { method: "POST", body: "${id}" } }).accepted;
        const registration = await navigator.serviceWorker.ready;
        (registration.active ?? registration.waiting).postMessage("semel:worker");`);
    };
    await drain("", "w1");
    await until(() => count("w1") === 1, "the worker sends");
    const effect = site.effects.find(({ body }) => body === "w1")!;
    assert.deepEqual([effect.authorization, effect.mode], ["Bearer worker", "background"]);
    await drain("?none", "w2");
    await until(() => tab.evaluate(`return events.some(({ type }) => type === "no-credentials")`), "it says so");
    assert.equal(count("w2"), 0);
    await tab.evaluate(`for (const one of await navigator.serviceWorker.getRegistrations()) await one.unregister(); paged.dispose();`);
    await tab.kill();
  });

  test(`${name}: accepting takes little time with 1,000 waiting`, async () => {
    const tab = await open();
    await tab.evaluate(`
      globalThis.request = (n) => ["${site.api}/api/many", { init: { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ n }) } }];
      await box("full").pause();
      await Promise.all(Array.from({ length: 1000 }, (_, n) => box("full").send(...request(n)).accepted));
      await new Promise((resolve) => setTimeout(resolve, 1500));`);
    let best = await measureAccepting(tab);
    for (let tries = 1; tries < 4; tries++) {
      const round = await measureAccepting(tab);
      if (round.busy.median < best.busy.median) best = round;
    }
    const { busy, accepted } = best;
    const show = (times: Times) => `median ${times.median.toFixed(1)} ms, p95 ${times.p95.toFixed(1)} ms`;
    console.log(`${name}: main thread ${show(busy)}; accepted ${show(accepted)}`);
    // Other programs run on the tests' machine, and browsers count the time that they take: the tail is held to its bound in
    // the long form only, which has a machine of its own.
    const at = IS_LONG ? "p95" : "median";
    assert.ok(busy[at] < 5, `main thread ${show(busy)}`);
    assert.ok(accepted[at] < 50, `accepted ${show(accepted)}`);
    await tab.kill();
  });

  test(`${name}: a page's memory does not grow with the queue`, async (t) => {
    const tab = await open();
    if (!tab.heap) {
      await tab.kill();
      return t.diagnostic("the browser does not tell how much memory a page has");
    }
    const fill = async (messages: number) => {
      await tab.evaluate(`
        await box("heap", { maxMessages: 20_000 }).pause();
        const body = "x".repeat(1000);
        await Promise.all(Array.from({ length: ${messages} }, () => box("heap").send("${site.api}/api/heap", { init: { method: "POST", body } }).accepted));`);
      // A page that was just loaded knows nothing but what it reads.
      await tab.reload();
      await tab.evaluate(`box("heap"); await new Promise((resolve) => setTimeout(resolve, 1500))`);
      assert.equal(await tab.evaluate(`return box("heap").getSnapshot().waiting`), (total += messages));
      return tab.heap!();
    };
    let total = 0;
    const [few, many] = [await fill(1000), await fill(4000)];
    console.log(`${name}: ${(few / 1e6).toFixed(2)} MB with 1,000 waiting, ${(many / 1e6).toFixed(2)} MB with 5,000`);
    assert.ok(many - few < 300_000, `${few} bytes with 1,000 waiting, ${many} with 5,000`);
    await tab.kill();
  });

  test(`${name}: random kills, reloads and freezes of ten tabs, one answer in ten lost`, async () => {
    const kills = IS_LONG ? (name === "chromium" ? 1000 : 200) : 10;
    await killAtRandom(Number(process.env.SEMEL_TEST_KILLS ?? kills));
  });

  async function measureAccepting(tab: BrowserTab) {
    const [idle, busy, accepted]: number[][] = [[], [], []];
    for (let n = 0; n < 20; n++) {
      const empty = (await tab.mainThread?.()) ?? 0;
      await tab.evaluate("return 1");
      const before = (await tab.mainThread?.()) ?? 0;
      idle!.push(before - empty);
      const one = await tab.evaluate<{ called: number; accepted: number }>(`
        const startedAt = performance.now();
        const sent = box("full").send(...request(${n}));
        const called = performance.now() - startedAt;
        await sent.accepted;
        return { called, accepted: performance.now() - startedAt };`);
      // What the main thread did meanwhile, where the browser tells; elsewhere the call alone.
      busy!.push(tab.mainThread ? (await tab.mainThread()) - before : one.called);
      accepted!.push(one.accepted);
    }
    // The test's own call is no part of it.
    const own = summarize(idle!).median;
    return { busy: summarize(busy!.map((time) => Math.max(0, time - own))), accepted: summarize(accepted!) };
  }

  /** Goes on until so many tabs were killed. In each course one tab sends, and then it is killed, reloaded or frozen. */
  async function killAtRandom(kills: number): Promise<void> {
    const seed = Number(process.env.SEMEL_TEST_SEED ?? Date.now() % 1_000_000);
    const random = makeRandom(seed);
    const tabs: BrowserTab[] = [];
    for (let n = 0; n < 10; n++) tabs.push(await open());
    site.loseEvery = 10;
    const accepted: Record<string, string[]> = { k0: [], k1: [], k2: [] };
    const did = { killed: 0, killedSenders: 0, reloaded: 0, frozen: 0 };
    const requests = site.requests;
    for (let n = 0; did.killed < kills; n++) {
      const sender = random() < 0.3 ? await findSender(tabs) : -1;
      const at = sender >= 0 ? sender : Math.floor(random() * tabs.length);
      for (let burst = 0; burst < 3; burst++) {
        const lane = `k${Math.floor(random() * 3)}`;
        const id = `${lane}-${n}-${burst}`;
        const receipt = await tabs[at]!.evaluate<{ id: string }>(send("kills", lane, id, "accepted")).catch(() => null);
        if (receipt) accepted[lane]!.push(id);
      }
      const fate = random();
      if (fate < 0.2) {
        await tabs[at]!.freeze(3000);
        did.frozen++;
      } else if (fate < 0.4) {
        await tabs[at]!.reload().catch(() => {});
        did.reloaded++;
      } else {
        await tabs[at]!.kill();
        did.killed++;
        if (sender >= 0) did.killedSenders++;
        tabs[at] = await open();
      }
    }
    site.loseEvery = 0;
    const watcher = await open();
    await watcher.evaluate(`box("kills")`);
    // One status at a time: a list has a most, and what is done stays in it.
    const live = `(await Promise.all(["pending", "inflight", "held", "dead"].map((status) => box("kills").list({ status })))).flat()`;
    await until(() => watcher.evaluate(`box("kills").kick(); return ${live}.length === 0`), `all done (seed ${seed})`, 180_000);
    for (const [lane, ids] of Object.entries(accepted)) {
      const bodies = site.effects.filter((effect) => effect.lane === lane).map(({ body }) => body);
      for (const id of ids) assert.equal(count(id), 1, `${id} took effect once (seed ${seed})`);
      assert.deepEqual(bodies.filter((body) => ids.includes(body)), ids, `order of ${lane} (seed ${seed})`);
    }
    console.log(
      `${name}: ${did.killed} kills (${did.killedSenders} of the tab that was known to send), ${did.reloaded} reloads, ` +
        `${did.frozen} freezes, ${Object.values(accepted).flat().length} messages, ${site.requests - requests} requests, seed ${seed}`,
    );
    for (const tab of [...tabs, watcher]) await tab.kill();
  }

  /** Which tab sends; -1 where none says so. */
  async function findSender(tabs: BrowserTab[]): Promise<number> {
    const ask = (tab: BrowserTab) => tab.evaluate<boolean>(`return box("kills").getSnapshot().isSender`).catch(() => false);
    return (await Promise.all(tabs.map(ask))).indexOf(true);
  }
}

interface Times {
  median: number;
  p95: number;
}

function summarize(list: number[]): Times {
  const sorted = [...list].sort((a, b) => a - b);
  return { median: sorted[Math.floor(sorted.length / 2)]!, p95: sorted[Math.floor(sorted.length * 0.95)]! };
}

/** Numbers in [0, 1) that a seed brings back. */
function makeRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}
