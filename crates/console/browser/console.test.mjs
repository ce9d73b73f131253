// The console as people use it: every page for everybody (axe), on a phone, in the dark, by keyboard alone and without JavaScript.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import puppeteer from "puppeteer-core";
import { HOSTILE, READ_TOKEN, SCREENSHOTS, TOKEN, WHO, WIDE, broker, guarded, up } from "./world.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const BROWSERS = { chromium: ["chrome", "/usr/bin/chromium"], firefox: ["firefox", "/usr/bin/firefox-esr"] };
const PAGES = [
  "/", "/?span=day", "/requests", "/requests?state=unknown", "/requests?principal=nobody", "/upkeep", "/stale", "/configuration", "/audit",
  "/outbox", "/outbox?state=held", "/outbox/lanes", "/outbox/inbox", "/outbox/credentials", "/outbox/clock", "/relay", "/relay/clock",
  "/audit?part=relay", "/audit?part=outbox", "/broker",
];

/** Every action of the table, as `part/name`. */
const ACTIONS = [...readFileSync(new URL("../src/actions.rs", import.meta.url), "utf8").matchAll(/name: "([a-z-]+)",(?:(?!Action \{)[^])*?\.\.(GATE|OUTBOX|RELAY|BROKER)\n/g)]
  .map(([, action, part]) => `${part.toLowerCase()}/${action}`);

const picture = (page, name) => page.screenshot({ path: join(SCREENSHOTS, `${name}.png`), fullPage: true });

/** What axe finds. It is put in by the driver, past the page's own policy, and only while the test looks. */
async function violations(page) {
  await page.evaluate(AXE);
  return page.evaluate(async () => {
    const found = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" | ").slice(0, 300)}`);
  });
}

const overflow = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

for (const [name, [browser, executablePath]] of Object.entries(BROWSERS)) {
  describe(name, () => {
    let driver, dark, world, closed, mesh;
    before(async () => {
      [world, closed, mesh] = await Promise.all([up(), guarded(), broker()]);
      const args = name === "chromium" ? ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"] : [];
      const launch = (more) => puppeteer.launch({ browser, executablePath, headless: true, args, protocolTimeout: 120_000, ...more });
      driver = await launch({});
      // Firefox cannot be told by its driver what people prefer; another one that prefers the dark can be started.
      if (name === "firefox") dark = await launch({ extraPrefsFirefox: { "layout.css.prefers-color-scheme.content-override": 0 } });
    });
    after(async () => {
      await driver?.close();
      await dark?.close();
      await Promise.all([world, closed, mesh].map((one) => one?.end()));
    });

    async function open(url, { width = 1200, scheme = "light", script = true } = {}) {
      const page = await (name === "firefox" && scheme === "dark" ? dark : driver).newPage();
      const wrong = [];
      page.on("pageerror", (error) => wrong.push(String(error)));
      page.on("console", (line) => { if (line.type() === "error" && !/status of 40\d/.test(line.text())) wrong.push(line.text()); });
      page.on("dialog", (dialog) => { wrong.push("a dialog"); void dialog.dismiss(); });
      await page.setViewport({ width, height: 800 });
      if (!script) await page.setJavaScriptEnabled(false);
      if (name === "chromium") await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
      await page.goto(url, { waitUntil: "load" });
      return { page, wrong };
    }

    /** Every link of a list leads to a page of its own. */
    async function details(page, prefix) {
      const all = await page.$$eval("main a", (links) => links.map((link) => link.getAttribute("href")));
      return [...new Set(all.filter((href) => href.startsWith(prefix) && !href.includes("?")))].slice(0, 3);
    }

    test("every page is for everybody, light and dark, on a desk and on a phone", { timeout: 1_200_000 }, async () => {
      const first = await open(`${world.admin}/requests`);
      const records = await details(first.page, "/requests/");
      await first.page.goto(`${world.admin}/requests?state=unknown`);
      const unknown = await details(first.page, "/requests/");
      await first.page.goto(`${world.admin}/outbox`);
      const messages = await details(first.page, "/outbox/messages/");
      await first.page.goto(`${world.admin}/relay`);
      const lanes = await details(first.page, "/relay/");
      await first.page.close();
      assert.ok(lanes.length > 1, "the relay has lanes");
      assert.ok(records.length > 0 && unknown.length > 0 && messages.length > 0, "there is something to look at");
      const inbox = await open(`${world.admin}/outbox/inbox`);
      const received = await details(inbox.page, "/outbox/inbox/");
      await inbox.page.close();
      assert.ok(received.length > 0, "something was received");
      assert.ok(ACTIONS.length >= 35, `${ACTIONS.length} actions`);
      const last = (path) => path.split("/").pop();
      const [sender, id] = received[0].split("/").slice(-2);
      const abouts = {
        gate: `id=${last(unknown[0])}`, outbox: `id=${last(messages[0])}&lane=tea&sender=${sender}&client_message_id=${id}`, relay: `id=${last(lanes.find((path) => /\/lanes\/\d+$/.test(path)))}&target=orders&principal=demo`,
        broker: "mesh=team&member=alice&topic=news&webhook=hook&id=m-1",
      };
      const forms = (admin, parts) => of(admin, ACTIONS.filter((name) => parts.includes(name.split("/")[0])).map((name) => `/do/${name}?${abouts[name.split("/")[0]]}`));
      const of = (admin, paths) => paths.map((path) => [`${admin}${path}`, path]);
      const all = [
        ...of(world.admin, [...PAGES, ...records, ...unknown, ...messages, ...lanes, ...received, "/requests/999999"]),
        ...forms(world.admin, ["gate", "outbox", "relay"]),
        ...of(mesh.admin, ["/", "/broker", "/audit", "/configuration", "/broker/meshes/team", "/broker/meshes/team/topics/news", "/broker/meshes/team/members/alice"]),
        ...of(mesh.admin, [HOSTILE, WIDE.slice(0, 100)].flatMap((name) => ["topics", "webhooks"].map((what) => `/broker/meshes/team/${what}/${encodeURIComponent(name)}`))),
        ...forms(mesh.admin, ["broker"]),
        ...of(closed.admin, ["/"]),
      ];
      // What a form is about is there: it is the form that is looked at, and not a page that refuses.
      for (const [url, path] of all.filter(([, path]) => path.startsWith("/do/"))) assert.equal((await fetch(url)).status, 200, path);
      for (const scheme of ["light", "dark"])
        for (const width of [1200, 360])
          for (const [url, path] of all) {
            // Forms are many and alike: in the light on a desk, in the dark on a phone.
            if (path.startsWith("/do/") && (scheme === "dark") !== (width === 360)) continue;
            const { page, wrong } = await open(url, { width, scheme });
            assert.equal(await page.evaluate(() => matchMedia("(prefers-color-scheme: dark)").matches), scheme === "dark", `${path} in the ${scheme}`);
            assert.deepEqual(await violations(page), [], `${path} at ${width}, ${scheme}`);
            assert.ok((await overflow(page)) <= 0, `${path} is wider than ${width}`);
            assert.deepEqual(wrong, [], path);
            await picture(page, `${name}-${scheme}-${width}${path.replace(/[^a-z0-9]+/gi, "-")}`);
            await page.close();
          }
    });

    test("an unknown outcome is resolved by keyboard alone", { timeout: 120_000 }, async () => {
      const { page, wrong } = await open(`${closed.admin}/`);
      // The page itself and the regions that scroll have the focus too, and the text of everything in them.
      const focused = () => page.evaluate(() => (document.activeElement.matches("a, button") ? document.activeElement.textContent.trim() : ""));
      /** Tabs until what is focused fits. */
      async function reach(fits) {
        for (let at = 0; at < 80; at++) {
          if (fits(await focused(), await page.evaluate(() => document.activeElement.getAttribute("href") ?? document.activeElement.name ?? ""))) return;
          await page.keyboard.press("Tab");
        }
        assert.fail(`nothing that fits is reached by Tab on ${page.url()}`);
      }
      const enter = () => Promise.all([page.waitForNavigation({ waitUntil: "load" }), page.keyboard.press("Enter")]);
      await reach((_, name) => name === "token");
      await page.keyboard.type(TOKEN);
      await enter();
      await reach((text) => text.includes("outcomes are unknown"));
      await enter();
      await reach((_, href) => /^\/requests\/\d+$/.test(href));
      await enter();
      await reach((text) => text === "Say what became of it");
      await enter();
      await reach((_, name) => name === "as");
      await page.keyboard.type("applied");
      await reach((_, name) => name === "reason");
      await page.keyboard.type("it is in the books");
      await enter();
      const text = await page.$eval("main", (main) => main.textContent);
      assert.match(text, /Done: Say what became of it/);
      assert.match(text, /it is in the books/);
      assert.deepEqual(wrong, []);
      await picture(page, `${name}-resolved`);
      // A reload and the way back do nothing again.
      await page.reload();
      await page.goto(`${closed.admin}/audit`);
      assert.equal(await page.$$eval("tbody tr", (rows) => rows.length), 1);
      await page.close();
    });

    // Debian's Firefox can be started without scripts, and its driver then never hears that a form has led on.
    if (name === "chromium") test("without JavaScript everything works", { timeout: 120_000 }, async () => {
      const { page } = await open(`${closed.admin}/`, { script: false });
      const submit = (selector) => Promise.all([page.waitForNavigation({ waitUntil: "load" }), page.click(selector)]);
      if (await page.$("input[name=token]")) {
        await page.type("input[name=token]", TOKEN);
        await submit("main button");
      }
      // Of two that are unknown the keyboard has resolved one: whichever is left.
      await page.goto(`${closed.admin}/requests?state=unknown`);
      await submit("tbody a[href^='/requests/']");
      await submit("a[href^='/do/gate/resolve']");
      await page.select("select[name=as]", "applied");
      await page.type("input[name=reason]", "seen at the service");
      await submit("form.act button");
      assert.match(await page.$eval("main", (main) => main.textContent), /Done: Say what became of it/);
      await page.goto(`${closed.admin}/do/gate/forget`);
      await page.type("input[name=principal]", "nobody");
      await submit("form.act button");
      assert.match(await page.$eval("main", (main) => main.textContent), /nothing is known of this principal/);
      await page.goto(`${closed.admin}/do/gate/sweep?grace=1h`);
      assert.match(await page.$eval("main", (main) => main.textContent), /would remove/);
      await submit("form.act button");
      assert.match(await page.$eval("main", (main) => main.textContent), /Done: Sweep expired records/);
      await Promise.all([page.waitForNavigation(), page.click("footer button")]);
      assert.match(page.url(), /sign-in/);
      await page.close();
    });

    test("whoever may only look is offered nothing", { timeout: 120_000 }, async () => {
      const { page } = await open(`${closed.admin}/requests`);
      if (await page.$("footer button")) await Promise.all([page.waitForNavigation(), page.click("footer button")]);
      await page.type("input[name=token]", READ_TOKEN);
      await Promise.all([page.waitForNavigation({ waitUntil: "load" }), page.click("main button")]);
      await page.goto(`${closed.admin}/requests`);
      assert.equal((await page.$$("a[href^='/do/']")).length, 0);
      assert.match(await page.$eval("footer", (foot) => foot.textContent), /read-only/);
      await page.close();
    });

    test("who sends, and what headers say, never widens a page", { timeout: 120_000 }, async () => {
      const first = await open(`${closed.admin}/`);
      if (await first.page.$("footer button")) await Promise.all([first.page.waitForNavigation(), first.page.click("footer button")]);
      await first.page.type("input[name=token]", TOKEN);
      await Promise.all([first.page.waitForNavigation({ waitUntil: "load" }), first.page.click("main button")]);
      const search = `/requests?principal=${encodeURIComponent(WHO)}`;
      await first.page.goto(`${closed.admin}${search}`);
      const records = await details(first.page, "/requests/");
      assert.equal(records.length, 1, "a record is found by who sent it");
      await first.page.close();
      for (const width of [1200, 360])
        for (const path of [search, ...records]) {
          const { page, wrong } = await open(`${closed.admin}${path}`, { width });
          const text = await page.$eval("main", (main) => main.textContent);
          assert.ok(path === search || (text.includes(WHO) && text.includes("H".repeat(200))), `${path} shows both: ${text}`);
          assert.ok((await overflow(page)) <= 0, `${path} is wider than ${width}`);
          assert.deepEqual(await violations(page), [], `${path} at ${width}`);
          assert.deepEqual(wrong, [], path);
          await page.close();
        }
      const { page } = await open(`${closed.admin}/`);
      await Promise.all([page.waitForNavigation(), page.click("footer button")]);
      await page.close();
    });

    test("the first page of everything at once is small", { timeout: 60_000 }, async () => {
      const html = await (await fetch(`${world.admin}/`, { headers: { accept: "text/html" } })).text();
      const linked = [...html.matchAll(/(?:href|src)="(\/console\.[a-z]+)"/g)].map(([, path]) => path);
      assert.equal(linked.length, 3, linked.join(" "));
      let bytes = Buffer.byteLength(html);
      for (const path of linked) bytes += (await (await fetch(`${world.admin}${path}`)).arrayBuffer()).byteLength;
      assert.ok(bytes <= 60_000, `${bytes} bytes`);
    });

    test("a double click acts once", { timeout: 120_000 }, async () => {
      const { page } = await open(`${world.admin}/do/gate/sweep?grace=1h`);
      await page.click("input[name=confirmed]");
      await page.type("input[name=reason]", `twice in ${name}`);
      await Promise.all([page.waitForNavigation({ waitUntil: "load" }), page.click("form.act button", { count: 2, delay: 1 })]);
      await page.goto(`${world.admin}/audit`);
      const rows = await page.$$eval("tbody tr", (all) => all.map((row) => row.textContent));
      assert.equal(rows.filter((row) => row.includes(`twice in ${name}`)).length, 1, rows.join("\n"));
      await page.close();
    });

    test("the first page shows what comes, as it comes", { timeout: 120_000 }, async () => {
      const { page, wrong } = await open(`${world.admin}/`);
      const headers = { authorization: "Bearer demo", "idempotency-key": `live-${name}` };
      await fetch(`${world.gate}/orders`, { method: "POST", headers, body: "{}" });
      await page.waitForFunction((key) => document.querySelector("main").textContent.includes(key), { timeout: 60_000 }, `live-${name}`);
      assert.deepEqual(wrong, []);
      await page.close();
    });
  });
}
