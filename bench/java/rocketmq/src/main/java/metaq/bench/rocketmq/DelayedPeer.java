package metaq.bench.rocketmq;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * {@code DelayedPeer <name server> rate <topic> <count> <size> <window>}: sends delayed by an hour; or
 * {@code ... late <topic> <count> <size> <per second>}: sends delayed by 1 to 4 s, and how late each comes. One JSON line.
 */
public final class DelayedPeer {

    private static final long HOUR_MS = 3_600_000;
    private static final int SHORTEST_MS = 1000, LONGEST_MS = 4000;
    private static final int WAIT_SECONDS = 60;

    private DelayedPeer() {
    }

    public static void main(final String[] args) throws Exception {
        final DefaultMQProducer producer = new DefaultMQProducer("delayed");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        final int count = Integer.parseInt(args[3]), size = Integer.parseInt(args[4]), last = Integer.parseInt(args[5]);
        if ("rate".equals(args[1])) {
            send(producer, args[2], Math.max(1, count / 10), size, last); // its JIT
            final long begun = System.nanoTime();
            send(producer, args[2], count, size, last);
            System.out.printf("{\"rate\": %.1f}%n", count / ((System.nanoTime() - begun) / 1e9));
        }
        else {
            late(producer, args[0], args[2], count, size, last);
        }
        System.out.flush();
        System.exit(0); // its timers are no daemon threads
    }

    private static void send(final DefaultMQProducer producer, final String topic, final int count, final int size,
            final int window) throws Exception {
        final Semaphore free = new Semaphore(window);
        final AtomicReference<Throwable> failed = new AtomicReference<>();
        for (int i = 0; i < count && failed.get() == null; i++) {
            free.acquire();
            final Message message = new Message(topic, new byte[size]);
            message.setDelayTimeMs(HOUR_MS);
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(final SendResult result) {
                    free.release();
                }

                @Override
                public void onException(final Throwable error) {
                    failed.compareAndSet(null, error);
                    free.release();
                }
            });
        }
        free.acquire(window);
        if (failed.get() != null) {
            throw new IllegalStateException(failed.get());
        }
    }

    private static void late(final DefaultMQProducer producer, final String nameServer, final String topic,
            final int count, final int size, final int perSecond) throws Exception {
        final long[] lateness = new long[count];
        final AtomicInteger came = new AtomicInteger();
        final CountDownLatch all = new CountDownLatch(count);
        final DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("delayed-" + topic);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (final MessageExt message : messages) {
                final int number = came.getAndIncrement();
                if (number < count) {
                    lateness[number] = System.currentTimeMillis() - ByteBuffer.wrap(message.getBody()).getLong();
                    all.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Thread.sleep(3000); // until it pulls
        final Random random = new Random(1);
        final long begun = System.nanoTime();
        for (int i = 0; i < count; i++) {
            final long at = begun + i * 1_000_000_000L / perSecond - System.nanoTime();
            if (at > 0) {
                TimeUnit.NANOSECONDS.sleep(at);
            }
            final long due = System.currentTimeMillis() + SHORTEST_MS + random.nextInt(LONGEST_MS - SHORTEST_MS);
            final byte[] body = new byte[size];
            ByteBuffer.wrap(body).putLong(due);
            final Message message = new Message(topic, body);
            message.setDeliverTimeMs(due);
            producer.send(message);
        }
        final boolean complete = all.await(WAIT_SECONDS, TimeUnit.SECONDS);
        final long[] sorted = Arrays.copyOf(lateness, Math.min(count, came.get()));
        Arrays.sort(sorted);
        System.out.printf("{\"came\": %d, \"complete\": %b, \"early\": %d, \"p50_ms\": %d, \"p99_ms\": %d, \"most_ms\": %d}%n",
            sorted.length, complete, Arrays.stream(sorted).filter(each -> each < 0).count(),
            sorted[sorted.length / 2], sorted[sorted.length * 99 / 100], sorted[sorted.length - 1]);
    }
}
