"""The process that dies: it accepts messages as fast as it can, and says which."""

import sys
import time

from semel_outbox import Outbox

path, url, run = sys.argv[1:]
outbox = Outbox(path, base_url=url, max_age_millis=3_600_000)
for number in range(100_000):
    id = f"run-{run}-{number}"
    outbox.send("POST", "/orders", f'{{"n":{number}}}', id=id, lane=f"lane-{number % 3}")
    print(id, flush=True)
    time.sleep(0.002)
