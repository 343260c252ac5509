package metaq.peer;

import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendResult;
import com.taobao.metamorphosis.exception.MetaClientException;

/**
 * Sends "name number", number 0, 1, 2 …, one after the other and none of them again, until it is ended. What it writes down
 * of each is with the heirs.
 */
abstract class SendingThread extends Thread {

    /** Pause after a failed send: a broker that is away answers at once. */
    private static final long FAILURE_PAUSE_MS = 100;

    private final MessageProducer producer;
    private final String topic;
    private final FileOutputStream file;
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
        this.file = new FileOutputStream(file, true);
        this.pause = pause;
    }

    /** begun: System.nanoTime() before the send. */
    protected abstract void acknowledged(long begun, Message message, SendResult result) throws IOException;

    protected abstract void failed(long begun, Message message, String reason) throws IOException;

    /** Stop sending, and wait for the last one; answers how many were tried. */
    final long end() throws InterruptedException {
        this.running = false;
        this.join();
        return this.tried;
    }

    /** Unbuffered. */
    protected final void write(final String line) throws IOException {
        this.file.write((line + "\n").getBytes(StandardCharsets.UTF_8));
    }

    protected static String text(final Message message) {
        return new String(message.getData(), StandardCharsets.US_ASCII);
    }

    @Override
    public final void run() {
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
        final String text = this.getName() + " " + this.tried++;
        final Message message = new Message(this.topic, text.getBytes(StandardCharsets.US_ASCII));
        final long begun = System.nanoTime();
        final SendResult result;
        try {
            result = this.producer.sendMessage(message);
        }
        catch (final MetaClientException away) {
            this.failed(begun, message, String.valueOf(away.getMessage()));
            return false;
        }
        if (!result.isSuccess()) {
            this.failed(begun, message, String.valueOf(result.getErrorMessage()));
            return false;
        }
        this.acknowledged(begun, message, result);
        return true;
    }
}
