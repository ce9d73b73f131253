// The page: what people do goes into the outbox and is shown at once; what the service and the broker say goes beneath it.
import { Events, ownTransactions } from "semel/events";
import { Outbox, OutboxError, type Receipt } from "semel/outbox";
import { element, renderPosts } from "./render.js";
import { overlay, type Post, type Waiting } from "./view.js";

interface Session {
  id: string;
  name: string;
  token: string;
}

const STORED = "feed-session";
const KEPT = "feed-posts";
const session: Session | null = JSON.parse(localStorage.getItem(STORED) ?? "null");
const posts = new Map<string, Post>();
/** Posts of others that came while the page was open. */
const news = new Set<string>();
let waiting: Waiting[] = [];

const outbox = Outbox.open({
  name: "feed",
  profile: "feed",
  credentials: () => session && { principal: session.id, headers: { Authorization: `Bearer ${session.token}` } },
});

/** Sends an action: it is kept on this device before anything else, and shown at once. */
function act(operation: string, method: string, path: string, body?: unknown, logicalKey?: string): void {
  const init = { method, headers: { "Content-Type": "application/json" }, ...(body !== undefined && { body: JSON.stringify(body) }) };
  const { accepted } = outbox.send(path, { init, principal: session!.id, operation, ...(logicalKey && { logicalKey }) });
  accepted.then(show, (error: OutboxError) => say(`This could not be kept: ${error.message}`));
}

/** What waits or failed, read from the outbox: it is the same after a reload. */
async function readWaiting(): Promise<Waiting[]> {
  const found: Waiting[] = [];
  for (const receipt of await outbox.list()) {
    const isMine = receipt.principal === session?.id;
    if (!isMine || receipt.status === "done" || receipt.status === "aborted") continue;
    const request = await outbox.request(receipt.id).catch(() => undefined);
    if (!request) continue;
    const body = request.method === "POST" ? await request.json().catch(() => ({})) : {};
    found.push({
      id: receipt.id,
      operation: receipt.operation ?? "",
      post: body.id && receipt.operation === "create_post" ? body.id : (new URL(receipt.url).pathname.split("/")[3] ?? ""),
      body,
      status: receipt.status === "dead" ? "failed" : "pending",
      reason: reasonOf(receipt, found.some(({ status }) => status === "pending")),
    });
  }
  return found;
}

/** Why it waits or failed, in words for a person: the service's own where it gave some. */
function reasonOf({ reason, response, status }: Receipt, isBehind: boolean): string {
  let said: string | undefined;
  try {
    said = JSON.parse(response?.body ?? "").error;
  } catch {
    // No words of the service.
  }
  if (status === "dead") return said ?? reason ?? "";
  if (isBehind) return "It is sent after what was done before.";
  return navigator.onLine ? (reason ?? "Being sent.") : "This device is offline.";
}

let showing: Promise<void> = Promise.resolve();

/** Shows everything anew. One at a time, and the last one sees all. */
function show(): void {
  showing = showing.then(async () => {
    waiting = await readWaiting();
    const list = overlay([...posts.values()], waiting, { id: session?.id ?? "", name: session?.name ?? "" });
    renderPosts(list, { me: session?.id ?? "", news, like, comment, remove, retry, discard });
  });
}

const like = (post: string) => act("like_post", "POST", `/api/posts/${post}/like`, undefined, `like ${post}`);
const comment = (post: string, words: string) => act("create_comment", "POST", `/api/posts/${post}/comments`, { id: crypto.randomUUID(), words });
const remove = (post: string) => act("delete_post", "DELETE", `/api/posts/${post}`, undefined, `delete ${post}`);

/** Tries again: a waiting message now, one that was refused as a new message with a new key. */
async function retry({ id, status }: Waiting): Promise<void> {
  try {
    await (status === "pending" ? outbox.retry(id) : outbox.requeue(id));
  } catch (error) {
    const isRisky = error instanceof OutboxError && error.code === "possibly-delivered";
    if (isRisky && confirm("It may have arrived already. Send it all the same?")) await outbox.requeue(id, { force: true });
    else if (!isRisky) say((error as Error).message);
  }
  show();
}

async function discard({ id }: Waiting): Promise<void> {
  await outbox.abort(id).catch((error: Error) => say(`It cannot be taken back: ${error.message}`));
  show();
}

