// Opens outboxes on devices made of fakes, and waits for promises while virtual time passes.
import { Outbox, type OutboxEvent, type OutboxOptions } from "semel/outbox";
import { Device, Gate, Tab } from "./world.js";

export const URL_OF = "https://api.example/orders";
export const post = (body: unknown = { amount: 5 }, headers: Record<string, string> = {}) => ({
  init: { method: "POST", headers: { "content-type": "application/json", ...headers }, body: JSON.stringify(body) },
});

export function open(device: Device, gate: Gate, options: Partial<OutboxOptions> = {}) {
  const tab = new Tab(device, gate.fetch);
  const environment = { ...tab.environment, ...options.environment };
  const outbox = Outbox.open({ name: "test", credentials: "none", ...options, environment });
  const events: OutboxEvent[] = [];
  outbox.on((event) => events.push(event));
  return { tab, outbox, events };
}

export async function settled<T>(device: Device, promise: Promise<T>, most?: number): Promise<T> {
  let result: { value: T } | { error: unknown } | undefined;
  promise.then((value) => (result = { value }), (error) => (result = { error }));
  await device.until(() => result !== undefined, most);
  if ("error" in result!) throw result.error;
  return result!.value;
}
