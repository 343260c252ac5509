package metaq.peer;

import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendResult;

/**
 * The commands of long runs: what is received and what is acknowledged goes line by line into a file, unbuffered, so that
 * a process killed at any moment has written down all that it can have committed. tests/soak/history.py reads the files.
 */
final class Journal {

    private final Session session;
    private final Map<String, MessageConsumer> followers = new ConcurrentHashMap<>();
    private final Map<String, Stream> streams = new ConcurrentHashMap<>();

    Journal(final Session session) {
        this.session = session;
    }

    void addTo(final Map<String, Peer.Command> commands) {
        commands.put("follow", words -> this.follow(words[0], words[1], words[2], words[3]));
        commands.put("unfollow", words -> this.unfollow(words[0]));
        commands.put("connections", words -> Map.of("connections", this.session.connections(words[0])));
        commands.put("stream", words -> this.stream(words[0], words[1], words[2], Long.parseLong(words[3])));
        commands.put("unstream", words -> this.unstream(words[0]));
    }

    /** {@code follow <topic> <group> <consumer id> <file>}: a member that writes what it receives into the file. */
    private Map<String, Object> follow(final String topic, final String group, final String id, final String file)
            throws Exception {
        final ConsumerConfig config = new ConsumerConfig(group);
        config.setConsumerId(id);
        this.followers.put(group, this.session.consume(topic, config, new Follower(file)));
        return Map.of("following", topic);
    }

    /** {@code unfollow <group>}: commit, release and leave. */
    private Map<String, Object> unfollow(final String group) throws Exception {
        this.followers.remove(group).shutdown();
        return Map.of("left", group);
    }

    /**
     * {@code stream <topic> <producer> <file> <pause in ms>}: sends "producer number", number 0, 1, 2 …, one after the
     * other, and writes down what is acknowledged. A failed number is not sent again.
     */
    private Map<String, Object> stream(final String topic, final String producer, final String file, final long pause)
            throws IOException {
        final Stream stream = new Stream(this.session.producerOf(topic), topic, producer, file, pause);
        this.streams.put(producer, stream);
        stream.start();
        return Map.of("streaming", topic);
    }

    /** {@code unstream <producer>}: stop sending; answers how many were tried and how many acknowledged. */
    private Map<String, Object> unstream(final String producer) throws Exception {
        final Stream stream = this.streams.remove(producer);
        return Map.of("tried", stream.end(), "acknowledged", stream.acknowledged);
    }

    private static final class Follower implements MessageListener {

        private final FileOutputStream file;

        Follower(final String path) throws IOException {
            this.file = new FileOutputStream(path, true);
        }

        @Override
        public synchronized void recieveMessages(final Message message) {
            final long now = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
            final String text = new String(message.getData(), StandardCharsets.US_ASCII);
            try {
                final String line = now + " " + message.getPartition() + " " + message.getId() + " " + text + "\n";
                this.file.write(line.getBytes(StandardCharsets.US_ASCII));
            }
            catch (final IOException failure) {
                throw new IllegalStateException(failure); // not processed: the client delivers it again
            }
        }

        @Override
        public Executor getExecutor() {
            return null;
        }
    }

    private static final class Stream extends SendingThread {

        private volatile long acknowledged;

        Stream(final MessageProducer producer, final String topic, final String name, final String file,
                final long pause) throws IOException {
            super(producer, topic, name, file, pause);
        }

        @Override
        protected void acknowledged(final long begun, final Message message, final SendResult result) throws IOException {
            this.write(text(message) + " " + result.getPartition() + " " + result.getOffset());
            this.acknowledged++;
        }

        @Override
        protected void failed(final long begun, final Message message, final String reason) {
            System.err.println(text(message) + ": " + reason);
        }
    }
}
