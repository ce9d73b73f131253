// A plain handler for Restate: answers 300 bytes. Usage: node restate.mjs PORT
import * as restate from "@restatedev/restate-sdk";

// Node 20 lacks it, and the SDK needs it.
Promise.withResolvers ??= function () {
  let resolve, reject;
  const promise = new Promise((yes, no) => { resolve = yes; reject = no; });
  return { promise, resolve, reject };
};

const orders = restate.service({
  name: "orders",
  handlers: {
    create: async (_ctx, order) => ({ id: 1, customer: order.customer, note: "x".repeat(250) }),
  },
});

await restate.serve({ services: [orders], port: Number(process.argv[2]) });
console.log("ready");
