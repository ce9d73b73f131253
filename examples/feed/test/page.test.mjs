// The page in a real browser: two people, each with a browser of their own; the network goes, and every process is killed in turn.
// SEMEL_TEST_SHOTS=FOLDER keeps pictures of the page.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import puppeteer from "puppeteer-core";
import { openFeed, until } from "./support.mjs";

let feed;
let browser;
before(async () => {
  feed = await openFeed();
  browser = await puppeteer.launch({
    executablePath: "/usr/bin/chromium",
    headless: true,
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
    protocolTimeout: 120_000,
  });
}, { timeout: 120_000 });
after(async () => {
  await browser?.close();
  await feed?.close();
});

const shots = process.env.SEMEL_TEST_SHOTS;
const shoot = (tab, name) => (shots ? tab.screenshot({ path: `${shots}/${name}.png` }) : undefined);

/** A device of somebody: a browser profile of its own, signed in. */
async function open(name) {
  const context = await browser.createBrowserContext();
  const tab = await context.newPage();
  tab.on("dialog", (dialog) => dialog.accept());
  await tab.setViewport({ width: 900, height: 900 });
  await tab.goto(feed.origin);
  await tab.type("#sign-in input", name);
  await Promise.all([tab.waitForNavigation(), tab.click("#sign-in button")]);
  await tab.waitForSelector("#write:not([hidden])");
  await tab.waitForFunction(() => document.querySelector("#state").textContent === "Live", { timeout: 60_000 });
  await tab.evaluate(() => navigator.serviceWorker.ready.then(() => {}));
  return tab;
}

const write = async (tab, words) => {
  await tab.type("#write textarea", words);
  await tab.click("#write button");
  await tab.waitForFunction((text) => document.querySelector("#posts").textContent.includes(text), {}, words);
};
/** What the page shows of a post. */
const look = (tab, words) =>
  tab.evaluate((text) => {
    const found = [...document.querySelectorAll(".post")].filter((post) => post.querySelector(".words").textContent === text);
    return found.map((post) => ({
      status: [...post.querySelectorAll(".status span")].map((line) => line.textContent),
      isNew: !!post.querySelector(".badge"),
      comments: [...post.querySelectorAll(".comments li")].map((line) => line.textContent),
      likes: post.querySelector(".row button").textContent,
    }));
  }, words);
const press = (tab, words, label) =>
  tab.evaluate(
    (text, name) => {
      const post = [...document.querySelectorAll(".post")].find((one) => one.querySelector(".words").textContent === text);
      [...post.querySelectorAll("button")].find((button) => button.textContent.startsWith(name)).click();
    },
    words,
    label,
  );
const comment = async (tab, words, text) => {
  await tab.evaluate(
    (of, value) => {
      const post = [...document.querySelectorAll(".post")].find((one) => one.querySelector(".words").textContent === of);
      const form = post.querySelector("form");
      form.elements.words.value = value;
      form.requestSubmit();
    },
    words,
    text,
  );
};
const isConfirmed = (tab, words) => until(`${words} is confirmed`, async () => {
  const [post] = await look(tab, words);
  return post && post.status.length === 0;
}, 90);
const stored = (words) => feed.ask("SELECT id FROM post WHERE words = $1", [words]);

/** The rows of the outbox, as the browser keeps them. */
const dump = (tab) =>
  tab.evaluate(async () => {
    const [{ name }] = (await indexedDB.databases()).filter((one) => one.name.includes("feed"));
    const database = await new Promise((resolve) => (indexedDB.open(name).onsuccess = ({ target }) => resolve(target.result)));
    const all = (store) => new Promise((resolve) => (database.transaction(store).objectStore(store).getAll().onsuccess = ({ target }) => resolve(target.result)));
    const [messages, requests] = [await all("messages"), await all("requests")];
    database.close();
    return { messages, requests: requests.length };
  });

test("S3-29 S3-30 S3-31 S3-33 S3-62 what is done offline is kept, shown at once, and takes effect once", async () => {
  const [anna, bob] = [await open("Anna"), await open("Bob")];
  await write(anna, "Good morning!");
  await isConfirmed(anna, "Good morning!");
  await until("Bob sees it as news", async () => (await look(bob, "Good morning!"))[0]?.isNew);
  assert.equal((await look(anna, "Good morning!"))[0].isNew, false, "one's own echo is no news");
  await shoot(bob, "news");

  await anna.setOfflineMode(true);
  await write(anna, "Written on a train");
  await comment(anna, "Written on a train", "with a comment");
  await press(anna, "Written on a train", "♥");
  await until("all three wait", async () => (await look(anna, "Written on a train"))[0].status.length === 3);
  const { messages, requests } = await dump(anna);
  const waiting = messages.filter(({ status }) => status !== "done");
  assert.deepEqual(waiting.map(({ operation }) => operation), ["create_post", "create_comment", "like_post"]);
  for (const row of waiting) {
    assert.match(row.ids[0], /^[0-9a-f-]{36}-\d{13}$/, "S3-32 the key");
    assert.match(row.txId, /^[0-9a-f-]{36}$/);
    assert.equal(typeof row.url + typeof row.failures + typeof row.nextAt + typeof row.acceptedAt, "stringnumbernumbernumber");
  }
  assert.equal(requests, 3, "the payloads are kept");
  await until("it says why", async () => (await look(anna, "Written on a train"))[0].status[0].includes("This device is offline"));
  await shoot(anna, "offline");
  await anna.reload();
  await until("it is all there after a reload without a network", async () => {
    const [post] = await look(anna, "Written on a train");
    return post?.status.length === 3 && post.comments.length === 1 && post.likes === "♥ 1";
  });
  assert.equal((await stored("Written on a train")).length, 0);
  await anna.setOfflineMode(false);
  await isConfirmed(anna, "Written on a train");
  assert.equal((await stored("Written on a train")).length, 1);
  await until("Bob sees all of it", async () => {
    const [post] = await look(bob, "Written on a train");
    return post?.likes === "♥ 1" && post.comments[0] === "Anna with a comment";
  });
  await press(anna, "Written on a train", "Delete");
  await until("it is gone everywhere", async () => (await look(bob, "Written on a train")).length + (await stored("Written on a train")).length === 0);
  const done = (await dump(anna)).messages.map(({ operation, status }) => `${operation} ${status}`);
  assert.deepEqual(done, ["create_post done", "create_post done", "create_comment done", "like_post done", "delete_post done"]);
});

