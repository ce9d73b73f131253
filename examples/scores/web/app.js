// The leaders' page. Taps change working values; Submit moves them into the outbox, frozen, each with its key; the outbox sends.
// One indicator counts what waits here and at the server, and a list says why.
import { Outbox } from "semel/outbox";
import { PendingIndicator, WorkingValues, oldDatabase } from "semel/snapshot";
import { wakeWorker } from "semel/worker";
import { credentials, readSession, writeSession } from "./session.js";

const SECTION = "7";
const TAPS = [-5, -1, 1, 5];
const LIST_EVERY = 3000;

const $ = (id) => document.getElementById(id);
const outbox = Outbox.open({ name: "scores", profile: "scores", credentials: credentials("interactive") });
const values = new WorkingValues({
  outbox,
  name: "scores",
  request: ({ key: [section, id], value: { name, points, leader } }) => ({
    url: new URL(`/api/sections/${section}/scores`, location.origin),
    init: {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ patrols: [{ id, name, points }] }),
    },
    lane: `${section}/${name}`,
    principal: leader,
    operation: "add points",
  }),
});

/** What the page shows; `pendingWrites` is part of who is signed in. */
const state = { session: null, pendingWrites: 0, waiting: [], patrols: [], isSigningIn: false, isReached: true };

const indicator = new PendingIndicator(outbox, askSession, 1000);
globalThis.scores = { outbox, values, indicator, state };

async function call(path, init = {}) {
  const headers = { "Content-Type": "application/json" };
  if (state.session) headers.Authorization = `Bearer ${state.session.session}`;
  const answer = await fetch(path, { ...init, headers });
  if (answer.status === 401) askToSignIn("Your session is over.");
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).message ?? `The server said ${answer.status}.`);
  return answer.json();
}

/** How many writes of this leader wait at the server, for the indicator. */
async function askSession() {
  if (!state.session) return 0;
  const { pendingWrites, waiting, signInAgain } = await call("/api/session");
  Object.assign(state, { pendingWrites, waiting });
  if (signInAgain) askToSignIn("The score service signed you out. Your points wait for you.");
  return pendingWrites;
}

async function loadPatrols() {
  if (!state.session) return;
  try {
    state.patrols = (await call(`/api/sections/${SECTION}/scores`)).patrols;
    localStorage.setItem("patrols", JSON.stringify(state.patrols));
    state.isReached = true;
  } catch (error) {
    state.isReached = !(error instanceof TypeError);
  }
  await show();
}

async function tap(patrol, points) {
  const key = [SECTION, patrol.id];
  const name = patrol.name ?? patrol.id;
  const now = await values.update(key, (before) => ({ name, points: (before?.points ?? 0) + points, leader: state.session.leader }));
  // Points that cancel each other out are no points.
  if (now.points === 0) await values.remove(key);
  await show();
}

async function submit() {
  await values.submit();
  await show();
}

async function clear() {
  await Promise.all((await values.all()).map(({ key }) => values.remove(key)));
  await show();
}

async function show() {
  const drafts = new Map((await values.all()).map(({ key, value }) => [key[1], value.points]));
  $("login").hidden = !state.isSigningIn;
  $("board").hidden = !state.session;
  $("leader").textContent = state.session?.leader ?? "";
  $("network").hidden = navigator.onLine && state.isReached;
  const none = element("li", "empty", "The patrols are shown once the score service has told them.");
  const cards = state.patrols.map((patrol) => card(patrol, drafts.get(patrol.id) ?? 0));
  $("patrols").replaceChildren(...(cards.length ? cards : [none]));
  const changed = [...drafts.values()].filter((points) => points !== 0);
  $("draft").textContent = ["No points to submit", "1 patrol changed"][changed.length] ?? `${changed.length} patrols changed`;
  $("submit").disabled = $("clear").disabled = changed.length === 0;
  showIndicator();
}

