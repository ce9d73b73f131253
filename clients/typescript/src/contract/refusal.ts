// Reads what an answer says beside its status: which refusal of a gate it is, and whether it speaks for earlier attempts.
// Decides nothing about the next attempt.
import { codeOf } from "./classify.js";
import { shouldRetry } from "./wait.js";

/** An answer, as far as it is kept. Header names are in lower case. */
export interface Answer {
  status: number;
  headers: Record<string, string>;
  body: string;
}

/** What an answer says of the effects of a message. */
export type Effects = "taken" | "possible" | "unsaid" | "all";

/** The code of the page that an answer links to, which some error forms have instead of one in their body. */
export function linkedCode(link: string | null | undefined): string | null {
  return /semel\/problems\/([a-z-]+)>[^,]*describedby/.exec(link ?? "")?.[1] ?? null;
}

/** What an answer says of the effects of the message with this id. `isWaiting`: it says that an attempt is under way. */
export function effectsOf(answer: Answer, id: string, isWaiting: boolean): Effects {
  const { status, headers, body } = answer;
  const outcome = headers["semel-outcome"];
  if (outcome === "not-applied") return "unsaid";
  if (outcome === "unknown" || outcome === "pending") return "possible";
  const isUuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(id);
  // A kept failure says how the attempt ended, not that it had no effect. Of a key that is no UUID a gate that hashes credentials
  // cannot tell whether it took effect under another one.
  if (isReplay(answer)) return status >= 500 ? "possible" : status < 300 || isUuid ? "all" : "unsaid";
  const linked = linkedCode(headers.link);
  const code = linked ?? codeOf(body)?.toLowerCase().replaceAll("_", "-");
  if (code === "answer-not-kept") return effectsOfUnkept(body);
  if (isWaiting || code === "settlement-pending") return "possible";
  if (status >= 500 && status !== 503) return code === "upstream-unreachable" ? "unsaid" : "possible";
  // A refusal is said before or without a look at the key, or of another credential or recipe.
  const isRefusal = linked !== null || shouldRetry((name) => headers[name]) !== null || body.includes("urn:semel:problem:");
  // The key was looked up and was free, and a success stays on record: what is still on its way finds it. Any other answer may
  // have freed the key again. Of keys that are not UUIDs a gate that hashes credentials cannot tell.
  const isTold = status >= 200 && status < 300 && knowsKeysAgain(answer) && isUuid;
  return isTold && !isRefusal ? "all" : "unsaid";
}

/** The first request was carried out; `originalStatus` says how that ended. */
function effectsOfUnkept(body: string): Effects {
  const status = Number(/"originalStatus" *: *(\d+)/.exec(body)?.[1] ?? 0);
  return status >= 500 ? "possible" : status >= 400 ? "unsaid" : "taken";
}

export function isReplay({ headers }: Answer): boolean {
  return /^(?!false)/i.test(headers["idempotency-replayed"] ?? headers["idempotent-replayed"] ?? "false");
}

/** Whether the server shows that it answers a repeated key from its record. */
export function knowsKeysAgain(answer: Answer): boolean {
  const level = answer.headers["semel-guarantee"];
  return (level !== undefined && level !== "none") || isReplay(answer) || answer.headers["semel-retention"] !== undefined;
}
