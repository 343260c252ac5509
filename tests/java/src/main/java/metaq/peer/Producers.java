package metaq.peer;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MessageSessionFactory;
import com.taobao.metamorphosis.client.XAMessageSessionFactory;
import com.taobao.metamorphosis.client.extension.AsyncMessageSessionFactory;
import com.taobao.metamorphosis.client.extension.producer.AsyncMessageProducer;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.PartitionSelector;
import com.taobao.metamorphosis.exception.MetaClientException;

/** Producers by name, and what an application does with one: publish, send in each of the client's ways, shut down. */
final class Producers {

    private static final int ASYNC_WINDOW = 1000;

    private final Factories factories;
    private final Map<String, MessageProducer> producers = new ConcurrentHashMap<>();

    Producers(final Factories factories) {
        this.factories = factories;
    }

    void addTo(final Map<String, Peer.Command> commands) {
        commands.put("producer", words -> this.create(words[0], Options.of(words, 1, "factory", "selector", "topic")));
        commands.put("default_topic", words -> this.setDefaultTopic(words[0], words[1]));
        commands.put("send", words -> this.send(words[0], Messages.of(words, 1)));
        commands.put("send_oneway", words -> this.sendOneway(words[0], Messages.of(words, 1)));
        commands.put("close_producer", words -> this.shutdown(words[0]));
    }

    MessageProducer of(final String name) {
        final MessageProducer producer = this.producers.get(name);
        if (producer == null) {
            throw new IllegalStateException("no producer " + name);
        }
        return producer;
    }

    /**
     * {@code producer <name> [factory=<name or kind>] [selector=…] [topic=…]}: makes it unless it exists; publishes the
     * topic. The kind of factory decides which kind of producer it is.
     */
    private Map<String, Object> create(final String name, final Options options) throws MetaClientException {
        if (!this.producers.containsKey(name)) {
            this.producers.put(name, make(this.factories.of(options.text("factory", "plain")),
                Selectors.of(options.text("selector", "roundrobin"))));
        }
        if (options.has("topic")) {
            this.of(name).publish(options.text("topic", null));
        }
        return Map.of("producer", name);
    }

    private static MessageProducer make(final MessageSessionFactory factory, final PartitionSelector selector) {
        if (factory instanceof XAMessageSessionFactory) {
            return ((XAMessageSessionFactory) factory).createXAProducer(selector);
        }
        if (factory instanceof AsyncMessageSessionFactory) {
            return ((AsyncMessageSessionFactory) factory).createAsyncProducer(selector, ASYNC_WINDOW);
        }
        return factory.createProducer(selector);
    }

    private Map<String, Object> setDefaultTopic(final String name, final String topic) {
        this.of(name).setDefaultTopic(topic);
        return Map.of("default", topic);
    }

    /** {@code send <producer> <topic> <data> [<attribute>]}: waits; a refusal is an answer, an exception an error. */
    private Map<String, Object> send(final String name, final Message message) throws Exception {
        return Messages.fields(message, this.of(name).sendMessage(message));
    }

    /** {@code send_oneway <producer> <topic> <data> [<attribute>]}: the asynchronous producer's way, which never fails. */
    private Map<String, Object> sendOneway(final String name, final Message message) {
        ((AsyncMessageProducer) this.of(name)).asyncSendMessage(message, 1, TimeUnit.SECONDS);
        return new LinkedHashMap<>();
    }

    private Map<String, Object> shutdown(final String name) throws MetaClientException {
        this.of(name).shutdown();
        this.producers.remove(name);
        return Map.of("closed", name);
    }
}
