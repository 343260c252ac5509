package metaq.peer;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

import javax.transaction.xa.XAException;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;

import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.XAMessageProducer;

/**
 * Local and XA transactions of named producers. The client binds a transaction to a thread; all commands run on one.
 *
 * <p>A branch is named by its global id; its branch qualifier is always the same. An XAException is an answer with
 * `xa_code`, any other exception an error.
 */
final class Transactions {

    private final Producers producers;

    Transactions(final Producers producers) {
        this.producers = producers;
    }

    void addTo(final Map<String, Peer.Command> commands) {
        commands.put("begin", words -> this.begin(this.producers.of(words[0]), Options.of(words, 1, "timeout")));
        commands.put("commit", words -> done(() -> this.producers.of(words[0]).commit()));
        commands.put("rollback", words -> done(() -> this.producers.of(words[0]).rollback()));
        commands.put("xa", words -> this.xa((XAMessageProducer) this.producers.of(words[0]), words[1],
            words.length > 2 ? words[2] : "", Options.of(words, 3, "timeout")));
        commands.put("xa_qualifier", words -> done(
            () -> ((XAMessageProducer) this.producers.of(words[0])).setUniqueQualifier(words[1])));
    }

    /** {@code begin <producer> [timeout=<seconds>]}. */
    private Map<String, Object> begin(final MessageProducer producer, final Options options) throws Exception {
        producer.setTransactionTimeout((int) options.number("timeout", 0));
        producer.setTransactionRequestTimeout(10, TimeUnit.SECONDS);
        producer.beginTransaction();
        return Map.of();
    }

    /** {@code xa <producer> start|end|fail|prepare|commit|commit_one_phase|rollback|forget|recover <global id>}. */
    private Map<String, Object> xa(final XAMessageProducer producer, final String verb, final String globalId,
            final Options options) throws Exception {
        final XAResource resource = producer.getXAResource();
        final Xid xid = new Branch(globalId);
        try {
            switch (verb) {
            case "start":
                resource.setTransactionTimeout((int) options.number("timeout", 0));
                return done(() -> resource.start(xid, XAResource.TMNOFLAGS));
            case "end":
                return done(() -> resource.end(xid, XAResource.TMSUCCESS));
            case "fail":
                return done(() -> resource.end(xid, XAResource.TMFAIL));
            case "prepare":
                return Map.of("vote", resource.prepare(xid));
            case "commit":
                return done(() -> resource.commit(xid, false));
            case "commit_one_phase":
                return done(() -> resource.commit(xid, true));
            case "rollback":
                return done(() -> resource.rollback(xid));
            case "forget":
                return done(() -> resource.forget(xid));
            case "recover":
                return Map.of("in_doubt", names(resource.recover(XAResource.TMSTARTRSCAN)));
            default:
                throw new IllegalArgumentException("no verb " + verb);
            }
        }
        catch (final XAException error) {
            return Map.of("xa_code", error.errorCode, "message", String.valueOf(error.getMessage()));
        }
    }

    private static List<String> names(final Xid[] xids) {
        final List<String> names = new ArrayList<>();
        for (final Xid xid : xids) {
            names.add(xid.getFormatId() + ":" + new String(xid.getGlobalTransactionId()) + ":"
                    + new String(xid.getBranchQualifier()));
        }
        return names;
    }

    private interface Action {
        void run() throws Exception;
    }

    private static Map<String, Object> done(final Action action) throws Exception {
        action.run();
        return Map.of();
    }

    private static final class Branch implements Xid {

        private final byte[] globalId;

        Branch(final String globalId) {
            this.globalId = globalId.getBytes();
        }

        @Override
        public int getFormatId() {
            return 4660;
        }

        @Override
        public byte[] getGlobalTransactionId() {
            return this.globalId;
        }

        @Override
        public byte[] getBranchQualifier() {
            return "branch".getBytes();
        }
    }
}
