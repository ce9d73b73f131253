// What gets into the queue, and how it goes over the wire.
package walker

import java.io.File
import java.sql.DriverManager
import java.util.UUID
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** S0-148: migration and repository. */
class QueueTest {
    /** S0-32, S0-34, S0-122, S0-125. */
    @Test
    fun actionsOfAllKindsGoInTheirOrderWithAKeyAndATimeEach() = play {
        server.cut()
        val at = System.currentTimeMillis() - 3_600_000
        val ids = listOf(game.queue.start(1, at), game.queue.advance(1, 1, at), game.queue.allocate("roots", 2, at = at), game.queue.complete(1, at))
            .map { it.receipt.id }
        server.open()
        drained()
        assertEquals(ids, server.actions.map { it.key })
        assertEquals(listOf("/quest/start?quest=1", "/quest/1/step/1/advance", "/tree/allocate", "/quest/complete?quest=1"), server.actions.map { it.path })
        for (seen in server.actions) {
            val body = json.readTree(seen.body)
            assertEquals(seen.key, body["idempotencyKey"].asText())
            assertEquals(at, java.time.Instant.parse(body["clientGeneratedAt"].asText()).toEpochMilli())
        }
    }

    /** S0-143: the first row is kept. */
    @Test
    fun theSameKeyAgainIsTheSameAction() = play {
        server.cut()
        val key = UUID.randomUUID().toString()
        val first = game.queue.allocate("roots", 2, key)
        val again = game.queue.allocate("roots", 2, key, System.currentTimeMillis() + 60_000)
        assertTrue(again.wasKnown)
        assertEquals(first.receipt.number, again.receipt.number)
        assertEquals(first.receipt.generatedAtMillis, game.queue.waiting().single().generatedAtMillis)
    }

    @Test
    fun aSecondTapOnAStepIsTheFirstAndPointsAreSpentAsOftenAsTapped() = play {
        server.cut()
        val first = game.queue.advance(1, 1)
        assertEquals(first.receipt.id, game.queue.advance(1, 1).receipt.id)
        game.queue.allocate("roots", 1)
        game.queue.allocate("roots", 1)
        assertEquals(3, game.queue.waiting().size)
    }

    /** S0-117, S0-142: what waits, waits over a restart under its key. */
    @Test
    fun theQueueOutlivesTheApp() = play {
        server.cut()
        val ids = listOf(game.queue.advance(1, 1), game.queue.advance(1, 2)).map { it.receipt.id }
        restart()
        assertEquals(ids, game.queue.waiting().map { it.id })
        server.open()
        drained()
        assertEquals(ids, server.actions.map { it.key })
    }

    /** S0-118, S0-119, S0-120, S0-165. */
    @Test
    fun theQueueOfTheFirstReleaseIsTakenOverOnceWithItsKeysAndTimes() = play {
        val older = File(folder, "older.db")
        val sql = generateSequence(File(".").absoluteFile) { it.parentFile }.map { File(it, "clients/core/tests/offline_actions.sql") }.first { it.exists() }
        DriverManager.getConnection("jdbc:sqlite:$older").use { database -> database.createStatement().use { it.executeUpdate(sql.readText()) } }
        DriverManager.getConnection("jdbc:sqlite:$older").use { database ->
            database.createStatement().use { it.executeUpdate("UPDATE offline_actions SET walker_id = 'w1'") }
        }
        server.cut()
        assertEquals(4uL, game.queue.importOlder(older.path).imported)
        assertEquals(4uL, game.queue.importOlder(older.path).known)
        val waiting = game.queue.waiting()
        assertEquals("0f8fad5b-d9cb-469f-a165-70867728950e", waiting.first().id)
        assertEquals(4, waiting.map { it.id }.toSet().size)
        assertEquals(1_767_225_660_000, waiting[1].generatedAtMillis)
        assertFalse(waiting.any { it.attempts > 1u })
    }
}
