// Declares the tests of spec/once.json for one driver and framework. Each pair has a file of its own, so that they run beside
// each other.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { startProxy } from "./proxy.mjs";
import { runScenario, suite } from "./scenarios.mjs";
import { freePort, isLong, makeDatabase, start } from "./support.mjs";

const program = fileURLToPath(new URL("service.mjs", import.meta.url));

/** A service behind the proxy, which is started again when it was killed. */
async function startService(database, driver, framework) {
  const proxy = await startProxy(new URL(database.url));
  const url = new URL(database.url);
  [url.hostname, url.port] = ["127.0.0.1", String(proxy.port)];
  const port = await freePort();
  const launch = () =>
    start(process.execPath, [program, "--port", port, "--postgres", url.href, "--driver", driver, "--framework", framework]);
  let child = await launch();
  let relaunched;
  const relaunch = async () => {
    await child.kill();
    child = await launch();
  };
  return {
    base: () => `http://127.0.0.1:${port}`,
    arm: (how) => proxy.arm(how, () => (relaunched = relaunch())),
    restarted: () => relaunched,
    isArmed: () => proxy.isArmed(),
    async stop() {
      await child.kill();
      proxy.close();
    },
  };
}

export function testOnce(driver, framework) {
  describe(`${driver} on ${framework}`, () => {
    let database;
    let service;
    before(async () => {
      database = await makeDatabase(`once_${driver}`, suite.schema);
      service = await startService(database, driver, framework);
    });
    after(async () => {
      await service?.stop();
      await database?.drop();
    });
    // A web server's Headers joins lines of one name.
    const scenarios = suite.scenarios.filter(({ needs = [] }) => framework !== "hono" || !needs.includes("header-lists"));
    for (const scenario of scenarios) {
      // Around COMMIT itself the process is killed as often as at every other step.
      const isKill = driver === "pg" && scenario.steps.some(({ commit }) => commit?.startsWith("kill-"));
      for (let time = 0; time < (isKill ? (isLong ? 20 : 3) : 1); time++) {
        test(scenario.name, async () => {
          await runScenario(scenario, service, database);
          assert.equal(service.isArmed(), false, "the proxy was prepared for a COMMIT that never came");
        });
      }
    }
  });
}
