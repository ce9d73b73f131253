// What is published: the jar's class files run on Java 11, and the library for this platform is in it and is found there.
package dev.semel

import java.io.File
import java.util.concurrent.TimeUnit
import java.util.zip.ZipFile
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** The version of class files of Java 11. */
private const val JAVA_11 = 55

/** A program that has the jar and runs the example of the README: it delivers one message and says what became of it. */
object JarUser {
    @JvmStatic
    fun main(arguments: Array<String>) = runBlocking {
        val (path, url) = arguments
        println(deliver(path, url, listOf(Header("content-type", "application/json")), "{}".toByteArray()).status)
    }
}

class JarTest {
    private val jar = File(System.getProperty("semel.jar"))

    @Test
    fun theJarHoldsTheLibraryAndClassFilesOfJava11() {
        ZipFile(jar).use { zip ->
            val names = zip.entries().toList().filter { !it.isDirectory }.map { it.name }
            val classes = names.filter { it.endsWith(".class") }
            val versions = classes.associateWith { name ->
                val head = zip.getInputStream(zip.getEntry(name)).use { it.readNBytes(8) }
                (head[6].toInt() and 0xff shl 8) or (head[7].toInt() and 0xff)
            }
            assertEquals(emptyList<Any>(), versions.filterValues { it != JAVA_11 }.entries.take(3))
            assertTrue(classes.containsAll(listOf("dev/semel/Outbox.class", "dev/semel/Actions.class", "dev/semel/Core.class")))
            assertTrue(classes.none { it.contains("Test") }, "the tests are not in it")
            val isRelease = System.getenv("SEMEL_CORE_PROFILE") == "release"
            assertEquals(isRelease, classes.none { it.startsWith("dev/semel/Lab") }, "what is published has no laboratory")
            val library = zip.getInputStream(zip.getEntry("linux-x86-64/libsemel_core.so")).use { it.readNBytes(4) }
            assertEquals("\u007fELF", String(library, Charsets.ISO_8859_1))
            val rest = names - classes.toSet() - "linux-x86-64/libsemel_core.so"
            assertTrue(rest.all { it.startsWith("META-INF/") }, "nothing else is in it: $rest")
        }
    }

    @Test
    fun theLibraryIsFoundInTheJar(@TempDir folder: File) {
        val classes = System.getProperty("java.class.path").split(File.pathSeparator)
        val built = File(System.getProperty("semel.classes")).canonicalPath
        val published = classes.map { if (File(it).canonicalPath == built) jar.path else it }
        assertTrue(published != classes, "the jar stands in the place of $built")
        Gate().use { gate ->
            val java = File(System.getProperty("java.home"), "bin/java").path
            val path = published.joinToString(File.pathSeparator)
            val process = ProcessBuilder(java, "-cp", path, "dev.semel.JarUser", File(folder, "orders.db").path, gate.url)
                .redirectError(ProcessBuilder.Redirect.INHERIT).start()
            assertEquals("DONE", process.inputStream.bufferedReader().readText().trim())
            assertTrue(process.waitFor(1, TimeUnit.MINUTES))
            assertEquals(1, gate.effects.size)
        }
    }
}
