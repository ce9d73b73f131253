// Processes that die while they send: nothing that was accepted is lost, nothing is doubled behind a gate, and order is kept.
package dev.semel

import java.io.File
import java.util.Random
import java.util.concurrent.TimeUnit
import kotlinx.coroutines.delay
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** The process that dies: it accepts messages as fast as it can, and says which. */
object Child {
    @JvmStatic
    fun main(arguments: Array<String>) = runBlocking {
        val (path, url, run) = arguments
        val options = Options(path = path, baseUrl = url, maxAgeMillis = 3_600_000uL)
        val outbox = Outbox.open(options)
        for (number in 0 until 100_000) {
            val id = "run-$run-$number"
            outbox.send(Message("POST", "/orders", listOf(), "{\"n\":$number}".toByteArray(), id = id, lane = "lane-${number % 3}"))
            println(id)
            System.out.flush()
            delay(2)
        }
    }
}

class KillTest {
    private val kills = System.getenv("SEMEL_TEST_KILLS")?.toInt()
        ?: if (System.getenv("SEMEL_TEST_LONG") == "1") 200 else if (System.getenv("SEMEL_TEST_FAST") == "1") 3 else 10

    @Test
    fun aKilledProcessLosesNothingAndDoublesNothing(@TempDir folder: File) = runBlocking<Unit> {
        val seed = System.getenv("SEMEL_TEST_SEED")?.toLong() ?: System.nanoTime()
        println("seed $seed")
        val random = Random(seed)
        val accepted = mutableListOf<String>()
        Gate().use { gate ->
            val path = File(folder, "outbox.db").path
            repeat(kills) { run -> accepted += killed(path, gate.url, run, random) }
            val outbox = Outbox.open(Options(path = path, baseUrl = gate.url, maxAgeMillis = 3_600_000uL))
            val deadline = System.nanoTime() + TimeUnit.MINUTES.toNanos(5)
            while (outbox.lanes().any { it.depth > 0uL }) {
                check(System.nanoTime() < deadline) { "it does not end: ${outbox.lanes()}" }
                outbox.kick()
                delay(50)
            }
            outbox.close()
            val effects = gate.effects.toList()
            assertEquals(effects.size, effects.toSet().size, "nothing is doubled")
            assertEquals(emptySet<String>(), accepted.toSet() - effects.toSet(), "nothing is lost")
            // Of the one that was being accepted as its process died nobody was told: it is there once, or not at all.
            val next = (0 until kills).map { run -> "run-$run-${accepted.count { it.startsWith("run-$run-") }}" }
            assertEquals(emptySet<String>(), effects.toSet() - accepted.toSet() - next.toSet(), "nothing else is there")
            for (lane in 0..2) {
                val numbers = effects.map { it.split('-') }.map { it[1].toInt() to it[2].toInt() }.filter { it.second % 3 == lane }
                assertEquals(numbers.sortedWith(compareBy({ it.first }, { it.second })), numbers, "lane $lane keeps its order")
            }
            assertTrue(accepted.size > kills, "the processes got to work")
            println("kills $kills, accepted ${accepted.size}, effects ${effects.size}, sent again ${gate.replays}")
        }
    }

    /** What a process had accepted when it was killed. */
    private fun killed(path: String, url: String, run: Int, random: Random): List<String> {
        val java = File(System.getProperty("java.home"), "bin/java").path
        val classes = System.getProperty("java.class.path")
        val process = ProcessBuilder(java, "-cp", classes, "dev.semel.Child", path, url, "$run")
            .redirectError(ProcessBuilder.Redirect.INHERIT).start()
        val lines = process.inputStream.bufferedReader()
        val said = mutableListOf<String>()
        val until = 1 + random.nextInt(60)
        while (said.size < until) said += lines.readLine() ?: error("the process ended by itself")
        Thread.sleep(random.nextInt(30).toLong())
        process.toHandle().destroyForcibly()
        // A line that was cut off by the kill is another id.
        val rest = lines.readText()
        said += rest.substring(0, rest.lastIndexOf('\n') + 1).lines()
        process.waitFor()
        return said.filter { Regex("run-$run-\\d+").matches(it) }
    }

    /** A second process hands over, and takes the owner's place. */
    @Test
    fun aSecondProcessHandsOverAndTakesTheOwnersPlace(@TempDir folder: File) = runBlocking<Unit> {
        Gate().use { gate ->
            val path = File(folder, "outbox.db").path
            val first = Outbox.open(Options(path = path, baseUrl = gate.url))
            val second = Outbox.open(Options(path = path, baseUrl = gate.url))
            assertEquals(listOf(true, false), listOf(first.isOwner(), second.isOwner()))
            val accepted = second.send(Message("POST", "/orders", listOf(), "{}".toByteArray()))
            assertEquals(Status.DONE, second.await(accepted.receipt.id).status)
            first.close()
            val later = second.send(Message("POST", "/orders", listOf(), "{}".toByteArray()))
            assertEquals(Status.DONE, second.await(later.receipt.id).status)
            assertTrue(second.isOwner())
            second.close()
        }
    }
}
