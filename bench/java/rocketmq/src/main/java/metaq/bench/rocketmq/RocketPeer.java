package metaq.bench.rocketmq;

import java.io.PrintStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;

import metaq.bench.Client;
import metaq.bench.Lines;

/**
 * {@code RocketPeer <name server>}: RocketMQ's Java client behind the line protocol, with its default settings but for the
 * consumer's listener, which gets the messages of a pull at once.
 */
public final class RocketPeer implements Client {

    /** The topic whose route tells which brokers may create others. */
    private static final String DEFAULT_TOPIC = "TBW102";
    /** Most messages a broker returns in one pull from memory, by its default. */
    private static final int PULLED_AT_ONCE = 32;
    private static final int BATCHES_UNDER_WAY = 8;
    private static final int REGISTRATION_SECONDS = 60;
    /** The broker's name in peers.py. */
    private static final String BROKER = "peer";
    private static final int REQUEST_MILLIS = 10_000;
    /** Members ask the broker every 20 s what they may pop. */
    private static final long SETTLE_MILLIS = 25_000;

    private final String nameServer;
    private final DefaultMQProducer producer = new DefaultMQProducer("bench");
    /** Started when it is first used: it has a group of its own, as RocketMQ's documentation asks for. */
    private TransactionMQProducer transactional;
    /** Topic and group -> who takes the data of the members' messages. */
    private final Map<String, AtomicReference<Received>> shared = new HashMap<>();

    private RocketPeer(final String nameServer) throws Exception {
        this.nameServer = nameServer;
        this.producer.setNamesrvAddr(nameServer);
        this.producer.start();
    }

    public static void main(final String[] args) throws Exception {
        if (args.length != 1) {
            System.err.println("usage: RocketPeer <name server>");
            System.exit(2);
        }
        final PrintStream answers = Lines.takeOutput();
        try (RocketPeer peer = new RocketPeer(args[0])) {
            Lines.serve(peer, answers);
        }
        System.exit(0); // its timers are no daemon threads
    }

    @Override
    public void createTopics(final Map<String, Integer> partitions, final boolean flushed) throws Exception {
        if (flushed) {
            throw new UnsupportedOperationException("when to flush is a setting of the broker, not of a topic");
        }
        this.awaitBroker();
        for (final Map.Entry<String, Integer> topic : partitions.entrySet()) {
            this.producer.createTopic(DEFAULT_TOPIC, topic.getKey(), topic.getValue(), Map.of());
        }
    }

    /** A broker whose first registration was lost while the JVMs were cold registers again after 30 s. */
    private void awaitBroker() throws MQClientException, InterruptedException {
        final long deadline = System.nanoTime() + REGISTRATION_SECONDS * 1_000_000_000L;
        while (true) {
            try {
                this.producer.fetchPublishMessageQueues(DEFAULT_TOPIC);
                return;
            }
            catch (final MQClientException notYet) {
                if (System.nanoTime() > deadline) {
                    throw notYet;
                }
                Thread.sleep(200);
            }
        }
    }

    @Override
    public void send(final String topic, final byte[] data) throws Exception {
        requireStored(this.producer.send(new Message(topic, data)));
    }

    @Override
    public void send(final String topic, final byte[] data, final Answered answered) throws Exception {
        this.producer.send(new Message(topic, data), callback(answered));
    }

    private static SendCallback callback(final Answered answered) {
        return new SendCallback() {
            @Override
            public void onSuccess(final SendResult result) {
                answered.answered(failure(result));
            }

            @Override
            public void onException(final Throwable error) {
                answered.answered(error);
            }
        };
    }

