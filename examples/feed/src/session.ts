// Sessions: a signed token that says who somebody is. The broker verifies it with the same secret, so that one sign-in counts for
// both. It stands in for your own sign-in: here a name is enough.
import { createHmac, timingSafeEqual } from "node:crypto";

/** The mesh at the broker, and the line that everybody reads. */
export const MESH = "feed";
export const TOPIC = "posts";

const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString("base64url");

export class Sessions {
  constructor(private readonly secret: string) {}

  /** A token for a person. */
  open(person: string): string {
    const text = `${encode({ alg: "HS256", typ: "JWT" })}.${encode({ sub: person, mesh: MESH })}`;
    return `${text}.${this.sign(text)}`;
  }

  /** Whose token stands in the header; undefined where it is not one of ours. */
  personOf(authorization: string | undefined): string | undefined {
    const [, head, body, signature] = /^Bearer ([\w-]+)\.([\w-]+)\.([\w-]+)$/.exec(authorization ?? "") ?? [];
    if (!head || !body || !signature) return undefined;
    const expected = Buffer.from(this.sign(`${head}.${body}`));
    const given = Buffer.from(signature);
    if (expected.length !== given.length || !timingSafeEqual(expected, given)) return undefined;
    return JSON.parse(Buffer.from(body, "base64url").toString()).sub;
  }

  private sign(text: string): string {
    return createHmac("sha256", this.secret).update(text).digest("base64url");
  }
}
