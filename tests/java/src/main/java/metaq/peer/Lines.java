package metaq.peer;

import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;

import org.codehaus.jackson.map.ObjectMapper;

/**
 * A file of facts, a line of JSON each, as tests/kills/journal.py reads it. Unbuffered, so that a process killed at any
 * moment has written down all that it has done. Times are System.nanoTime() in seconds, which on Linux is Python's
 * time.monotonic().
 */
final class Lines {

    private static final ObjectMapper JSON = new ObjectMapper();

    private final FileOutputStream file;

    /** The file is appended to. */
    Lines(final String path) throws IOException {
        this.file = new FileOutputStream(path, true);
    }

    synchronized void write(final Object... values) throws IOException {
        this.file.write((JSON.writeValueAsString(values) + "\n").getBytes(StandardCharsets.UTF_8));
    }

    static double seconds(final long nanos) {
        return nanos / 1e9;
    }
}
