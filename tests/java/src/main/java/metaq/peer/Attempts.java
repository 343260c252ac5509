package metaq.peer;

import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.codehaus.jackson.map.ObjectMapper;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendResult;
import com.taobao.metamorphosis.exception.MetaClientException;

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

    /** Pause after a failed send: a broker that is away answers at once. */
    private static final long FAILURE_PAUSE_MS = 100;

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
        final Sender sender = this.senders.remove(name);
        sender.running = false;
        sender.join();
        return Map.of("tried", sender.number);
    }

    private static final class Sender extends Thread {

        private final MessageProducer producer;
        private final String topic;
        private final FileOutputStream file;
        private final long pause;
        private volatile long number;
        private volatile boolean running = true;

        Sender(final MessageProducer producer, final String topic, final String name, final String file, final long pause)
                throws IOException {
            super(name);
            this.setDaemon(true);
            this.producer = producer;
            this.topic = topic;
            this.file = new FileOutputStream(file, true);
            this.pause = pause;
        }

        @Override
        public void run() {
            try {
                while (this.running) {
                    Thread.sleep(this.sendNext() ? this.pause : FAILURE_PAUSE_MS);
                }
            }
            catch (final InterruptedException | IOException end) {
                throw new IllegalStateException(end);
            }
        }

        private boolean sendNext() throws InterruptedException, IOException {
            final String text = this.getName() + " " + this.number++;
            final Message message = new Message(this.topic, text.getBytes(StandardCharsets.US_ASCII));
            final double begun = now();
            final SendResult result;
            try {
                result = this.producer.sendMessage(message);
            }
            catch (final MetaClientException away) {
                this.write("fail", begun, text, String.valueOf(away.getMessage()));
                return false;
            }
            if (!result.isSuccess()) {
                this.write("fail", begun, text, String.valueOf(result.getErrorMessage()));
                return false;
            }
            this.write("ack", begun, text, result.getPartition().toString(), result.getOffset(), message.getId());
            return true;
        }

        private void write(final String kind, final double begun, final Object... values) throws IOException {
            final List<Object> line = new ArrayList<>(List.of(kind, now(), begun));
            line.addAll(List.of(values));
            this.file.write((JSON.writeValueAsString(line) + "\n").getBytes(StandardCharsets.UTF_8));
        }

        private static double now() {
            return System.nanoTime() / 1e9;
        }
    }
}
