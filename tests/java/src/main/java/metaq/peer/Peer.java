package metaq.peer;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

import org.codehaus.jackson.map.ObjectMapper;

/**
 * The real metaq client, driven by lines: {@code Peer <zkConnect> [command ...]}.
 *
 * <p>Without a command it reads commands from standard input, one a line, words separated by one blank, and answers each
 * with one line of JSON, so that one warm JVM serves many measurements. With a command it runs that one and ends with code
 * 0, or 1 if the answer holds an "error". A failing command answers {@code {"error": ...}}; the process goes on.
 */
public final class Peer {

    private static final ObjectMapper JSON = new ObjectMapper();

    /** Takes the words after the command's name, returns the answer's fields. */
    interface Command {
        Map<String, Object> run(String[] arguments) throws Exception;
    }

    private Peer() {
    }

    public static void main(final String[] args) throws Exception {
        if (args.length == 0) {
            System.err.println("usage: Peer <zkConnect> [command ...]");
            System.exit(2);
        }
        // the client library may print to standard output, which belongs to the answers
        final PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        boolean failed = false;
        try (Session session = new Session(args[0]); Factories factories = new Factories(session)) {
            final Map<String, Command> commands = commands(session, factories);
            if (args.length > 1) {
                final Map<String, Object> answer = answer(commands, Arrays.copyOfRange(args, 1, args.length));
                answers.println(JSON.writeValueAsString(answer));
                failed = answer.containsKey("error");
            }
            else {
                serve(commands, answers);
            }
        }
        System.exit(failed ? 1 : 0);
    }

    private static Map<String, Command> commands(final Session session, final Factories factories) {
        final Map<String, Command> commands = new LinkedHashMap<>();
        new Sending(session).addTo(commands);
        new Receiving(session).addTo(commands);
        new Latency(session).addTo(commands);
        factories.addTo(commands);
        new Members(factories).addTo(commands);
        new Asking(factories).addTo(commands);
        final Producers producers = new Producers(factories);
        producers.addTo(commands);
        new Bursts(producers).addTo(commands);
        new Transactions(producers).addTo(commands);
        new Journal(session).addTo(commands);
        return commands;
    }

    private static void serve(final Map<String, Command> commands, final PrintStream answers) throws IOException {
        final BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(JSON.writeValueAsString(answer(commands, line.split(" ", -1))));
        }
    }

    private static Map<String, Object> answer(final Map<String, Command> commands, final String[] words) {
        final Command command = commands.get(words[0]);
        if (command == null) {
            return Map.of("error", "unknown command '" + words[0] + "', known are " + commands.keySet());
        }
        try {
            return command.run(Arrays.copyOfRange(words, 1, words.length));
        }
        catch (final ArrayIndexOutOfBoundsException missing) {
            return Map.of("error", "too few words: " + String.join(" ", words));
        }
        catch (final Exception failure) {
            return Map.of("error", failure.toString());
        }
    }
}
