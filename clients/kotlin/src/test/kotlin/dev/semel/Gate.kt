// A server behind a gate, on loopback: each key takes effect once, and one answer in ten is lost.
package dev.semel

import com.sun.net.httpserver.HttpServer
import java.net.InetAddress
import java.net.InetSocketAddress
import java.util.Collections
import java.util.Random
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.Executors

class Gate : AutoCloseable {
    /** The keys that took effect, in order. */
    val effects: MutableList<String> = Collections.synchronizedList(mutableListOf())

    /** How often a key that had taken effect came again. */
    @Volatile var replays = 0
    private val bodies = ConcurrentHashMap<String, String>()
    private val random = Random(7)
    private val server = HttpServer.create(InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 100)

    val url: String get() = "http://127.0.0.1:${server.address.port}"

    init {
        server.executor = Executors.newCachedThreadPool { Thread(it).apply { isDaemon = true } }
        server.createContext("/") { exchange ->
            val key = exchange.requestHeaders.getFirst("Idempotency-Key")
            val body = exchange.requestBody.readAllBytes().decodeToString()
            val before = bodies.putIfAbsent(key, body)
            check(before == null || before == body) { "$key came with another body" }
            if (before == null) effects.add(key) else replays++
            if (synchronized(random) { random.nextInt(10) } == 0) {
                exchange.close()
            } else {
                exchange.responseHeaders.add("Semel-Guarantee", "fenced")
                exchange.sendResponseHeaders(201, -1)
                exchange.close()
            }
        }
        server.start()
    }

    override fun close() = server.stop(0)
}
