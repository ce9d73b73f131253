// What becomes of each answer of the server: what is counted, what is told, and what goes on.
package walker

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Test

/** S0-148: the classifier. */
class AnswersTest {
    private fun answered(said: Said, counted: String, notice: String? = null, reports: Int = 0) = play(script = listOf(said)) {
        game.queue.allocate("roots", 2)
        drained()
        assertEquals(1, server.actions.size, "one attempt")
        assertEquals(setOf("tree.allocate $counted"), ledger.counts.keys - "OfflineActionExpired")
        assertEquals(listOfNotNull(notice), notices)
        assertEquals(reports, ledger.reports.size)
    }

    /** S0-126. */
    @Test
    fun doneIsSuccess() = answered(Said(200, TREE), "success")

    /** S0-145: a replay is no different. */
    @Test
    fun createdIsSuccess() = answered(Said(201, TREE), "success")

    /** S0-52. */
    @Test
    fun alreadyAllocatedIsSuccess() = answered(refusal(409, "ALREADY_ALLOCATED"), "success")

    /** S0-53. */
    @Test
    fun alreadyCompletedIsSuccess() = answered(refusal(409, "QUEST_ALREADY_COMPLETED"), "success")

    /** S0-54. */
    @Test
    fun alreadyInProgressIsSuccess() = answered(refusal(409, "QUEST_ALREADY_IN_PROGRESS"), "success")

    /** S0-51, S0-127, S0-137, S0-144. */
    @Test
    fun aConflictIsASyncErrorAndReportedLikeACrash() = answered(
        refusal(409, "IDEMPOTENCY_CONFLICT"), "idempotency-conflict",
        "Sync error: points for the tree was not accepted (idempotency-conflict). It was reported.", 1,
    )

    /** S0-49, S0-129, S0-136, S0-141. */
    @Test
    fun staleIsTellingOfSevenDays() = answered(
        refusal(422, "STALE_ACTION"), "stale-action", "Some queued actions expired: offline for more than 7 days (1).",
    )

    /** S0-57, S0-138. */
    @Test
    fun aLostPrerequisiteIsNoLongerValid() = answered(
        refusal(422, "PREREQUISITES_NOT_MET"), "prereq-slipped", "No longer valid: points for the tree. What it needs is not there.",
    )

    /** S0-58, S0-138. */
    @Test
    fun changedPointsAreNoLongerValid() = answered(
        refusal(422, "INSUFFICIENT_POINTS"), "points-changed", "No longer valid: points for the tree. Your points have changed.",
    )

    /** S0-132. */
    @Test
    fun aMalformedRequestIsASyncErrorAndReported() = answered(
        refusal(400, "BAD_REQUEST"), "bad-request", "Sync error: points for the tree was not accepted (bad-request). It was reported.", 1,
    )

    /** S0-131. */
    @Test
    fun anUnknownRefusalIsTriedOnceMore() = play(script = listOf(refusal(422, "NEW"), refusal(422, "NEW"))) {
        game.queue.allocate("roots", 2)
        drained()
        assertEquals(2, server.actions.size)
        assertEquals(1, server.actions.map { it.key }.toSet().size)
        assertEquals(listOf("Sync error: points for the tree was not accepted (unknown-422). It was reported."), notices)
    }

    /** S0-134, S0-117. */
    @Test
    fun aServerThatFailsIsAskedAgainUnderTheSameKey() = play(script = listOf(refusal(500, "INTERNAL"), null)) {
        game.queue.allocate("roots", 2)
        until("it was tried three times", 40) { server.actions.size == 3 }
        drained()
        assertEquals(1, server.actions.map { it.key }.toSet().size)
        assertEquals(mapOf("tree.allocate success" to 1), ledger.counts.toMap())
    }
}
