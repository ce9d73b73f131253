// The examples of the guide and of the README, run as they stand there.
package dev.semel

import java.io.File
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

private fun currentToken(): String? = "t-1"

// example: begin
suspend fun order(file: String, api: String): Receipt {
    val outbox = Outbox.open(
        Options(path = file, baseUrl = api),
        credentials = { principal, _ -> currentToken()?.let { Credential(principal, listOf(Header("authorization", it))) } },
    )
    val message = Message(
        method = "POST",
        url = "/orders",
        headers = listOf(Header("content-type", "application/json")),
        body = """{"item":"tea"}""".toByteArray(),
        principal = "anna",
    )
    val accepted = outbox.send(message)               // It is on disk now, whatever happens to this process.
    return outbox.use { it.await(accepted.receipt.id) } // Delivered, given up or taken back.
}
// example: end

internal suspend fun deliver(file: String, api: String, headers: List<Header>, body: ByteArray): Receipt {
    // readme: begin
    val outbox = Outbox.open(Options(path = file, baseUrl = api))
    val accepted = outbox.send(Message("POST", "/orders", headers, body))   // It is on disk now.
    val receipt = outbox.await(accepted.receipt.id)
    // readme: end
    outbox.close()
    return receipt
}

class GuideTest {
    private val here = File(tree(), "clients/kotlin/src/test/kotlin/dev/semel/GuideTest.kt").readText()

    @Test
    fun theExampleOfTheReadmeRuns(@TempDir folder: File) = runBlocking<Unit> {
        val example = here.substringAfter("// readme: begin\n").substringBefore("    // readme: end").trimIndent()
        val readme = File(tree(), "clients/kotlin/README.md").readText()
        assertTrue("```kotlin\n$example\n```" in readme, "the README shows what is tested")
        Gate().use { gate ->
            val headers = listOf(Header("content-type", "application/json"))
            val receipt = deliver(File(folder, "orders.db").path, gate.url, headers, "{}".toByteArray())
            assertEquals(Status.DONE, receipt.status)
            assertEquals(listOf(receipt.id), gate.effects)
        }
    }

    @Test
    fun theExampleOfTheGuideRuns(@TempDir folder: File) = runBlocking<Unit> {
        val example = here.substringAfter("// example: begin\n").substringBefore("// example: end")
        val guide = File(tree(), "docs/guides/outbox-kotlin.md").readText()
        assertTrue(example.trim() in guide, "the guide shows what is tested")
        Gate().use { gate ->
            val receipt = order(File(folder, "orders.db").path, gate.url)
            assertEquals(Status.DONE, receipt.status)
            assertEquals(listOf(receipt.id), gate.effects)
        }
    }

    @Test
    fun eventsAreAFlowThatGoesOnWhereItWasLeft(@TempDir folder: File) = runBlocking<Unit> {
        Gate().use { gate ->
            Outbox.open(Options(path = File(folder, "events.db").path, baseUrl = gate.url)).use { outbox ->
                val accepted = outbox.send(Message("POST", "/orders", listOf(), "{}".toByteArray()))
                val done = outbox.events().first { it.kind == "done" }
                assertEquals(accepted.receipt.id, done.id)
                outbox.send(Message("POST", "/orders", listOf(), "{}".toByteArray()))
                assertTrue(outbox.events(done.number).first().number > done.number)
            }
        }
    }

    /** Whoever follows events, waits for a message or has not begun to listen holds nothing up and misses nothing. */
    @Test
    fun closingDoesNotWaitForListenersAndNoticesWaitForThem(@TempDir folder: File) = runBlocking<Unit> {
        val path = File(folder, "close.db").path
        val options = Options(path = path, profile = "walker", baseUrl = "http://127.0.0.1:9")
        val outbox = Outbox.open(options)
        val accepted = outbox.send(Message("POST", "/orders", listOf(), "{}".toByteArray()))
        val waits = listOf<suspend () -> Any>({ outbox.events(1_000).first() }, { outbox.await(accepted.receipt.id) })
        val listeners = waits.map { wait -> async(Dispatchers.IO) { runCatching { wait() } } }
        delay(300)
        val began = System.nanoTime()
        outbox.close()
        assertTrue(System.nanoTime() - began < 10_000_000_000, "it closed at once")
        listeners.forEach { assertTrue(it.await().isFailure) }
        delay(1_000)
        Outbox.open(options.copy(maxAgeMillis = 1_000uL)).use { again ->
            again.events().first { it.kind == "expired" }
            delay(300)
            assertEquals(NoticeKind.EXPIRED, again.notices.first().kind)
        }
    }
}
