package metaq.peer;

import java.util.LinkedHashMap;
import java.util.Map;

/** How a measured number of messages is reported. */
final class Rate {

    private Rate() {
    }

    static Map<String, Object> of(final int count, final long nanos) {
        final Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("count", count);
        fields.put("seconds", nanos / 1e9);
        fields.put("rate", count * 1e9 / nanos);
        return fields;
    }
}
