// What a driver's error means: whether the server answered, and whether a COMMIT can have been carried out.

/** The SQLSTATE of an error; undefined where the server did not answer. */
export function sqlState(error: unknown): string | undefined {
  for (let at = error, depth = 0; at instanceof Object && depth < 5; depth++) {
    const { code, meta, originalCode, cause } = at as {
      code?: unknown;
      meta?: { code?: unknown; driverAdapterError?: unknown };
      originalCode?: unknown;
      cause?: unknown;
    };
    // Prisma names a write conflict or deadlock by a code of its own.
    if (code === "P2034") return "40001";
    for (const state of [originalCode, meta?.code, code]) {
      // Codes of Node (ECONNRESET, EPIPE) and of Prisma (P2010) are no SQLSTATEs.
      if (typeof state === "string" && /^[0-9A-Z]{5}$/.test(state) && !/^(?:P[12]\d{3}|E[A-Z]{4})$/.test(state)) return state;
    }
    at = meta?.driverAdapterError ?? cause;
  }
  return undefined;
}

/** Whether the whole transaction may be run again. */
export function isRetriable(error: unknown): boolean {
  const state = sqlState(error);
  return state === "40001" || state === "40P01";
}

/** Whether the server said that it, or the connection, goes away. */
export function isServerGone(error: unknown): boolean {
  return /^(?:08|57P|53|25P03|25P04)/.test(sqlState(error) ?? "");
}

/** Whether the server went away rather than refused: a statement of the library's own that got no answer at all, too. */
export function isAway(error: unknown): boolean {
  return sqlState(error) === undefined || isServerGone(error);
}

/**
 * Whether an error of COMMIT proves that nothing was committed. After any other error the transaction may have been
 * committed, and only the record can tell. 40003 says that the server itself does not know.
 */
export function isUncommitted(error: unknown): boolean {
  const state = sqlState(error);
  return state !== undefined && state !== "40003" && /^(?:40|23|25|SM)/.test(state);
}
