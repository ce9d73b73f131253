// The worker: chains that are built again, credentials, expiry, and what a crash leaves to be told.
package walker

import java.io.File
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

private fun questAt(step: Int, status: String = "in-progress") =
    """{"quests":[{"questId":3,"title":"Hill repeats","status":"$status","step":$step,"steps":4}]}"""

/** S0-148: the worker. */
class WorkerTest {
    /** S0-55, S0-68, S0-139, S0-147. */
    @Test
    fun stepsThatAreAheadAreTakenBackAfterTheServerWasAskedAndOthersGoOn() = play(script = listOf(refusal(422, "STEP_OUT_OF_ORDER"))) {
        server.quests = questAt(1)
        server.cut()
        game.queue.advance(3, 3)
        game.queue.advance(3, 4)
        game.queue.allocate("roots", 2)
        server.open()
        drained()
        assertEquals(1, server.reads("/quest/available"))
        assertEquals(listOf("/quest/3/step/3/advance", "/tree/allocate"), server.actions.map { it.path })
        assertEquals(listOf("Quest 3 is somewhere else than this phone thought: taken back step 3 of quest 3, step 4 of quest 3."), notices)
    }

    /** S0-55, S0-56: another device went on; what is done is taken back, the rest goes on under its keys. */
    @Test
    fun aChainGoesOnFromWhereTheServerIs() = play(script = listOf(refusal(422, "ORDERING_VIOLATION"))) {
        server.quests = questAt(2)
        server.cut()
        val ids = listOf(game.queue.advance(3, 2), game.queue.advance(3, 3), game.queue.advance(3, 4), game.queue.complete(3)).map { it.receipt.id }
        server.open()
        drained()
        assertEquals(ids, server.actions.map { it.key })
        assertEquals(listOf("Quest 3 is somewhere else than this phone thought: taken back step 2 of quest 3."), notices)
        assertEquals(mapOf("quest.advance success" to 2, "quest.complete success" to 1), ledger.counts.filterKeys { "success" in it })
    }

    /** The missing step came from another device between the refusal and the question. */
    @Test
    fun aRefusedStepThatFitsByNowIsSentAgainInItsPlace() = play(script = listOf(refusal(422, "STEP_OUT_OF_ORDER"))) {
        server.quests = questAt(2)
        server.cut()
        val ids = listOf(game.queue.advance(3, 3), game.queue.advance(3, 4)).map { it.receipt.id }
        server.open()
        drained()
        assertEquals(listOf(ids[0], ids[0], ids[1]), server.actions.map { it.key })
        assertTrue(notices.isEmpty())
    }

    /** S0-133. */
    @Test
    fun aRefusedCredentialKeepsEverythingUntilTheWalkerSignsIn() = play(script = listOf(refusal(401, "UNAUTHENTICATED"))) {
        server.cut()
        repeat(2) { game.queue.advance(1, it + 1) }
        server.open()
        until("it is told") { notices == listOf("Sign in again. What waits is kept.") }
        assertEquals(listOf("until you sign in again", "for its turn"), game.screen.value.waiting.map { it.why })
        assertEquals(1, server.actions.size)
        game.signIn(Session("w1", "new"))
        drained()
        assertEquals(listOf("Bearer old", "Bearer new", "Bearer new"), server.actions.map { it.credential })
    }

    /** S0-40, S0-136, S0-154: too old here is never sent, and told as the server's word is. */
    @Test
    fun whatIsTooOldHereIsNeverSentAndToldOnce() = play(maxAgeMillis = 1_500uL) {
        game.signOut()
        repeat(3) { game.queue.advance(1, it + 1) }
        game.close()
        kotlinx.coroutines.delay(2_000)
        game = start()
        drained()
        assertEquals(0, server.actions.size)
        assertEquals(listOf("Some queued actions expired: offline for more than 7 days (3)."), notices)
        assertEquals(3, ledger.counts["OfflineActionExpired"])
    }

    /** S0-154. */
    @Test
    fun whatTheServerFindsTooOldIsOneNoticeADrain() = play(script = List(3) { refusal(422, "STALE_ACTION") }) {
        server.cut()
        repeat(3) { game.queue.advance(1, it + 1) }
        server.open()
        drained()
        assertEquals(listOf("Some queued actions expired: offline for more than 7 days (3)."), notices)
    }

    @Test
    fun aPhoneThatDiesBeforeItToldTellsAfterItsNextStartAndNotTwice() = play(script = listOf(refusal(422, "INSUFFICIENT_POINTS"))) {
        val told = listOf("No longer valid: points for the tree. Your points have changed.")
        val readTo = File(folder, "read-to")
        game.queue.allocate("roots", 2)
        drained()
        restart()
        drained()
        assertTrue(notices.isEmpty(), "it was told before: $notices")
        restart { readTo.delete() }
        until("it is told") { notices == told }
    }
}
