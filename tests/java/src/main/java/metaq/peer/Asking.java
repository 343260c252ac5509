package metaq.peer;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MessageSessionFactory;
import com.taobao.metamorphosis.client.StatsResult;
import com.taobao.metamorphosis.client.TopicBrowser;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.cluster.Partition;
import com.taobao.metamorphosis.consumer.MessageIterator;
import com.taobao.metamorphosis.exception.MetaClientException;

/** Questions: statistics, partitions, a browsed topic, one direct fetch. */
final class Asking {

    private static final int TIMEOUT_SECONDS = 10;

    private final Factories factories;

    Asking(final Factories factories) {
        this.factories = factories;
    }

    void addTo(final Map<String, Peer.Command> commands) {
        commands.put("stats", words -> this.stats(words.length > 0 ? words[0] : null));
        commands.put("partitions", words -> this.partitions(words[0]));
        commands.put("browse", words -> this.browse(words[0], Integer.parseInt(words[1])));
        commands.put("get", words -> this.get(words[0], new Partition(words[1]), Long.parseLong(words[2]),
            Integer.parseInt(words[3])));
    }

    private MessageSessionFactory factory() throws MetaClientException {
        return this.factories.of("plain");
    }

    /** {@code stats [<item>]}: of each connected broker, by its port; empty without a connection. */
    private Map<String, Object> stats(final String item) throws Exception {
        final Map<String, Object> fields = new LinkedHashMap<>();
        (item == null ? this.factory().getStats() : this.factory().getStats(item)).forEach(
            (address, result) -> fields.put(String.valueOf(address.getPort()), values(result)));
        return Map.of("brokers", fields);
    }

    private static Map<String, String> values(final StatsResult result) {
        return result.getAllValues();
    }

    private Map<String, Object> partitions(final String topic) throws MetaClientException {
        final List<String> names = new ArrayList<>();
        for (final Partition partition : this.factory().getPartitionsForTopic(topic)) {
            names.add(partition.toString());
        }
        return Map.of("partitions", names);
    }

    /** {@code browse <topic> <bytes of a fetch>}: everything in it, as often as its iterator gives it. */
    private Map<String, Object> browse(final String topic, final int maxSize) throws MetaClientException {
        final TopicBrowser browser = this.factory().createTopicBrowser(topic, maxSize, TIMEOUT_SECONDS, TimeUnit.SECONDS);
        try {
            final List<Object> messages = new ArrayList<>();
            for (final Iterator<Message> iterator = browser.iterator(); iterator.hasNext();) {
                messages.add(Messages.fields(iterator.next()));
            }
            return Map.of("messages", messages);
        }
        finally {
            browser.shutdown();
        }
    }

    /** {@code get <topic> <partition> <offset> <bytes>}: one fetch; `messages` is null when the broker gave no data. */
    private Map<String, Object> get(final String topic, final Partition partition, final long offset,
            final int maxSize) throws Exception {
        final MessageConsumer consumer = this.factory().createConsumer(new ConsumerConfig("direct-fetch"));
        try {
            final MessageIterator iterator =
                    consumer.get(topic, partition, offset, maxSize, TIMEOUT_SECONDS, TimeUnit.SECONDS);
            final Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("messages", iterator == null ? null : all(iterator));
            fields.put("bytes", iterator == null ? 0 : iterator.getOffset());
            return fields;
        }
        finally {
            consumer.shutdown();
        }
    }

    private static List<Object> all(final MessageIterator iterator) throws Exception {
        final List<Object> messages = new ArrayList<>();
        while (iterator.hasNext()) {
            messages.add(Messages.fields(iterator.next()));
        }
        return messages;
    }
}
