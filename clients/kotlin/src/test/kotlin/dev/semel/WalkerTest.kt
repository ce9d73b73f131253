// A game's offline queue: what becomes of each answer, what a person is told, and what is on the wire.
package dev.semel

import com.fasterxml.jackson.databind.JsonNode
import java.io.File
import java.util.UUID
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

private const val DAY = 86_400_000uL

private val ROUTES = mapOf(
    "tree.allocate" to ActionRoute("POST", "https://api.example/tree/allocate"),
    "quest.advance" to ActionRoute("POST", "https://api.example/quest/{questId}/advance"),
    "quest.complete" to ActionRoute("POST", "https://api.example/quest/{questId}/complete"),
)

/** A phone with the game on it. */
private class Phone(credentials: Credentials? = null, rebuild: Rebuilder? = null) {
    val lab = Lab()
    val notices = mutableListOf<Notice>()
    private val options = Options(path = "", profile = "walker", needsCredentials = credentials != null)
    private val host = HostOf(credentials, rebuild) { synchronized(notices) { notices.add(it) } }
    lateinit var core: Core
    lateinit var outbox: Outbox
    lateinit var actions: Actions

    init {
        start()
    }

    fun start() {
        core = lab.open(options, host)
        outbox = Outbox(core, Outbox.notices())
        actions = Actions(outbox, ROUTES)
    }

    fun answers(vararg answers: String) = lab.answers(answers.joinToString(",", "[", "]"))

    fun seen(): JsonNode = json.readTree(lab.seen())

    suspend fun allocate(key: String = UUID.randomUUID().toString(), user: String = "w1") =
        actions.accept(user, "tree.allocate", "{\"points\":1}", key).receipt

    suspend fun result(receipt: Receipt) =
        SyncResult.of(outbox.get(receipt.id, receipt.principal, receipt.operation)!!)
}

private fun refusal(status: Int, code: String) = "{\"status\":$status,\"body\":\"{\\\"error\\\":\\\"$code\\\"}\"}"

class WalkerTest {
    /** S0-121, S0-122, S0-123, S0-125. */
    @Test
    fun bothIdsAndBothTimesAreStoredAndSent() = runBlocking<Unit> {
        val phone = Phone()
        val key = UUID.randomUUID().toString()
        val number = phone.actions.enqueue("w1", "quest.advance", "{\"questId\":\"q 7\"}", key, 1_767_225_000_000)
        val receipt = phone.outbox.get(key, "w1", "quest.advance")!!
        assertEquals(number, receipt.number)
        assertEquals(1_767_225_000_000, receipt.generatedAtMillis)
        assertTrue(receipt.acceptedAtMillis > receipt.generatedAtMillis)
        assertEquals(36, receipt.txId.length)
        assertEquals("https://api.example/quest/q%207/advance", receipt.url)
        phone.lab.advance(0uL)
        val body = json.readTree(phone.seen()["bodies"][0].asText())
        assertEquals(key, body["idempotencyKey"].asText())
        assertEquals("2025-12-31T23:50:00Z", body["clientGeneratedAt"].asText())
        assertEquals(key, phone.seen()["sends"][0][0].asText())
    }

    /** S0-117, S0-142. */
    @Test
    fun aKeyStaysTheSameOverFailuresAndRestarts() = runBlocking<Unit> {
        val phone = Phone()
        phone.answers("\"lost\"")
        val receipt = phone.allocate()
        phone.lab.advance(0uL)
        phone.lab.kill()
        phone.lab.open(Options(path = "", profile = "walker"), HostOf(null, null) {})
        phone.lab.advance(60_000uL)
        val keys = phone.seen()["sends"].map { it[0].asText() }.toSet()
        assertEquals(setOf(receipt.id), keys)
        assertTrue(phone.seen()["sends"].size() > 1)
        assertEquals(1, phone.seen()["effects"].size())
    }

