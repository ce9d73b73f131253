// Runs spec/clients.json: the scenarios that every client passes.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Outbox, type Credential, type OutboxError, type OutboxEvent, type OutboxOptions, type Receipt } from "semel/outbox";
import { Device, Gate, Tab, type Reply } from "../support/world.js";

const { url, scenarios } = JSON.parse(readFileSync(new URL("../../../../spec/clients.json", import.meta.url), "utf8"));

type Step = Record<string, any>;

class Run {
  device = new Device();
  gate = new Gate(this.device);
  events: OutboxEvent[] = [];
  startedAt = this.device.now;
  #script: (Reply | "ok")[] = [];
  #isDown = false;
  #killsAtArrival = false;
  #ahead = 0;
  #credential: Credential | null = null;
  #tab!: Tab;
  #outbox!: Outbox;
  #read = { sends: 0, credentials: 0, events: 0 };
  #jumped = 0;

  constructor(private readonly scenario: Step) {
    this.device.u = 0.5;
    this.gate.reply = () => this.#reply();
    this.open();
  }

  open(): void {
    const { profile = "ietf", settings = {} } = this.scenario;
    this.#tab = new Tab(this.device, async (address, init) => {
      const answer = await this.gate.fetch(address, init);
      const headers = new Headers(answer.headers);
      headers.set("date", new Date(this.device.now + this.#ahead).toUTCString());
      return new Response(answer.body, { status: answer.status, headers });
    });
    const options: OutboxOptions = {
      name: "scenario", profile, credentials: settings.credentials ? () => this.#credential : "none",
      onDead: settings.on_dead ?? "skip", environment: this.#tab.environment,
    };
    this.#outbox = Outbox.open(options);
    this.#outbox.on((event) => this.events.push(event));
  }

  #reply(): Reply | undefined {
    if (this.#isDown) return "unreachable";
    if (this.#killsAtArrival) {
      this.#killsAtArrival = false;
      setImmediate(() => this.#tab.kill());
      return "lost";
    }
    const next = this.#script.shift();
    return next === "ok" ? undefined : next;
  }

  async settle<T>(promise: Promise<T>): Promise<T> {
    let result: { value: T } | { error: unknown } | undefined;
    promise.then((value) => (result = { value }), (error) => (result = { error }));
    for (let turns = 0; !result && turns < 1000; turns++) await this.device.settle();
    if (!result) throw new Error("it does not end");
    if ("error" in result) throw result.error;
    return result.value;
  }

  async step(step: Step): Promise<void> {
    const outbox = this.#outbox;
    if (step.send) await this.#send(step.send, step.expect);
    else if (step.expect) await this.#check(step.expect);
    else if (step.answers) this.#script.push(...step.answers);
    else if (step.network) this.#isDown = step.network === "down";
    else if ("advance_ms" in step) await this.device.advance(step.advance_ms);
    else if (step.kill) this.#tab.kill();
    else if (step.kill_at) this.#killsAtArrival = true;
    else if (step.open) this.open();
    else if ("credential" in step) {
      const { principal, value } = step.credential;
      this.#credential = { principal, headers: { authorization: value } };
      outbox.kick();
    } else if (step.pause) await this.settle(outbox.pause(step.pause));
    else if (step.resume) await this.settle(outbox.resume(step.resume));
    else if (step.retry) await this.settle(outbox.retry(step.retry));
    else if (step.requeue) await this.settle(outbox.requeue(step.requeue, { id: step.new_id }));
    else if ("server_clock_ahead_ms" in step) this.#ahead = step.server_clock_ahead_ms;
    else if ("clock_jump_ms" in step) {
      this.device.now += step.clock_jump_ms;
      this.#jumped += step.clock_jump_ms;
    } else throw new Error(`no such step: ${JSON.stringify(step)}`);
  }

  async abort(id: string, expect: string | undefined): Promise<void> {
    const aborting = this.settle(this.#outbox.abort(id));
    if (expect === "refused") await assert.rejects(aborting);
    else await aborting;
  }

  async #send({ id, lane, principal, logical_key, body = "{}" }: Step, expect: Step | string): Promise<void> {
    const init = { method: "POST", headers: { "content-type": "application/json" }, body };
    const named = Object.fromEntries(Object.entries({ lane, principal, logicalKey: logical_key }).filter(([, value]) => value));
    const { accepted } = this.#outbox.send(url, { init, id, ...named });
    const said = await this.settle(accepted).then(
      (receipt) => (receipt.aliasOf ? { alias_of: receipt.aliasOf } : "accepted"),
      (error: OutboxError) => ({ refused: error.code }),
    );
    assert.deepEqual(said, expect, `send ${id}`);
  }

  async #check(expect: Step): Promise<void> {
    await this.device.settle();
    const orders = this.gate.arrivals.filter((arrival) => !arrival.url.includes("/.well-known/"));
    const ids = (event: OutboxEvent) => event.ids ?? [event.id!];
    const told = this.events.flatMap((event) => ids(event).map((id) => [event.type, id]));
    for (const [name, wanted] of Object.entries(expect)) {
      if (name === "sends") {
        const found = orders.slice(this.#read.sends).map(({ key, at }) => [key, at - this.startedAt - this.#jumped]);
        this.#read.sends = orders.length;
        assert.deepEqual(found, wanted, name);
      } else if (name === "credentials") {
        const found = orders.slice(this.#read.credentials).map(({ headers }) => headers.get("authorization"));
        this.#read.credentials = orders.length;
        assert.deepEqual(found, wanted, name);
      } else if (name === "effects") assert.deepEqual(this.gate.effects, wanted, name);
      else if (name === "messages") await this.#checkMessages(wanted);
      else if (name === "events") {
        assert.deepEqual(told.slice(this.#read.events), wanted, name);
        this.#read.events = told.length;
      } else if (name === "events_of")
        for (const [id, types] of Object.entries(wanted)) assert.deepEqual(told.filter((one) => one[1] === id).map(([type]) => type), types, id);
      else if (name === "ends") {
        const ends = ["done", "dead", "dropped", "expired", "aborted"];
        assert.deepEqual(told.filter(([type]) => ends.includes(type!)), wanted, name);
      } else throw new Error(`nothing checks ${name}`);
    }
  }

  async #checkMessages(wanted: Record<string, Step>): Promise<void> {
    for (const [id, fields] of Object.entries(wanted)) {
      const found = (await this.settle(this.#outbox.get(id))) as Receipt;
      const shown: Step = { status: found.status, attempts: found.attempts, possibly_delivered: found.possiblyDelivered };
      for (const [name, value] of Object.entries(fields)) assert.equal(shown[name], value, `${id}: ${name} (${found.reason})`);
    }
  }

  close(): void {
    this.#outbox.dispose();
  }
}

for (const scenario of scenarios)
  test(scenario.name, async () => {
    const run = new Run(scenario);
    await run.device.advance(0);
    for (const step of scenario.steps)
      if (step.abort) await run.abort(step.abort, step.expect);
      else await run.step(step);
    run.close();
  });

test("there are scenarios for every client to run", () => {
  assert.ok(scenarios.length >= 30);
  assert.equal(new Set(scenarios.map(({ name }: Step) => name)).size, scenarios.length);
});
