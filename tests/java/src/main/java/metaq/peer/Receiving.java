package metaq.peer;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.exception.MetaClientException;

/** The commands that receive as members of a group. Timeouts are seconds; too few messages in time is a failure. */
final class Receiving {

    private final Session session;
    private final Map<String, Member> members = new ConcurrentHashMap<>();

    Receiving(final Session session) {
        this.session = session;
    }

    void addTo(final Map<String, Peer.Command> commands) {
        commands.put("consume", words -> this.consume(words[0], words[1], Integer.parseInt(words[2]),
            Integer.parseInt(words[3])));
        commands.put("join", words -> this.join(words[0], words[1]));
        commands.put("received", words -> this.received(words[0]));
        commands.put("leave", words -> this.leave(words[0]));
    }

    /** {@code consume <topic> <group> <count> <timeout>}: the rate from the first message to the last. */
    private Map<String, Object> consume(final String topic, final String group, final int count, final int timeout)
            throws Exception {
        final Stopwatch stopwatch = new Stopwatch(count);
        final MessageConsumer consumer = this.session.consume(topic, group, stopwatch);
        try {
            return stopwatch.await(timeout);
        }
        finally {
            consumer.shutdown();
        }
    }

    /** {@code join <topic> <group>}: a member that stays until {@code leave} and keeps what it receives. */
    private Map<String, Object> join(final String topic, final String group) throws MetaClientException {
        if (this.members.containsKey(group)) {
            throw new IllegalStateException("already a member of " + group);
        }
        final Member member = new Member();
        member.consumer = this.session.consume(topic, group, member);
        this.members.put(group, member);
        return Map.of("joined", group);
    }

    /** {@code received <group>}: what the member has received since the last such question, in order. */
    private Map<String, Object> received(final String group) {
        return Map.of("messages", this.member(group).take());
    }

    /** {@code leave <group>}: shuts the member down (it commits and releases); answers what is left over. */
    private Map<String, Object> leave(final String group) throws MetaClientException {
        final Member member = this.member(group);
        member.consumer.shutdown();
        this.members.remove(group);
        return Map.of("messages", member.take());
    }

    private Member member(final String group) {
        final Member member = this.members.get(group);
        if (member == null) {
            throw new IllegalStateException("not a member of " + group);
        }
        return member;
    }

    /** Counts on the fetch thread; started by the first message, so that joining the group is not measured. */
    private static final class Stopwatch implements MessageListener {

        private final int count;
        private final CountDownLatch done = new CountDownLatch(1);
        private int seen;
        private long first;
        private long last;

        Stopwatch(final int count) {
            this.count = count;
        }

        @Override
        public synchronized void recieveMessages(final Message message) {
            this.seen++;
            if (this.seen == 1) {
                this.first = System.nanoTime();
            }
            if (this.seen == this.count) {
                this.last = System.nanoTime();
                this.done.countDown();
            }
        }

        Map<String, Object> await(final int timeout) throws InterruptedException {
            final boolean complete = this.done.await(timeout, TimeUnit.SECONDS);
            synchronized (this) {
                if (!complete) {
                    throw new IllegalStateException("received " + this.seen + " of " + this.count + " in " + timeout + " s");
                }
                return Rate.of(this.count, this.last - this.first);
            }
        }

        @Override
        public Executor getExecutor() {
            return null;
        }
    }

    private static final class Member implements MessageListener {

        private MessageConsumer consumer;
        private List<Map<String, Object>> messages = new ArrayList<>();

        @Override
        public synchronized void recieveMessages(final Message message) {
            this.messages.add(Messages.fields(message));
        }

        synchronized List<Map<String, Object>> take() {
            final List<Map<String, Object>> taken = this.messages;
            this.messages = new ArrayList<>();
            return taken;
        }

        @Override
        public Executor getExecutor() {
            return null;
        }
    }
}
