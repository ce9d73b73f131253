// The service worker that real browsers load.
import { drainInWorker } from "../../dist/worker/index.js";

addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
const hasCredentials = !location.search.includes("none");
const credentials = ({ principal }) => ({ principal, headers: { authorization: "Bearer worker", "X-Sync-Mode": "background" } });
drainInWorker({ name: "worker", persist: false, ...(hasCredentials ? { credentials } : {}) });
