// The service worker: the page opens without a network, and what waits is sent when no page may be open, in the background.
import { drainInWorker } from "semel/worker";
import { credentials } from "./session.js";

const PAGE = ["/", "/style.css", "/app.js"];

addEventListener("install", (event) => {
  skipWaiting();
  event.waitUntil(caches.open("page").then((cache) => cache.addAll(PAGE)));
});
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
addEventListener("fetch", (event) => {
  const { pathname, origin } = new URL(event.request.url);
  if (event.request.method !== "GET" || origin !== location.origin || !PAGE.includes(pathname)) return;
  event.respondWith(fresh(event.request));
});

async function fresh(request) {
  const cache = await caches.open("page");
  try {
    const answer = await fetch(request);
    if (answer.ok) await cache.put(request, answer.clone());
    return answer;
  } catch (error) {
    const kept = await cache.match(request);
    if (kept) return kept;
    throw error;
  }
}

drainInWorker({ name: "scores", profile: "scores", credentials: credentials("background") });
