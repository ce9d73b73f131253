// What an answer means to a sender: the vectors of the contract, each as an answer that a message is given.
package dev.semel

import com.fasterxml.jackson.databind.JsonNode
import java.io.File
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** What becomes of a message after one such answer, and which event tells of it. */
private val BECOMES = mapOf(
    "success" to (Status.DONE to "done"),
    "retry" to (Status.PENDING to "retry"),
    "retry-after" to (Status.PENDING to "retry"),
    "auth" to (Status.HELD to "held"),
    "rebuild" to (Status.HELD to "rebuild"),
    "drop" to (Status.DEAD to "dropped"),
    "dead" to (Status.DEAD to "dead"),
)

class VectorsTest {
    @Test
    fun everyAnswerMeansWhatTheContractSays() {
        val vectors = json.readTree(File(tree(), "spec/vectors/classification.json"))["vectors"]
        assertTrue(vectors.size() > 100)
        val wrong = vectors.groupBy { it["profile"].asText() }.flatMap { (profile, ofProfile) ->
            val found = runBlocking { met(profile, ofProfile) }
            ofProfile.zip(found).mapNotNull { (vector, became) ->
                val expect = vector["expect"]
                // One that is stale ends like one that was too old here.
                val isStale = expect["reason"].asText() == "stale-action"
                val wanted = if (isStale) Status.DEAD to "expired" else BECOMES.getValue(expect["class"].asText())
                if (became == wanted) null else "${vector["name"].asText()}: $became, not $wanted"
            }
        }
        assertEquals(emptyList<String>(), wrong)
    }

    /** What became of a message each, in one outbox; each is somebody's of its own. */
    private suspend fun met(profile: String, vectors: List<JsonNode>): List<Pair<Status, String>> {
        val lab = Lab()
        val core = lab.open(Options(path = "", profile = profile), HostOf(null, null) {})
        vectors.forEachIndexed { number, vector ->
            val body = if (vector["code"].isNull) "" else json.writeValueAsString(mapOf("code" to vector["code"].asText()))
            val answer: Any =
                if (vector["status"].isNull) "lost" else mapOf("status" to vector["status"].asInt(), "body" to body)
            lab.answers(json.writeValueAsString(listOf(answer)))
            val url = "https://api.example/orders"
            core.send(Message("POST", url, listOf(), "{}".toByteArray(), id = name(number), principal = "p$number"))
        }
        lab.advance(0uL)
        val events = core.events(0, 1000u, 0uL).groupBy { it.id }
        return vectors.indices.map { core.get(name(it), null, null)!!.status to events.getValue(name(it))[1].kind }
    }

    private fun read(name: String): JsonNode = json.readTree(File(tree(), "spec/vectors/$name"))

    private fun send(core: Core, id: String) = runBlocking {
        core.send(Message("POST", "https://api.example/orders", listOf(), "{}".toByteArray(), id = id))
    }

    private fun start(lab: Lab, profile: String) = lab.open(Options(path = "", profile = profile), HostOf(null, null) {})

    @Test
    fun everyCodeIsFoundWhereTheContractSays() = runBlocking<Unit> {
        val codes = read("classification.json")["codes"]
        assertTrue(codes.size() > 30)
        val lab = Lab()
        val core = start(lab, "ietf")
        codes.forEachIndexed { number, vector ->
            lab.answers(json.writeValueAsString(listOf(mapOf("status" to 418, "body" to vector["body"].asText()))))
            send(core, name(number))
        }
        lab.advance(0uL)
        codes.forEachIndexed { number, vector ->
            val code = if (vector["expect"].isNull) "" else " ${vector["expect"].asText()}"
            assertEquals("rejected: HTTP 418$code", core.get(name(number), null, null)!!.reason, vector["name"].asText())
        }
    }

    /** Of the profiles' own schedules; the laboratory draws one half. */
    @Test
    fun everyPauseIsWhatTheScheduleSays() {
        val named = Regex("(ietf|walker|scores|feed) attempt (\\d+)\\b.*")
        val pauses = mutableMapOf<String, MutableMap<Int, Long>>()
        for (vector in read("schedules.json")["vectors"]) {
            val (profile, attempt) = named.matchEntire(vector["name"].asText())?.destructured ?: continue
            if (vector["cause"].asText() != "failed" || vector["u"].asDouble() != 0.5) continue
            pauses.getOrPut(profile) { mutableMapOf() }[attempt.toInt()] = vector["expect"].first().asLong()
        }
        assertTrue(pauses.values.sumOf { it.size } > 35)
        for ((profile, wanted) in pauses) {
            val lab = Lab()
            val core = start(lab, profile)
            lab.answers(json.writeValueAsString(List(wanted.keys.max()) { mapOf("status" to 500) }))
            send(core, name(1))
            lab.advance(20uL * 3_600_000uL)
            val times = json.readTree(lab.seen())["sends"].map { it[1].asLong() }
            assertEquals(wanted, wanted.mapValues { (attempt, _) -> times[attempt] - times[attempt - 1] }, profile)
        }
    }

    @Test
    fun everyPlainKeyIsTakenAsAnIdWhereTheContractTakesIt() {
        val profiles = mapOf("uuid4-lower" to "walker", "token255" to "feed", "printable255" to "ietf", "any255" to "scores")
        var held = 0
        for (vector in read("keys.json")["vectors"]) {
            val (policy, headers) = vector.path("policy") to vector.path("headers")
            val profile = profiles[policy["format"].asText()] ?: continue
            if (policy["sources"].size() != 1 || policy["syntax"].asText() != "bare" || policy["shared"].asBoolean()) continue
            val (header, value) = headers.singleOrNull()?.map { it.asText() } ?: continue
            val isOurs = policy["sources"][0].asText().removePrefix("header:").equals(header, ignoreCase = true)
            if (!isOurs || value != value.trim()) continue
            val taken = try {
                send(start(Lab(), profile), value).receipt.id
            } catch (_: CoreException.Refused) {
                null
            }
            assertEquals(vector["expect"].path("key").asText(null) == value, taken == value, vector["name"].asText())
            held++
        }
        assertTrue(held > 20)
    }

    private fun name(number: Int) = "00000000-0000-4000-8000-%012d".format(number)
}
