// Starts a real gate (`semel serve gate`) in front of a service, for pages of another origin.
import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

export interface RunningGate {
  address: string;
  close(): Promise<void>;
}

export async function startGate(binary: string, upstream: string, origin: string): Promise<RunningGate> {
  const folder = await mkdtemp(join(tmpdir(), "semel-gate-"));
  const [port, admin] = [await freePort(), await freePort()];
  const settings = `store = "sqlite:${folder}/gate.db"
identity = "shared:browsers"

[gate]
listen = "127.0.0.1:${port}"
admin = "127.0.0.1:${admin}"
upstream = "${upstream}"
cors = ["${origin}"]

[defaults]
on_unknown = "forward"

[route.api]
match = "POST /api/{lane}"
`;
  await writeFile(join(folder, "semel.toml"), settings);
  const child = spawn(binary, ["serve", "gate", "--config", join(folder, "semel.toml")], { stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (text) => (said = (said + text).slice(-4000)));
  const address = `http://localhost:${port}`;
  for (let tries = 0; ; tries++) {
    const isUp = await fetch(`http://127.0.0.1:${admin}/readyz`).then((answer) => answer.ok, () => false);
    if (isUp) break;
    if (tries > 150 || child.exitCode !== null) throw new Error(`the gate did not start: ${said}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  return {
    address,
    close: async () => {
      child.kill();
      await new Promise((resolve) => (child.exitCode === null ? child.once("exit", resolve) : resolve(null)));
      await rm(folder, { recursive: true, force: true });
    },
  };
}

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}
