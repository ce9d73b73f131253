// The leaders' page in a real Chromium, in front of real processes. SCREENSHOTS names a folder for pictures of it.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { World, card, launch, queued, signIn, status, submit, tap, until } from "./world.mjs";

let browser;
before(async () => void (browser = await launch()));
after(() => browser.close());

const picture = async (page, name) => {
  if (process.env.SCREENSHOTS) await page.screenshot({ path: `${process.env.SCREENSHOTS}/${name}.png` });
};

const inWorld = (name, run) =>
  test(name, { timeout: 90_000 }, async () => {
    const world = await World.start(browser);
    try {
      await run(world);
    } finally {
      await world.end();
    }
  });

// S2-70, S2-71, S2-72, S2-74, S2-75
inWorld("taps change a total that survives a reload, and submitting sends each patrol under a key of its own", async (world) => {
  const page = await world.open();
  await picture(page, "sign-in");
  await signIn(page, "anna");
  await tap(page, "eagles", "+5");
  await tap(page, "eagles", "+1");
  await tap(page, "wolves", "−1");
  assert.equal(await queued(page), 0, "nothing is queued before it is submitted");
  assert.equal(world.recorder.seen.length, 0);
  await page.reload({ waitUntil: "load" });
  await until("the total after a reload", async () => (await card(page, "eagles")).note === "+6 not submitted");
  await picture(page, "taps");
  await submit(page);
  await until("the score", async () => (await card(page, "eagles")).score === 106 && !(await card(page, "eagles")).dot);
  await until("the indicator", async () => (await status(page)).words === "All saved");
  assert.deepEqual([await world.score("eagles"), await world.score("wolves"), await queued(page)], [106, 94, 0]);
  const { seen } = world.recorder;
  assert.deepEqual(new Set(seen.map(({ mode }) => mode)), new Set(["interactive"]));
  assert.equal(new Set(seen.map(({ key }) => key)).size, 2, "each patrol has a key");
});

// S2-04, S2-77, S2-79, S2-80
inWorld("without a network points wait on the device, the page opens all the same, and they count once", async (world) => {
  const page = await world.signedIn();
  await page.evaluate(() => navigator.serviceWorker.ready.then(() => true));
  await until("the page to be kept", () => page.evaluate(async () => (await (await caches.open("page")).keys()).length === 3));
  await world.api.kill();
  await tap(page, "foxes", "+5");
  await submit(page);
  await until("the message", async () => (await status(page)).pending === 1);
  await until("the reason", async () => (await status(page)).reasons.startsWith("Foxes: "));
  const frozen = await page.evaluate(async () => (await scores.outbox.list())[0].id);
  await page.reload({ waitUntil: "load" });
  await until("the page from the device", async () => (await card(page, "foxes")).score === 85);
  await until("the indicator", async () => (await status(page)).pending === 1);
  await page.waitForSelector("#network:not([hidden])");
  // A tap during the wait changes nothing that was submitted.
  await tap(page, "foxes", "+1");
  await picture(page, "offline");
  await world.api.start();
  await page.evaluate(() => scores.outbox.kick());
  await until("the points", async () => (await world.score("foxes")) === 90);
  await until("the indicator to clear", async () => (await status(page)).pending === 0);
  const mine = world.recorder.seen.filter(({ key }) => key === frozen);
  assert.ok(mine.length >= 2 && mine.length === world.recorder.seen.length, "every attempt has the one key");
  assert.deepEqual(new Set(mine.map(({ body }) => body.patrols[0].points)), new Set([5]));
  assert.equal((await card(page, "foxes")).note, "+1 not submitted");
});

// S2-76, S2-82, S2-83, S2-84, S2-102, S2-114
inWorld("what is limited has its dot, its reason and its place in the one indicator, until it is applied", async (world) => {
  const page = await world.signedIn();
  await world.habits({ limit: 4 });
  await tap(page, "otters", "+5");
  await submit(page);
  await until("the indicator", async () => (await status(page)).pending === 1);
  await until("202: the server has it", async () => (await queued(page)) === 0);
  await until("the reason", async () => (await status(page)).reasons.includes("Otters: the score service did not take them yet"));
  const shown = await until("the dot", async () => ((await card(page, "otters")).dot ? card(page, "otters") : null));
  assert.equal(shown.score, 125, "120 + 5");
  assert.deepEqual([(await status(page)).words, await world.score("otters")], ["1 waiting", 120]);
  await picture(page, "limited");
  // Another page of the same leader learns of it as well.
  const second = await world.open();
  await until("the second page", async () => (await status(second)).words === "1 waiting");
  await until("it to clear", async () => (await status(page)).words === "All saved" && (await status(second)).words === "All saved");
  await until("the dot to go", async () => !(await card(page, "otters")).dot);
  assert.deepEqual([(await card(page, "otters")).score, await world.score("otters")], [125, 125]);
});

