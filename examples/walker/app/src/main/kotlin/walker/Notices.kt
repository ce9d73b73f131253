// What a person is told of actions that ended, and why others wait. Pure.
package walker

import dev.semel.Receipt
import dev.semel.Status
import dev.semel.SyncResult

/** An action as the walker thinks of it. */
fun titleOf(receipt: Receipt): String {
    val link = linkOf(receipt)
    return when {
        link?.step != null -> "step ${link.step} of quest ${link.quest}"
        link != null -> "completing quest ${link.quest}"
        receipt.operation == START -> "starting quest ${receipt.url.substringAfter("quest=")}"
        else -> "points for the tree"
    }
}

/** An action that waits, and why. */
data class Waiting(val title: String, val why: String) {
    override fun toString() = "$title waits $why"
}

/** What waits, in order: why the first does, and the rest for it. */
fun waitingOf(receipts: List<Receipt>): List<Waiting> = receipts.mapIndexed { place, receipt ->
    val why = when (SyncResult.of(receipt)) {
        SyncResult.AuthRefresh -> "until you sign in again"
        SyncResult.RebuildQueue -> "until its quest was looked up"
        else -> if (place > 0) "for its turn" else receipt.waitsFor?.let { "for $it" } ?: "for an answer"
    }
    Waiting(titleOf(receipt), why)
}

/** What one drain of the queue came to: each action with what became of it. */
class Drain {
    private val dropped = mutableListOf<Pair<Receipt, String>>()
    private val takenBack = mutableListOf<Receipt>()
    private var needsSignIn = false

    fun add(receipt: Receipt) {
        val result = SyncResult.of(receipt)
        when {
            receipt.status == Status.ABORTED -> takenBack.add(receipt)
            result is SyncResult.PermanentDrop -> dropped.add(receipt to result.reason)
            result == SyncResult.AuthRefresh -> needsSignIn = true
        }
    }

    /** One notice for all that expired, one for each quest that was built again, and one for each that is not possible any more. */
    fun notices(): List<String> = buildList {
        val expired = dropped.count { (_, reason) -> reason == "stale-action" }
        if (expired > 0) add("Some queued actions expired: offline for more than 7 days ($expired).")
        for ((receipt, reason) in dropped) {
            val title = titleOf(receipt)
            when (reason) {
                "stale-action" -> {}
                "prereq-slipped" -> add("No longer valid: $title. What it needs is not there.")
                "points-changed" -> add("No longer valid: $title. Your points have changed.")
                else -> add("Sync error: $title was not accepted ($reason). It was reported.")
            }
        }
        for ((quest, receipts) in takenBack.sortedBy { it.number }.groupBy { linkOf(it)?.quest })
            add("Quest $quest is somewhere else than this phone thought: taken back ${receipts.joinToString { titleOf(it) }}.")
        if (needsSignIn) add("Sign in again. What waits is kept.")
    }
}
