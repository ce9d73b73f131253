// The outbox of an app: what it accepts is on the device's disk, and is sent in order under one key each until the server has
// answered. Owns the Kotlin side of it (coroutines, flows, the app's own answers); everything else is the library's.
package dev.semel

import kotlinx.coroutines.channels.BufferOverflow
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.receiveAsFlow
import kotlinx.coroutines.runBlocking

/** Where credentials come from, at the moment of sending. They are never stored. */
fun interface Credentials {
    /** The credential for messages of [principal] to [origin], or null when nobody is signed in: then they wait. */
    suspend fun credential(principal: String, origin: String): Credential?
}

/** What the app makes of a lane that its server wants rebuilt. It may ask the server first; meanwhile that lane waits. */
fun interface Rebuilder {
    suspend fun rebuild(held: Receipt, behind: List<Receipt>): Rebuild
}

/**
 * A durable queue in one file. One process owns the file; another one that opens it hands its messages to the owner.
 *
 * A message is accepted by the commit: a coroutine that is cancelled while [send] runs does not take it back.
 */
class Outbox internal constructor(private val core: Core, told: Channel<Notice>) : AutoCloseable {
    /**
     * What a person should be told, once: what expired (one notice a drain), what is no longer valid, who must sign in. The last 256
     * wait until somebody collects, and each is told to one collector; those of a process that dies are lost. [events] outlive it.
     */
    val notices: Flow<Notice> = told.receiveAsFlow()

    /** Accepts a message. Once this returns, it outlives the process. */
    suspend fun send(message: Message): Accepted = core.send(message)

    /** Waits until a message is finished: delivered, given up or taken back. */
    suspend fun await(id: String, principal: String? = null, operation: String? = null): Receipt {
        while (true) {
            val receipt = core.wait(id, principal, operation, LONGEST_WAIT_MILLIS)
            if (receipt.status !in LIVE) return receipt
        }
    }

    /** A message by its id; with [principal] and [operation] where its id is somebody's for one kind of action. */
    suspend fun get(id: String, principal: String? = null, operation: String? = null): Receipt? =
        core.get(id, principal, operation)

    /** Messages in the order of acceptance. */
    suspend fun list(status: Status? = null, lane: String? = null, after: Long = 0, limit: Int = 1000): List<Receipt> =
        core.list(status, lane, after, limit.toUInt())

    /** Lanes with something waiting, paused or blocked. */
    suspend fun lanes(): List<LaneState> = core.lanes()

    /** Everything that happened after event number [after], and then what happens. Numbers outlive the process. */
    fun events(after: Long = 0): Flow<Event> = flow {
        var last = after
        while (true) {
            for (event in core.events(last, EVENTS_AT_ONCE, EVENTS_WAIT_MILLIS)) {
                emit(event)
                last = event.number
            }
        }
    }

    /** Tries a message that waits for its next attempt at once. */
    suspend fun retry(id: String, principal: String? = null, operation: String? = null) = core.retry(id, principal, operation)

    /** Takes a message back that is not being sent and was not delivered. */
    suspend fun abort(id: String, why: String, principal: String? = null, operation: String? = null) =
        core.abort(id, principal, operation, why)

    /** Sends what waits or was given up again, under a new id. */
    suspend fun requeue(
        id: String,
        newId: String? = null,
        force: Boolean = false,
        principal: String? = null,
        operation: String? = null,
    ): Receipt = core.requeue(id, principal, operation, newId, force)

    suspend fun pause(lane: String) = core.pause(lane)

    suspend fun resume(lane: String) = core.resume(lane)

    /** [principal] has a fresh credential: what waits for it goes on. */
    suspend fun signIn(principal: String) = core.signIn(principal)

    /** [principal] has left. Its messages are parked, never deleted. */
    suspend fun signOut(principal: String) = core.signOut(principal)

    /** The network may be back: what waits for it is tried at once. Call it from a worker that needs a network. */
    suspend fun kick() = core.kick()

    /** A person says that the clock of the device is right. */
    suspend fun confirmClock(reason: String) = core.confirmClock(reason)

    /** Makes messages of an older queue's rows; doing it again makes none twice. */
    suspend fun importQueue(file: String, table: String, routes: List<Route>): Imported =
        core.importQueue(file, table, routes)

    /** Whether this process owns the file. */
    suspend fun isOwner(): Boolean = core.isOwner()

    /** Begins nothing new and gives the file back. What is left is sent after the next start. */
    override fun close() {
        runBlocking { core.stop() }
        core.destroy()
    }

    companion object {
        private const val LONGEST_WAIT_MILLIS: ULong = 60_000uL
        private const val EVENTS_WAIT_MILLIS: ULong = 30_000uL
        private const val EVENTS_AT_ONCE: UInt = 500u
        private const val NOTICES_BUFFERED = 256
        private val LIVE = setOf(Status.PENDING, Status.INFLIGHT, Status.HELD)

        /**
         * Opens the file of [options], or creates it, and begins to send. Without [credentials], messages need none; without
         * [rebuild], a lane whose steps are out of order waits for [resume], [abort] or [requeue].
         */
        fun open(options: Options, credentials: Credentials? = null, rebuild: Rebuilder? = null): Outbox {
            val told = notices()
            val host = HostOf(credentials, rebuild) { told.trySend(it) }
            return Outbox(Core.open(options.copy(needsCredentials = credentials != null), host), told)
        }

        internal fun notices() = Channel<Notice>(NOTICES_BUFFERED, BufferOverflow.DROP_OLDEST)
    }
}

/** The app's answers as the library asks for them: on its own threads, where blocking is allowed. */
internal class HostOf(
    private val credentials: Credentials?,
    private val rebuild: Rebuilder?,
    private val tell: (Notice) -> Unit,
) : Host {
    override fun credential(principal: String, origin: String): Credential? =
        answer { credentials?.credential(principal, origin) }

    override fun rebuild(held: Receipt, behind: List<Receipt>): Rebuild =
        answer { rebuild?.rebuild(held, behind) ?: Rebuild.Wait }

    override fun notice(notice: Notice) = tell(notice)

    private fun <T> answer(ask: suspend () -> T): T =
        try {
            runBlocking { ask() }
        } catch (error: Exception) {
            throw HostException.Failed(error.toString())
        }
}