// S2-64, S2-04
inWorld("what a closed page left is sent by the service worker, in the background", async (world) => {
  const page = await world.signedIn();
  await page.evaluate(() => navigator.serviceWorker.ready.then(() => true));
  await world.api.kill();
  await tap(page, "wolves", "+5");
  await submit(page);
  await until("the message", async () => (await queued(page)) === 1);
  await page.close();
  await world.api.start();
  // A page without the outbox wakes the worker, as a Background Sync does.
  const bare = await world.context.newPage();
  await bare.goto(`${world.base}/style.css`);
  await until("the points", async () => {
    await bare.evaluate(async () => (await navigator.serviceWorker.ready).active.postMessage("semel:scores"));
    return (await world.score("wolves")) === 100;
  });
  const modes = world.recorder.seen.map(({ mode }) => mode);
  assert.equal(modes.at(-1), "background", `${modes}`);
  assert.equal(new Set(world.recorder.seen.map(({ key }) => key)).size, 1);
});

// S2-81
inWorld("the queue of taps of an older page is moved into the totals once", async (world) => {
  const page = await world.signedIn();
  await page.evaluate(
    () =>
      new Promise((resolve, reject) => {
        const request = indexedDB.open("patrol-taps", 1);
        request.onupgradeneeded = () => request.result.createObjectStore("events", { autoIncrement: true });
        request.onerror = () => reject(request.error);
        request.onsuccess = () => {
          const transaction = request.result.transaction("events", "readwrite");
          for (const points of [1, 1, 1]) transaction.objectStore("events").add({ section: "7", patrol: "eagles", name: "Eagles", points });
          transaction.oncomplete = () => resolve(request.result.close());
        };
      }),
  );
  for (let reloads = 0; reloads < 2; reloads++) {
    await page.reload({ waitUntil: "load" });
    await until("the taps", async () => (await card(page, "eagles")).note === "+3 not submitted");
  }
  await submit(page);
  await until("the points", async () => (await world.score("eagles")) === 103);
  assert.equal(world.recorder.seen.length, 1);
});

// S2-114
inWorld("two tabs at once are both applied", async (world) => {
  const one = await world.signedIn();
  await tap(one, "eagles", "+5");
  await submit(one);
  const two = await world.open();
  await two.bringToFront();
  await two.waitForSelector(".patrol");
  await tap(two, "eagles", "+1");
  await submit(two);
  await until("both", async () => (await world.score("eagles")) === 106);
  await until("the indicator", async () => (await status(two)).words === "All saved");
});

// S2-57, S2-101: the person sees why it waits, and what to do.
inWorld("who was signed out at the score service is asked to sign in, and loses nothing", async (world) => {
  const page = await world.signedIn();
  await world.signOut("anna");
  await tap(page, "eagles", "+5");
  await submit(page);
  await page.waitForSelector("#login:not([hidden])");
  assert.match(await page.$eval("#login-why", (why) => why.textContent), /signed you out/);
  await until("the reason", async () => (await status(page)).reasons.includes("sign in again"));
  assert.equal((await card(page, "eagles")).score, 105, "the last list goes on");
  await picture(page, "signed-out");
  await signIn(page, "anna");
  await until("the points", async () => (await world.score("eagles")) === 105);
  await until("the indicator", async () => (await status(page)).words === "All saved");
});

// Every process in its turn, the page's own among them.
inWorld("whatever is killed while points are submitted, each counts once", async (world) => {
  let page = await world.signedIn();
  const kills = [
    () => world.external.kill().then(() => world.external.start()),
    () => world.api.kill().then(() => world.api.start()),
    async () => {
      const session = await page.createCDPSession();
      await Promise.race([session.send("Page.crash").catch(() => {}), new Promise((resolve) => setTimeout(resolve, 300))]);
      page = await world.open();
      await page.waitForSelector(".patrol");
    },
  ];
  for (const kill of kills) {
    await tap(page, "eagles", "+1");
    await submit(page);
    await until("it to be submitted", async () => (await card(page, "eagles")).note === "");
    await kill();
  }
  await until("all of it", async () => (await world.score("eagles")) === 103);
  await until("the indicator", async () => (await status(page)).words === "All saved");
  await new Promise((resolve) => setTimeout(resolve, 500));
  assert.equal(await world.score("eagles"), 103);
});
