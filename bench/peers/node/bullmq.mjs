// BullMQ: adds JOBS jobs in batches, then drains them with one worker. Usage: node bullmq.mjs REDIS_PORT JOBS
import { Queue, Worker } from "bullmq";

const [port, count] = [Number(process.argv[2]), Number(process.argv[3])];
const connection = { host: "127.0.0.1", port, maxRetriesPerRequest: null };
const seconds = (since) => Number(process.hrtime.bigint() - since) / 1e9;
const queue = new Queue("bench", { connection });

let since = process.hrtime.bigint();
for (let at = 0; at < count; at += 1000) {
  const jobs = Array.from({ length: Math.min(1000, count - at) }, (_, n) => ({
    name: "work",
    data: { value: at + n },
    opts: { removeOnComplete: true },
  }));
  await queue.addBulk(jobs);
}
const enqueue = count / seconds(since);

let done = 0;
since = process.hrtime.bigint();
await new Promise((resolve) => {
  const worker = new Worker("bench", async () => {}, { connection, concurrency: 200 });
  worker.on("completed", () => { if (++done === count) resolve(); });
});
console.log(JSON.stringify({ enqueue, drain: count / seconds(since) }));
process.exit(0);
