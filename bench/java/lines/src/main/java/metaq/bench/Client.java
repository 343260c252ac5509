package metaq.bench;

import java.util.List;
import java.util.Map;

/** What the measurements need of a messaging system's client. Every failed send must come out as an exception. */
public interface Client extends AutoCloseable {

    /** Told once for each asynchronous send, on any thread; null means acknowledged. */
    interface Answered {
        void answered(Throwable failure);
    }

    /** Takes each message's data, on one or several threads. */
    interface Received {
        void received(byte[] data);
    }

    /**
     * Creates topics that do not exist yet; returns when messages can be sent to them. `flushed`: their messages reach the
     * disk before they are acknowledged, as the system has it per topic.
     */
    void createTopics(Map<String, Integer> partitions, boolean flushed) throws Exception;

    /** Sends and waits for the acknowledgement. */
    void send(String topic, byte[] data) throws Exception;

    /** Sends without waiting for the acknowledgement. */
    void send(String topic, byte[] data, Answered answered) throws Exception;

    /**
     * Sends as the system's users send in bulk, `batch` messages at a time; all are acknowledged on return.
     */
    void sendBatches(String topic, List<byte[]> batch, int batches) throws Exception;

    /** Joins a group that begins at the earliest message; closing the result leaves it. */
    AutoCloseable consume(String topic, String group, Received received) throws Exception;

    /** As send, for a message that is delivered at a time, in milliseconds as System.currentTimeMillis() tells it. */
    default void sendAt(String topic, byte[] data, long due) throws Exception {
        throw new UnsupportedOperationException("no delayed messages");
    }

    /** The same without waiting for the acknowledgement. */
    default void sendAt(String topic, byte[] data, long due, Answered answered) throws Exception {
        throw new UnsupportedOperationException("no delayed messages");
    }

    /** Sends a half message, does nothing, and commits. */
    default void sendInTransaction(String topic, byte[] data) throws Exception {
        throw new UnsupportedOperationException("no transactional messages");
    }

    /**
     * Has `members` members with `threads` threads each share a topic's messages, whatever its partitions, each message
     * for one of them. They stay; a further call only says who takes the data from now on, and returns when all may.
     */
    default void share(String topic, String group, int members, int threads, Received received) throws Exception {
        throw new UnsupportedOperationException("no shared consumption");
    }
}
