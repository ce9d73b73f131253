// A proxy between a service and PostgreSQL that interferes with one COMMIT: the next one on a connection that has called
// semel.leave in its transaction.

import net from "node:net";

export async function startProxy(target) {
  let plan;
  const sockets = new Set();
  const server = net.createServer((client) => {
    const upstream = net.connect(Number(target.port || 5432), target.hostname);
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => {
        sockets.delete(socket);
        client.destroy();
        upstream.destroy();
      });
    }
    let hasLeft = false;
    let isSwallowing = false;
    client.on("data", (part) => {
      const text = part.toString("latin1");
      if (/semel\.leave/.test(text)) hasLeft = true;
      if (!hasLeft || !/\bcommit\b/i.test(text)) return void upstream.write(part);
      hasLeft = false;
      if (plan === undefined) return void upstream.write(part);
      const { how, kill } = plan;
      plan = undefined;
      if (how === "kill-before") kill();
      if (how === "cut-before" || how === "kill-before") return void client.destroy();
      isSwallowing = true;
      upstream.once("data", () => {
        if (how === "kill-after") kill();
        client.destroy();
      });
      upstream.write(part);
    });
    upstream.on("data", (part) => isSwallowing || client.write(part));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    port: server.address().port,
    /** Prepares for the next COMMIT. */
    arm(how, kill) {
      plan = { how, kill };
    },
    isArmed: () => plan !== undefined,
    close() {
      server.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}
