package metaq.bench;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;

/** The commands, as bench/worker.py has them. Sizes are bytes of a message's data, timeouts seconds. */
final class Measurements {

    private static final long NANOS_PER_SECOND = 1_000_000_000L;
    private static final int LATENCY_TIMEOUT_SECONDS = 60;

    private static final long NANOS_PER_MILLI = 1_000_000L;
    private static final int SHORTEST_MILLIS = 1000;
    private static final int LONGEST_MILLIS = 4000;
    private static final int SHARED_BATCH = 500;
    private static final int SHARED_TIMEOUT_SECONDS = 120;

    private final Client client;
    /** Messages that were given numbers so far: a number is used once. */
    private long numbered;

    /** Sends a message. */
    private interface Send {
        void send(String topic, byte[] data) throws Exception;
    }

    /** Sends a message without waiting. */
    private interface SendAsync {
        void send(String topic, byte[] data, Client.Answered answered) throws Exception;
    }

    /** Sends the message of a number. */
    private interface Numbered {
        void send(int number, FailureKeeper failures) throws Exception;
    }

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
        return sendByThreads(this.client::send, topic, threads, count, size);
    }

    /** The same, delivered in so many seconds. */
    Map<String, Object> delayedBlocking(final String topic, final int threads, final int count, final int size,
            final int seconds) throws Exception {
        return sendByThreads((to, data) -> this.client.sendAt(to, data, System.currentTimeMillis() + seconds * 1000L),
            topic, threads, count, size);
    }

    /** Every thread does one transaction after the other. */
    Map<String, Object> transactions(final String topic, final int threads, final int count, final int size)
            throws Exception {
        return sendByThreads(this.client::sendInTransaction, topic, threads, count, size);
    }

    private static Map<String, Object> sendByThreads(final Send send, final String topic, final int threads,
            final int count, final int size) throws Exception {
        final byte[] data = new byte[size];
        final AtomicInteger next = new AtomicInteger();
        final FailureKeeper failures = new FailureKeeper();
        final Runnable sender = () -> {
            try {
                while (!failures.any() && next.getAndIncrement() < count) {
                    send.send(topic, data);
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
        return sendPipelined(this.client::send, topic, window, count, size);
    }

    /** The same, delivered in so many seconds. */
    Map<String, Object> delayedAsync(final String topic, final int window, final int count, final int size,
            final int seconds) throws Exception {
        return sendPipelined((to, data, answered) -> this.client.sendAt(to, data,
            System.currentTimeMillis() + seconds * 1000L, answered), topic, window, count, size);
    }

    private static Map<String, Object> sendPipelined(final SendAsync send, final String topic, final int window,
            final int count, final int size) throws Exception {
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
            send.send(topic, data, answered);
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
        return percentiles(nanos, warmUp);
    }

    /**
     * As latency, of messages that are due in SHORTEST_MILLIS to LONGEST_MILLIS: from the time when each is due to its
     * receipt, by the clock of this machine; negative if it comes early.
     */
    Map<String, Object> lateness(final String topic, final String group, final int perSecond, final int warmUp,
            final int count, final int size) throws Exception {
        final long[] nanos = new long[warmUp + count];
        final CountDownLatch missing = new CountDownLatch(nanos.length);
        final Client.Received received = data -> {
            final long now = System.currentTimeMillis();
            final ByteBuffer stamp = ByteBuffer.wrap(data);
            nanos[stamp.getInt()] = (now - stamp.getLong()) * NANOS_PER_MILLI;
            missing.countDown();
        };
        final Random random = new Random(1);
        try (AutoCloseable consumer = this.client.consume(topic, group, received)) {
            this.paced(perSecond, nanos.length, (number, failures) -> {
                final long due = System.currentTimeMillis() + SHORTEST_MILLIS
                    + random.nextInt(LONGEST_MILLIS - SHORTEST_MILLIS);
                final byte[] data = new byte[size];
                ByteBuffer.wrap(data).putInt(number).putLong(due);
                this.client.sendAt(topic, data, due, failures::keep);
            });
            if (!missing.await(LATENCY_TIMEOUT_SECONDS, TimeUnit.SECONDS)) {
                throw new IllegalStateException(
                    missing.getCount() + " messages missing after " + LATENCY_TIMEOUT_SECONDS + " s");
            }
        }
        return percentiles(nanos, warmUp);
    }

    /**
     * Members share numbered messages, each of which takes `work` milliseconds: the rate from the first message that one
     * has to the last that one has finished; how many threads had any, and how many messages came twice.
     */
    Map<String, Object> shared(final String topic, final String group, final int members, final int threads,
            final int work, final int count, final int size) throws Exception {
        final long base = this.numbered;
        this.numbered += count;
        final AtomicIntegerArray seen = new AtomicIntegerArray(count);
        final AtomicInteger twice = new AtomicInteger();
        final AtomicLong first = new AtomicLong();
        final AtomicLong last = new AtomicLong();
        final Set<Thread> workers = ConcurrentHashMap.newKeySet();
        final CountDownLatch left = new CountDownLatch(count);
        this.client.share(topic, group, members, threads, data -> {
            final long number = ByteBuffer.wrap(data).getLong() - base;
            if (number < 0) {
                twice.incrementAndGet(); // of a run before
                return;
            }
            first.compareAndSet(0, System.nanoTime());
            workers.add(Thread.currentThread());
            sleep(work);
            if (seen.incrementAndGet((int) number) == 1) {
                last.accumulateAndGet(System.nanoTime(), Math::max);
                left.countDown();
            }
            else {
                twice.incrementAndGet();
            }
        });
        for (int next = 0; next < count; next += SHARED_BATCH) {
            final List<byte[]> batch = new ArrayList<>(SHARED_BATCH);
            for (int i = next; i < Math.min(count, next + SHARED_BATCH); i++) {
                final byte[] data = new byte[size];
                ByteBuffer.wrap(data).putLong(base + i);
                batch.add(data);
            }
            this.client.sendBatches(topic, batch, 1);
        }
        if (!left.await(SHARED_TIMEOUT_SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.getCount() + " of " + count + " messages have not come");
        }
        final Map<String, Object> fields = rate(count, last.get() - first.get());
        fields.put("workers", workers.size());
        fields.put("twice", twice.get());
        return fields;
    }

    private static void sleep(final int millis) {
        try {
            Thread.sleep(millis);
        }
        catch (final InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static Map<String, Object> percentiles(final long[] nanos, final int warmUp) {
        final long[] sorted = Arrays.copyOfRange(nanos, warmUp, nanos.length);
        Arrays.sort(sorted);
        final int count = sorted.length;
        final Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("count", count);
        fields.put("min_ms", sorted[0] / 1e6);
        fields.put("p50_ms", sorted[count / 2] / 1e6);
        fields.put("p99_ms", sorted[count * 99 / 100] / 1e6);
        fields.put("p99.9_ms", sorted[(int) (count * 999L / 1000)] / 1e6);
        fields.put("max_ms", sorted[count - 1] / 1e6);
        return fields;
    }

    private void sendStamps(final String topic, final int perSecond, final int count, final int size)
            throws Exception {
        this.paced(perSecond, count, (number, failures) -> {
            final byte[] data = new byte[size];
            ByteBuffer.wrap(data).putInt(number).putLong(System.nanoTime());
            this.client.send(topic, data, failures::keep);
        });
    }

    private void paced(final int perSecond, final int count, final Numbered send) throws Exception {
        final FailureKeeper failures = new FailureKeeper();
        final long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            final long due = start + i * NANOS_PER_SECOND / perSecond;
            for (long early = due - System.nanoTime(); early > 0; early = due - System.nanoTime()) {
                LockSupport.parkNanos(early);
            }
            send.send(i, failures);
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