function say(words: string): void {
  const place = element("problem");
  place.textContent = words;
  place.hidden = !words;
}

function keep(): void {
  localStorage.setItem(KEPT, JSON.stringify([...posts.values()].slice(0, 100)));
  show();
}

async function load(): Promise<void> {
  const answer = await fetch("/api/feed", { headers: { Authorization: `Bearer ${session!.token}` } });
  if (answer.status === 401) return leave();
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  const found: Post[] = (await answer.json()).posts;
  posts.clear();
  for (const post of found) posts.set(post.id, post);
  keep();
}

/** The state is read whenever the line opens; what the line says comes after that, so that nothing falls in between. */
async function follow(): Promise<void> {
  const { broker } = await fetch("/api/settings").then((answer) => answer.json());
  let loading: Promise<void> = load();
  Events.open({
    url: broker,
    headers: () => ({ Authorization: `Bearer ${session!.token}` }),
    own: ownTransactions(outbox),
    onGap: load,
    onState(state, reason) {
      if (state === "open") loading = load();
      showState(state, reason);
    },
    async onMessage({ body, isOwn }) {
      await loading;
      const { post, gone } = body as { post?: Post; gone?: string };
      if (gone) posts.delete(gone);
      if (post) {
        // One's own echo is no news.
        if (!isOwn && !posts.has(post.id)) news.add(post.id);
        posts.set(post.id, post);
      }
      keep();
    },
  });
}

function showState(state: string, reason = ""): void {
  const place = element("state");
  place.className = state;
  place.title = reason;
  place.textContent = state === "open" ? "Live" : `Not live: ${reason.includes("HTTP") ? reason : "the live feed cannot be reached."} What you do is kept.`;
}

function leave(): void {
  localStorage.removeItem(STORED);
  localStorage.removeItem(KEPT);
  location.reload();
}

async function signIn(form: HTMLFormElement): Promise<void> {
  const name = new FormData(form).get("name");
  const problem = form.querySelector(".problem")!;
  try {
    const answer = await fetch("/api/session", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ name }) });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error);
    localStorage.setItem(STORED, JSON.stringify(said));
    await outbox.resume({ principal: said.id });
    location.reload();
  } catch (error) {
    problem.textContent = error instanceof TypeError ? "The feed cannot be reached. Try again soon." : (error as Error).message;
  }
}

function start(): void {
  element("sign-in").hidden = !!session;
  element("write").hidden = !session;
  element("sign-in").addEventListener("submit", (event) => (event.preventDefault(), void signIn(event.target as HTMLFormElement)));
  void navigator.serviceWorker?.register("/worker.js", { type: "module" }).catch(() => {});
  if (!session) return;
  element("who").hidden = false;
  element("who").querySelector("span")!.textContent = session.name;
  element("leave").addEventListener("click", () => void outbox.signOut(session.id).then(leave));
  element("write").addEventListener("submit", (event) => {
    event.preventDefault();
    const form = event.target as HTMLFormElement;
    const words = String(new FormData(form).get("words")).trim();
    if (words) act("create_post", "POST", "/api/posts", { id: crypto.randomUUID(), words });
    form.reset();
  });
  for (const post of JSON.parse(localStorage.getItem(KEPT) ?? "[]") as Post[]) posts.set(post.id, post);
  outbox.on(({ type, id }) => {
    // The answer is the truth about its post; the line may be away.
    if (type === "done" && id) void outbox.get(id).then(confirmed);
    show();
  });
  outbox.subscribe(show);
  show();
  const begin = (): void => void follow().catch(() => (showState("waiting"), setTimeout(begin, 2000)));
  begin();
}

function confirmed(receipt: Receipt | undefined): void {
  const said = JSON.parse(receipt?.response?.body ?? "{}");
  if (said.gone) posts.delete(said.gone);
  if (said.id && (said.likes?.length ?? 0) + (said.comments?.length ?? 0) >= sizeOf(said.id)) posts.set(said.id, said);
  keep();
}

/** How much is known of a post: an answer that comes late must not take anything away. */
function sizeOf(id: string): number {
  const known = posts.get(id);
  return known ? known.likes.length + known.comments.length : 0;
}

start();
