// What becomes of a quest's chain whose steps are out of order. Pure: the queue and the server's quests arrive as arguments.
package walker

import dev.semel.Receipt

/** One action of a quest: a step, or its completion, which is the step after the last. */
data class Link(val quest: Int, val step: Int?)

private val STEP = Regex("^/quest/(\\d+)/step/(\\d+)/advance$")
private val LAST = Regex("^/quest/complete\\?quest=(\\d+)$")

fun linkOf(receipt: Receipt): Link? {
    STEP.find(receipt.url)?.let { return Link(it.groupValues[1].toInt(), it.groupValues[2].toInt()) }
    return LAST.find(receipt.url)?.let { Link(it.groupValues[1].toInt(), null) }
}

/**
 * Which actions of the refused one's quest do not go on from where the server says that the walker is. What does stays where it is,
 * under its own key; other quests and the tree are left alone. Nothing is made up: a step that is missing is the walker's to do.
 */
fun misfits(refused: Receipt, behind: List<Receipt>, quests: List<Quest>): List<Receipt> {
    val id = linkOf(refused)?.quest ?: return listOf(refused)
    val quest = quests.find { it.id == id && it.isUnderWay }
    var step = quest?.step ?: 0
    return (listOf(refused) + behind).filter { receipt ->
        val link = linkOf(receipt)?.takeIf { it.quest == id } ?: return@filter false
        val fits = quest != null && (link.step ?: (quest.steps + 1)) == step + 1
        if (fits) step++
        !fits
    }
}
