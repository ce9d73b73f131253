// A broker's lines: resume, gaps, and one's own echo.
import assert from "node:assert/strict";
import { createServer, type ServerResponse } from "node:http";
import { test } from "node:test";
import { Events, ownTransactions, type Gap, type LineMessage } from "semel/events";
import { Outbox } from "semel/outbox";
import { Device, Gate, Tab } from "../support/world.js";

async function startBroker() {
  const connections: { after: string | null; lines: string[]; authorization: string | undefined; response: ServerResponse }[] = [];
  const server = createServer((request, response) => {
    const { searchParams } = new URL(request.url!, "http://broker");
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write("retry: 1000\n: open\n\n");
    connections.push({ after: searchParams.get("after"), lines: searchParams.getAll("line"), authorization: request.headers.authorization, response });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  const close = () => (server.closeAllConnections(), server.close());
  return { url: `http://127.0.0.1:${port}/v1/meshes/shop/events?line=topic:orders&line=direct`, connections, close };
}

async function until(condition: () => boolean): Promise<void> {
  const end = Date.now() + 20_000;
  while (!condition()) {
    if (Date.now() > end) throw new Error("it did not happen");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

const message = (n: number, txId = "") =>
  `id: 1.${n}.abcd\ndata: ${JSON.stringify({ line: "topic:orders", client_message_id: `m${n}`, client_tx_id: txId, body: { n } })}\n\n`;

test("it resumes after the last event that was handled, and a cut event comes again", async () => {
  const broker = await startBroker();
  const received: LineMessage[] = [];
  const events = Events.open({ url: broker.url, after: "0", headers: () => ({ Authorization: "Bearer x" }), onMessage: (one) => void received.push(one) });
  await until(() => broker.connections.length === 1);
  const [first] = broker.connections;
  assert.deepEqual([first!.after, first!.lines, first!.authorization], ["0", ["topic:orders", "direct"], "Bearer x"]);
  first!.response.write(message(1) + message(2) + message(3).slice(0, 40));
  await until(() => received.length === 2);
  first!.response.destroy();
  await until(() => broker.connections.length === 2);
  assert.equal(broker.connections[1]!.after, "1.2.abcd");
  const text = message(3);
  broker.connections[1]!.response.write(text.slice(0, 30));
  broker.connections[1]!.response.write(text.slice(30));
  await until(() => received.length === 3);
  assert.deepEqual(received.map(({ id, client_message_id }) => [id, client_message_id]), [["1.1.abcd", "m1"], ["1.2.abcd", "m2"], ["1.3.abcd", "m3"]]);
  events.close();
  broker.close();
});

test("a message whose handling failed comes again", async () => {
  const broker = await startBroker();
  let failures = 1;
  const received: string[] = [];
  const events = Events.open({ url: broker.url, onMessage: (one) => {
    if (failures-- > 0) throw new Error("not now");
    received.push(one.id);
  } });
  await until(() => broker.connections.length === 1);
  broker.connections[0]!.response.write(message(1));
  await until(() => broker.connections.length === 2);
  assert.equal(broker.connections[1]!.after, null, "nothing was handled yet");
  broker.connections[1]!.response.write(message(1));
  await until(() => received.length === 1);
  events.close();
  broker.close();
});

test("a gap is said, and silence ends a connection", async () => {
  const broker = await startBroker();
  const gaps: Gap[] = [];
  const states: string[] = [];
  const events = Events.open({ url: broker.url, silence: 300, onMessage: () => {}, onGap: (gap) => void gaps.push(gap), onState: (state) => states.push(state) });
  await until(() => broker.connections.length === 1);
  broker.connections[0]!.response.write('event: gap\nid: 2.7.0000\ndata: {"line":"direct","from":"1.2.abcd","oldest":"2.7.0000","reason":"epoch"}\n\n');
  await until(() => gaps.length === 1);
  assert.deepEqual(gaps[0], { id: "2.7.0000", line: "direct", from: "1.2.abcd", oldest: "2.7.0000", reason: "epoch" });
  await until(() => broker.connections.length === 2);
  assert.equal(broker.connections[1]!.after, "2.7.0000");
  events.close();
  await until(() => states.at(-1) === "closed");
  broker.close();
});

test("one's own echo is known by its transaction", async () => {
  const device = new Device();
  const tab = new Tab(device, new Gate(device).fetch);
  const outbox = Outbox.open({ name: "echo", credentials: "none", environment: tab.environment });
  const own = ownTransactions(outbox);
  let txId: string | undefined;
  outbox.send("https://api.example/x", { init: { method: "POST", body: "x" } }).accepted.then((receipt) => (txId = receipt.clientTxId));
  await device.until(() => txId !== undefined);
  const broker = await startBroker();
  const received: boolean[] = [];
  const events = Events.open({ url: broker.url, own, onMessage: ({ isOwn }) => void received.push(isOwn) });
  await until(() => broker.connections.length === 1);
  broker.connections[0]!.response.write(message(1, txId) + message(2, "somebody-elses") + message(3));
  await until(() => received.length === 3);
  assert.deepEqual(received, [true, false, false]);
  events.close();
  broker.close();
  outbox.dispose();
});

test("a state listener that throws and a sign-in that does not answer keep no connection from being made", async () => {
  const broker = await startBroker();
  const received: number[] = [];
  let asked = 0;
  const reported: unknown[] = [];
  const report = (error: unknown) => reported.push(error);
  Object.assign(globalThis, { reportError: report });
  const events = Events.open({
    url: broker.url,
    silence: 200,
    headers: () => (++asked === 1 ? new Promise(() => {}) : {}),
    onState: (state) => {
      throw new Error(`the application's mistake at ${state}`);
    },
    onMessage: ({ body }) => void received.push((body as { n: number }).n),
  });
  try {
    await until(() => broker.connections.length === 1);
    broker.connections[0]!.response.write(message(1));
    await until(() => received.length === 1);
    assert.equal(asked, 2);
    assert.ok(reported.length >= 2, `${reported}`);
  } finally {
    events.close();
    broker.close();
    Reflect.deleteProperty(globalThis, "reportError");
  }
});
