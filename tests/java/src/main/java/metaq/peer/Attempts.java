package metaq.peer;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.codehaus.jackson.map.ObjectMapper;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendResult;

/**
 * The commands of runs in which leaders fail: threads that send, and write down every send with its outcome. A line is JSON
 * as in tests/history/journal.py; its times are System.nanoTime() in seconds, which on Linux is Python's time.monotonic().
 *
 * <pre>
 * ack   ended, begun, text, partition, offset, id
 * fail  ended, begun, text, reason
 * </pre>
 */
final class Attempts {

    private static final ObjectMapper JSON = new ObjectMapper();

    private final Session session;
    private final Map<String, Sender> senders = new ConcurrentHashMap<>();

    Attempts(final Session session) {
        this.session = session;
    }

    void addTo(final Map<String, Peer.Command> commands) {
        commands.put("attempt", words -> this.attempt(words[0], words[1], words[2], Long.parseLong(words[3])));
        commands.put("give_up", words -> this.giveUp(words[0]));
    }

    /** {@code attempt <topic> <name> <file> <pause in ms>}: sends "name number", number 0, 1, 2 …; none of them again. */
    private Map<String, Object> attempt(final String topic, final String name, final String file, final long pause)
            throws IOException {
        final Sender sender = new Sender(this.session.producerOf(topic), topic, name, file, pause);
        this.senders.put(name, sender);
        sender.start();
        return Map.of("attempting", topic);
    }

    /** {@code give_up <name>}: stop sending; answers how many were tried. */
    private Map<String, Object> giveUp(final String name) throws Exception {
        return Map.of("tried", this.senders.remove(name).end());
    }

    private static final class Sender extends SendingThread {

        Sender(final MessageProducer producer, final String topic, final String name, final String file, final long pause)
                throws IOException {
            super(producer, topic, name, file, pause);
        }

        @Override
        protected void acknowledged(final long begun, final Message message, final SendResult result) throws IOException {
            this.write("ack", begun, text(message), result.getPartition().toString(), result.getOffset(), message.getId());
        }

        @Override
        protected void failed(final long begun, final Message message, final String reason) throws IOException {
            this.write("fail", begun, text(message), reason);
        }

        private void write(final String kind, final long begun, final Object... values) throws IOException {
            final List<Object> line = new ArrayList<>(List.of(kind, seconds(System.nanoTime()), seconds(begun)));
            line.addAll(List.of(values));
            this.write(JSON.writeValueAsString(line));
        }

        private static double seconds(final long nanos) {
            return nanos / 1e9;
        }
    }
}
