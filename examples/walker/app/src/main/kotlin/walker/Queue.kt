// The queue of a walker's actions. Owns what kinds there are, where they go, and how the queue of the app's first release gets in.
package walker

import dev.semel.Accepted
import dev.semel.ActionRoute
import dev.semel.Actions
import dev.semel.Imported
import dev.semel.Outbox
import dev.semel.Receipt
import dev.semel.Route
import java.util.UUID

const val ALLOCATE = "tree.allocate"
const val START = "quest.start"
const val ADVANCE = "quest.advance"
const val COMPLETE = "quest.complete"

/** Addresses say which quest is meant, so that it can be read from a receipt, which has no body. */
private val ROUTES = mapOf(
    ALLOCATE to ActionRoute("POST", "/tree/allocate"),
    START to ActionRoute("POST", "/quest/start?quest={questId}"),
    ADVANCE to ActionRoute("POST", "/quest/{questId}/step/{step}/advance"),
    COMPLETE to ActionRoute("POST", "/quest/complete?quest={questId}"),
)

class Queue(private val outbox: Outbox, private val walkerId: String) {
    private val actions = Actions(outbox, ROUTES)

    suspend fun allocate(node: String, points: Int, key: String = freshKey(), at: Long? = null): Accepted =
        actions.accept(walkerId, ALLOCATE, """{"allocations":[{"node":"$node","points":$points}]}""", key, at)

    suspend fun start(quest: Int, at: Long? = null) = tap(START, """{"questId":$quest}""", "start $quest", at)

    suspend fun advance(quest: Int, step: Int, at: Long? = null) =
        tap(ADVANCE, """{"questId":$quest,"step":$step}""", "quest $quest step $step", at)

    suspend fun complete(quest: Int, at: Long? = null) = tap(COMPLETE, """{"questId":$quest}""", "complete $quest", at)

    /** What waits, in order. */
    suspend fun waiting(): List<Receipt> = actions.waiting(walkerId)

    /** Takes over the queue of the app's first release, which had a table of its own. Doing it again takes nothing twice. */
    suspend fun importOlder(file: String): Imported =
        outbox.importQueue(file, "offline_actions", ROUTES.map { (kind, route) -> Route(kind, route.method, route.url) })

    /** A second tap while the first one waits is the same action. */
    private suspend fun tap(kind: String, payload: String, what: String, at: Long?): Accepted =
        outbox.send(actions.message(walkerId, kind, payload, freshKey(), at).copy(logicalKey = what))

    private fun freshKey() = UUID.randomUUID().toString()
}
