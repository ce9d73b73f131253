"""A TCP proxy between a service and PostgreSQL that can lose the next COMMIT, or its answer."""

import socket
import threading

LEFT = (b"settled", b"not-kept")


class Proxy:
    """Listens on `port` and passes on to `target`. `arm` prepares what happens to the next COMMIT after a leave."""

    def __init__(self, target):
        self._target = target
        self._armed = None
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._server.getsockname()[1]
        self.fired = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, at, then=lambda: None):
        """`at` is `before` or `after` COMMIT; `then` is called at that moment, before both sides are closed."""
        self.fired.clear()
        with self._lock:
            self._armed = (at, then)

    def close(self):
        self._server.close()

    def _take(self, at):
        with self._lock:
            if self._armed is None or self._armed[0] != at:
                return None
            armed, self._armed = self._armed, None
            return armed[1]

    def _accept(self):
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            for side in (client, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            state = {"left": False}
            pair = (client, server)
            threading.Thread(target=self._pump, args=(client, server, pair, state, "before"), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, pair, state, "after"), daemon=True).start()

    def _pump(self, source, sink, pair, state, at):
        try:
            while True:
                data = source.recv(1 << 16)
                if not data:
                    break
                if at == "after" and any(word in data for word in LEFT):
                    state["left"] = True
                mark = b"COMMIT\x00" if at == "after" else b"COMMIT"
                then = self._take(at) if mark in data and state["left"] else None
                if then is not None:
                    then()
                    self.fired.set()
                    break
                if mark in data and at == "after":
                    state["left"] = False
                sink.sendall(data)
        except OSError:
            pass
        for side in pair:
            try:
                side.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            side.close()
