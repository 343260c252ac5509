package metaq.peer;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendMessageCallback;
import com.taobao.metamorphosis.client.producer.SendResult;

/** Many sends of one producer, numbered from 0 in their data: with callbacks, or one after the other in the background. */
final class Bursts {

    private static final int TIMEOUT_SECONDS = 30;
    private static final int PAUSE_MS = 20;

    private final Producers producers;
    private final Map<String, Background> running = new ConcurrentHashMap<>();

    Bursts(final Producers producers) {
        this.producers = producers;
    }

    void addTo(final Map<String, Peer.Command> commands) {
        commands.put("send_callback", words -> this.sendWithCallback(words[0], words[1], Integer.parseInt(words[2])));
        commands.put("start_sending", words -> this.start(words[0], words[1]));
        commands.put("stop_sending", words -> Map.of("results", this.running.remove(words[0]).end()));
    }

    /** {@code send_callback <producer> <topic> <count>}: all under way at once; the results in the order of sending. */
    private Map<String, Object> sendWithCallback(final String name, final String topic, final int count)
            throws InterruptedException {
        final List<Object> results = new ArrayList<>(Collections.nCopies(count, null));
        final CountDownLatch open = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            this.producers.of(name).sendMessage(numbered(topic, i), new Callback(results, i, open, topic));
        }
        if (!open.await(TIMEOUT_SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException(open.getCount() + " callbacks are missing after " + TIMEOUT_SECONDS + " s");
        }
        return Map.of("results", results);
    }

    /** {@code start_sending <producer> <topic>}: one message after the other until {@code stop_sending <producer>}. */
    private Map<String, Object> start(final String name, final String topic) {
        final Background background = new Background(this.producers.of(name), topic);
        this.running.put(name, background);
        background.thread.start();
        return Map.of("sending", topic);
    }

    private static Message numbered(final String topic, final int number) {
        return new Message(topic, String.valueOf(number).getBytes());
    }

    private static Map<String, Object> failure(final Throwable error) {
        return Map.of("success", false, "reason", error.toString());
    }

    private static final class Callback implements SendMessageCallback {

        private final List<Object> results;
        private final int number;
        private final CountDownLatch open;
        private final String topic;

        Callback(final List<Object> results, final int number, final CountDownLatch open, final String topic) {
            this.results = results;
            this.number = number;
            this.open = open;
            this.topic = topic;
        }

        @Override
        public void onMessageSent(final SendResult result) {
            this.keep(Messages.fields(numbered(this.topic, this.number), result));
        }

        @Override
        public void onException(final Throwable error) {
            this.keep(failure(error));
        }

        private void keep(final Map<String, Object> result) {
            synchronized (this.results) {
                this.results.set(this.number, result);
            }
            this.open.countDown();
        }
    }

    private static final class Background {

        private final List<Object> results = new ArrayList<>();
        private final AtomicBoolean ending = new AtomicBoolean();
        private final Thread thread;

        Background(final MessageProducer producer, final String topic) {
            this.thread = new Thread(() -> this.send(producer, topic), "background-" + topic);
        }

        private void send(final MessageProducer producer, final String topic) {
            for (int number = 0; !this.ending.get(); number++) {
                final Message message = numbered(topic, number);
                try {
                    this.results.add(Messages.fields(message, producer.sendMessage(message)));
                    Thread.sleep(PAUSE_MS);
                }
                catch (final Exception error) {
                    this.results.add(failure(error));
                }
            }
        }

        List<Object> end() throws InterruptedException {
            this.ending.set(true);
            this.thread.join(TimeUnit.SECONDS.toMillis(TIMEOUT_SECONDS));
            if (this.thread.isAlive()) {
                throw new IllegalStateException("a send takes more than " + TIMEOUT_SECONDS + " s");
            }
            return this.results;
        }
    }
}
