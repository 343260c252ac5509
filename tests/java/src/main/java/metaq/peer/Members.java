package metaq.peer;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MessageSessionFactory;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.LoadBalanceStrategy;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.SimpleMessageConsumer;
import com.taobao.metamorphosis.client.extension.BroadcastMessageSessionFactory;
import com.taobao.metamorphosis.consumer.ConsumerMessageFilter;
import com.taobao.metamorphosis.exception.MetaClientException;

/** Consumers by name with every setting an application may choose. Intervals are milliseconds, sizes bytes. */
final class Members {

    private static final String[] OPTIONS = { "group", "factory", "id", "partition", "offset", "from_max", "strategy",
        "retries", "max_delay", "commit", "size", "runners", "times", "acks", "executor", "filter", "reject", "server_url" };
    private static final int FETCH_BYTES = 1024 * 1024;

    private final Factories factories;
    private final Map<String, Member> members = new ConcurrentHashMap<>();

    Members(final Factories factories) {
        this.factories = factories;
    }

    void addTo(final Map<String, Peer.Command> commands) {
        commands.put("subscribe", words -> this.subscribe(words[0], words[1], Options.of(words, 2, OPTIONS)));
        commands.put("taken", words -> Map.of("messages", this.of(words[0]).listener.take()));
        commands.put("rejected", words -> Map.of("messages", this.of(words[0]).rejected));
        commands.put("unsubscribe", words -> this.shutdown(words[0]));
    }

    /**
     * {@code subscribe <name> <topic,topic,…> [option=value …]}: from_max=first|always, strategy=DEFAULT|CONSIST,
     * acks=manual, executor=pool, filter=<attribute that passes>, reject=keep|drop|local, times as in {@link Listener}.
     */
    private Map<String, Object> subscribe(final String name, final String topics, final Options options)
            throws MetaClientException {
        final Member member = new Member(options);
        final MessageSessionFactory factory = this.factories.of(options.text("factory", "plain"));
        final ConsumerConfig config = config(name, options);
        member.consumer = factory instanceof BroadcastMessageSessionFactory
                ? ((BroadcastMessageSessionFactory) factory).createBroadcastConsumer(config)
                : factory.createConsumer(config);
        member.reject(options.text("reject", "local"));
        for (final String topic : topics.split(",")) {
            member.consumer.subscribe(topic, (int) options.number("size", FETCH_BYTES), member.listener,
                filter(options.text("filter", null)));
        }
        member.consumer.completeSubscribe();
        this.members.put(name, member);
        return Map.of("group", config.getGroup());
    }

    private static ConsumerConfig config(final String name, final Options options) {
        final ConsumerConfig config = new ConsumerConfig(options.text("group", name));
        config.setConsumerId(options.text("id", null));
        config.setServerUrl(options.text("server_url", null));
        config.setPartition(options.text("partition", null));
        config.setOffset(options.number("offset", 0));
        if (options.has("from_max")) {
            config.setConsumeFromMaxOffset("always".equals(options.text("from_max", null)));
        }
        config.setLoadBalanceStrategyType(LoadBalanceStrategy.Type.valueOf(options.text("strategy", "DEFAULT")));
        config.setMaxFetchRetries((int) options.number("retries", config.getMaxFetchRetries()));
        config.setMaxDelayFetchTimeInMills(options.number("max_delay", 500));
        config.setCommitOffsetPeriodInMills(options.number("commit", 500));
        config.setFetchRunnerCount((int) options.number("runners", config.getFetchRunnerCount()));
        return config;
    }

    private static ConsumerMessageFilter filter(final String attribute) {
        return attribute == null ? null : (group, message) -> attribute.equals(message.getAttribute());
    }

    private Member of(final String name) {
        final Member member = this.members.get(name);
        if (member == null) {
            throw new IllegalStateException("no consumer " + name);
        }
        return member;
    }

    /** Shuts the consumer down, which commits and releases; answers what nobody has asked for yet. */
    private Map<String, Object> shutdown(final String name) throws MetaClientException {
        final Member member = this.of(name);
        member.consumer.shutdown();
        if (member.pool != null) {
            member.pool.shutdown();
        }
        this.members.remove(name);
        return Map.of("messages", member.listener.take());
    }

    private static final class Member {

        private final ExecutorService pool;
        private final Listener listener;
        private final List<Object> rejected = Collections.synchronizedList(new ArrayList<>());
        private MessageConsumer consumer;

        Member(final Options options) {
            this.pool = options.has("executor")
                    ? Executors.newSingleThreadExecutor(task -> new Thread(task, options.text("executor", null)))
                    : null;
            this.listener = new Listener((int) options.number("times", Integer.MAX_VALUE),
                "manual".equals(options.text("acks", "auto")), this.pool);
        }

        void reject(final String policy) {
            if ("keep".equals(policy)) {
                this.consumer.setRejectConsumptionHandler(
                    (final Message message, final MessageConsumer ignored) -> this.rejected.add(Messages.fields(message)));
            }
            if ("drop".equals(policy)) {
                this.consumer.setRejectConsumptionHandler(new SimpleMessageConsumer.DropPolicy());
            }
        }
    }
}
