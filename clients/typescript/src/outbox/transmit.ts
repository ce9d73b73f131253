// Makes one HTTP request of a frozen message and reads its answer. It never retries, never follows a redirect (a POST would
// become a GET), and sends no cookies unless the credential says so.
import type { Profile } from "../contract/profile.js";
import type { Answer } from "../contract/refusal.js";
import type { Environment } from "./environment.js";
import type { Credential, Frozen, Row } from "./types.js";

const ANSWER_BYTES_MAX = 1 << 20;

export interface Transmission {
  row: Row;
  request: Frozen;
  credential: Credential;
  profile: Profile;
  timeout: number;
  signal: AbortSignal;
  /** How far the server's clock was ahead at the first attempt. */
  ahead: number;
}

export type Transmitted =
  | { type: "answer"; answer: Answer }
  /** The server led elsewhere; browsers do not say where. */
  | { type: "redirect" }
  /** No answer, or only a part of one: nobody knows whether it arrived. */
  | { type: "silence"; why: string };

export async function transmit(transmission: Transmission, environment: Environment): Promise<Transmitted> {
  const { request, credential, timeout, signal } = transmission;
  const controller = new AbortController();
  const abort = () => controller.abort(signal.reason);
  signal.addEventListener("abort", abort);
  const timer = environment.setTimeout(() => controller.abort(new Error("it took too long")), timeout);
  try {
    if (signal.aborted) throw signal.reason;
    const response = await environment.fetch(request.url, {
      method: request.method,
      headers: headersOf(transmission),
      body: request.body,
      credentials: credential.cookies ? "include" : "omit",
      redirect: "manual",
      cache: "no-store",
      signal: controller.signal,
    });
    if (response.type === "opaqueredirect") return { type: "redirect" };
    const body = await readBody(response);
    return { type: "answer", answer: { status: response.status, headers: Object.fromEntries(response.headers), body } };
  } catch (error) {
    return { type: "silence", why: String((controller.signal.reason ?? error)?.message ?? error) };
  } finally {
    environment.clearTimeout(timer);
    signal.removeEventListener("abort", abort);
  }
}

function headersOf({ row, request, credential, profile, ahead }: Transmission): Headers {
  const headers = new Headers(request.headers);
  headers.set(profile.header, row.ids[0]!);
  headers.set("X-Client-Tx-Id", row.txId);
  headers.set("Idempotency-First-Sent", new Date(row.firstAt! + ahead).toISOString());
  // A row of an older release has no first.
  const first = row.first ?? row.supersedes;
  if (first) headers.set("Semel-Supersedes", first);
  for (const [name, value] of Object.entries(credential.headers ?? {})) headers.set(name, value);
  return headers;
}

/** The body as text, up to a limit; the rest is not waited for. */
async function readBody(response: Response): Promise<string> {
  const reader = response.body?.getReader();
  if (!reader) return response.text();
  const decoder = new TextDecoder();
  let text = "";
  for (let bytes = 0; ; ) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    text += decoder.decode(value, { stream: true });
    bytes += value.length;
    if (bytes > ANSWER_BYTES_MAX) {
      void reader.cancel();
      return text;
    }
  }
}
