package metaq.bench;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

import com.google.gson.Gson;

/**
 * The line protocol of bench/worker.py: a command a line, words separated by one blank, answered by one line of JSON. A
 * failed command answers {@code {"error": ...}}.
 */
public final class Lines {

    private static final Gson JSON = new Gson();

    private final Measurements measurements;

    private Lines(final Client client) {
        this.measurements = new Measurements(client);
    }

    /** The real standard output, for the answers; from now on libraries print to standard error. */
    public static PrintStream takeOutput() {
        final PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        return answers;
    }

    /** Answers standard input's lines until it ends. */
    public static void serve(final Client client, final PrintStream answers) throws IOException {
        final Lines lines = new Lines(client);
        final BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            answers.println(JSON.toJson(lines.answer(line.split(" ", -1))));
        }
    }

    private Map<String, Object> answer(final String[] words) {
        try {
            return this.run(words[0], Arrays.copyOfRange(words, 1, words.length));
        }
        catch (final ArrayIndexOutOfBoundsException missing) {
            return Map.of("error", "too few words: " + String.join(" ", words));
        }
        catch (final Exception failure) {
            failure.printStackTrace();
            return Map.of("error", failure.toString());
        }
    }

    private Map<String, Object> run(final String name, final String[] words) throws Exception {
        switch (name) {
            case "create_topics":
                return this.measurements.createTopics(partitions(words), false);
            case "create_flushed_topics":
                return this.measurements.createTopics(partitions(words), true);
            case "send_blocking":
                return this.measurements.sendBlocking(words[0], number(words, 1), number(words, 2), number(words, 3));
            case "send_async":
                return this.measurements.sendAsync(words[0], number(words, 1), number(words, 2), number(words, 3));
            case "send_batch":
                return this.measurements.sendBatch(words[0], number(words, 1), number(words, 2), number(words, 3));
            case "consume":
                return this.measurements.consume(words[0], words[1], number(words, 2), number(words, 3));
            case "latency":
                return this.measurements.latency(words[0], words[1], number(words, 2), number(words, 3),
                    number(words, 4), number(words, 5));
            case "delayed_blocking":
                return this.measurements.delayedBlocking(words[0], number(words, 1), number(words, 2),
                    number(words, 3), number(words, 4));
            case "delayed_async":
                return this.measurements.delayedAsync(words[0], number(words, 1), number(words, 2), number(words, 3),
                    number(words, 4));
            case "lateness":
                return this.measurements.lateness(words[0], words[1], number(words, 2), number(words, 3),
                    number(words, 4), number(words, 5));
            case "transactions":
                return this.measurements.transactions(words[0], number(words, 1), number(words, 2), number(words, 3));
            case "shared":
                return this.measurements.shared(words[0], words[1], number(words, 2), number(words, 3),
                    number(words, 5), number(words, 6), number(words, 7));
            default:
                throw new IllegalArgumentException("unknown command '" + name + "'");
        }
    }

    private static int number(final String[] words, final int index) {
        return Integer.parseInt(words[index]);
    }

    /** {@code name:partitions ...} */
    private static Map<String, Integer> partitions(final String[] words) {
        final Map<String, Integer> partitions = new LinkedHashMap<>();
        for (final String word : words) {
            final int colon = word.lastIndexOf(':');
            partitions.put(word.substring(0, colon), Integer.parseInt(word.substring(colon + 1)));
        }
        return partitions;
    }
}