    /** Each batch is one request; a few are under way at a time. */
    @Override
    public void sendBatches(final String topic, final List<byte[]> batch, final int batches) throws Exception {
        final Semaphore free = new Semaphore(BATCHES_UNDER_WAY);
        final AtomicReference<Throwable> failed = new AtomicReference<>();
        for (int i = 0; i < batches && failed.get() == null; i++) {
            final List<Message> messages = new ArrayList<>(batch.size());
            for (final byte[] data : batch) {
                messages.add(new Message(topic, data));
            }
            free.acquire();
            this.producer.send(messages, callback(failure -> {
                failed.compareAndSet(null, failure);
                free.release();
            }));
        }
        free.acquire(BATCHES_UNDER_WAY);
        if (failed.get() != null) {
            throw new IllegalStateException(failed.get());
        }
    }

    @Override
    public void sendAt(final String topic, final byte[] data, final long due) throws Exception {
        requireStored(this.producer.send(delivered(topic, data, due)));
    }

    @Override
    public void sendAt(final String topic, final byte[] data, final long due, final Answered answered)
            throws Exception {
        this.producer.send(delivered(topic, data, due), callback(answered));
    }

    private static Message delivered(final String topic, final byte[] data, final long due) {
        final Message message = new Message(topic, data);
        message.setDeliverTimeMs(due);
        return message;
    }

    /** The client waits for the answer to the half message, and sends the commit without waiting for one. */
    @Override
    public void sendInTransaction(final String topic, final byte[] data) throws Exception {
        final TransactionSendResult result =
                this.transactional().sendMessageInTransaction(new Message(topic, data), null);
        requireStored(result);
        if (result.getLocalTransactionState() != LocalTransactionState.COMMIT_MESSAGE) {
            throw new IllegalStateException(result.toString());
        }
    }

    private synchronized TransactionMQProducer transactional() throws MQClientException {
        if (this.transactional == null) {
            this.transactional = new TransactionMQProducer("bench-transactions");
            this.transactional.setNamesrvAddr(this.nameServer);
            this.transactional.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(final Message message, final Object argument) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }

                @Override
                public LocalTransactionState checkLocalTransaction(final MessageExt message) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
            });
            this.transactional.start();
        }
        return this.transactional;
    }

    /** Push consumers in POP mode: the broker lets each of them pop from every queue, and gets a receipt a message. */
    @Override
    public void share(final String topic, final String group, final int members, final int threads,
            final Received received) throws Exception {
        final AtomicReference<Received> there = this.shared.get(topic + ' ' + group);
        if (there != null) {
            there.set(received);
            return;
        }
        final AtomicReference<Received> taking = new AtomicReference<>(received);
        this.shared.put(topic + ' ' + group, taking);
        final MQClientInstance client = this.producer.getDefaultMQProducerImpl().getMqClientFactory();
        client.updateTopicRouteInfoFromNameServer(topic); // without it a producer that has sent nothing knows no broker
        // 0: each member may pop from every queue
        client.getMQClientAPIImpl().setMessageRequestMode(client.findBrokerAddressInPublish(BROKER), topic, group,
            MessageRequestMode.POP, 0, REQUEST_MILLIS);
        for (int i = 0; i < members; i++) {
            final DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
            consumer.setNamesrvAddr(this.nameServer);
            consumer.setInstanceName(group + '-' + i);
            consumer.setClientRebalance(false);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setConsumeThreadMin(threads);
            consumer.setConsumeThreadMax(threads);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (final MessageExt message : messages) {
                    taking.get().received(message.getBody());
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }
        Thread.sleep(SETTLE_MILLIS);
    }

    @Override
    public AutoCloseable consume(final String topic, final String group, final Received received) throws Exception {
        final DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(this.nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(PULLED_AT_ONCE);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (final MessageExt message : messages) {
                received.received(message.getBody());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer::shutdown;
    }

    private static void requireStored(final SendResult result) {
        final Throwable failure = failure(result);
        if (failure != null) {
            throw new IllegalStateException(failure);
        }
    }

    private static Throwable failure(final SendResult result) {
        return result.getSendStatus() == SendStatus.SEND_OK ? null : new IllegalStateException(result.toString());
    }

    @Override
    public void close() {
        this.producer.shutdown();
        if (this.transactional != null) {
            this.transactional.shutdown();
        }
    }
}
