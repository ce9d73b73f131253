// Says what an answer means to a sender: one ordered table for each profile, the first rule that matches counts.
import { readRules } from "./profile.js";

export type ClassName = "success" | "retry" | "retry-after" | "auth" | "rebuild" | "drop" | "dead";

export interface Class {
  class: ClassName;
  reason?: string;
  /** How often the same answer is tried again, and what it means after that. */
  max?: number;
  then?: Class;
}

/** What an answer with this status and these codes means. No answer at all is always worth another try. */
export function classify(rules: string, status: number | null, codes: (string | null)[] = []): Class {
  if (status === null) return { class: "retry" };
  const said = codes.map(plain);
  const rule = readRules(rules).find(
    ([from, to, known]) => from <= status && status <= to && (!known.length || known.some((code) => said.includes(code))),
  );
  return readClass(rule![3]);
}

/** The code in an error body: the last segment of `type`, else `code`, else `error`, else `error.code`. */
export function codeOf(body: string): string | null {
  let parsed;
  try {
    parsed = JSON.parse(body);
  } catch {
    return null;
  }
  const text = (value: unknown) => (typeof value === "string" ? value : null);
  const type = text(parsed?.type);
  const segment = type && type !== "about:blank" ? type.split(/[:/]/).pop() : null;
  return segment || (text(parsed?.code) ?? text(parsed?.error) ?? text(parsed?.error?.code));
}

function plain(code: string | null): string {
  return code === null ? "" : code.toLowerCase().replaceAll("_", "-");
}

/** Reads `drop:REASON`, `retry:1:drop:REASON` and the like. */
export function readClass(text: string): Class {
  const [name, second, ...rest] = text.split(":");
  if (rest.length) return { class: name as ClassName, max: Number(second), then: readClass(rest.join(":")) };
  return { class: name as ClassName, ...(second && { reason: second }) };
}
