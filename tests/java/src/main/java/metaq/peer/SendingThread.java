package metaq.peer;

import java.io.IOException;
import java.nio.charset.StandardCharsets;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendResult;
import com.taobao.metamorphosis.exception.MetaClientException;

/**
 * Sends "name/-/number", number 0, 1, 2 …, one after the other and none of them again, until it is ended, and writes down
 * every send with its outcome, as tests/history/sending.py does.
 *
 * <pre>
 * ack   ended, begun, text, partition, offset, id
 * fail  ended, begun, text, topic, reason
 * </pre>
 */
final class SendingThread extends Thread {

    /** Pause after a failed send: a broker that is away answers at once. */
    private static final long FAILURE_PAUSE_MS = 100;

    private final MessageProducer producer;
    private final String topic;
    private final Lines lines;
    private final long pause;
    private volatile long tried;
    private volatile boolean running = true;

    /** The file is appended to; the pause after a successful send is in ms. */
    SendingThread(final MessageProducer producer, final String topic, final String name, final String file,
            final long pause) throws IOException {
        super(name);
        this.setDaemon(true);
        this.producer = producer;
        this.topic = topic;
        this.lines = new Lines(file);
        this.pause = pause;
    }

    /** Stop sending, and wait for the last one; answers how many were tried. */
    long end() throws InterruptedException {
        this.running = false;
        this.join();
        return this.tried;
    }

    @Override
    public void run() {
        try {
            while (this.running) {
                Thread.sleep(this.sendNext() ? this.pause : FAILURE_PAUSE_MS);
            }
        }
        catch (final InterruptedException | IOException end) {
            throw new IllegalStateException(end);
        }
    }

    private boolean sendNext() throws InterruptedException, IOException {
        final String text = this.getName() + "/-/" + this.tried++;
        final Message message = new Message(this.topic, text.getBytes(StandardCharsets.US_ASCII));
        final double begun = Lines.seconds(System.nanoTime());
        String reason;
        try {
            final SendResult result = this.producer.sendMessage(message);
            if (result.isSuccess()) {
                final String partition = this.topic + " " + result.getPartition();
                this.lines.write("ack", now(), begun, text, partition, result.getOffset(), message.getId());
                return true;
            }
            reason = String.valueOf(result.getErrorMessage());
        }
        catch (final MetaClientException away) {
            reason = String.valueOf(away.getMessage());
        }
        this.lines.write("fail", now(), begun, text, this.topic, reason);
        return false;
    }

    private static double now() {
        return Lines.seconds(System.nanoTime());
    }
}
