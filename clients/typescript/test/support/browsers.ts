// Real browsers behind one small face: tabs that evaluate, reload, hang and vanish. Debian's Chromium and Firefox are driven by
// puppeteer-core, WebKitGTK's MiniBrowser by its own driver under Xvfb.
import { spawn, type ChildProcess } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import puppeteer, { type Browser as Puppet, type Page } from "puppeteer-core";

export interface BrowserTab {
  /** Runs the text as the body of an async function in the page. */
  evaluate<T>(body: string): Promise<T>;
  reload(): Promise<void>;
  /** Ends the tab without a word: neither its page nor the other tabs are told. */
  kill(): Promise<void>;
  /** Lets the page stand still for some seconds: by the browser's own freezing where it has one, else by a busy loop. */
  freeze(millis: number): Promise<void>;
  /** The processor time of the page's main thread so far, in milliseconds, where the browser tells. */
  mainThread?(): Promise<number>;
  /** What the page's scripts hold in memory, in bytes, where the browser tells. */
  heap?(): Promise<number>;
}

export interface RealBrowser {
  readonly name: string;
  readonly canFreeze: boolean;
  open(url: string): Promise<BrowserTab>;
  close(): Promise<void>;
}

export const NAMES = ["chromium", "firefox", "webkit"] as const;
export type Name = (typeof NAMES)[number];

export async function launch(name: Name): Promise<RealBrowser> {
  if (name === "webkit") return launchWebKit();
  const isChromium = name === "chromium";
  const browser = await puppeteer.launch({
    browser: isChromium ? "chrome" : "firefox",
    executablePath: isChromium ? "/usr/bin/chromium" : "/usr/bin/firefox-esr",
    headless: true,
    args: isChromium ? ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"] : [],
    protocolTimeout: 60_000,
  });
  return {
    name,
    canFreeze: isChromium,
    open: (url) => openPage(browser, url, isChromium),
    close: () => browser.close(),
  };
}

const wrap = (body: string) => `(async () => { ${body} })()`;
const BUSY = (millis: number) => `setTimeout(() => { const end = Date.now() + ${millis}; while (Date.now() < end); }, 0)`;

async function openPage(browser: Puppet, url: string, isChromium: boolean): Promise<BrowserTab> {
  const page: Page = await browser.newPage();
  await page.goto(url, { waitUntil: "load" });
  const clock = isChromium ? await page.createCDPSession() : undefined;
  await clock?.send("Performance.setTimeDomain", { timeDomain: "threadTicks" });
  await clock?.send("Performance.enable");
  const mainThread = async () => {
    const { metrics } = await clock!.send("Performance.getMetrics");
    return 1000 * metrics.find((metric) => metric.name === "TaskDuration")!.value;
  };
  const heap = async () => {
    await clock!.send("HeapProfiler.collectGarbage");
    return (await clock!.send("Runtime.getHeapUsage")).usedSize;
  };
  return {
    ...(clock ? { mainThread, heap } : {}),
    evaluate: <T>(body: string) => page.evaluate(wrap(body)) as Promise<T>,
    reload: async () => void (await page.reload({ waitUntil: "load" })),
    kill: async () => {
      if (!isChromium) {
        await page.evaluate("globalThis.isDying = true").catch(() => {});
        return page.close();
      }
      const session = await page.createCDPSession();
      // The process of the page is gone at once; nothing in it has a say.
      await Promise.race([session.send("Page.crash").catch(() => {}), new Promise((resolve) => setTimeout(resolve, 200))]);
      await Promise.race([page.close().catch(() => {}), new Promise((resolve) => setTimeout(resolve, 1000))]);
    },
    freeze: async (millis) => {
      if (!isChromium) return void (await page.evaluate(BUSY(millis)));
      const session = await page.createCDPSession();
      await session.send("Page.setWebLifecycleState", { state: "frozen" });
      setTimeout(() => void session.send("Page.setWebLifecycleState", { state: "active" }).catch(() => {}), millis);
    },
  };
}

