// What a sender knows of a profile: how keys are made, answers read and attempts timed.

/** From and to status, codes (none: any), and what to do: `success`, `drop:REASON`, `retry:MAX:THEN` and the like. */
export type Rule = [from: number, to: number, codes: string[], action: string];

/** When a sender tries again; times in milliseconds. */
export interface Schedule {
  base: number;
  factor: number;
  cap: number;
  /** A share to either side, or anywhere between nothing and the whole delay. */
  jitter: number | "full";
  burst?: number;
  burstBudget?: number;
  period?: number;
  maxAttempts?: number;
  maxAge?: number;
  /** The pause after the receiver says that it blocks us. Default: 10 minutes. */
  blocked?: number;
}

export interface Profile {
  name: string;
  /** The header that carries the key. */
  header: string;
  /** What keys look like. */
  format: string;
  /** How keys are made: `uuid4`, `uuid4-ms` or `ulid`. */
  mint: string;
  /** Whether the messages of one lane follow each other. */
  isFifo: boolean;
  /** Whether a message that is given up is not kept. */
  isDropped: boolean;
  /** How long servers know a key again, in milliseconds. */
  window: number;
  /** Whether their records live longer than that. */
  hasMargin: boolean;
  /** The member of a JSON body that says when the action happened. */
  generatedAt?: string;
  schedule: Schedule;
  /** How answers are read, where that is not as the profile of this name says; see `readRules`. */
  rules?: string;
}

/** Reads rules written as `409 code,code retry-after|500-599 retry`. */
export function readRules(text: string): Rule[] {
  return text.split("|").flatMap((rule) => {
    const parts = rule.split(" ");
    const action = parts.pop()!;
    const codes = parts[1]?.split(",") ?? [];
    return parts[0]!.split(",").map((span): Rule => {
      const [from, to = from] = span.split("-").map(Number);
      return [from!, to!, codes, action];
    });
  });
}
