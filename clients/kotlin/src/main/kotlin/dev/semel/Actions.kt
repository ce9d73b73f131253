// A queue of actions that a user takes while offline: what kind, with which payload, when. Owns the words of such a queue; the
// outbox below owns everything else.
package dev.semel

import java.util.UUID

/** Where actions of a kind go: `{name}` in [url] stands for that member of the payload. */
data class ActionRoute(val method: String, val url: String)

/** What became of an attempt to sync an action, as an app's worker sees it. */
sealed interface SyncResult {
    /** It is done; also where the server says that it was done before. */
    data object Success : SyncResult

    /** It waits for its turn, its next attempt or a network. */
    data object Transient : SyncResult

    /** It waits until its user has signed in again. */
    data object AuthRefresh : SyncResult

    /** Its steps are out of order: the chain is rebuilt. */
    data object RebuildQueue : SyncResult

    /** It is gone: `stale-action`, `prereq-slipped`, `points-changed`, `idempotency-conflict`, `bad-request`, … */
    data class PermanentDrop(val reason: String) : SyncResult

    companion object {
        /** What this receipt says. */
        fun of(receipt: Receipt): SyncResult {
            val word = receipt.reason.orEmpty().substringBefore(':')
            return when (receipt.status) {
                Status.DONE -> Success
                Status.PENDING, Status.INFLIGHT -> Transient
                Status.HELD -> if (receipt.needsRebuild) RebuildQueue else AuthRefresh
                Status.DEAD, Status.ABORTED -> PermanentDrop(if (word == "expired") "stale-action" else word)
            }
        }
    }
}

/**
 * Actions of users, in order for each user. An id is a user's for one kind of action: the same one again is the same action.
 */
class Actions(private val outbox: Outbox, private val routes: Map<String, ActionRoute>) {
    /**
     * Accepts an action and returns the number of its row. [key] and [generatedAtMillis] are a fresh UUID and now where they are
     * left out. The payload is a JSON object; it repeats the key, and the row's key is the one that counts.
     */
    suspend fun enqueue(
        userId: String,
        actionType: String,
        payload: String,
        key: String = UUID.randomUUID().toString(),
        generatedAtMillis: Long? = null,
    ): Long = accept(userId, actionType, payload, key, generatedAtMillis).receipt.number

    /** The same, with the whole receipt. */
    suspend fun accept(
        userId: String,
        actionType: String,
        payload: String,
        key: String = UUID.randomUUID().toString(),
        generatedAtMillis: Long? = null,
    ): Accepted = outbox.send(message(userId, actionType, payload, key, generatedAtMillis))

    /** An action as a message, for a [Rebuild.Replace] for example. */
    fun message(
        userId: String,
        actionType: String,
        payload: String,
        key: String = UUID.randomUUID().toString(),
        generatedAtMillis: Long? = null,
    ): Message {
        val route = requireNotNull(routes[actionType]) { "actions of kind $actionType have no route" }
        return Message(
            method = route.method,
            url = filled(route.url, payload),
            headers = listOf(Header("content-type", "application/json")),
            body = withKey(payload, key).toByteArray(),
            id = key,
            principal = userId,
            operation = actionType,
            generatedAtMillis = generatedAtMillis,
        )
    }

    /** What waits of a user's actions, in order. */
    suspend fun waiting(userId: String): List<Receipt> =
        outbox.list(lane = userId).filter { it.status in setOf(Status.PENDING, Status.INFLIGHT, Status.HELD) }

    private fun withKey(payload: String, key: String): String {
        val end = payload.lastIndexOf('}')
        require(payload.trimStart().startsWith("{") && end > 0) { "the payload of an action is a JSON object" }
        if (MEMBER("idempotencyKey").containsMatchIn(payload)) return payload
        val comma = if (payload.substring(0, end).trimEnd().endsWith("{")) "" else ","
        return payload.substring(0, end) + "$comma\"idempotencyKey\":\"$key\"" + payload.substring(end)
    }

    private fun filled(url: String, payload: String): String =
        PLACE.replace(url) { place ->
            val found = MEMBER(place.groupValues[1]).find(payload)
            val value = requireNotNull(found) { "the payload has no ${place.groupValues[1]}" }.groupValues[1].trim('"')
            java.net.URLEncoder.encode(value, "UTF-8").replace("+", "%20")
        }

    private companion object {
        val PLACE = Regex("\\{(\\w+)}")

        /** A member of a payload whose value is a plain word or number. */
        fun MEMBER(name: String) = Regex("\"$name\"\\s*:\\s*(\"[^\"\\\\]*\"|-?[0-9.]+)")
    }
}
