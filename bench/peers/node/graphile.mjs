// graphile-worker: adds JOBS jobs in batches, then drains them with its local queue and batch completion, its best mode.
// Usage: node graphile.mjs POSTGRES_URL JOBS
import { makeWorkerUtils, run } from "graphile-worker";

const [connectionString, count] = [process.argv[2], Number(process.argv[3])];
const seconds = (since) => Number(process.hrtime.bigint() - since) / 1e9;
const utils = await makeWorkerUtils({ connectionString });
await utils.migrate();

let since = process.hrtime.bigint();
for (let at = 0; at < count; at += 1000) {
  const jobs = Array.from({ length: Math.min(1000, count - at) }, (_, n) => ({
    identifier: "work",
    payload: { value: at + n },
  }));
  await utils.addJobs(jobs);
}
const enqueue = count / seconds(since);

let done = 0;
let finished;
const all = new Promise((resolve) => (finished = resolve));
since = process.hrtime.bigint();
const runner = await run({
  connectionString,
  noHandleSignals: true,
  taskList: { work: () => { if (++done === count) finished(); } },
  preset: {
    worker: {
      concurrentJobs: 24,
      maxPoolSize: 12,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  },
});
await all;
// The last completions are written before it says that it has stopped.
await runner.stop();
console.log(JSON.stringify({ enqueue, drain: count / seconds(since) }));
await utils.release();
process.exit(0);
