package metaq.peer;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;

/** Options of a command: words {@code name=value} in any order, cut at the first equals sign. */
final class Options {

    private final Map<String, String> values = new HashMap<>();

    private Options() {
    }

    /** The options in the words from `first` on; a word without `=` or with a name that is not known is an error. */
    static Options of(final String[] words, final int first, final String... known) {
        final Options options = new Options();
        for (final String word : Arrays.asList(words).subList(Math.min(first, words.length), words.length)) {
            final int equals = word.indexOf('=');
            if (equals < 0 || !Set.of(known).contains(word.substring(0, equals))) {
                throw new IllegalArgumentException("no option " + word + ", known are " + Arrays.toString(known));
            }
            options.values.put(word.substring(0, equals), word.substring(equals + 1));
        }
        return options;
    }

    boolean has(final String name) {
        return this.values.containsKey(name);
    }

    String text(final String name, final String otherwise) {
        return this.values.getOrDefault(name, otherwise);
    }

    long number(final String name, final long otherwise) {
        return this.has(name) ? Long.parseLong(this.values.get(name)) : otherwise;
    }
}
