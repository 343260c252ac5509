package metaq.peer;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendMessageCallback;
import com.taobao.metamorphosis.client.producer.SendResult;

/** End-to-end latency at a fixed rate: from the send call to the listener, both in this process, on one clock. */
final class Latency {

    private static final long NANOS_PER_SECOND = 1_000_000_000L;
    private static final int TIMEOUT_SECONDS = 60;

    private final Session session;

    Latency(final Session session) {
        this.session = session;
    }

    void addTo(final Map<String, Peer.Command> commands) {
        commands.put("latency", words -> this.latency(words[0], words[1], Integer.parseInt(words[2]),
            Integer.parseInt(words[3]), Integer.parseInt(words[4]), Integer.parseInt(words[5])));
    }

    /**
     * {@code latency <topic> <group> <rate> <warm-up> <count> <size>}: sends warm-up + count messages at `rate` a second
     * without waiting for answers; answers the percentiles of the last `count` in milliseconds. The topic must be new.
     */
    private Map<String, Object> latency(final String topic, final String group, final int rate, final int warmUp,
            final int count, final int size) throws Exception {
        final MessageProducer producer = this.session.producerOf(topic);
        final Recorder recorder = new Recorder(warmUp + count);
        final MessageConsumer consumer = this.session.consume(topic, group, recorder);
        try {
            this.sendAtRate(producer, topic, rate, warmUp + count, size);
            return recorder.percentiles(warmUp);
        }
        finally {
            consumer.shutdown();
        }
    }

    private void sendAtRate(final MessageProducer producer, final String topic, final int rate, final int count,
            final int size) throws Exception {
        final FailureKeeper callback = new FailureKeeper();
        final long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            final long due = start + i * NANOS_PER_SECOND / rate;
            for (long early = due - System.nanoTime(); early > 0; early = due - System.nanoTime()) {
                LockSupport.parkNanos(early);
            }
            final byte[] data = new byte[size];
            ByteBuffer.wrap(data).putInt(i).putLong(System.nanoTime());
            producer.sendMessage(new Message(topic, data), callback);
            callback.rethrow();
        }
    }

    private static final class FailureKeeper implements SendMessageCallback {

        private volatile Throwable failure;

        @Override
        public void onMessageSent(final SendResult result) {
            if (!result.isSuccess()) {
                this.failure = new IllegalStateException(result.getErrorMessage());
            }
        }

        @Override
        public void onException(final Throwable error) {
            this.failure = error;
        }

        void rethrow() {
            if (this.failure != null) {
                throw new IllegalStateException(this.failure);
            }
        }
    }

    private static final class Recorder implements MessageListener {

        private final long[] nanos;
        private final CountDownLatch missing;

        Recorder(final int count) {
            this.nanos = new long[count];
            this.missing = new CountDownLatch(count);
        }

        @Override
        public void recieveMessages(final Message message) {
            final long now = System.nanoTime();
            final ByteBuffer data = ByteBuffer.wrap(message.getData());
            this.nanos[data.getInt()] = now - data.getLong();
            this.missing.countDown();
        }

        Map<String, Object> percentiles(final int warmUp) throws InterruptedException {
            if (!this.missing.await(TIMEOUT_SECONDS, TimeUnit.SECONDS)) {
                throw new IllegalStateException(this.missing.getCount() + " messages missing after " + TIMEOUT_SECONDS + " s");
            }
            final long[] sorted = Arrays.copyOfRange(this.nanos, warmUp, this.nanos.length);
            Arrays.sort(sorted);
            final Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("count", sorted.length);
            fields.put("p50_ms", sorted[sorted.length / 2] / 1e6);
            fields.put("p99_ms", sorted[sorted.length * 99 / 100] / 1e6);
            fields.put("p99.9_ms", sorted[(int) (sorted.length * 999L / 1000)] / 1e6);
            fields.put("max_ms", sorted[sorted.length - 1] / 1e6);
            return fields;
        }

        @Override
        public Executor getExecutor() {
            return null;
        }
    }
}
