package metaq.peer;

import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendMessageCallback;
import com.taobao.metamorphosis.client.producer.SendResult;

/** The commands that send. Sizes are bytes of a message's data; every send must succeed or the command fails. */
final class Sending {

    private final Session session;

    Sending(final Session session) {
        this.session = session;
    }

    void addTo(final Map<String, Peer.Command> commands) {
        commands.put("put", words -> this.put(Messages.of(words, 0)));
        commands.put("send_blocking", words -> this.sendBlocking(words[0], Integer.parseInt(words[1]),
            Integer.parseInt(words[2]), Integer.parseInt(words[3])));
        commands.put("send_async", words -> this.sendAsync(words[0], Integer.parseInt(words[1]),
            Integer.parseInt(words[2]), Integer.parseInt(words[3])));
    }

    /** {@code put <topic> <base64 data> [<attribute>]}: one message; answers its id, partition and offset. */
    private Map<String, Object> put(final Message message) throws Exception {
        final SendResult result = this.session.producerOf(message.getTopic()).sendMessage(message);
        requireSuccess(result);
        return Messages.fields(message, result);
    }

    /** {@code send_blocking <topic> <threads> <count> <size>}: every thread waits for each of its sends. */
    private Map<String, Object> sendBlocking(final String topic, final int threads, final int count, final int size)
            throws Exception {
        final MessageProducer producer = this.session.producerOf(topic);
        final byte[] data = new byte[size];
        final AtomicInteger next = new AtomicInteger();
        final AtomicReference<Throwable> failure = new AtomicReference<>();
        final Runnable sender = () -> {
            try {
                while (failure.get() == null && next.getAndIncrement() < count) {
                    requireSuccess(producer.sendMessage(new Message(topic, data)));
                }
            }
            catch (final Throwable error) {
                failure.compareAndSet(null, error);
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
        rethrow(failure);
        return Rate.of(count, elapsed);
    }

    /** {@code send_async <topic> <window> <count> <size>}: one thread, at most `window` sends without an answer. */
    private Map<String, Object> sendAsync(final String topic, final int window, final int count, final int size)
            throws Exception {
        final MessageProducer producer = this.session.producerOf(topic);
        final byte[] data = new byte[size];
        final Semaphore free = new Semaphore(window);
        final CountDownLatch open = new CountDownLatch(count);
        final AtomicReference<Throwable> failure = new AtomicReference<>();
        final SendMessageCallback callback = new SendMessageCallback() {
            @Override
            public void onMessageSent(final SendResult result) {
                if (!result.isSuccess()) {
                    failure.compareAndSet(null, new IllegalStateException(result.getErrorMessage()));
                }
                this.done();
            }

            @Override
            public void onException(final Throwable error) {
                failure.compareAndSet(null, error);
                this.done();
            }

            private void done() {
                free.release();
                open.countDown();
            }
        };
        final long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            free.acquire();
            producer.sendMessage(new Message(topic, data), callback);
        }
        open.await();
        final long elapsed = System.nanoTime() - start;
        rethrow(failure);
        return Rate.of(count, elapsed);
    }

    private static void requireSuccess(final SendResult result) {
        if (!result.isSuccess()) {
            throw new IllegalStateException("send failed: " + result.getErrorMessage());
        }
    }

    private static void rethrow(final AtomicReference<Throwable> failure) {
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
    }
}
