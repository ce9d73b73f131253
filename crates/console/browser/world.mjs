// What the tests look at: a service that may break off, `semel` before it, and requests of every kind, also hostile ones.
import { spawn } from "node:child_process";
import { mkdtempSync, mkdirSync, writeFileSync } from "node:fs";
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";

const BIN = process.env.SEMEL_BIN;
if (!BIN) throw new Error("SEMEL_BIN names no program: build `semel` and say where it is");

export const TOKEN = "the-full-token-of-the-browser-tests";
export const READ_TOKEN = "the-read-token-of-the-browser-tests";
export const HOSTILE = `<img src=x onerror=alert(1)>"'&`;
/** Turned around, with what cannot be seen, and too long for any line. */
export const WIDE = `a\u202egpj\u200b${"W".repeat(120)}`;
export const SCREENSHOTS = process.env.SEMEL_SCREENSHOTS ?? mkdtempSync(join(tmpdir(), "semel-console-"));
mkdirSync(SCREENSHOTS, { recursive: true });

/** Answers, and breaks off where the path says so. */
async function service() {
  const server = createServer((request, response) => {
    request.resume();
    request.on("end", () => {
      if (request.url.startsWith("/break")) return request.socket.destroy();
      const status = request.url.startsWith("/401") ? 401 : request.url.startsWith("/fail") ? 500 : 201;
      response.writeHead(status, { "content-type": "application/json", "x-wide": `<i>${"H".repeat(250)}</i>` });
      response.end(JSON.stringify({ order: 7, note: "a secret of its sender" }));
    });
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return server;
}

/** Starts `semel` and waits until it says that it is ready. */
function start(args, folder, ready) {
  const child = spawn(BIN, args, { cwd: folder, env: { ...process.env, SEMEL_LOG: "off" }, stdio: ["ignore", "pipe", "inherit"] });
  return new Promise((done, failed) => {
    let said = "";
    child.on("exit", () => failed(new Error(`semel ended: ${said}`)));
    child.stdout.on("data", (data) => {
      said += data;
      if (said.includes(ready)) done({ child, said });
    });
  });
}

const named = (said, name) => said.split("\n").find((line) => line.trim().startsWith(name)).trim().split(/\s+/)[1].replace(/\/$/, "");

async function order(gate, path, key, who = "demo") {
  const headers = { authorization: `Bearer ${who}`, "x-user": who, "content-type": "application/json", "idempotency-key": key };
  const answer = await fetch(`${gate}${path}`, { method: "POST", headers, body: '{"item":"tea"}' });
  await answer.arrayBuffer();
  return answer.status;
}

async function command(args) {
  const child = spawn(BIN, args, { stdio: "ignore" });
  return new Promise((done) => child.on("exit", done));
}

/** `semel up` with everything beside it. */
export async function up() {
  const folder = mkdtempSync(join(tmpdir(), "semel-up-"));
  const upstream = await service();
  const url = `http://127.0.0.1:${upstream.address().port}`;
  const relay = join(folder, "relay.toml");
writeFileSync(relay, `[relay.target.orders]
url = "${url}/orders"
headers = { Authorization = "Bearer relay", Idempotency-Key = '"{key}"' }
body = '{{"item":"{lane}","amount":{delta}}}'
tier = "key"
key_retention = "24h"

[relay.target.refused]
url = "${url}/401"
headers = { Authorization = "Bearer relay", Idempotency-Key = '"{key}"' }
body = '{{"amount":{delta}}}'
tier = "key"
key_retention = "24h"
`);
  const flags = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--page", "127.0.0.1:0", "--relay", "127.0.0.1:0", "--relay-config", relay];
  const started = await start(["up", "--data", folder, "--upstream", url, ...flags], folder, "Ctrl-C");
  const [gate, admin] = [named(started.said, "gate"), named(started.said, "admin")];
  for (let at = 0; at < 14; at++) await order(gate, "/orders", `order-${at}`, at % 3 ? "alice" : "bob");
  await order(gate, "/orders", "order-1", "alice");
  await order(gate, "/break", "broken-1");
  await order(gate, "/break", "broken-2");
  await order(gate, "/fail", "failed-1");
  await order(gate, "/orders", HOSTILE.replace(/["\\]/g, ""));
  await order(gate, "/orders", "W".repeat(255));
  const senders = named(started.said, "relay");
  for (const target of ["orders", "refused"]) {
    const headers = { authorization: "Bearer demo", "x-sync-mode": "background", "idempotency-key": `relay-${target}` };
    const items = [{ lane: "tea", value: 2 }, { lane: `<b>${target}</b>`, value: 1 }, { lane: WIDE, value: 1 }];
    await (await fetch(`${senders}/v1/relay/${target}`, { method: "POST", headers, body: JSON.stringify({ items }) })).arrayBuffer();
  }
  const store = ["--store", `sqlite:${join(folder, "outbox.db")}`];
  await command(["outbox", "send", "/orders", "-d", "{}", "--id", "sent-1", "--wait", "5", ...store]);
  await command(["outbox", "send", "/401", "-d", "{}", "--id", "I".repeat(200), "--lane", "L".repeat(200), "--wait", "1", ...store]);
  await command(["outbox", "send", "/401", "-d", "{}", "--id", HOSTILE.replace(/[^!-~]/g, ""), "--lane", "held", "--wait", "2", ...store]);
  // What another member of the mesh publishes is received here.
  const member = ["--mesh", "demo", "--topic", "news", "--url", named(started.said, "broker"), "--token-file", join(folder, "bob.token")];
  await command(["broker", "publish", ...member, "--id", "from-bob", '{"from":"bob"}']);
  await command(["inbox", "list", "--wait", "20", ...store]);
  return { gate, admin, folder, end: () => end(started.child, upstream) };
}

/** Who sends, where a proxy says so: markup, and too long for any line. */
export const WHO = `<b>${"M".repeat(180)}</b>`;

/** A gate whose operators have tokens. */
export async function guarded() {
  const folder = mkdtempSync(join(tmpdir(), "semel-gate-"));
  const upstream = await service();
  writeFileSync(join(folder, "full"), TOKEN);
  writeFileSync(join(folder, "read"), READ_TOKEN);
  const args = ["serve", "gate", "--upstream", `http://127.0.0.1:${upstream.address().port}`, "--store", `sqlite:${join(folder, "semel.db")}`];
  writeFileSync(join(folder, "semel.toml"), 'identity = "trusted:X-User"\n');
  const flags = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--admin-token-file", "full", "--admin-read-token-file", "read", "--access-log", "off", "--config", "semel.toml"];
  const started = await start([...args, ...flags], folder, "try ");
  const [gate, admin] = [named(started.said, "listening"), named(started.said, "admin")];
  await order(gate, "/orders", "order-1");
  await order(gate, "/break", "broken-1");
  await order(gate, "/break", "broken-2");
  await order(gate, "/orders", "wide-1", WHO);
  return { gate, admin, folder, end: () => end(started.child, upstream) };
}

/** A broker with a mesh. */
export async function broker() {
  const folder = mkdtempSync(join(tmpdir(), "semel-broker-"));
  const started = await start(["serve", "broker", "--store", `sqlite:${join(folder, "broker.db")}`, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"], folder, "admin");
  const admin = named(started.said, "admin");
  const put = (path, body) => fetch(`${admin}/v1/meshes${path}`, { method: "PUT", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  await put("/team", {});
  await put("/team/topics/news", {});
  const token = "smb_of-the-browser-tests";
  await put("/team/members/alice", { role: "owner", token_sha256: [createHash("sha256").update(token).digest("hex")] });
  await put("/team/topics/news/subscriptions/alice", {});
  const secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"];
  const webhooks = ["hook", HOSTILE, WIDE.slice(0, 100)];
  for (const name of webhooks) await put(`/team/webhooks/${encodeURIComponent(name)}`, { url: `https://hooks.example/${"w".repeat(300)}`, topic: "news", secrets });
  for (const name of [HOSTILE, WIDE.slice(0, 100)]) await put(`/team/topics/${encodeURIComponent(name)}`, {});
  const message = { to: { topic: "news" }, body: { text: "W".repeat(200) }, client_message_id: "m-1", content_type: "text/<b>" };
  const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  await fetch(`${named(started.said, "listening")}/v1/meshes/team/messages`, { method: "POST", headers, body: JSON.stringify(message) });
  return { admin, folder, end: () => end(started.child) };
}

function end(child, upstream) {
  upstream?.closeAllConnections();
  upstream?.close();
  child.removeAllListeners("exit");
  return new Promise((done) => {
    child.on("exit", done);
    child.kill("SIGTERM");
    setTimeout(() => child.kill("SIGTERM"), 3000).unref();
  });
}
