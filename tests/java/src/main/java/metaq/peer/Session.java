package metaq.peer;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import com.taobao.metamorphosis.client.MessageSessionFactory;
import com.taobao.metamorphosis.client.MetaClientConfig;
import com.taobao.metamorphosis.client.MetaMessageSessionFactory;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.exception.MetaClientException;
import com.taobao.metamorphosis.utils.ZkUtils.ZKConfig;

/** One client of the cluster at a ZooKeeper connect string: a factory, and one producer that publishes topics once. */
final class Session implements AutoCloseable {

    /** Bytes of one fetch, the value the client's own documentation uses. */
    private static final int FETCH_BYTES = 1024 * 1024;

    private static final int ZK_SESSION_TIMEOUT_MS = Integer.getInteger("metaq.peer.sessionTimeoutMs", 6000);
    private static final int ZK_SYNC_MS = 1000;

    private final String zkConnect;
    private final MessageSessionFactory factory;
    private final MessageProducer producer;
    private final Set<String> published = ConcurrentHashMap.newKeySet();

    Session(final String zkConnect) throws MetaClientException {
        this.zkConnect = zkConnect;
        this.factory = new MetaMessageSessionFactory(this.config());
        this.producer = this.factory.createProducer();
    }

    /** What every factory of this process starts from; the caller's to change. */
    MetaClientConfig config() {
        final ZKConfig zk = new ZKConfig();
        zk.zkConnect = this.zkConnect;
        zk.zkSessionTimeoutMs = ZK_SESSION_TIMEOUT_MS;
        zk.zkSyncTimeMs = ZK_SYNC_MS;
        final MetaClientConfig config = new MetaClientConfig();
        config.setZkConfig(zk);
        return config;
    }

    /** The producer, with the topic published. */
    MessageProducer producerOf(final String topic) {
        if (this.published.add(topic)) {
            this.producer.publish(topic);
        }
        return this.producer;
    }

    /** A started member of the group; everything except the group has the client's default. */
    MessageConsumer consume(final String topic, final String group, final MessageListener listener)
            throws MetaClientException {
        return this.consume(topic, new ConsumerConfig(group), listener);
    }

    /** A started member with a configuration of the caller's. */
    MessageConsumer consume(final String topic, final ConsumerConfig config, final MessageListener listener)
            throws MetaClientException {
        final MessageConsumer consumer = this.factory.createConsumer(config);
        consumer.subscribe(topic, FETCH_BYTES, listener);
        consumer.completeSubscribe();
        return consumer;
    }

    /** How many connections to the broker the client counts. */
    int connections(final String url) {
        return ((MetaMessageSessionFactory) this.factory).getRemotingClient().getConnectionCount(url);
    }

    @Override
    public void close() throws MetaClientException {
        this.factory.shutdown();
    }
}
