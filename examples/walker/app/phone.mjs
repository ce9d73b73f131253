// A phone with the app on it: the app's process, typed into line by line, and its network, which can be cut. What run.sh plays and what
// the tests kill is therefore the same. Knows nothing of queues.
import { spawn } from "node:child_process";
import { connect, createServer } from "node:net";
import { until } from "../../stack.mjs";

const BUILT = process.env.WALKER_APP;

/** The air between phone and server. */
export class Network {
  isUp = true;
  /** How many answers to actions are lost on their way back. */
  lostAnswers = 0;
  /** Called after each answer to an action, with how many there were. */
  onAnswer = undefined;
  #answers = 0;
  #sockets = new Set();
  #server;

  async open(origin) {
    const { hostname, port } = new URL(origin);
    this.#server = createServer((phone) => {
      if (!this.isUp) return void phone.destroy();
      const api = connect(Number(port), hostname);
      for (const [one, other] of [[phone, api], [api, phone]]) {
        this.#sockets.add(one);
        one.on("error", () => other.destroy()).on("close", () => (other.destroy(), this.#sockets.delete(one)));
      }
      let isAction = false;
      phone.on("data", (bytes) => {
        isAction = bytes.toString("latin1").startsWith("POST") || (isAction && !bytes.toString("latin1").startsWith("GET"));
        api.write(bytes);
      });
      api.on("data", (bytes) => {
        if (isAction && this.lostAnswers > 0) return void (this.lostAnswers--, phone.destroy());
        phone.write(bytes, () => isAction && this.onAnswer?.(++this.#answers));
      });
    }).listen(0, "127.0.0.1");
    await new Promise((resolve) => this.#server.once("listening", resolve));
    this.origin = `http://127.0.0.1:${this.#server.address().port}`;
    return this;
  }

  cut() {
    this.isUp = false;
    for (const socket of this.#sockets) socket.destroy();
  }

  close() {
    this.cut();
    this.#server.close();
  }
}

export class Phone {
  said = "";
  #child;

  constructor({ name, folder, network, echo = () => {} }) {
    Object.assign(this, { name, folder, network, echo });
  }

  async start() {
    const classes = `${BUILT}/walker-app-0.1.0.jar:${BUILT}/lib/*`;
    const child = spawn("java", ["-Xmx256m", "-cp", classes, "walker.MainKt", this.folder, this.network.origin, this.name]);
    this.#child = child;
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (part) => ((this.said += part), this.echo(String(part))));
    child.stdin.on("error", () => {});
    const from = this.said.length;
    await this.hears(/^ready$/m, { from, seconds: 60 });
    return this;
  }

  type(line) {
    this.#child.stdin.write(`${line}\n`);
  }

  /** Types a line and waits for what it says, from now on. */
  async tap(line, pattern = /^(accepted|known|failed|imported|signed)/m, seconds = 30) {
    const from = this.said.length;
    this.type(line);
    return this.hears(pattern, { from, seconds });
  }

  async hears(pattern, { from = 0, seconds = 30 } = {}) {
    return until(`the app says ${pattern}`, () => pattern.exec(this.said.slice(from)), seconds).catch((error) => {
      throw new Error(`${error.message}\n${this.said.slice(-3000)}`);
    });
  }

  /** What waits on the phone, line by line. */
  async queue() {
    const from = this.said.length;
    this.type("queue");
    await this.hears(/^queue end$/m, { from });
    return [...this.said.slice(from).matchAll(/^queue: (.*)$/gm)].map(([, line]) => line);
  }

  /** Nothing waits any more. */
  drained(seconds = 60) {
    return until("the queue is empty", async () => (await this.queue()).length === 0, seconds).catch((error) => {
      throw new Error(`${error.message}\n${this.said.slice(-3000)}`);
    });
  }

  quit() {
    return this.#end(() => this.type("quit"));
  }

  /** Ends the process without a word. */
  kill() {
    return this.#end(() => this.#child.kill("SIGKILL"));
  }

  async #end(end) {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const gone = new Promise((resolve) => this.#child.once("exit", resolve));
    end();
    await gone;
  }
}
