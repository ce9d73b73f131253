// The app's data layer: the queue, the worker and what the screen shows, in one folder of the phone.
package walker

import com.fasterxml.jackson.databind.ObjectMapper
import dev.semel.Credential
import dev.semel.Header
import dev.semel.Options
import dev.semel.Outbox
import dev.semel.Rebuild
import dev.semel.Receipt
import dev.semel.Status
import dev.semel.SyncResult
import java.io.File
import java.io.IOException
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch

/** What the person sees. */
data class Screen(val tree: Tree? = null, val waiting: List<Waiting> = emptyList(), val notices: List<String> = emptyList())

class Game(
    private val folder: File,
    private val api: Api,
    origin: String,
    private val session: Session,
    telemetry: Telemetry,
    maxAgeMillis: ULong? = null,
) : Listener, AutoCloseable {
    @Volatile private var token: String? = session.token
    private val outbox: Outbox = Outbox.open(
        Options(path = File(folder, "queue.db").path, profile = "walker", baseUrl = origin, maxAgeMillis = maxAgeMillis),
        credentials = { principal, _ ->
            token?.takeIf { principal == session.walkerId }?.let { Credential(principal, listOf(Header("authorization", "Bearer $it"))) }
        },
        rebuild = { refused, behind -> rebuild(refused, behind) },
    )
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)
    private val shown = MutableStateFlow(Screen())

    val queue = Queue(outbox, session.walkerId)
    val screen: StateFlow<Screen> = shown.asStateFlow()

    private val worker = Worker(outbox, File(folder, "read-to"), this, telemetry)

    init {
        scope.launch {
            while (true) {
                try {
                    worker.run()
                } catch (error: CancellationException) {
                    throw error
                } catch (error: Exception) {
                    // A full disk, or an answer that is none: what was not told by then is told again.
                    telemetry.report("the worker failed: $error")
                }
                delay(AGAIN_MILLIS)
            }
        }
    }

    /** The server says that steps are out of order: it is asked how far the quest is, and what does not fit is taken back. */
    private suspend fun rebuild(refused: Receipt, behind: List<Receipt>): Rebuild {
        // Without a network this throws, and is asked for again.
        val misfits = misfits(refused, behind, api.quests(session))
        if (refused in misfits) return Rebuild.Replace((misfits - refused).map { it.number }, emptyList())
        // It fits by now: the same action again, under its own key, which the refusal has freed.
        outbox.resume(refused.lane)
        return Rebuild.Wait
    }

    override suspend fun ended(receipt: Receipt) {
        val answer = receipt.answerBody
        if (receipt.status == Status.DONE && answer != null) shown.update { it.copy(tree = Api.treeAfter(it.tree, answer)) }
        if (SyncResult.of(receipt) == SyncResult.PermanentDrop("points-changed")) shown.update { it.copy(tree = null) }
    }

    override suspend fun drained(notices: List<String>) {
        refresh()
        if (notices.isNotEmpty()) shown.update { it.copy(notices = it.notices + notices) }
    }

    /** Reads the queue again, and the tree from the server where no answer has told it. */
    suspend fun refresh() {
        val waiting = waitingOf(queue.waiting())
        val tree = shown.value.tree ?: try {
            api.tree(session)
        } catch (_: IOException) {
            null
        }
        shown.update { it.copy(tree = tree, waiting = waiting) }
    }

    suspend fun quests(): List<Quest> = api.quests(session)

    suspend fun signIn(fresh: Session) {
        require(fresh.walkerId == session.walkerId) { "this phone's queue is another walker's" }
        token = fresh.token
        keep(folder, fresh)
        worker.signedIn()
        outbox.signIn(fresh.walkerId)
    }

    /** What waits is parked, never deleted. */
    suspend fun signOut() {
        token = null
        outbox.signOut(session.walkerId)
    }

    override fun close() {
        scope.cancel()
        outbox.close()
    }

    companion object {
        private val json = ObjectMapper()
        private const val AGAIN_MILLIS = 1_000L

        /** Who signed in on this phone last: a phone without a network plays on. */
        fun known(folder: File): Session? = File(folder, "session.json").takeIf { it.exists() }?.let { file ->
            // A file that a loss of power has torn is as none.
            runCatching { json.readTree(file).let { Session(it["walkerId"].asText(), it["token"].asText()) } }.getOrNull()
        }

        fun keep(folder: File, session: Session) {
            val fresh = File(folder, "session.new")
            json.writeValue(fresh, mapOf("walkerId" to session.walkerId, "token" to session.token))
            check(fresh.renameTo(File(folder, "session.json"))) { "failed to keep the session" }
        }
    }
}
