// The worker: hurries the outbox when there may be a network, follows what becomes of actions, and tells it once a drain. Where it has
// read to is kept in a file after it was told, so that a phone that dies in between tells it after its next start.
package walker

import dev.semel.Event
import dev.semel.Outbox
import dev.semel.Receipt
import dev.semel.Status
import dev.semel.SyncResult
import java.io.File
import java.util.concurrent.ConcurrentHashMap
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.channels.ReceiveChannel
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.produceIn
import kotlinx.coroutines.launch
import kotlinx.coroutines.selects.onTimeout
import kotlinx.coroutines.selects.select

/** Whoever is told. */
interface Listener {
    /** An action ended, was taken back or waits for its walker. Told again after a crash. */
    suspend fun ended(receipt: Receipt)

    /** A drain is over. */
    suspend fun drained(notices: List<String>)
}

/** Counters and reports of crashes, as an app sends them to its makers. */
interface Telemetry {
    fun count(name: String)

    /** As loud as a crash: a bug of the app or of the server. */
    fun report(what: String)
}

class Worker(
    private val outbox: Outbox,
    private val readTo: File,
    private val listener: Listener,
    private val telemetry: Telemetry,
    private val hurryMillis: Long = 5_000,
) {
    /** What was told to be held, since the walker signed in last. */
    private val held: MutableSet<Long> = ConcurrentHashMap.newKeySet()

    /** The walker has signed in: what is held after this is news. */
    fun signedIn() = held.clear()

    /** Runs until it is cancelled. */
    suspend fun run() = coroutineScope {
        held.clear()
        launch { hurry() }
        val from = if (readTo.exists()) readTo.readText().trim().toLongOrNull() ?: 0 else 0
        val events = outbox.events(from).produceIn(this as CoroutineScope)
        while (true) follow(events)
    }

    /** Stands for the system's word that there is a network. */
    private suspend fun hurry() {
        while (true) {
            outbox.kick()
            delay(hurryMillis)
        }
    }

    /** One drain: from the first event until nothing is being sent. */
    private suspend fun follow(events: ReceiveChannel<Event>) {
        val drain = Drain()
        var event: Event? = events.receive()
        var last = 0L
        while (event != null) {
            take(event, drain)
            last = event.number
            event = next(events)
        }
        listener.drained(drain.notices())
        val fresh = File("$readTo.new").apply { writeText("$last\n") }
        check(fresh.renameTo(readTo)) { "failed to write $readTo" }
    }

    @OptIn(ExperimentalCoroutinesApi::class)
    private suspend fun next(events: ReceiveChannel<Event>): Event? {
        while (true) {
            val event = select<Event?> {
                events.onReceive { it }
                onTimeout(QUIET_MILLIS) { null }
            }
            if (event != null || outbox.list(status = Status.INFLIGHT).isEmpty()) return event
        }
    }

    private suspend fun take(event: Event, drain: Drain) {
        if (event.kind !in TOLD) return
        // One event tells of all that expired in one drain.
        for (number in event.messageNumbers.ifEmpty { listOfNotNull(event.messageNumber) }) take(event, number, drain)
    }

    private suspend fun take(event: Event, number: Long, drain: Drain) {
        val found = outbox.list(after = number - 1, limit = 1).firstOrNull()?.takeIf { it.number == number } ?: return
        val receipt = outbox.get(found.id, found.principal, found.operation) ?: return
        // Held messages that were let go meanwhile are no news, and neither is that a kick has let one go in vain.
        if (event.kind != "held") held.remove(number)
        else if (receipt.status != Status.HELD || !held.add(number)) return
        drain.add(receipt)
        count(receipt)
        listener.ended(receipt)
    }

    private fun count(receipt: Receipt) {
        val kind = receipt.operation
        when (val result = SyncResult.of(receipt)) {
            SyncResult.Success -> telemetry.count("$kind success")
            is SyncResult.PermanentDrop -> {
                telemetry.count("$kind ${result.reason}")
                if (result.reason == "stale-action") telemetry.count("OfflineActionExpired")
                if (result.reason in BUGS) telemetry.report("${receipt.id}: ${receipt.reason}")
            }
            else -> {}
        }
    }

    private companion object {
        const val QUIET_MILLIS = 300L
        val TOLD = setOf("done", "dead", "dropped", "expired", "aborted", "held")
        val BUGS = setOf("idempotency-conflict", "bad-request")
    }
}
