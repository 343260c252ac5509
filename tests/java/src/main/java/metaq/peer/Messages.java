package metaq.peer;

import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.producer.SendResult;

/** Messages and send results as words and as fields of an answer. Data is base64; no attribute word means null. */
final class Messages {

    private Messages() {
    }

    /** The message in the words from `first` on: topic, data and perhaps an attribute, which may be the empty text. */
    static Message of(final String[] words, final int first) {
        final byte[] data = Base64.getDecoder().decode(words[first + 1]);
        return new Message(words[first], data, words.length > first + 2 ? words[first + 2] : null);
    }

    static Map<String, Object> fields(final Message message) {
        final Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", message.getTopic());
        fields.put("id", message.getId());
        fields.put("partition", String.valueOf(message.getPartition()));
        fields.put("attribute", message.getAttribute());
        fields.put("data", Base64.getEncoder().encodeToString(message.getData()));
        return fields;
    }

    /** What an application sees after a send, successful or not; `id` is the message's own after it. */
    static Map<String, Object> fields(final Message message, final SendResult result) {
        final Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("success", result.isSuccess());
        fields.put("id", message.getId());
        fields.put("partition", result.getPartition() == null ? null : result.getPartition().toString());
        fields.put("offset", result.getOffset());
        fields.put("reason", result.getErrorMessage());
        return fields;
    }
}
