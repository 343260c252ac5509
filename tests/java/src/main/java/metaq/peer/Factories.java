package metaq.peer;

import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;

import com.taobao.metamorphosis.client.MessageSessionFactory;
import com.taobao.metamorphosis.client.MetaClientConfig;
import com.taobao.metamorphosis.client.MetaMessageSessionFactory;
import com.taobao.metamorphosis.client.XAMetaMessageSessionFactory;
import com.taobao.metamorphosis.client.extension.AsyncMetaMessageSessionFactory;
import com.taobao.metamorphosis.client.extension.MetaBroadcastMessageSessionFactory;
import com.taobao.metamorphosis.client.extension.OrderedMetaMessageSessionFactory;
import com.taobao.metamorphosis.exception.MetaClientException;

/** Session factories by name: each has its own connections and ZooKeeper session, as an application of its own would. */
final class Factories implements AutoCloseable {

    private final Session session;
    private final Map<String, MessageSessionFactory> factories = new ConcurrentHashMap<>();

    Factories(final Session session) {
        this.session = session;
    }

    void addTo(final Map<String, Peer.Command> commands) {
        commands.put("factory", words -> this.create(words[0], words[1],
            Options.of(words, 2, "server_url", "recover_ms", "partitions")));
        commands.put("close_factory", words -> this.shutdown(words[0]));
    }

    /** The factory of that name; a kind (plain, xa, ordered, async, broadcast) is a name of a default one of it. */
    MessageSessionFactory of(final String name) throws MetaClientException {
        if (!this.factories.containsKey(name)) {
            this.create(name, name, Options.of(new String[0], 0));
        }
        return this.factories.get(name);
    }

    /**
     * {@code factory <name> <kind> [server_url=meta://…] [recover_ms=…] [partitions=<topic>:<broker>:<count>]}: a URL
     * makes it a direct one, without ZooKeeper; the partitions are those an ordered producer has configured.
     */
    private Map<String, Object> create(final String name, final String kind, final Options options)
            throws MetaClientException {
        final MetaClientConfig config = this.session.config();
        config.setServerUrl(options.text("server_url", null));
        config.setRecoverMessageIntervalInMills(options.number("recover_ms", config.getRecoverMessageIntervalInMills()));
        if (options.has("partitions")) {
            final String[] parts = options.text("partitions", "").split(":", 2);
            final Properties configured = new Properties();
            configured.setProperty("topic.num." + parts[0], parts[1]);
            config.setPartitionsInfo(configured);
        }
        this.factories.put(name, make(kind, config));
        return Map.of("factory", name);
    }

    private static MessageSessionFactory make(final String kind, final MetaClientConfig config)
            throws MetaClientException {
        switch (kind) {
        case "plain":
            return new MetaMessageSessionFactory(config);
        case "xa":
            return new XAMetaMessageSessionFactory(config);
        case "ordered":
            return new OrderedMetaMessageSessionFactory(config);
        case "async":
            return new AsyncMetaMessageSessionFactory(config);
        case "broadcast":
            return new MetaBroadcastMessageSessionFactory(config);
        default:
            throw new IllegalArgumentException("no factory '" + kind + "'");
        }
    }

    private Map<String, Object> shutdown(final String name) throws MetaClientException {
        this.factories.remove(name).shutdown();
        return Map.of("closed", name);
    }

    /** Shuts all down; one without ZooKeeper cannot be (a NullPointerException in 1.4.6.2), which is only logged. */
    @Override
    public void close() {
        for (final MessageSessionFactory factory : this.factories.values()) {
            try {
                factory.shutdown();
            }
            catch (final MetaClientException | NullPointerException failure) {
                failure.printStackTrace();
            }
        }
    }
}
