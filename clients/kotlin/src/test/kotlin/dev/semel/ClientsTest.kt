// Plays spec/clients.json, the scenarios that every client passes, through Kotlin.
package dev.semel

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.ObjectMapper
import java.io.File
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory

internal val json = ObjectMapper()

/** The tree's root, from which the specification is read. */
internal fun tree(): File = File(System.getenv("SEMEL_TREE") ?: "../..")

class ClientsTest {
    private val spec: JsonNode = json.readTree(File(tree(), "spec/clients.json"))

    @TestFactory
    fun scenarios(): List<DynamicTest> {
        assertTrue(spec["scenarios"].size() >= 37)
        return spec["scenarios"].map { scenario ->
            DynamicTest.dynamicTest(scenario["name"].asText()) {
                val run = Run(scenario, spec["url"].asText())
                runBlocking { scenario["steps"].forEach { run.step(it) } }
            }
        }
    }
}

private class Run(private val scenario: JsonNode, private val url: String) {
    private val lab = Lab()
    private var credential: Credential? = null
    private var core: Core
    private var outbox: Outbox
    private val read = mutableMapOf("sends" to 0, "credentials" to 0, "events" to 0)

    init {
        core = open()
        outbox = Outbox(core, Outbox.notices())
    }

    private fun open(): Core {
        val settings = scenario.path("settings")
        val options = Options(
            path = "",
            profile = scenario.path("profile").asText("ietf"),
            needsCredentials = settings.path("credentials").asBoolean(false),
            blocksOnDead = settings.path("on_dead").asText() == "block",
        )
        return lab.open(options, HostOf({ _, _ -> credential }, null) {})
    }

    suspend fun step(step: JsonNode) {
        val expect = step["expect"]
        when {
            step.has("send") -> send(step["send"], expect)
            step.has("abort") -> abort(step["abort"].asText(), expect?.asText() == "refused")
            expect != null -> check(expect)
            step.has("answers") -> lab.answers(step["answers"].toString())
            step.has("network") -> lab.network(step["network"].asText() == "down")
            step.has("advance_ms") -> lab.advance(step["advance_ms"].asLong().toULong())
            step.has("kill") -> lab.kill()
            step.has("kill_at") -> lab.killAtArrival()
            step.has("open") -> {
                core = open()
                outbox = Outbox(core, Outbox.notices())
            }
            step.has("credential") -> {
                val principal = step["credential"]["principal"].asText()
                credential = Credential(principal, listOf(Header("authorization", step["credential"]["value"].asText())))
                outbox.signIn(principal)
            }
            step.has("pause") -> outbox.pause(step["pause"]["lane"].asText())
            step.has("resume") -> outbox.resume(step["resume"]["lane"].asText())
            step.has("retry") -> outbox.retry(step["retry"].asText())
            step.has("requeue") -> outbox.requeue(step["requeue"].asText(), step["new_id"].asText())
            step.has("server_clock_ahead_ms") -> lab.serverClockAhead(step["server_clock_ahead_ms"].asLong())
            step.has("clock_jump_ms") -> lab.clockJump(step["clock_jump_ms"].asLong())
            else -> error("no such step: $step")
        }
    }

    private suspend fun send(send: JsonNode, expect: JsonNode) {
        val message = Message(
            method = "POST",
            url = url,
            headers = listOf(Header("content-type", "application/json")),
            body = send.path("body").asText("{}").toByteArray(),
            id = send["id"].asText(),
            lane = send["lane"]?.asText(),
            principal = send["principal"]?.asText(),
            logicalKey = send["logical_key"]?.asText(),
        )
        val said: Any = try {
            outbox.send(message).aliasOf?.let { mapOf("alias_of" to it) } ?: "accepted"
        } catch (refused: CoreException.Refused) {
            mapOf("refused" to refused.code)
        }
        assertEquals(expect, json.valueToTree(said))
    }

    private suspend fun abort(id: String, isRefused: Boolean) {
        val aborted = runCatching { outbox.abort(id, "by a test") }
        assertEquals(isRefused, aborted.isFailure)
    }

    private suspend fun check(expect: JsonNode) {
        val seen = json.readTree(lab.seen())
        val told = core.events(0, 1000u, 0uL).filter { it.kind in KINDS }
            .flatMap { event -> event.ids.ifEmpty { listOfNotNull(event.id) }.map { listOf(event.kind, it) } }
        fun <T> since(name: String, all: List<T>): List<T> = all.drop(read.put(name, all.size)!!)
        for ((name, wanted) in expect.properties()) {
            val found: Any = when (name) {
                "sends", "credentials" -> since(name, seen[name].toList())
                "effects" -> seen[name]
                "events" -> since(name, told)
                "events_of" -> wanted.properties().associate { (id, _) -> id to told.filter { it[1] == id }.map { it[0] } }
                "ends" -> told.filter { it[0] in ENDS }
                "messages" -> shown(wanted)
                else -> error("nothing checks $name")
            }
            assertEquals(wanted, json.valueToTree(found), name)
        }
    }

    private suspend fun shown(wanted: JsonNode): Map<String, Map<String, Any>> =
        wanted.properties().associate { (id, fields) ->
            val receipt = outbox.get(id)!!
            val all = mapOf(
                "status" to receipt.status.name.lowercase(),
                "attempts" to receipt.attempts.toInt(),
                "possibly_delivered" to receipt.possiblyDelivered,
            )
            id to all.filterKeys { fields.has(it) }
        }

    private companion object {
        val ENDS = setOf("done", "dead", "dropped", "expired", "aborted")
        val KINDS = ENDS + setOf("queued", "held")
    }
}