    /** S0-126 to S0-134, S0-137, S0-138, S0-144, S0-145. */
    @Test
    fun answersAreReadByTheirCodes() = runBlocking<Unit> {
        val rows = listOf(
            Triple("\"ok\"", SyncResult.Success, null),
            Triple(refusal(409, "IDEMPOTENCY_CONFLICT"), SyncResult.PermanentDrop("idempotency-conflict"), NoticeKind.CONFLICT),
            Triple(refusal(409, "ALREADY_ALLOCATED"), SyncResult.Success, null),
            Triple(refusal(409, "QUEST_ALREADY_COMPLETED"), SyncResult.Success, null),
            Triple(refusal(422, "STALE_ACTION"), SyncResult.PermanentDrop("stale-action"), NoticeKind.EXPIRED),
            Triple(refusal(422, "PREREQUISITES_NOT_MET"), SyncResult.PermanentDrop("prereq-slipped"), NoticeKind.NO_LONGER_VALID),
            Triple(refusal(422, "INSUFFICIENT_POINTS"), SyncResult.PermanentDrop("points-changed"), NoticeKind.NO_LONGER_VALID),
            Triple(refusal(422, "STEP_OUT_OF_ORDER"), SyncResult.RebuildQueue, null),
            Triple(refusal(422, "ORDERING_VIOLATION"), SyncResult.RebuildQueue, null),
            Triple(refusal(400, "NONSENSE"), SyncResult.PermanentDrop("bad-request"), NoticeKind.BAD_REQUEST),
            Triple(refusal(401, "EXPIRED"), SyncResult.AuthRefresh, NoticeKind.SIGN_IN),
            Triple(refusal(500, "OOPS"), SyncResult.Transient, null),
        )
        for ((answer, result, notice) in rows) {
            val phone = Phone()
            phone.answers(answer)
            val receipt = phone.allocate()
            phone.lab.advance(0uL)
            assertEquals(result, phone.result(receipt), answer)
            assertEquals(result, SyncResult.of(phone.outbox.list().single()), "$answer, in a list")
            assertEquals(listOfNotNull(notice), phone.notices.map { it.kind }, answer)
        }
        val phone = Phone()
        phone.answers(refusal(409, "IDEMPOTENCY_CONFLICT"))
        phone.allocate()
        phone.lab.advance(0uL)
        assertEquals(Severity.ERROR, phone.notices.single().severity)
    }

    /** S0-131. */
    @Test
    fun anUnknownRefusalIsTriedOnceMore() = runBlocking<Unit> {
        val phone = Phone()
        phone.answers(refusal(422, "X"), refusal(422, "X"))
        val receipt = phone.allocate()
        phone.lab.advance(3_600_000uL)
        assertEquals(2, phone.seen()["sends"].size())
        assertEquals(SyncResult.PermanentDrop("unknown-422"), phone.result(receipt))
    }

    /** S0-40, S0-49, S0-136, S0-154: found here or by the server, one notice and one event tell of all that went in one go. */
    @Test
    fun whatExpiresIsToldAlikeAndOnceADrain() = runBlocking<Unit> {
        val here = Phone()
        here.lab.network(true)
        repeat(3) { here.allocate() }
        here.lab.kill()
        here.lab.advance(8uL * DAY)
        here.start()
        here.lab.advance(0uL)
        assertEquals(0, here.seen()["sends"].size())
        val server = Phone()
        server.answers(*Array(3) { refusal(422, "STALE_ACTION") })
        server.outbox.pause("w1")
        repeat(3) { server.allocate() }
        server.outbox.resume("w1")
        server.lab.advance(0uL)
        for (phone in listOf(here, server)) {
            assertEquals(listOf(NoticeKind.EXPIRED), phone.notices.map { it.kind })
            assertEquals(3, phone.notices.single().receipts.size)
            val event = phone.core.events(0, 1000u, 0uL).single { it.kind == "expired" }
            assertEquals(phone.outbox.list().map { it.id }, event.ids)
            assertEquals(phone.outbox.list().map { it.number }, event.messageNumbers)
            assertTrue(phone.outbox.list().all { SyncResult.of(it) == SyncResult.PermanentDrop("stale-action") })
        }
    }

    /** S0-133. */
    @Test
    fun aRefusedCredentialPausesAndDeletesNothing() = runBlocking<Unit> {
        var token: String? = "old"
        val phone = Phone({ principal, _ -> token?.let { Credential(principal, listOf(Header("authorization", it))) } })
        phone.answers(refusal(401, "EXPIRED"))
        val receipts = List(3) { phone.allocate() }
        phone.lab.advance(3_600_000uL)
        assertEquals(1, phone.seen()["sends"].size())
        assertEquals(3, phone.actions.waiting("w1").size)
        assertEquals(listOf(NoticeKind.SIGN_IN), phone.notices.map { it.kind })
        token = "new"
        phone.outbox.signIn("w1")
        phone.lab.advance(0uL)
        assertEquals(receipts.map { it.id }, phone.seen()["effects"].map { it.asText() })
        assertEquals("new", phone.seen()["credentials"].last().asText())
        token = null
        phone.outbox.signOut("w1")
        val parked = phone.allocate()
        phone.lab.advance(60_000uL)
        assertEquals(SyncResult.AuthRefresh, phone.result(parked))
    }

