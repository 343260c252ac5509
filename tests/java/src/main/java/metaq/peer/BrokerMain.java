package metaq.peer;

import com.taobao.metamorphosis.server.assembly.MetaMorphosisBroker;
import com.taobao.metamorphosis.server.utils.MetaConfig;

import sun.misc.Signal;

/**
 * Runs the real metaq broker: {@code BrokerMain <server.ini>}.
 *
 * <p>Prints {@code serving <port>} once it listens and is registered in ZooKeeper. SIGTERM stops it cleanly (the broker's
 * own shutdown hook), SIGHUP reads the file again, as its management operation does; a failed start ends the process with code 1, where the original start class would leave its threads
 * running.
 */
public final class BrokerMain {

    private BrokerMain() {
    }

    public static void main(final String[] args) {
        if (args.length != 1) {
            System.err.println("usage: BrokerMain <server.ini>");
            System.exit(2);
        }
        try {
            final MetaConfig config = new MetaConfig();
            config.loadFromFile(args[0]);
            config.verify();
            new MetaMorphosisBroker(config).start();
            Signal.handle(new Signal("HUP"), signal -> config.reload());
            System.out.println("serving " + config.getServerPort());
        }
        catch (final Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }
}
