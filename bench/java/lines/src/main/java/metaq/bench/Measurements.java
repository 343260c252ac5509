package metaq.bench;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;

/** The commands, as bench/worker.py has them. Sizes are bytes of a message's data, timeouts seconds. */
final class Measurements {

    private static final long NANOS_PER_SECOND = 1_000_000_000L;
    private static final int LATENCY_TIMEOUT_SECONDS = 60;

    private final Client client;

    Measurements(final Client client) {
        this.client = client;
    }

    Map<String, Object> createTopics(final Map<String, Integer> partitions, final boolean flushed) throws Exception {
        this.client.createTopics(partitions, flushed);
        return Map.of("topics", partitions.size());
    }

    /** Every thread waits for each of its sends. */
    Map<String, Object> sendBlocking(final String topic, final int threads, final int count, final int size)
            throws Exception {
        final byte[] data = new byte[size];
        final AtomicInteger next = new AtomicInteger();
        final FailureKeeper failures = new FailureKeeper();
        final Runnable sender = () -> {
            try {
                while (!failures.any() && next.getAndIncrement() < count) {
                    this.client.send(topic, data);
                }
            }
            catch (final Throwable error) {
                failures.keep(error);
            }
        };
        final Thread[] workers = new Thread[threads];
        final long start = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            workers[i] = new Thread(sender, "sender-" + i);
            workers[i].start();
        }
        for (final Thread worker : workers) {
            worker.join();
        }
        final long elapsed = System.nanoTime() - start;
        failures.rethrow();
        return rate(count, elapsed);
    }

    /** One thread, at most `window` sends without an answer. */
    Map<String, Object> sendAsync(final String topic, final int window, final int count, final int size)
            throws Exception {
        final byte[] data = new byte[size];
        final Semaphore free = new Semaphore(window);
        final FailureKeeper failures = new FailureKeeper();
        final Client.Answered answered = failure -> {
            failures.keep(failure);
            free.release();
        };
        final long start = System.nanoTime();
        for (int i = 0; i < count && !failures.any(); i++) {
            free.acquire();
            this.client.send(topic, data, answered);
        }
        free.acquire(window);
        final long elapsed = System.nanoTime() - start;
        failures.rethrow();
        return rate(count, elapsed);
    }

    /** One thread, in the system's own way of sending in bulk. */
    Map<String, Object> sendBatch(final String topic, final int batch, final int count, final int size)
            throws Exception {
        final int batches = count / batch;
        final long start = System.nanoTime();
        this.client.sendBatches(topic, Collections.nCopies(batch, new byte[size]), batches);
        return rate(batches * batch, System.nanoTime() - start);
    }

    /** The rate from the first message to the last; joining the group is not measured. */
    Map<String, Object> consume(final String topic, final String group, final int count, final int timeout)
            throws Exception {
        final AtomicInteger seen = new AtomicInteger();
        final long[] first = new long[1];
        final long[] last = new long[1];
        final CountDownLatch done = new CountDownLatch(1);
        final Client.Received received = data -> {
            final int number = seen.incrementAndGet();
            if (number == 1) {
                first[0] = System.nanoTime();
            }
            if (number == count) {
                last[0] = System.nanoTime();
                done.countDown();
            }
        };
        try (AutoCloseable consumer = this.client.consume(topic, group, received)) {
            if (!done.await(timeout, TimeUnit.SECONDS)) {
                throw new IllegalStateException("received " + seen + " of " + count + " in " + timeout + " s");
            }
        }
        return rate(count - 1, last[0] - first[0]);
    }

    /** Sends warm-up + count messages at a rate; percentiles of the last `count` from send call to receipt. */
    Map<String, Object> latency(final String topic, final String group, final int perSecond, final int warmUp,
            final int count, final int size) throws Exception {
        final long[] nanos = new long[warmUp + count];
        final CountDownLatch missing = new CountDownLatch(nanos.length);
        final Client.Received received = data -> {
            final long now = System.nanoTime();
            final ByteBuffer stamp = ByteBuffer.wrap(data);
            nanos[stamp.getInt()] = now - stamp.getLong();
            missing.countDown();
        };
        try (AutoCloseable consumer = this.client.consume(topic, group, received)) {
            this.sendStamps(topic, perSecond, nanos.length, size);
            if (!missing.await(LATENCY_TIMEOUT_SECONDS, TimeUnit.SECONDS)) {
                throw new IllegalStateException(
                    missing.getCount() + " messages missing after " + LATENCY_TIMEOUT_SECONDS + " s");
            }
        }
        final long[] sorted = Arrays.copyOfRange(nanos, warmUp, nanos.length);
        Arrays.sort(sorted);
        final Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("count", count);
        fields.put("p50_ms", sorted[count / 2] / 1e6);
        fields.put("p99_ms", sorted[count * 99 / 100] / 1e6);
        fields.put("p99.9_ms", sorted[(int) (count * 999L / 1000)] / 1e6);
        fields.put("max_ms", sorted[count - 1] / 1e6);
        return fields;
    }

    private void sendStamps(final String topic, final int perSecond, final int count, final int size)
            throws Exception {
        final FailureKeeper failures = new FailureKeeper();
        final long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            final long due = start + i * NANOS_PER_SECOND / perSecond;
            for (long early = due - System.nanoTime(); early > 0; early = due - System.nanoTime()) {
                LockSupport.parkNanos(early);
            }
            final byte[] data = new byte[size];
            ByteBuffer.wrap(data).putInt(i).putLong(System.nanoTime());
            this.client.send(topic, data, failures::keep);
            failures.rethrow();
        }
    }

    private static Map<String, Object> rate(final int count, final long nanos) {
        final Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("count", count);
        fields.put("seconds", nanos / 1e9);
        fields.put("rate", (double) count * NANOS_PER_SECOND / nanos);
        return fields;
    }

    /** Keeps the first failure of any thread. */
    private static final class FailureKeeper {

        private final AtomicReference<Throwable> first = new AtomicReference<>();

        /** null is no failure. */
        void keep(final Throwable failure) {
            if (failure != null) {
                this.first.compareAndSet(null, failure);
            }
        }

        boolean any() {
            return this.first.get() != null;
        }

        void rethrow() {
            if (this.any()) {
                throw new IllegalStateException(this.first.get());
            }
        }
    }
}
