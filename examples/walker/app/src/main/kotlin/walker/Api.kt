// What the app asks of the game's API beside its queue: who the walker is, the tree and the quests. Changes nothing there.
package walker

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.ObjectMapper
import java.io.IOException
import java.net.URI
import java.net.http.HttpClient
import java.net.http.HttpRequest
import java.net.http.HttpResponse
import java.time.Duration
import kotlinx.coroutines.future.await

/** Who plays on this phone. */
data class Session(val walkerId: String, val token: String)

/** The tree as the server last said. */
data class Tree(val banked: Int, val points: Map<String, Int>)

/** How far a quest is. */
data class Quest(val id: Int, val title: String, val status: String, val step: Int, val steps: Int) {
    val isUnderWay: Boolean get() = status == "in-progress"
}

class Api(private val origin: String) {
    private val http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(PATIENCE).build()

    suspend fun signIn(name: String): Session {
        val answer = ask("POST", "/session", null, json.createObjectNode().put("name", name).toString())
        return Session(answer["walkerId"].asText(), answer["token"].asText())
    }

    suspend fun tree(session: Session): Tree = treeOf(ask("GET", "/tree/state", session))

    suspend fun quests(session: Session): List<Quest> = ask("GET", "/quest/available", session)["quests"].map { quest ->
        Quest(quest["questId"].asInt(), quest["title"].asText(), quest["status"].asText(), quest["step"].asInt(), quest["steps"].asInt())
    }

    private suspend fun ask(method: String, path: String, session: Session?, body: String? = null): JsonNode {
        val publisher = body?.let(HttpRequest.BodyPublishers::ofString) ?: HttpRequest.BodyPublishers.noBody()
        val request = HttpRequest.newBuilder(URI(origin + path)).timeout(PATIENCE).method(method, publisher)
        request.header("Content-Type", "application/json")
        if (session != null) request.header("Authorization", "Bearer ${session.token}")
        val answer = http.sendAsync(request.build(), HttpResponse.BodyHandlers.ofString()).await()
        if (answer.statusCode() != 200) throw IOException("$method $path: ${answer.statusCode()} ${answer.body()}")
        return json.readTree(answer.body())
    }

    companion object {
        private val PATIENCE: Duration = Duration.ofSeconds(5)
        private val json = ObjectMapper()

        fun treeOf(answer: JsonNode): Tree =
            Tree(answer["treePointsBanked"].asInt(), answer["allocations"].associate { it["node"].asText() to it["points"].asInt() })

        /** What the answer of an action says of the tree, which needs no question then. */
        fun treeAfter(tree: Tree?, answer: ByteArray): Tree? {
            val read = runCatching { json.readTree(answer) }.getOrNull()?.takeIf { it.has("treePointsBanked") } ?: return tree
            return if (read.has("allocations")) treeOf(read) else tree?.copy(banked = read["treePointsBanked"].asInt())
        }
    }
}
