// The feed's promises over HTTP, each with the row of the requirements that it shows.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";
import { openFeed, signIn, until } from "./support.mjs";

let feed;
before(async () => (feed = await openFeed()), { timeout: 120_000 });
after(() => feed?.close());

const count = async (sql, params) => Number((await feed.ask(`SELECT count(*) FROM ${sql}`, params))[0].count);

test("S3-01 S3-61 posts, likes and comments sent many times at once take effect once", async () => {
  const [anna, bob] = [await signIn(feed, "anna-61"), await signIn(feed, "bob-61")];
  const { id } = await anna.post("the first");
  const actions = Array.from({ length: 20 }, (_, at) => {
    const own = randomUUID();
    const [path, body] = [
      ["/api/posts", { id: own, words: `post ${at}` }],
      [`/api/posts/${id}/comments`, { id: own, words: `comment ${at}` }],
      [`/api/posts/${id}/like`, undefined],
    ][at % 3];
    return { path, body, key: `key-${at}` };
  });
  const again = Array.from({ length: 6 }, () => actions).flat();
  const patient = async ({ path, body, key }) =>
    until("it is not being processed any more", async () => {
      const answer = await bob.send("POST", path, body, { key });
      return answer.status !== 409 && answer;
    });
  const answers = await Promise.all(again.map(patient));
  assert.deepEqual([...new Set(answers.map(({ status }) => status))].sort(), [200, 201]);
  for (const [at, { key }] of actions.entries()) {
    const bodies = new Set(answers.filter((_, n) => n % 20 === at).map(({ body }) => JSON.stringify(body)));
    assert.equal(bodies.size, 1, `${key} has one answer`);
  }
  assert.equal(await count("post WHERE author = $1", [bob.id]), 7);
  assert.equal(await count("comment WHERE author = $1", [bob.id]), 7);
  assert.equal(await count("liked WHERE person = $1", [bob.id]), 1);
});

test("S3-20 S3-21 both headers are required on all four routes, and the errors are the feed's", async () => {
  const anna = await signIn(feed, "anna-20");
  const routes = [["POST", "/api/posts"], ["POST", "/api/posts/x/like"], ["POST", "/api/posts/x/comments"], ["DELETE", "/api/posts/x"]];
  for (const [method, path] of routes) {
    const { status, body } = await anna.send(method, path, undefined, { headers: { "Idempotency-Key": undefined } });
    assert.deepEqual([status, body], [400, { error: "Missing Idempotency-Key header" }]);
    assert.equal((await anna.send(method, path, undefined, { headers: { "X-Client-Tx-Id": undefined } })).status, 400);
    assert.deepEqual((await anna.send(method, path, undefined, { key: "no spaces" })).body, { error: "Invalid Idempotency-Key format" });
  }
  const first = await anna.post("one", { key: "k" });
  assert.deepEqual((await anna.post("two", { key: "k" })).body, { error: "Idempotency key reused with different payload" });
  const [row] = await feed.ask("SELECT convert_from(substring(request_headers FROM 21), 'UTF8') AS tx FROM semel.record WHERE key = 'k' AND principal = $1", [anna.id]);
  assert.equal(first.status, 201);
  assert.equal(row.tx.length, 36, "S3-22 the client's number of the transaction is kept");
});

test("S3-63 the same like from two devices at once counts once, and both are told so", async () => {
  const [anna, phone] = [await signIn(feed, "anna-63"), await signIn(feed, "anna-63")];
  assert.equal(anna.id, phone.id);
  const { id } = await anna.post("like me");
  const answers = await Promise.all([anna, phone].map((device) => device.send("POST", `/api/posts/${id}/like`)));
  assert.deepEqual(answers.map(({ status, body }) => [status, body.likes]), [[200, [anna.id]], [200, [anna.id]]]);
  assert.equal(await count("liked WHERE post = $1", [id]), 1);
});

test("S3-66 people reach only their own keys and change only what is their own", async () => {
  const [anna, bob] = [await signIn(feed, "anna-66"), await signIn(feed, "bob-66")];
  const hers = await anna.post("hers", { key: "same" });
  const his = await bob.post("his", { key: "same" });
  assert.deepEqual([his.status, his.body.words, his.headers.get("idempotency-replayed")], [201, "his", null]);
  assert.equal((await bob.send("DELETE", `/api/posts/${hers.id}`)).status, 403);
  assert.equal(await count("post WHERE id = $1", [hers.id]), 1);
  const forge = "SET LOCAL ROLE feed_service; SELECT set_config('feed.me', '" + bob.id + "', true);";
  const insert = `INSERT INTO post (id, author, words) VALUES ('${randomUUID()}', '${anna.id}', 'forged')`;
  await assert.rejects(feed.ask(`BEGIN; ${forge} ${insert}; COMMIT`), /row-level security/, "the database itself refuses");
  await feed.ask(`BEGIN; ${forge} DELETE FROM post WHERE author = '${anna.id}'; COMMIT`);
  assert.equal(await count("post WHERE author = $1", [anna.id]), 1);
});

