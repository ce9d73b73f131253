"""What the tests share: the tree, and a server behind a gate on loopback that loses one answer in ten."""

import http.server
import os
import pathlib
import random
import threading

TREE = pathlib.Path(os.environ.get("SEMEL_TREE", pathlib.Path(__file__).parents[3]))


class Gate:
    """Each key takes effect once."""

    def __init__(self):
        self.effects = []
        self.replays = 0
        bodies = {}
        chance = random.Random(7)
        lock = threading.Lock()
        gate = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                key = self.headers["Idempotency-Key"]
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with lock:
                    if bodies.setdefault(key, body) != body:
                        raise AssertionError(f"{key} came with another body")
                    if key in gate.effects_known:
                        gate.replays += 1
                    else:
                        gate.effects_known.add(key)
                        gate.effects.append(key)
                    is_lost = chance.random() < 0.1
                if is_lost:
                    self.close_connection = True
                    return
                self.send_response(201)
                self.send_header("Semel-Guarantee", "fenced")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.effects_known = set()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