    /** S0-139, S0-147: the app asks the server which step is next, and drops what does not fit. */
    @Test
    fun stepsOutOfOrderAreRebuiltByTheApp() = runBlocking<Unit> {
        val asked = mutableListOf<String>()
        val phone = Phone(rebuild = { held, behind ->
            kotlinx.coroutines.delay(20) // It fetches /quest/available.
            asked.add(held.id)
            Rebuild.Replace(behind.filter { it.operation == held.operation }.map { it.number }, emptyList())
        })
        phone.answers(refusal(422, "STEP_OUT_OF_ORDER"))
        phone.outbox.pause("w1")
        val third = phone.actions.accept("w1", "quest.advance", "{\"questId\":\"q1\",\"step\":3}").receipt
        val fourth = phone.actions.accept("w1", "quest.advance", "{\"questId\":\"q1\",\"step\":4}").receipt
        val other = phone.allocate()
        phone.outbox.resume("w1")
        phone.lab.advance(0uL)
        assertEquals(listOf(third.id), asked)
        assertEquals(Status.ABORTED, phone.outbox.get(fourth.id, "w1", "quest.advance")!!.status)
        assertEquals(SyncResult.Success, phone.result(other))
        assertEquals(listOf(NoticeKind.REBUILT), phone.notices.map { it.kind })
    }

    @Test
    fun aRebuildThatFailsIsAskedForAgain() = runBlocking<Unit> {
        var tries = 0
        val phone = Phone(rebuild = { held, _ ->
            if (++tries < 3) throw java.io.IOException("no network")
            Rebuild.Replace(emptyList(), listOf(Message("POST", held.url, emptyList(), ByteArray(0), principal = "w1")))
        })
        phone.answers(refusal(422, "STEP_OUT_OF_ORDER"))
        val refused = phone.allocate()
        phone.lab.advance(600_000uL)
        assertEquals(3, tries)
        val old = phone.outbox.get(refused.id, "w1", "tree.allocate")!!
        assertEquals(Status.DONE, phone.outbox.get(old.supersededBy!!)!!.status)
    }

    /** S0-124, S0-143. */
    @Test
    fun anIdIsAUsersForOneKindOfAction() = runBlocking<Unit> {
        val phone = Phone()
        val key = UUID.randomUUID().toString()
        val first = phone.allocate(key)
        val again = phone.actions.accept("w1", "tree.allocate", "{\"points\":1}", key, 5)
        assertTrue(again.wasKnown)
        assertEquals(first.number, again.receipt.number)
        assertEquals(first.generatedAtMillis, again.receipt.generatedAtMillis)
        phone.allocate(key, "w2")
        phone.actions.enqueue("w1", "quest.complete", "{\"questId\":\"q1\"}", key)
        assertEquals(3, phone.outbox.list().size)
        assertThrows(CoreException.Refused::class.java) {
            runBlocking { phone.actions.enqueue("w1", "tree.allocate", "{\"points\":2}", key) }
        }
    }

    /** S0-118, S0-119, S0-120. */
    @Test
    fun anOlderQueueIsImportedOnceAndWhole() = runBlocking<Unit> {
        val file = File.createTempFile("older", ".db").apply { deleteOnExit() }
        val sql = File(tree(), "clients/core/tests/offline_actions.sql")
        val made = ProcessBuilder("python3", "-c", "import sqlite3,sys;sqlite3.connect(sys.argv[1]).executescript(open(sys.argv[2]).read())", file.path, sql.path).inheritIO().start()
        assertEquals(0, made.waitFor())
        val phone = Phone()
        val routes = ROUTES.map { (kind, route) -> Route(kind, route.method, route.url) }
        val imported = phone.outbox.importQueue(file.path, "offline_actions", routes)
        assertEquals(Imported(4uL, 0uL), imported)
        assertEquals(Imported(0uL, 4uL), phone.outbox.importQueue(file.path, "offline_actions", routes))
        val all = phone.outbox.list()
        assertEquals(listOf("w1", "w1", "w1", "w2").map { it.replace("w", "walker-") }, all.map { it.principal })
        assertEquals("0f8fad5b-d9cb-469f-a165-70867728950e", all[0].id)
        assertEquals(4, all.map { it.id }.toSet().size)
        assertEquals(1_767_225_660_000, all[1].generatedAtMillis)
        phone.lab.advance(0uL)
        assertEquals(all.map { it.id }.toSet(), phone.seen()["effects"].map { it.asText() }.toSet())
    }

    @Test
    fun aCancelledCoroutineForgetsNothing() = runBlocking<Unit> {
        val phone = Phone()
        val ids = List(20) { UUID.randomUUID().toString() }
        for (id in ids) {
            val job = launch(Dispatchers.Default, CoroutineStart.UNDISPATCHED) { phone.allocate(id) }
            job.cancelAndJoin()
        }
        phone.lab.advance(0uL)
        val effects = phone.seen()["effects"].map { it.asText() }.toSet()
        // What was asked for was accepted, although nobody waited for it.
        assertEquals(ids.toSet(), effects)
        assertFalse(phone.outbox.lanes().any { it.depth > 0uL })
    }
}
