// Tells the broker what was committed: events in their order, each until the broker has confirmed it. An event's id is its key at
// the broker, so that one that is told twice is published once. Also makes people members, whenever the broker is there.
import type { Pool } from "pg";
import { MESH, Sessions, TOPIC } from "./session.js";

const IDLE_MS = 1000;
const SELF = "feed-service";

export class Live {
  private wakeUp: () => void = () => {};
  private isStopped = false;

  constructor(
    private readonly pool: Pool,
    private readonly broker: string,
    private readonly sessions: Sessions,
  ) {}

  /** Something was committed. */
  wake(): void {
    this.wakeUp();
  }

  stop(): void {
    this.isStopped = true;
    this.wake();
  }

  /** Works until it is stopped. What cannot be done now is done later: nothing is taken off the list before. */
  async run(): Promise<void> {
    let said = "";
    while (!this.isStopped) {
      const woken = new Promise<void>((resolve) => (this.wakeUp = resolve));
      try {
        await this.join();
        while (await this.publish());
        said = "";
      } catch (error) {
        const words = `the live feed waits: ${(error as Error).message}`;
        if (words !== said) console.error((said = words));
      }
      await Promise.race([woken, new Promise((resolve) => setTimeout(resolve, IDLE_MS))]);
    }
  }

  /** Makes new people members of the mesh who read its line. */
  private async join(): Promise<void> {
    const { rows } = await this.pool.query("SELECT id FROM person WHERE NOT joined LIMIT 100");
    for (const { id } of rows) {
      await this.ask("PUT", `/members/${id}`, { role: "member", token_sha256: [] });
      await this.ask("PUT", `/topics/${TOPIC}/subscriptions/${id}`, {});
      await this.pool.query("UPDATE person SET joined = true WHERE id = $1", [id]);
    }
  }

  /** Publishes a batch; says whether there may be more. */
  private async publish(): Promise<boolean> {
    const { rows } = await this.pool.query("SELECT id, client_tx_id, body FROM event ORDER BY number LIMIT 50");
    for (const { id, client_tx_id, body } of rows) {
      if (body.left) await this.ask("DELETE", `/members/${body.left}`);
      const message = { to: { topic: TOPIC }, client_message_id: id, body, ...(client_tx_id && { client_tx_id }) };
      await this.ask("POST", "/messages", message);
      await this.pool.query("DELETE FROM event WHERE id = $1", [id]);
    }
    return rows.length === 50;
  }

  private async ask(method: string, path: string, body?: unknown): Promise<void> {
    const answer = await fetch(`${this.broker}/v1/meshes/${MESH}${path}`, {
      method,
      headers: { Authorization: `Bearer ${this.sessions.open(SELF)}`, "Content-Type": "application/json" },
      ...(body !== undefined && { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(10_000),
    });
    if (!answer.ok) throw new Error(`the broker answered HTTP ${answer.status}: ${await answer.text()}`);
    await answer.arrayBuffer();
  }
}
