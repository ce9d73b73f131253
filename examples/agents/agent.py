"""A reference agent: one fresh UUID for each action, the same UUID for each retry of it. Standard library only.

    agent = Agent("http://127.0.0.1:7400", token="secret")
    agent.act("POST", "/api/dwellers/7/act", {"action": "plant"})
"""

import json
import time
import urllib.error
import urllib.request
import uuid

# Answers after which the same request, with the same key, is sent again.
TRY_AGAIN = {409, 425, 429, 500, 502, 503, 504}


class Unknown(Exception):
    """The action may or may not have happened. Ask again later with the same key, never with another one."""


class Agent:
    def __init__(self, base: str, token: str | None = None, timeout: float = 10.0, tries: int = 6):
        self.base, self.token, self.timeout, self.tries = base, token, timeout, tries

    def act(self, method: str, path: str, body: dict, key: str | None = None) -> dict:
        """Sends one action until it is answered. The key is the action's, not the attempt's."""
        key = key or str(uuid.uuid4())
        for attempt in range(self.tries):
            try:
                return self.send(method, path, body, key)
            except urllib.error.HTTPError as error:
                if error.code not in TRY_AGAIN or error.headers.get("X-Should-Retry") == "false":
                    raise
                pause = float(error.headers.get("Retry-After") or 0)
            except (TimeoutError, ConnectionError, urllib.error.URLError):
                pause = 0.0
            time.sleep(max(pause, min(0.2 * 2**attempt, 5.0)))
        raise Unknown(key)

    def send(self, method: str, path: str, body: dict, key: str) -> dict:
        request = urllib.request.Request(self.base + path, json.dumps(body).encode(), method=method)
        request.add_header("Content-Type", "application/json")
        request.add_header("X-Idempotency-Key", key)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=self.timeout) as answer:
            return json.load(answer)


if __name__ == "__main__":
    import sys

    method, url, text = sys.argv[1:4]
    base, _, path = url.removeprefix("http://").partition("/")
    token = sys.argv[4] if len(sys.argv) > 4 else None
    agent = Agent(f"http://{base}", token, timeout=2.0, tries=16)
    print(json.dumps(agent.act(method, f"/{path}", json.loads(text))))