test("S3-02 S3-09 with a person go posts, likes, comments and keys", async () => {
  const [anna, bob] = [await signIn(feed, "anna-09"), await signIn(feed, "bob-09")];
  const { id } = await anna.post("soon gone");
  await bob.send("POST", `/api/posts/${id}/like`);
  assert.equal(await count("semel.record WHERE principal = $1", [anna.id]), 1);
  const left = await fetch(`${feed.origin}/api/me`, { method: "DELETE", headers: { Authorization: `Bearer ${anna.token}` } });
  assert.equal(left.status, 204);
  assert.equal(await count("semel.record WHERE principal = $1", [anna.id]), 0);
  assert.equal(await count("post WHERE id = $1", [id]), 0);
  assert.equal(await count("semel.record WHERE principal = $1", [bob.id]), 1, "nobody else's");
  assert.equal((await anna.post("late")).status, 401);
});

test("S3-60 S3-33 each effect reaches the live feed once, with the sender's own number", async () => {
  const [anna, bob] = [await signIn(feed, "anna-60"), await signIn(feed, "bob-60")];
  const stop = new AbortController();
  const url = `${feed.broker}/v1/meshes/feed/topics/posts/events?after=0`;
  const response = await until("the broker knows bob", async () => {
    const answer = await fetch(url, { headers: { Authorization: `Bearer ${bob.token}`, Accept: "text/event-stream" }, signal: stop.signal });
    return answer.ok && answer;
  });
  let text = "";
  const reading = (async () => {
    for await (const part of response.body) text += Buffer.from(part).toString();
  })().catch(() => {});
  const tx = randomUUID();
  const one = await anna.post("for everybody", { key: "live", tx });
  for (let n = 0; n < 3; n++) assert.equal((await anna.post("for everybody", { key: "live", tx, id: one.id })).headers.get("idempotency-replayed"), "true");
  await anna.send("POST", `/api/posts/${one.id}/like`);
  await anna.send("DELETE", `/api/posts/${one.id}`);
  const events = () => [...text.matchAll(/^data: (.*)$/gm)].map(([, data]) => JSON.parse(data));
  const own = () => events().filter(({ body }) => body?.post?.id === one.id || body?.gone === one.id);
  await until("all three are there", () => own().length >= 3);
  assert.deepEqual(own().map(({ body }) => (body.gone ? "gone" : body.post.likes.length)), [0, 1, "gone"]);
  assert.equal(own()[0].client_tx_id, tx);
  stop.abort();
  await reading;
});

test("S3-42 S3-43 S3-44 S3-65 S3-77 the sweeper removes expired keys, says so, and leaves old posts alone", async () => {
  const anna = await signIn(feed, "anna-42");
  await anna.post("old", { key: "old" });
  await anna.post("fresh", { key: "fresh" });
  await feed.ask("UPDATE post SET made_at = now() - interval '31 days' WHERE author = $1 AND words = 'old'", [anna.id]);
  const day = 86_400_000;
  await feed.ask(
    "UPDATE semel.record SET created_at = created_at - $1, settled_at = settled_at - $1, expires_at = expires_at - $1 WHERE key = 'old' AND principal = $2",
    [2 * day, anna.id],
  );
  const runs = await count("semel.cleanup");
  // Its process is killed and started again: it begins with a run, and comes back every six hours.
  await feed.stack.kill("sweeper");
  await feed.stack.start("sweeper");
  await until("a run is on record", async () => (await count("semel.cleanup")) > runs);
  const keys = await feed.ask("SELECT key FROM semel.record WHERE principal = $1", [anna.id]);
  assert.deepEqual(keys.map(({ key }) => key), ["fresh"]);
  assert.equal(await count("post WHERE author = $1", [anna.id]), 2, "posts of 31 days stay");
  assert.equal((await anna.post("again", { key: "old" })).status, 201, "S3-55 an expired key is new");
});

test("S3-50 S3-51 a person has 1,000 new keys an hour over all routes; old keys and others are unaffected", async () => {
  const [anna, bob] = [await signIn(feed, "anna-50"), await signIn(feed, "bob-50")];
  const { id } = await anna.post("the target", { key: "first" });
  let next = 1;
  const worker = async () => {
    while (next < 1000) {
      const at = next++;
      // A key counts whatever comes of it: half of these are refused.
      const answer =
        at % 2 ? await anna.send("POST", `/api/posts/${id}/like`, undefined, { key: `k${at}` }) : await anna.post("", { key: `k${at}` });
      assert.ok([200, 400].includes(answer.status), `${at}: ${answer.status}`);
    }
  };
  await Promise.all(Array.from({ length: 8 }, worker));
  const refused = await anna.send("POST", `/api/posts/${id}/comments`, { id: randomUUID(), words: "too much" }, { key: "k1000" });
  assert.equal(refused.status, 429);
  assert.ok(Number(refused.headers.get("retry-after")) > 3000, "within the hour");
  assert.equal((await anna.post("the target", { key: "first", id })).headers.get("idempotency-replayed"), "true");
  assert.equal((await bob.post("free")).status, 201);
});
