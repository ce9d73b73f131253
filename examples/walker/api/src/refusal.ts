// What the game refuses: a code that clients know, words for people, and the one form of every error.

const STATUS = {
  BAD_REQUEST: 400,
  UNAUTHENTICATED: 401,
  NOT_FOUND: 404,
  ALREADY_ALLOCATED: 409,
  QUEST_ALREADY_IN_PROGRESS: 409,
  QUEST_ALREADY_COMPLETED: 409,
  INSUFFICIENT_POINTS: 422,
  PREREQUISITES_NOT_MET: 422,
  STEP_OUT_OF_ORDER: 422,
  INTERNAL: 500,
} as const;

export type Code = keyof typeof STATUS;

export class Refusal extends Error {
  constructor(
    readonly code: Code,
    message: string,
    readonly details: Record<string, unknown> = {},
  ) {
    super(message);
  }

  get status(): number {
    return STATUS[this.code];
  }

  /** The envelope that semel's own refusals have too. */
  body(requestId: string): object {
    return { error: this.code, message: this.message, details: this.details, requestId };
  }
}
