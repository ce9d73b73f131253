// What the page's tests start: the external service, the score API, a recorder in front of it, and a real browser.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const require = createRequire(new URL("../../../clients/typescript/package.json", import.meta.url));
const { default: puppeteer } = await import(require.resolve("puppeteer-core"));
const PROGRAM = process.env.SCORES_BIN;
const WEB = new URL("../web/dist", import.meta.url).pathname;
const PATIENCE = 30_000;

export const launch = () =>
  puppeteer.launch({
    executablePath: "/usr/bin/chromium",
    headless: true,
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
    protocolTimeout: 60_000,
  });

/** Waits until a condition holds, and gives what it gave. */
export async function until(what, condition) {
  const end = Date.now() + PATIENCE;
  for (let last; ; ) {
    try {
      last = await condition();
      if (last) return last;
    } catch (error) {
      last = error;
    }
    if (Date.now() > end) throw new Error(`waited too long for ${what}; last: ${last}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  return port;
}

/** A process that can be killed as `kill -9` does, and started again. */
class Process {
  constructor(args) {
    this.args = args;
  }

  async start() {
    this.child = spawn(PROGRAM, this.args, { stdio: ["ignore", "pipe", "inherit"] });
    const [said] = await once(this.child.stdout, "data");
    if (!String(said).includes("http://")) throw new Error(`${this.args} said ${said}`);
    return this;
  }

  async kill() {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    const ended = once(this.child, "exit");
    this.child.kill("SIGKILL");
    await ended;
  }
}

/** Passes requests on to the API, and writes those down that change something. While the API is away it is not there either. */
class Recorder {
  constructor(port) {
    this.seen = [];
    this.server = http.createServer((request, response) => {
      const chunks = [];
      request.on("data", (chunk) => chunks.push(chunk));
      request.on("end", () => {
        const body = Buffer.concat(chunks);
        if (request.method === "POST" && request.url.includes("/sections/"))
          this.seen.push({ key: request.headers["x-idempotency-key"], mode: request.headers["x-sync-mode"], body: JSON.parse(body) });
        const onward = http.request({ port, host: "127.0.0.1", path: request.url, method: request.method, headers: request.headers }, (answer) => {
          response.writeHead(answer.statusCode, answer.headers);
          answer.on("error", () => response.destroy());
          answer.pipe(response);
        });
        onward.on("error", () => response.destroy());
        onward.end(body);
      });
      request.on("error", () => {});
    });
  }

  async listen() {
    await once(this.server.listen(0, "127.0.0.1"), "listening");
    this.base = `http://127.0.0.1:${this.server.address().port}`;
  }
}

export class World {
  static async start(browser) {
    const world = new World();
    world.folder = mkdtempSync(join(tmpdir(), "semel-scores-"));
    const path = (name) => join(world.folder, name);
    writeFileSync(path("keys"), "one MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n", { mode: 0o600 });
    const [external, api] = [`127.0.0.1:${await freePort()}`, `127.0.0.1:${await freePort()}`];
    world.outside = `http://${external}`;
    world.external = await new Process(["external", "--external", external, "--books", path("books.json")]).start();
    const flags = ["--listen", api, "--external", external, "--store", path("scores.db"), "--keys", path("keys"), "--web", WEB];
    world.api = await new Process(["api", ...flags]).start();
    world.recorder = new Recorder(Number(api.split(":")[1]));
    await world.recorder.listen();
    world.base = world.recorder.base;
    world.context = await browser.createBrowserContext();
    return world;
  }

  async open() {
    const page = await this.context.newPage();
    await page.setViewport({ width: 900, height: 640 });
    await page.goto(this.base, { waitUntil: "load" });
    return page;
  }

  /** A page with somebody signed in. */
  async signedIn(leader = "anna") {
    const page = await this.open();
    await signIn(page, leader);
    return page;
  }

  habits = (...habits) =>
    fetch(`${this.outside}/habits`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(habits) });

  signOut = (leader) => fetch(`${this.outside}/tokens/${leader}`, { method: "DELETE" });

  /** The score that the external service has. */
  async score(patrol) {
    const login = { method: "POST", headers: { "Content-Type": "application/json" }, body: '{"leader":"test","password":"campfire"}' };
    const { token } = await (await fetch(`${this.outside}/login`, login)).json();
    return (await (await fetch(`${this.outside}/patrols/${patrol}`, { headers: { Authorization: `Bearer ${token}` } })).json()).score;
  }

  async end() {
    await this.context.close().catch(() => {});
    this.recorder.server.closeAllConnections();
    this.recorder.server.close();
    await Promise.all([this.api.kill(), this.external.kill()]);
    rmSync(this.folder, { recursive: true, force: true });
  }
}

export async function signIn(page, leader) {
  await page.waitForSelector("#login:not([hidden])");
  await page.$eval("#login", (form) => form.reset());
  await page.type("input[name=leader]", leader);
  await page.type("input[name=password]", "campfire");
  await page.click("#login button");
  await page.waitForSelector("#login[hidden]", { timeout: PATIENCE });
  await page.waitForSelector(".patrol");
}

/** Taps a button of a patrol, and waits until the page has it. */
export async function tap(page, patrol, label) {
  const before = await page.$eval(`[data-id=${patrol}] .note`, (note) => note.textContent);
  // A list that was loaded meanwhile makes new buttons: the one of this moment is tapped.
  await page.evaluate((patrol, label) => {
    const buttons = [...document.querySelectorAll(`[data-id=${patrol}] button`)];
    buttons.find((button) => button.textContent === label).click();
  }, patrol, label);
  await until("the tap to be shown", async () => (await card(page, patrol)).note !== before);
}

export const submit = (page) => page.click("#submit");

/** What a card shows. */
export const card = (page, patrol) =>
  page.$eval(`[data-id=${patrol}]`, (card) => ({
    score: Number(card.querySelector(".score").textContent),
    dot: card.querySelector(".dot") !== null,
    note: card.querySelector(".note").textContent,
  }));

/** What the indicator and the list of reasons say. */
export const status = (page) =>
  page.evaluate(() => ({
    pending: Number(document.getElementById("indicator").dataset.pending),
    words: document.getElementById("indicator").textContent,
    reasons: document.getElementById("reasons").textContent,
    isShown: !document.getElementById("waiting").hidden,
  }));

export const queued = (page) => page.evaluate(async () => (await scores.outbox.list()).filter(({ endedAt }) => !endedAt).length);
