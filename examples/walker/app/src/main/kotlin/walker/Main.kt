// The app on a terminal: a line is a tap, and what the screen would show is printed.
package walker

import java.io.File
import java.io.IOException
import java.util.concurrent.ConcurrentHashMap
import kotlin.system.exitProcess
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.delay
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking

private const val HELP = """allocate NODE POINTS | start QUEST | advance QUEST STEP | complete QUEST
tree | quests | queue | counts | import FILE | clock DAYS | sign-out | sign-in | quit"""
private const val DAY_MILLIS = 86_400_000L

/** Counts here, and reports to the error stream. */
private class Counters : Telemetry {
    val counts = ConcurrentHashMap<String, Int>()

    override fun count(name: String) {
        counts.merge(name, 1, Int::plus)
    }

    override fun report(what: String) = System.err.println("REPORT $what")
}

private fun say(text: String) {
    println(text)
    System.out.flush()
}

fun main(arguments: Array<String>) {
    val (path, origin, name) = arguments
    val folder = File(path).apply { mkdirs() }
    val api = Api(origin)
    val counters = Counters()
    runBlocking(Dispatchers.Default) {
        var session = Game.known(folder)
        while (session == null) {
            session = try {
                api.signIn(name).also { Game.keep(folder, it) }
            } catch (error: IOException) {
                say("$name cannot sign in for the first time without a network ($error)")
                delay(1_000)
                null
            }
        }
        val game = Game(folder, api, origin, session, counters)
        launch { show(game) }
        say("ready")
        var clockMillis = 0L
        while (true) {
            val words = readlnOrNull()?.trim()?.split(Regex("\\s+")) ?: break
            if (words[0] == "quit") break
            if (words[0] == "clock") clockMillis = words[1].toLong() * DAY_MILLIS
            try {
                tap(game, words, System.currentTimeMillis() + clockMillis)?.let(::say)
                when (words[0]) {
                    "counts" -> counters.counts.toSortedMap().forEach { (what, count) -> say("count $what $count") }
                    "sign-in" -> game.signIn(api.signIn(name))
                }
            } catch (error: Exception) {
                say("failed: ${error.message}")
            }
        }
        game.close()
        exitProcess(0)
    }
}

private suspend fun tap(game: Game, words: List<String>, now: Long): String? {
    val number = { at: Int -> words[at].toInt() }
    val accepted = when (words[0]) {
        "allocate" -> if (words.size > 3) game.queue.allocate(words[1], number(2), words[3], now) else game.queue.allocate(words[1], number(2), at = now)
        "start" -> game.queue.start(number(1), now)
        "advance" -> game.queue.advance(number(1), number(2), now)
        "complete" -> game.queue.complete(number(1), now)
        else -> return look(game, words)
    }
    val receipt = accepted.receipt
    return if (accepted.wasKnown) "known ${titleOf(receipt)} ${receipt.id}" else "accepted ${titleOf(receipt)} ${receipt.id}"
}

private suspend fun look(game: Game, words: List<String>): String? {
    when (words[0]) {
        "tree" -> return game.refresh().let { game.screen.value.tree?.let(::line) ?: "tree unknown" }
        "quests" -> return game.quests().joinToString("\n") { "quest ${it.id} ${it.status} ${it.step}/${it.steps} ${it.title}" }
        "queue" -> return waitingOf(game.queue.waiting()).joinToString("") { "queue: $it\n" } + "queue end"
        "import" -> return game.queue.importOlder(words[1]).let { "imported ${it.imported}, known ${it.known}" }
        "sign-out" -> return game.signOut().let { "signed out" }
        "clock", "counts", "sign-in", "" -> return null
        else -> return HELP
    }
}

private fun line(tree: Tree) = "tree ${tree.banked} banked, ${tree.points.toSortedMap().entries.joinToString { "${it.key} ${it.value}" }}"

/** Prints what changes on the screen. */
private suspend fun show(game: Game) {
    var before = Screen()
    game.screen.collect { now ->
        now.notices.drop(before.notices.size).forEach { say("notice: $it") }
        if (now.tree != before.tree && now.tree != null) say(line(now.tree))
        if (now.waiting != before.waiting) say(now.waiting.firstOrNull()?.let { "$it (${now.waiting.size} in all)" } ?: "nothing waits")
        before = now
    }
}
