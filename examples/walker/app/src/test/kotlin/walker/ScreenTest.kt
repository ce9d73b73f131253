// What the person sees.
package walker

import kotlinx.coroutines.delay
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** S0-148: what the screen shows. */
class ScreenTest {
    @Test
    fun theTreeIsReadWhereNoAnswerHasToldIt() = play {
        game.refresh()
        assertEquals(Tree(9, emptyMap()), game.screen.value.tree)
        game.refresh()
        assertEquals(1, server.reads("/tree/state"))
    }

    /** S0-04. */
    @Test
    fun afterALostAnswerTheReplayTellsTheTreeAndNothingElseIsAsked() = play(script = listOf(null, Said(200, TREE))) {
        game.queue.allocate("roots", 2)
        drained()
        assertEquals(2, server.actions.size)
        assertEquals(Tree(3, mapOf("roots" to 2)), game.screen.value.tree)
        assertTrue(server.reads("/tree/state") <= 1, "once while the answer was missing, never after it")
        val before = server.seen.size
        delay(500)
        assertEquals(before, server.seen.size)
    }

    /** S0-58. */
    @Test
    fun changedPointsMakeTheTreeUnknownAndItIsReadAgain() = play(script = listOf(Said(200, TREE), refusal(422, "INSUFFICIENT_POINTS"))) {
        game.queue.allocate("roots", 2)
        drained()
        assertEquals(3, game.screen.value.tree?.banked)
        assertEquals(0, server.reads("/tree/state"))
        game.queue.allocate("crown", 5)
        drained()
        assertEquals(9, game.screen.value.tree?.banked)
        assertEquals(1, server.reads("/tree/state"))
    }

    @Test
    fun aCompletedQuestChangesTheBalance() = play(script = listOf(Said(200, TREE), Said(200, """{"questId":1,"pointsAwarded":3,"treePointsBanked":6}"""))) {
        game.queue.allocate("roots", 2)
        game.queue.complete(1)
        drained()
        assertEquals(Tree(6, mapOf("roots" to 2)), game.screen.value.tree)
    }

    @Test
    fun withoutANetworkThePersonSeesWhatWaitsAndWhy() = play {
        server.cut()
        game.queue.advance(1, 1)
        game.queue.complete(1)
        until("it is shown") { game.screen.value.waiting.size == 2 && "attempt" in game.screen.value.waiting[0].why }
        assertEquals(listOf("step 1 of quest 1", "completing quest 1"), game.screen.value.waiting.map { it.title })
        assertNull(game.screen.value.tree)
        assertEquals("for its turn", game.screen.value.waiting[1].why)
    }

    /** Signing out parks; nothing is deleted. */
    @Test
    fun aWalkerWhoLeavesFindsTheQueueAgain() = play {
        game.signOut()
        game.queue.advance(1, 1)
        delay(500)
        assertEquals(0, server.actions.size)
        assertEquals(1, game.queue.waiting().size)
        game.signIn(Session("w1", "new"))
        drained()
        assertEquals("Bearer new", server.actions.single().credential)
    }
}
