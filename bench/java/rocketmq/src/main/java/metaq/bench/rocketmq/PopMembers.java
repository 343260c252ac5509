package metaq.bench.rocketmq;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;

/**
 * {@code PopMembers <name server> <topic> <members> <milliseconds of work> <messages>}: members of one group in POP mode,
 * each with one thread, of which any gets any message of the topic's one queue. Prints a line of JSON: how long all
 * messages took from the first to the last, and how many came twice. The members are there before the messages come.
 */
public final class PopMembers {

    private static final String GROUP = "pop";
    private static final int BATCH = 500;
    private static final int POPPED_AT_ONCE = 32;
    private static final int TIMEOUT_MILLIS = 10_000;
    private static final long SETTLE_MILLIS = 25_000;
    private static final long LIMIT_SECONDS = 500;

    private PopMembers() {
    }

    public static void main(final String[] args) throws Exception {
        final String nameServer = args[0];
        final String topic = args[1];
        final int members = Integer.parseInt(args[2]);
        final int work = Integer.parseInt(args[3]);
        final int messages = Integer.parseInt(args[4]);

        final DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        producer.fetchPublishMessageQueues(topic);
        final MQClientInstance client = producer.getDefaultMQProducerImpl().getMqClientFactory();
        final String broker = client.findBrokerAddressInPublish("peer");
        // 0: every member may pop from every queue
        client.getMQClientAPIImpl().setMessageRequestMode(broker, topic, GROUP, MessageRequestMode.POP, 0, TIMEOUT_MILLIS);

        final AtomicIntegerArray seen = new AtomicIntegerArray(messages);
        final AtomicInteger twice = new AtomicInteger();
        final AtomicLong first = new AtomicLong();
        final CountDownLatch left = new CountDownLatch(messages);
        final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < members; i++) {
            final DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(GROUP);
            consumer.setNamesrvAddr(nameServer);
            consumer.setInstanceName("member-" + i);
            consumer.setClientRebalance(false);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setConsumeThreadMin(1);
            consumer.setConsumeThreadMax(1);
            consumer.setConsumeMessageBatchMaxSize(1);
            consumer.setPopBatchNums(POPPED_AT_ONCE);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (got, context) -> {
                first.compareAndSet(0, System.nanoTime());
                for (final MessageExt message : got) {
                    sleep(work);
                    final int number = Integer.parseInt(new String(message.getBody()).trim());
                    if (seen.incrementAndGet(number) == 1) {
                        left.countDown();
                    }
                    else {
                        twice.incrementAndGet();
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        Thread.sleep(SETTLE_MILLIS); // members ask the broker every 20 s what they may pop

        for (int next = 0; next < messages; next += BATCH) {
            final List<Message> batch = new ArrayList<>(BATCH);
            for (int i = next; i < Math.min(messages, next + BATCH); i++) {
                batch.add(new Message(topic, String.format("%-100d", i).getBytes()));
            }
            producer.send(batch);
        }
        if (!left.await(LIMIT_SECONDS, TimeUnit.SECONDS)) {
            System.err.println(left.getCount() + " messages have not come");
            System.exit(1);
        }
        final double seconds = (System.nanoTime() - first.get()) / 1e9;
        System.out.printf("{\"seconds\": %.4f, \"messages\": %d, \"twice\": %d}%n", seconds, messages, twice.get());
        System.out.flush();
        System.exit(0); // its timers are no daemon threads
    }

    private static void sleep(final int millis) {
        try {
            Thread.sleep(millis);
        }
        catch (final InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
