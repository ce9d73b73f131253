// Every question of the runbook is answered within three clicks from the first page.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { broker, up } from "./world.mjs";

/** For each question: what a page shows that answers it, and whose console. */
const ANSWERS = {
  "A key is unknown: what now?": [/Say what became of it/, "up"],
  "A customer wants to start over": [/Timeline/, "up"],
  "A request with a key is unprotected": [/requests with a key that no route protects/, "up"],
  "The gate is not ready": [/Health[\s\S]*ready/, "up"],
  "The clock is frozen": [/Frozen[\s\S]*Confirm the clock/, "up"],
  "Taking a backup": [/store<\/bdi>[\s\S]*sqlite:/, "up"],
  "The store was restored from a backup": [/Restores from a backup[\s\S]*Report a restored backup/, "up"],
  "Somebody wants their data erased": [/Principal, in full/, "up"],
  "The store grows": [/Runs of the sweeper/, "up"],
  "Too many stale actions": [/No action was refused as too old|Count/, "up"],
  "The outbox holds messages": [/Messages held/, "up"],
  "A message of the outbox is dead": [/Attempts[\s\S]*What it replaced/, "up"],
  "A lane of the relay is in doubt": [/<option value="in-doubt" selected/, "up"],
  "The relay has parked or dead changes": [/Release parked changes/, "up"],
  "A row of the broker is missing": [/Look for orphans/, "up"],
  "A subscriber fell behind": [/Subscribe a member|<h1>Inbox/, "up"],
  "A line receives nothing": [/Lines that are followed/, "up"],
  "The broker is slow or not ready": [/<strong>Broker<\/strong>/, "up"],
  "A webhook does not take its messages": [/<h2>Webhooks/, "broker"],
  "Messages are refused by their destination": [/Send again under a new id|Dead/, "up"],
};

const worlds = {};
before(async () => {
  [worlds.up, worlds.broker] = await Promise.all([up(), broker()]);
});
after(() => Promise.all(Object.values(worlds).map((world) => world.end())));

/** Every page that at most three clicks lead to, with the number of clicks. */
async function walk(admin) {
  const pages = new Map([["/", 0]]);
  const texts = new Map();
  for (let clicks = 0; clicks <= 3; clicks++)
    for (const [path] of [...pages].filter(([, at]) => at === clicks)) {
      const answer = await fetch(`${admin}${path}`, { headers: { accept: "text/html" } });
      const text = await answer.text();
      assert.ok(answer.status < 500, `${path}: ${answer.status}`);
      texts.set(path, text);
      if (clicks === 3) continue;
      for (const [, href] of text.matchAll(/<a [^>]*href="([^"]+)"/g)) {
        const next = href.replaceAll("&amp;", "&");
        // A person picks a row of a list, not each of them.
        const isMore = /^\/(requests|outbox\/messages)\/\d+$/.test(next) && [...pages.keys()].filter((path) => /\/\d+$/.test(path)).length > 30;
        if (next.startsWith("/") && !pages.has(next) && !isMore && pages.size < 400) pages.set(next, clicks + 1);
      }
    }
  return texts;
}

test("every question of the runbook is answered within three clicks", { timeout: 300_000 }, async () => {
  const runbook = readFileSync(new URL("../../../docs/runbook.md", import.meta.url), "utf8");
  const questions = [...runbook.matchAll(/^## (.+)$/gm)].map(([, title]) => title);
  assert.ok(questions.length >= 15, `${questions.length} questions`);
  const walked = { up: await walk(worlds.up.admin), broker: await walk(worlds.broker.admin) };
  for (const question of questions) {
    assert.ok(ANSWERS[question], `nobody says where the console answers: ${question}`);
    const [answer, world] = ANSWERS[question];
    const where = [...walked[world]].find(([, text]) => answer.test(text));
    assert.ok(where, `no page within three clicks answers: ${question}`);
    console.log(`${question} -> ${where[0]}`);
  }
});