test("S3-31 S3-36 what the service refuses is shown as failed, may be tried again and discarded", async () => {
  const [anna, bob] = [await open("Anna"), await open("Bob")];
  await write(anna, "Soon gone");
  await until("Bob sees it", async () => (await look(bob, "Soon gone")).length === 1);
  await bob.setOfflineMode(true);
  await comment(bob, "Soon gone", "too late");
  await until("it waits", async () => (await look(bob, "Soon gone"))[0].status.length === 1);
  await press(anna, "Soon gone", "Delete");
  await until("it is deleted", async () => (await stored("Soon gone")).length === 0);
  await bob.setOfflineMode(false);
  const failed = () => bob.evaluate(() => document.querySelector(".status.failed span")?.textContent);
  await until("Bob is told", async () => (await failed())?.includes("That post is not there any more"));
  await shoot(bob, "failed");
  const keys = async () => (await dump(bob)).messages.map(({ ids, status }) => `${status} ${ids[0]}`);
  const before = await keys();
  await bob.evaluate(() => [...document.querySelectorAll(".status.failed button")].find(({ textContent }) => textContent === "Retry").click());
  await until("a new message was refused again", async () => (await keys()).length > before.length && (await failed()));
  await bob.evaluate(() => [...document.querySelectorAll(".status.failed button")].find(({ textContent }) => textContent === "Discard").click());
  await until("nothing is left of it", async () => !(await failed()));
  assert.ok((await keys()).every((line) => /^(done|aborted)/.test(line)));
});

test("S3-59 S3-64 every process is killed in turn: nothing is lost or doubled, and the page says why something waits", { timeout: 240_000 }, async () => {
  const [anna, bob] = [await open("Anna"), await open("Bob")];
  const all = [];
  for (let round = 1; round <= (process.env.SEMEL_TEST_LONG === "1" ? 10 : 1); round++)
    for (const victim of feed.stack.names()) {
      const words = `While the ${victim} is killed (${round})`;
      all.push(words);
      await feed.stack.kill(victim);
      await write(anna, words);
      await comment(anna, words, "me too");
      if (victim === "service" || victim === "postgres") {
        const why = /no answer from the server|The server (could not do it|asks to come back later)/;
        await until(`the page says why it waits for the ${victim}`, async () => why.test((await look(anna, words))[0].status.join()));
        await shoot(anna, `waits-${victim}`);
      }
      if (victim === "broker")
        await until("the page says that it is not live", () => anna.evaluate(() => /^Not live/.test(document.querySelector("#state").textContent)));
      await feed.stack.start(victim);
      await isConfirmed(anna, words);
    }
  // The tab itself dies as soon as it has shown what was written, and with it what was being sent.
  const words = "Before the tab was killed";
  all.push(words);
  await feed.stack.kill("service");
  await write(anna, words);
  const session = await anna.createCDPSession();
  await Promise.race([session.send("Page.crash").catch(() => {}), new Promise((resolve) => setTimeout(resolve, 500))]);
  const again = await anna.browserContext().newPage();
  await Promise.race([anna.close().catch(() => {}), new Promise((resolve) => setTimeout(resolve, 1000))]);
  await feed.stack.start("service");
  await again.goto(feed.origin);
  await isConfirmed(again, words);
  for (const text of all) {
    assert.equal((await stored(text)).length, 1, text);
    await until(`Bob sees it: ${text}`, async () => (await look(bob, text)).length === 1, 90);
    assert.equal((await look(again, text)).length, 1);
  }
  const comments = await feed.ask("SELECT count(*)::int AS made, count(DISTINCT post)::int AS posts FROM comment WHERE words = 'me too'");
  assert.deepEqual(comments, [{ made: all.length - 1, posts: all.length - 1 }]);
  assert.deepEqual(await feed.ask("SELECT id FROM event"), [], "all was told");
  await shoot(bob, "after-kills");
});
