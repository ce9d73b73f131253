// Who is signed in, where page and service worker both find it. The outbox never stores a credential; this is the session of our
// own API, which ends by itself.
const PLACE = "/session";

export async function readSession() {
  const found = await (await caches.open("session")).match(PLACE);
  return found ? found.json() : null;
}

export async function writeSession(session) {
  const cache = await caches.open("session");
  await (session ? cache.put(PLACE, new Response(JSON.stringify(session))) : cache.delete(PLACE));
}

/** The outbox's credentials: whoever is signed in, at the moment of sending. */
export function credentials(mode) {
  return async () => {
    const session = await readSession();
    if (!session) return null;
    return { principal: session.leader, headers: { Authorization: `Bearer ${session.session}`, "X-Sync-Mode": mode } };
  };
}
