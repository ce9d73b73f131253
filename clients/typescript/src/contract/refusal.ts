// Reads what an answer says beside its status: which refusal of a gate it is, whether it speaks for earlier attempts, how
// long to wait, whether to retry at all. Decides nothing about the next attempt.
import { codeOf } from "./classify.js";

/** An answer, as far as it is kept. Header names are in lower case. */
export interface Answer {
  status: number;
  headers: Record<string, string>;
  body: string;
}

/** What an answer says of the effects of a message. */
export type Effects = "taken" | "possible" | "unsaid" | "all";

const PAGES = "/.well-known/semel/problems/";
const SAME_AS: Record<string, string> = {
  "idempotency-conflict": "fingerprint-mismatch",
  "idempotency-key-reused": "fingerprint-mismatch",
  "idempotency-in-flight": "in-flight",
};
/** Refusals after which an attempt under the key may have taken effect: it runs, ran, or is being written down. */
const POSSIBLE = ["in-flight", "too-many-waiters", "outcome-unknown", "superseded", "settlement-pending", "not-settled",
  "upstream-reset", "upstream-timeout", "handler-timeout"];
/** Refusals that were said before or without a look at the key, or of another credential or recipe. */
const UNSAID = ["request-malformed", "identity-missing", "identity-refused", "identity-unavailable", "key-missing",
  "key-invalid", "key-ambiguous", "key-too-weak", "header-missing", "body-not-json", "body-too-large",
  "timestamp-invalid", "first-sent-in-future", "stale-action", "too-old", "fingerprint-mismatch", "key-sealed",
  "credential-changed", "request-limited", "admission-limited", "overloaded", "store-unavailable",
  "upstream-unreachable", "ordering-violation", "insufficient-energy"];

/** The code of the page that the answer links to, which some error forms have instead of one in their body. */
export function linkedCode({ headers }: Answer): string | null {
  const found = (headers.link ?? "").split(",").find((link) => link.includes(PAGES) && link.includes("describedby"));
  return found ? (/problems\/([a-z-]+)>/.exec(found)?.[1] ?? null) : null;
}

/** The refusal of a gate that this answer is, by its link or by its code. */
export function kindOf(answer: Answer): string | null {
  const code = linkedCode(answer) ?? codeOf(answer.body)?.toLowerCase().replaceAll("_", "-") ?? "";
  const kind = SAME_AS[code] ?? code;
  return kind === "answer-not-kept" || POSSIBLE.includes(kind) || UNSAID.includes(kind) ? kind : null;
}

/** What an answer says of the effects of the message with this id. */
export function effectsOf(answer: Answer, id: string): Effects {
  const outcome = answer.headers["semel-outcome"];
  if (outcome === "not-applied") return "unsaid";
  if (outcome === "unknown") return "possible";
  if (isReplay(answer)) return "all";
  const kind = kindOf(answer);
  if (kind === "answer-not-kept") {
    const status = originalStatus(answer.body);
    return status >= 500 ? "possible" : status >= 400 ? "unsaid" : "taken";
  }
  if (kind) return POSSIBLE.includes(kind) ? "possible" : "unsaid";
  if (answer.status >= 500 && answer.status !== 503) return "possible";
  // The key was looked up and was free. Of keys that are not UUIDs a gate that hashes credentials cannot tell.
  return knowsKeysAgain(answer) && /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(id) ? "all" : "unsaid";
}

function originalStatus(body: string): number {
  try {
    const parsed = JSON.parse(body);
    return Number(parsed.details?.originalStatus ?? parsed.originalStatus ?? 0);
  } catch {
    return 0;
  }
}

export function isReplay({ headers }: Answer): boolean {
  return (headers["idempotency-replayed"] ?? headers["idempotent-replayed"]) !== undefined;
}

/** Whether the server shows that it answers a repeated key from its record. */
export function knowsKeysAgain(answer: Answer): boolean {
  const level = answer.headers["semel-guarantee"];
  return (level !== undefined && level !== "none") || isReplay(answer) || answer.headers["semel-retention"] !== undefined;
}