function findMiniBrowser(): string {
  for (const root of readdirSync("/usr/lib/x86_64-linux-gnu").filter((name) => name.startsWith("webkit2gtk-4")))
    if (existsSync(`/usr/lib/x86_64-linux-gnu/${root}/MiniBrowser`)) return `/usr/lib/x86_64-linux-gnu/${root}/MiniBrowser`;
  throw new Error("there is no MiniBrowser: install webkit2gtk-driver");
}

async function launchWebKit(): Promise<RealBrowser> {
  const { port, display, home } = { port: await freePort(), display: `:${90 + (process.pid % 900)}`, home: await mkdtemp(join(tmpdir(), "semel-webkit-")) };
  const environment = {
    ...process.env, DISPLAY: display, HOME: home, XDG_DATA_HOME: join(home, "data"), XDG_CACHE_HOME: join(home, "cache"),
    WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS: "1", WEBKIT_FORCE_SANDBOX: "0", LIBGL_ALWAYS_SOFTWARE: "1",
    WEBKIT_DISABLE_COMPOSITING_MODE: "1", WEBKIT_DISABLE_DMABUF_RENDERER: "1", GDK_BACKEND: "x11",
  };
  const children: ChildProcess[] = [
    spawn("Xvfb", [display, "-screen", "0", "1024x768x24", "-nolisten", "tcp"], { stdio: "ignore" }),
    spawn("/usr/bin/WebKitWebDriver", [`--port=${port}`], { stdio: "ignore", env: environment }),
  ];
  const { Builder, Capabilities } = (await import("selenium-webdriver")).default;
  const capabilities = new Capabilities({
    browserName: "MiniBrowser",
    "webkitgtk:browserOptions": { binary: findMiniBrowser(), args: ["--automation"] },
  });
  await reachable(port);
  const driver = await new Builder().usingServer(`http://127.0.0.1:${port}`).withCapabilities(capabilities).build();
  await driver.manage().setTimeouts({ script: 60_000, pageLoad: 60_000 });
  // One tab is looked at at a time.
  let turn: Promise<unknown> = Promise.resolve();
  const inTurn = <T>(work: () => Promise<T>): Promise<T> => {
    const next = turn.then(work);
    turn = next.catch(() => {});
    return next;
  };
  // The first window stays: with the last one the session would end.
  const open = async (url: string): Promise<BrowserTab> => {
    const handle = await inTurn(async () => {
      await driver.switchTo().newWindow("tab");
      const handle = await driver.getWindowHandle();
      await driver.get(url);
      return handle;
    });
    const here = <T>(work: () => Promise<T>) => inTurn(async () => (await driver.switchTo().window(handle), work()));
    const evaluate = <T>(body: string) =>
      here(async () => {
        const script = `const end = arguments[0]; ${wrap(body)}.then((value) => end({ value }), (error) => end({ error: String(error) }));`;
        const said = await driver.executeAsyncScript<{ value: T; error?: string }>(script);
        if (said.error !== undefined) throw new Error(said.error);
        return said.value;
      });
    return {
      evaluate,
      reload: () => here(async () => driver.navigate().refresh()),
      kill: () => here(async () => {
        await driver.executeScript("globalThis.isDying = true").catch(() => {});
        const rest = await driver.close().then(() => driver.getAllWindowHandles());
        if (rest[0]) await driver.switchTo().window(rest[0]);
      }),
      freeze: async (millis) => void (await here(() => driver.executeScript(BUSY(millis)))),
    };
  };
  return {
    name: "webkit",
    canFreeze: false,
    open,
    close: async () => {
      await driver.quit().catch(() => {});
      for (const child of children) child.kill();
      await rm(home, { recursive: true, force: true });
    },
  };
}

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}

async function reachable(port: number): Promise<void> {
  for (let tries = 0; ; tries++) {
    const isUp = await fetch(`http://127.0.0.1:${port}/status`).then((answer) => answer.ok, () => false);
    if (isUp) return;
    if (tries > 150) throw new Error("the driver of WebKit does not answer");
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}
