// The API, a phone on this terminal, and the network between them: `offline` and `online` are typed too. See run.sh.
import { createInterface } from "node:readline";
import { startWalker } from "../api/start.mjs";
import { Network, Phone } from "./phone.mjs";

const { WALKER_DATA = "/var/tmp/semel-walker", PORT = "3100", SEMEL_BIN = "semel", WALKER_NAME = "anna" } = process.env;
const api = await startWalker({ folder: WALKER_DATA, port: Number(PORT), semel: SEMEL_BIN });
const network = await new Network().open(api.origin);
const phone = new Phone({ name: WALKER_NAME, folder: `${WALKER_DATA}/phone-${WALKER_NAME}`, network, echo: (text) => process.stdout.write(text) });
await phone.start();
console.log(`
The API is at ${api.origin}. This is ${WALKER_NAME}'s phone. Type for example:
  offline            start 1            advance 1 1        advance 1 2        complete 1
  allocate roots 2   queue              online             tree               quit
`);

const lines = createInterface({ input: process.stdin });
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => lines.close());
for await (const line of lines) {
  if (line === "quit") break;
  if (line === "offline") network.cut();
  if (line === "online") network.isUp = true;
  if (line === "offline" || line === "online") console.log(`the phone is ${line}`);
  else phone.type(line);
}
await phone.quit();
network.close();
await api.stack.stop();
