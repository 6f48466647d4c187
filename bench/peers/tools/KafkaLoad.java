import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's Java client: one producer for all threads, as its documentation advises; a consumer for each thread. */
final class KafkaLoad extends PeerLoad {
    private static final int RECORD_OVERHEAD_BYTES = 20, BATCH_OVERHEAD_BYTES = 100;

    private KafkaProducer<byte[], byte[]> producer;
    private KafkaConsumer<byte[], byte[]>[] consumers;
    private final Map<TopicPartition, Long> ends = new HashMap<>(); // of a backlog
    private int next;

    private KafkaLoad(String[] arguments) throws Exception {
        super(arguments);
    }

    public static void main(String[] arguments) throws Exception {
        new KafkaLoad(arguments).run();
    }

    @Override
    @SuppressWarnings("unchecked") // there are no arrays of generic types
    void open() {
        String server = "127.0.0.1:" + word("port");
        if (!mode.equals("consume")) producer = new KafkaProducer<>(producerSettings(server));
        if (mode.equals("produce")) return;
        boolean isBacklog = mode.equals("consume");
        consumers = new KafkaConsumer[isBacklog ? receivers() : groups];
        for (int n = 0; n < consumers.length; n++) {
            consumers[n] = new KafkaConsumer<>(consumerSettings(server));
            List<TopicPartition> mine = new ArrayList<>();
            for (int partition = 0; partition < partitions; partition++)
                if (!isBacklog || partition % consumers.length == n) mine.add(new TopicPartition(topic, partition));
            consumers[n].assign(mine);
            if (isBacklog) ends.putAll(consumers[n].endOffsets(mine));
            consumers[n].seekToBeginning(mine);
        }
    }

    private Map<String, Object> producerSettings(String server) {
        boolean isBatched = batch > 1;
        return Map.of(
                "bootstrap.servers", server,
                "acks", "1",
                "enable.idempotence", false,
                "linger.ms", isBatched ? 5 : 0,
                "batch.size", Math.max(16384, batch * (bodyBytes + RECORD_OVERHEAD_BYTES) + BATCH_OVERHEAD_BYTES),
                "buffer.memory", 64L << 20,
                "compression.type", word("compression"),
                "key.serializer", ByteArraySerializer.class,
                "value.serializer", ByteArraySerializer.class);
    }

    private Map<String, Object> consumerSettings(String server) {
        return Map.of(
                "bootstrap.servers", server,
                "max.partition.fetch.bytes", fetchBytes,
                "max.poll.records", 10_000,
                "enable.auto.commit", false,
                "key.deserializer", ByteArrayDeserializer.class,
                "value.deserializer", ByteArrayDeserializer.class);
    }

    /** Batched: one thread keeps the producer's buffer full, as ProducerPerformance does. */
    @Override
    int senders() {
        return batch > 1 ? 1 : connections;
    }

    /** One a core: on two cores it came out ahead of one in all and of one a partition, on a machine that was busy. */
    @Override
    int receivers() {
        return Math.min(connections, Runtime.getRuntime().availableProcessors());
    }

    @Override
    int send(int thread) throws Exception {
        if (batch == 1) {
            producer.send(new ProducerRecord<>(topic, bodies[thread % bodies.length])).get();
            return 1;
        }
        post(bodies[next++ % bodies.length]);
        return 0;
    }

    @Override
    void post(byte[] body) {
        producer.send(new ProducerRecord<>(topic, body), (metadata, error) -> {
            if (error != null) errors.increment();
            else if (mode.equals("produce")) messages.increment();
        });
    }

    @Override
    void receive(int thread, Consumer<byte[]> each) {
        KafkaConsumer<byte[], byte[]> consumer = consumers[thread];
        ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(1));
        for (ConsumerRecord<byte[], byte[]> record : records) each.accept(record.value());
        for (TopicPartition partition : records.partitions())
            if (consumer.position(partition) >= ends.getOrDefault(partition, Long.MAX_VALUE))
                consumer.seek(partition, 0);
    }
}
