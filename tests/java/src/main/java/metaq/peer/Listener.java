package metaq.peer;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executor;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.consumer.MessageListener;

/**
 * Keeps what it is given and does what the data says the first `times` times that it comes: `throw…`, `undo…` (marks the
 * message to be rolled back), and with manual acknowledgement `ack…` and `back…` (rolls the block back).
 */
final class Listener implements MessageListener {

    private final int times;
    private final boolean manual;
    private final Executor executor;
    private final Map<String, Integer> seen = new HashMap<>();
    private List<Object> messages = new ArrayList<>();

    Listener(final int times, final boolean manual, final Executor executor) {
        this.times = times;
        this.manual = manual;
        this.executor = executor;
    }

    @Override
    public synchronized void recieveMessages(final Message message) {
        final Map<String, Object> fields = Messages.fields(message);
        fields.put("thread", Thread.currentThread().getName());
        this.messages.add(fields);
        final String data = new String(message.getData());
        final boolean acts = this.seen.merge(data, 1, Integer::sum) <= this.times;
        if (this.manual) {
            message.getPartition().setAutoAck(false);
            this.acknowledge(message, data, acts);
        }
        if (acts && data.startsWith("throw")) {
            throw new IllegalStateException("as asked: " + data);
        }
        if (acts && data.startsWith("undo")) {
            message.setRollbackOnly();
        }
    }

    private void acknowledge(final Message message, final String data, final boolean acts) {
        if (data.startsWith("ack")) {
            message.getPartition().ack();
        }
        if (acts && data.startsWith("back")) {
            message.getPartition().rollback();
        }
    }

    synchronized List<Object> take() {
        final List<Object> taken = this.messages;
        this.messages = new ArrayList<>();
        return taken;
    }

    @Override
    public Executor getExecutor() {
        return this.executor;
    }
}
