// What the tests share: a server that answers as it is told, on loopback, and a phone with the game on it.
package walker

import com.fasterxml.jackson.databind.ObjectMapper
import com.sun.net.httpserver.HttpExchange
import com.sun.net.httpserver.HttpServer
import java.io.File
import java.net.InetAddress
import java.net.InetSocketAddress
import java.nio.file.Files
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.CopyOnWriteArrayList
import java.util.concurrent.Executors
import kotlinx.coroutines.delay
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeoutOrNull

val json = ObjectMapper()

/** A request as it came. */
data class Seen(val method: String, val path: String, val key: String?, val credential: String?, val body: String)

/** What is answered; null: nothing, the connection is closed. */
data class Said(val status: Int, val body: String)

fun refusal(status: Int, code: String) = Said(status, """{"error":"$code","message":"","details":{},"requestId":"r"}""")

const val TREE = """{"treePointsBanked":3,"allocations":[{"node":"roots","points":2}]}"""

class Server : AutoCloseable {
    val seen = CopyOnWriteArrayList<Seen>()

    /** Answers of actions, one after the other; then 200. */
    val script: MutableList<Said?> = CopyOnWriteArrayList()
    @Volatile var quests = """{"quests":[]}"""
    private var server: HttpServer? = null
    private var port = 0

    val origin: String get() = "http://127.0.0.1:$port"
    val actions: List<Seen> get() = seen.filter { it.method == "POST" }
    fun reads(path: String): Int = seen.count { it.method == "GET" && it.path == path }

    init {
        open()
    }

    fun open() {
        val fresh = HttpServer.create(InetSocketAddress(InetAddress.getLoopbackAddress(), port), 100)
        port = fresh.address.port
        fresh.executor = Executors.newCachedThreadPool { Thread(it).apply { isDaemon = true } }
        fresh.createContext("/", ::answer)
        fresh.start()
        server = fresh
    }

    /** No network: connections are refused. */
    fun cut() = server!!.stop(0)

    private fun answer(exchange: HttpExchange) {
        val headers = exchange.requestHeaders
        val body = exchange.requestBody.readAllBytes().decodeToString()
        val path = exchange.requestURI.toString()
        seen.add(Seen(exchange.requestMethod, path, headers.getFirst("Idempotency-Key"), headers.getFirst("Authorization"), body))
        val said = when {
            exchange.requestMethod == "POST" -> if (script.isEmpty()) Said(200, if (path == "/tree/allocate") TREE else "{}") else script.removeAt(0)
            path == "/quest/available" -> Said(200, quests)
            else -> Said(200, """{"treePointsBanked":9,"allocations":[]}""")
        }
        if (said != null) {
            val bytes = said.body.toByteArray()
            exchange.sendResponseHeaders(said.status, bytes.size.toLong())
            exchange.responseBody.write(bytes)
        }
        exchange.close()
    }

    override fun close() = cut()
}

class Ledger : Telemetry {
    val counts = ConcurrentHashMap<String, Int>()
    val reports = CopyOnWriteArrayList<String>()

    override fun count(name: String) {
        counts.merge(name, 1, Int::plus)
    }

    override fun report(what: String) {
        reports.add(what)
    }
}

/** A phone whose app can be started again. */
class Handset(private val maxAgeMillis: ULong? = null) : AutoCloseable {
    val server = Server()
    val folder: File = Files.createTempDirectory("walker-").toFile()
    val ledger = Ledger()
    var game = start()

    fun start() = Game(folder, Api(server.origin), server.origin, Session("w1", "old"), ledger, maxAgeMillis)

    fun restart(before: () -> Unit = {}) {
        game.close()
        before()
        game = start()
    }

    suspend fun until(what: String, seconds: Int = 20, isSo: suspend () -> Boolean) {
        withTimeoutOrNull(seconds * 1000L) { while (!isSo()) delay(20) } ?: error("not so: $what; ${game.screen.value}, ${server.seen}")
    }

    /** The queue is empty and everything was told. */
    suspend fun drained() = until("nothing waits") { game.queue.waiting().isEmpty() && game.screen.value.waiting.isEmpty() && isTold() }

    val notices: List<String> get() = game.screen.value.notices

    private suspend fun isTold(): Boolean {
        val before = File(folder, "read-to").takeIf { it.exists() }?.readText()
        delay(700)
        return before != null && before == File(folder, "read-to").readText()
    }

    override fun close() {
        game.close()
        server.close()
        folder.deleteRecursively()
    }
}

fun play(maxAgeMillis: ULong? = null, script: List<Said?> = emptyList(), act: suspend Handset.() -> Unit) = runBlocking<Unit> {
    Handset(maxAgeMillis).use {
        it.server.script += script
        it.act()
    }
}
