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
        val wrong = vectors.mapNotNull { vector ->
            val expect = vector["expect"]
            // One that is stale ends like one that was too old here.
            val isStale = expect["reason"].asText() == "stale-action"
            val wanted = if (isStale) Status.DEAD to "expired" else BECOMES.getValue(expect["class"].asText())
            val found = runBlocking { met(vector) }
            if (found == wanted) null else "${vector["name"].asText()}: $found, not $wanted"
        }
        assertEquals(emptyList<String>(), wrong)
    }

    private suspend fun met(vector: JsonNode): Pair<Status, String> {
        val lab = Lab()
        val core = lab.open(Options(path = "", profile = vector["profile"].asText()), HostOf(null, null) {})
        val body = if (vector["code"].isNull) "" else json.writeValueAsString(mapOf("code" to vector["code"].asText()))
        val answer: Any = if (vector["status"].isNull) "lost" else mapOf("status" to vector["status"].asInt(), "body" to body)
        lab.answers(json.writeValueAsString(listOf(answer)))
        val id = "00000000-0000-4000-8000-000000000001"
        core.send(Message("POST", "https://api.example/orders", listOf(), "{}".toByteArray(), id = id))
        lab.advance(0uL)
        return core.get(id, null, null)!!.status to core.events(0, 100u, 0uL)[1].kind
    }
}