function showIndicator() {
  const pending = indicator.getSnapshot();
  const { held } = outbox.getSnapshot();
  const pill = $("indicator");
  pill.dataset.pending = pending;
  pill.hidden = !state.session && pending === 0;
  pill.className = pending === 0 ? "" : held || state.isSigningIn ? "stuck" : "waits";
  pill.textContent = pending === 0 ? "All saved" : `${pending} waiting`;
  const here = (reason) => (navigator.onLine ? reason || "on this device, being sent" : "on this device, which is offline");
  const local = outbox.getSnapshot().lanes.map(({ lane, reason }) => reasonOf(lane.split("/")[1], here(reason)));
  const remote = pending === 0 ? [] : state.waiting.map(({ patrol, why }) => reasonOf(patrol, why));
  $("reasons").replaceChildren(...local, ...remote);
  $("waiting").hidden = local.length + remote.length === 0;
}

function reasonOf(patrol, why) {
  const line = document.createElement("li");
  const name = document.createElement("b");
  name.textContent = patrol;
  line.append(name, `: ${why}`);
  return line;
}

function element(tag, className, ...inside) {
  const made = document.createElement(tag);
  made.className = className;
  made.append(...inside);
  return made;
}

function card(patrol, draft) {
  const name = patrol.name ?? patrol.id;
  // Before the score service was ever asked there is no score.
  const score = element("div", "score", patrol.score === null ? "–" : String(patrol.score + patrol.pendingDelta));
  if (patrol.hasPending) {
    const dot = element("span", "dot");
    dot.title = "Not all of it has reached the score service";
    score.append(dot);
  }
  const signed = `${draft > 0 ? "+" : "−"}${Math.abs(draft)}`;
  const note = element("div", draft ? "note draft" : "note", draft ? `${signed} not submitted` : "");
  const taps = TAPS.map((points) => {
    const button = element("button", "", `${points > 0 ? "+" : "−"}${Math.abs(points)}`);
    button.onclick = () => void tap(patrol, points);
    button.ariaLabel = `${name} ${points > 0 ? "plus" : "minus"} ${Math.abs(points)}`;
    return button;
  });
  const made = element("li", "patrol", element("h3", "", name), score, note, element("div", "taps", ...taps));
  made.dataset.id = patrol.id;
  return made;
}

function askToSignIn(why) {
  // What is being typed is left alone.
  if (state.session && !state.isSigningIn) $("login").elements.leader.value = state.session.leader;
  state.isSigningIn = true;
  $("login-why").textContent = `${why} Use your name and the password of the score service.`;
  void show();
}

async function signIn(event) {
  event.preventDefault();
  const { leader, password } = Object.fromEntries(new FormData(event.target));
  $("login-error").textContent = "";
  try {
    const answer = await fetch("/api/login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ leader, password }),
    });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.message);
    state.session = said;
    state.isSigningIn = false;
    await writeSession(said);
    event.target.reset();
    await Promise.all([outbox.kick(), indicator.refresh(), loadPatrols()]);
  } catch (error) {
    $("login-error").textContent = error instanceof TypeError ? "There is no network." : error.message;
  }
}

/** The page before this one kept a queue of taps. Each is moved into the working values, once. */
const importTaps = () =>
  values.importQueue(oldDatabase("patrol-taps", "events"), ({ section, patrol, name, points }) => ({
    key: [section, patrol],
    change: (before) => ({ name, points: (before?.points ?? 0) + points, leader: state.session?.leader ?? "default" }),
  }));

async function start() {
  state.session = await readSession();
  state.patrols = JSON.parse(localStorage.getItem("patrols") ?? "[]");
  if (!state.session) askToSignIn("Welcome.");
  else await importTaps();
  $("login").onsubmit = (event) => void signIn(event);
  $("submit").onclick = () => void submit();
  $("clear").onclick = () => void clear();
  indicator.subscribe(showIndicator);
  outbox.on(({ type }) => type === "done" && void loadPatrols());
  addEventListener("online", () => void loadPatrols());
  addEventListener("offline", () => void show());
  if ("serviceWorker" in navigator) {
    await navigator.serviceWorker.register("/worker.js");
    wakeWorker(outbox);
  }
  await Promise.all([indicator.refresh(), loadPatrols()]);
  setInterval(() => void Promise.all([loadPatrols(), state.pendingWrites > 0 && indicator.refresh()]), LIST_EVERY);
}

void start();
