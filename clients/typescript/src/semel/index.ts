// `fetchOnce`: fetch with one key for all attempts of a call. It retries what the contract says may be retried, and nothing
// else. It keeps nothing: what must survive a reload belongs into an outbox.
import { classify, codeOf } from "../contract/classify.js";
import { uuid } from "../contract/mint.js";
import type { Profile } from "../contract/profile.js";
import { ietf } from "../contract/profiles.js";
import { linkedCode } from "../contract/refusal.js";
import { ietf as ietfRules } from "../contract/rules.js";
import { delay } from "../contract/schedule.js";
import { shouldRetry, toldWait } from "../contract/wait.js";

export interface FetchOnceOptions extends RequestInit {
  /** The key of this call; without one, a random UUID, or the key that the request has already. */
  key?: string;
  /** How often the request is sent again at most. Default: 7. */
  retries?: number;
  /** The longest single wait in milliseconds; an answer that asks for more is returned. Default: 60,000. */
  maxWait?: number;
  /** How long one attempt may take until its answer begins, in milliseconds. Default: 30,000. The body may take longer. */
  timeout?: number;
  /** The sender's half of a profile, with its `rules`. Default: `ietf`. */
  profile?: Profile;
  /** The `fetch` to use. */
  fetch?: typeof fetch;
}

/** No attempt was answered. The request may have taken effect: keep the key, and send the same request with it later. */
export class NoAnswerError extends Error {
  override name = "NoAnswerError";
  constructor(
    readonly key: string,
    options: ErrorOptions,
  ) {
    super(`no answer; whether it took effect is not known (key ${key})`, options);
  }
}

/** Sends a request until it is answered for good, with the same key each time. */
export async function fetchOnce(input: RequestInfo | URL, options: FetchOnceOptions = {}): Promise<Response> {
  const { key, retries = 7, maxWait = 60_000, timeout = 30_000, profile = ietf, fetch: send = fetch, ...init } = options;
  const request = new Request(input, init);
  if (key) request.headers.set(profile.header, key);
  else if (!request.headers.has(profile.header)) request.headers.set(profile.header, uuid());
  const sentKey = request.headers.get(profile.header)!;
  for (let attempt = 1; ; attempt++) {
    let answer: Response | undefined;
    let error: unknown;
    let wait = delay(profile.schedule, attempt, Math.random());
    const limit = new AbortController();
    const timer = setTimeout(() => limit.abort(new Error("it took too long")), timeout);
    try {
      answer = await send(request.clone(), { signal: AbortSignal.any([request.signal, limit.signal]) });
      wait = await waitAfter(answer, request.method, profile, wait);
    } catch (caught) {
      if (request.signal.aborted) throw caught;
      error = caught;
      // One that broke off before it could be read is none.
      answer = undefined;
    } finally {
      clearTimeout(timer);
    }
    if (attempt > retries || wait > maxWait) {
      // What still runs may come to nothing: with its 202 it would pass for done.
      if (answer && !(answer.ok && isPending(answer))) return answer;
      throw new NoAnswerError(sentKey, { cause: error ?? answer });
    }
    // It may have broken off already.
    await answer?.body?.cancel().catch(() => {});
    await sleep(wait, request.signal);
  }
}

/** How long to wait before the same request is sent again, not less than `atLeast`; for ever if it may not be. */
async function waitAfter(answer: Response, method: string, profile: Profile, atLeast: number): Promise<number> {
  const header = (name: string) => answer.headers.get(name);
  const isRunning = isPending(answer);
  if (!isRunning && (answer.ok || isFinal(answer, method))) return Infinity;
  const said = isRunning || shouldRetry(header);
  const body = answer.status === 409 ? await answer.clone().text() : "";
  const found = classify(profile.rules ?? ietfRules, answer.status, [codeOf(body), linkedCode(header("link"))]).class;
  const isRetried = said ?? (found === "retry" || found === "retry-after");
  return isRetried ? Math.max(atLeast, toldWait(header, body, Date.now()) ?? 0) : Infinity;
}

/** While an earlier attempt runs, a 202 is no acknowledgement. */
function isPending({ headers }: Response): boolean {
  return headers.get("semel-outcome") === "pending";
}

/** Whether another attempt could not help, or could do the same thing twice. */
function isFinal({ status, headers }: Response, method: string): boolean {
  // The server has kept this answer and will give it again.
  if (headers.has("idempotency-replayed") || headers.has("idempotent-replayed")) return true;
  // It says that it does not know keys again: then only what was surely not carried out may be sent again.
  const isSafe = /GET|HEAD|OPTIONS|PUT|DELETE|408|425|429|503/.test(method + status);
  return headers.get("semel-guarantee") === "none" && !isSafe;
}

function sleep(millis: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, millis);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)));
    signal.throwIfAborted();
  });
}
