package metaq.peer;

import java.util.List;

import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.extension.producer.OrderedMessagePartitionSelector;
import com.taobao.metamorphosis.client.producer.PartitionSelector;
import com.taobao.metamorphosis.client.producer.RandomPartitionSelector;
import com.taobao.metamorphosis.client.producer.RoundRobinPartitionSelector;
import com.taobao.metamorphosis.cluster.Partition;

/** Partition selectors by name. */
final class Selectors {

    private Selectors() {
    }

    /** `roundrobin`, `random`, `length` (the data's length modulo the partitions), `null`, `ordered` (by length too). */
    static PartitionSelector of(final String name) {
        switch (name) {
        case "roundrobin":
            return new RoundRobinPartitionSelector();
        case "random":
            return new RandomPartitionSelector();
        case "length":
            return (FunctionalSelector) Selectors::byLength;
        case "null":
            return (FunctionalSelector) (partitions, message) -> null;
        case "ordered":
            return new Ordered();
        default:
            throw new IllegalArgumentException("no selector '" + name + "'");
        }
    }

    private static Partition byLength(final List<Partition> partitions, final Message message) {
        return partitions.get(message.getData().length % partitions.size());
    }

    private interface FunctionalSelector extends PartitionSelector {

        Partition choose(List<Partition> partitions, Message message);

        @Override
        default Partition getPartition(final String topic, final List<Partition> partitions, final Message message) {
            return this.choose(partitions, message);
        }
    }

    private static final class Ordered extends OrderedMessagePartitionSelector {

        @Override
        protected Partition choosePartition(final String topic, final List<Partition> partitions,
                final Message message) {
            return byLength(partitions, message);
        }
    }
}
