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

    private fun name(number: Int) = "00000000-0000-4000-8000-%012d".format(number)
}
