package metaq.bench.kafka;

import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

import metaq.bench.Client;
import metaq.bench.Lines;

/** {@code KafkaPeer <bootstrap server>}: Kafka's Java client behind the line protocol, with its default settings. */
public final class KafkaPeer implements Client {

    /** Of the bulk producer: a whole batch of the benchmark in one request; Kafka's default is 16 KiB. */
    private static final int BULK_BATCH_BYTES = 512 * 1024;
    private static final Duration POLL = Duration.ofMillis(100);

    private final String bootstrap;
    private final KafkaProducer<byte[], byte[]> prompt;
    private final KafkaProducer<byte[], byte[]> bulk;

    private KafkaPeer(final String bootstrap) {
        this.bootstrap = bootstrap;
        // lingering would make a blocking send wait 5 ms for company
        this.prompt = this.producer(Map.of("linger.ms", 0));
        this.bulk = this.producer(Map.of("batch.size", BULK_BATCH_BYTES));
    }

    public static void main(final String[] args) throws Exception {
        if (args.length != 1) {
            System.err.println("usage: KafkaPeer <bootstrap server>");
            System.exit(2);
        }
        final PrintStream answers = Lines.takeOutput();
        try (KafkaPeer peer = new KafkaPeer(args[0])) {
            Lines.serve(peer, answers);
        }
    }

    private KafkaProducer<byte[], byte[]> producer(final Map<String, Object> more) {
        final Map<String, Object> settings = new java.util.HashMap<>(more);
        settings.put("bootstrap.servers", this.bootstrap);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    @Override
    public void createTopics(final Map<String, Integer> partitions, final boolean flushed) throws Exception {
        final Map<String, String> settings = flushed ? Map.of("flush.messages", "1") : Map.of();
        final List<NewTopic> topics = new ArrayList<>();
        // as many replicas as the broker's default.replication.factor says
        partitions.forEach((name, number) -> topics.add(
            new NewTopic(name, Optional.of(number), Optional.empty()).configs(settings)));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", this.bootstrap))) {
            admin.createTopics(topics).all().get();
        }
    }

    @Override
    public void send(final String topic, final byte[] data) throws InterruptedException, ExecutionException {
        this.prompt.send(new ProducerRecord<>(topic, data)).get();
    }

    @Override
    public void send(final String topic, final byte[] data, final Answered answered) {
        this.prompt.send(new ProducerRecord<>(topic, data), (metadata, failure) -> answered.answered(failure));
    }

    /** Kafka gathers batches itself: all are handed to it without waiting, then waited for. */
    @Override
    public void sendBatches(final String topic, final List<byte[]> batch, final int batches) throws Exception {
        final AtomicReference<Exception> failed = new AtomicReference<>();
        for (int i = 0; i < batches; i++) {
            for (final byte[] data : batch) {
                this.bulk.send(new ProducerRecord<>(topic, data), (metadata, failure) -> {
                    if (failure != null) {
                        failed.compareAndSet(null, failure);
                    }
                });
            }
        }
        this.bulk.flush();
        if (failed.get() != null) {
            throw failed.get();
        }
    }

    @Override
    public AutoCloseable consume(final String topic, final String group, final Received received) {
        final Map<String, Object> settings = Map.of("bootstrap.servers", this.bootstrap, "group.id", group,
            "auto.offset.reset", "earliest");
        final KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(topic));
        final Thread poller = new Thread(() -> {
            try (consumer) {
                while (true) {
                    for (final ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                        received.received(record.value());
                    }
                }
            }
            catch (final WakeupException closing) {
                return;
            }
        }, "poller");
        poller.start();
        return () -> {
            consumer.wakeup();
            poller.join();
        };
    }

    @Override
    public void close() {
        this.prompt.close();
        this.bulk.close();
    }
}
