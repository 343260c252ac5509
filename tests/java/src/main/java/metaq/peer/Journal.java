package metaq.peer;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;

/** The commands of runs with kills: what is sent and what is received goes line by line into a file (Lines). */
final class Journal {

    private final Session session;
    private final Map<String, MessageConsumer> followers = new ConcurrentHashMap<>();
    private final Map<String, SendingThread> senders = new ConcurrentHashMap<>();

    Journal(final Session session) {
        this.session = session;
    }

    void addTo(final Map<String, Peer.Command> commands) {
        commands.put("follow", words -> this.follow(words[0], words[1], words[2], words[3]));
        commands.put("unfollow", words -> this.unfollow(words[0]));
        commands.put("connections", words -> Map.of("connections", this.session.connections(words[0])));
        commands.put("attempt", words -> this.attempt(words[0], words[1], words[2], Long.parseLong(words[3])));
        commands.put("give_up", words -> this.giveUp(words[0]));
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

    /** {@code attempt <topic> <name> <file> <pause in ms>}: a SendingThread. */
    private Map<String, Object> attempt(final String topic, final String name, final String file, final long pause)
            throws IOException {
        final SendingThread sender = new SendingThread(this.session.producerOf(topic), topic, name, file, pause);
        this.senders.put(name, sender);
        sender.start();
        return Map.of("attempting", topic);
    }

    /** {@code give_up <name>}: stop sending; answers how many were tried. */
    private Map<String, Object> giveUp(final String name) throws Exception {
        return Map.of("tried", this.senders.remove(name).end());
    }

    /** Writes {@code got time, "topic partition", id, text}; the client does not tell its application the offset. */
    private static final class Follower implements MessageListener {

        private final Lines lines;

        Follower(final String path) throws IOException {
            this.lines = new Lines(path);
        }

        @Override
        public void recieveMessages(final Message message) {
            final double now = Lines.seconds(System.nanoTime());
            final String text = new String(message.getData(), StandardCharsets.US_ASCII);
            final String partition = message.getTopic() + " " + message.getPartition();
            try {
                this.lines.write("got", now, partition, message.getId(), text);
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
}
