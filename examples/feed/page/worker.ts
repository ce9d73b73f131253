// The service worker: keeps the page itself, so that it opens without a network. What people do is kept by the outbox.
const scope = self as unknown as { skipWaiting(): void; clients: { claim(): Promise<void> }; addEventListener(type: string, listener: (event: any) => void): void };

scope.addEventListener("install", () => scope.skipWaiting());
scope.addEventListener("activate", (event) => event.waitUntil(scope.clients.claim()));
scope.addEventListener("fetch", (event) => {
  const { pathname, origin } = new URL(event.request.url);
  if (event.request.method === "GET" && origin === location.origin && !pathname.startsWith("/api/")) event.respondWith(answer(event.request));
});

/** The network's answer, which is kept; without a network the one that was kept. */
async function answer(request: Request): Promise<Response> {
  const kept = await caches.open("feed");
  try {
    const found = await fetch(request);
    if (found.ok) await kept.put(request, found.clone());
    return found;
  } catch (error) {
    const known = await kept.match(request, { ignoreSearch: true });
    if (known) return known;
    throw error;
  }
}
