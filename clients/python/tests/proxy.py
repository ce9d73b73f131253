"""A TCP proxy between a service and PostgreSQL that breaks connections at a chosen moment of a request."""

import socket
import threading

#: A moment: the side that speaks, and what it says. COMMIT counts only after a record was left.
POINTS = {
    "before-enter": ("service", b"semel.enter"),
    "after-enter": ("database", b"execute"),
    "before-leave": ("service", b"semel.leave"),
    "after-leave": ("database", b"settled"),
    "before-commit": ("service", b"COMMIT"),
    "after-commit": ("database", b"COMMIT\x00"),
}
LEFT = (b"settled", b"not-kept")


class Proxy:
    """Listens on `port` and passes on to `target`. `arm` prepares what happens at the next such moment."""

    def __init__(self, target):
        self._target = target
        self._armed = None
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._server.getsockname()[1]
        self.fired = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, point, then=lambda: None):
        """At `point` what was said is not passed on: `then` is called, and both sides are closed."""
        self.fired.clear()
        with self._lock:
            self._armed = (*POINTS[point], then)

    def close(self):
        self._server.close()

    def _take(self, side, data, state):
        with self._lock:
            if self._armed is None:
                return None
            speaker, words, then = self._armed
            if speaker != side or words not in data or (b"COMMIT" in words and not state["left"]):
                return None
            self._armed = None
            return then

    def _accept(self):
        while True:
            try:
                service, _ = self._server.accept()
            except OSError:
                return
            try:
                database = socket.create_connection(self._target)
            except OSError:
                service.close()
                continue
            for side in (service, database):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            state, pair = {"left": False}, (service, database)
            for names in (("service", service, database), ("database", database, service)):
                threading.Thread(target=self._pump, args=(*names, pair, state), daemon=True).start()

    def _pump(self, side, source, sink, pair, state):
        try:
            while True:
                data = source.recv(1 << 16)
                if not data:
                    break
                if side == "database" and any(word in data for word in LEFT):
                    state["left"] = True
                then = self._take(side, data, state)
                if then is not None:
                    then()
                    self.fired.set()
                    break
                if side == "database" and b"COMMIT\x00" in data:
                    state["left"] = False
                sink.sendall(data)
        except OSError:
            pass
        for end in pair:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
