// Reads how long a receiver asks to wait, and whether it forbids another try. Never reads a clock.

type Headers = (name: string) => string | null | undefined;

/** `Retry-After` in seconds or as a date, else `retry_after` in the body in milliseconds; in milliseconds. */
export function toldWait(header: Headers, body: string, now: number): number | null {
  const text = header("retry-after")?.trim() ?? "";
  if (/^\d+$/.test(text)) return Number(text) * 1000;
  const at = httpDate(text);
  if (at !== null) return Math.max(0, at - (httpDate(header("date")) ?? now));
  try {
    const told = JSON.parse(body).retry_after;
    return typeof told === "number" ? Math.max(0, told) : null;
  } catch {
    return null;
  }
}

/** Reads `Sun, 06 Nov 1994 08:49:37 GMT`, the one form that senders may write. */
export function httpDate(text: string | null | undefined): number | null {
  return /^\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$/.test(text ?? "") ? Date.parse(text!) || null : null;
}

/** What the server says about trying again, if it says something. */
export function shouldRetry(header: Headers): boolean | null {
  const said = (header("x-should-retry") ?? header("stripe-should-retry"))?.toLowerCase();
  return said === "true" ? true : said === "false" ? false : null;
}
