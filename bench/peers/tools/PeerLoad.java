import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;

/**
 * The loads of bench/peers with a peer's own Java client: what its user gets.
 *
 * Arguments are NAME=VALUE, the fields of peers.model.Load and: port, topic, warmup and seconds, bodies (a file of
 * bodies one after another). One JSON object on stdout. What comes before `warmup` is not measured: a virtual machine
 * is slow until it has compiled what it runs often.
 */
abstract class PeerLoad {
    private static final long SECOND = 1_000_000_000L;
    private static final int FINE = 64; // a bucket of latencies is 1/64 of its value wide
    private static final int START_MS = 500; // latency: until the receivers wait

    private final Map<String, String> words = new HashMap<>();
    private final AtomicLongArray buckets = new AtomicLongArray(64 * FINE);
    private volatile boolean isMeasuring, isOver;
    private volatile Throwable failure;
    final LongAdder messages = new LongAdder(), errors = new LongAdder();
    final String mode, topic;
    final int bodyBytes, batch, connections, outstanding, partitions, groups, rate, fetchBytes;
    final byte[][] bodies;

    PeerLoad(String[] arguments) throws IOException {
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            words.put(argument.substring(0, at), argument.substring(at + 1));
        }
        mode = word("mode");
        topic = word("topic");
        bodyBytes = number("body_bytes");
        batch = number("batch");
        connections = number("connections");
        outstanding = number("outstanding");
        partitions = number("partitions");
        groups = number("groups");
        rate = number("rate");
        fetchBytes = number("fetch_bytes");
        ByteBuffer all = ByteBuffer.wrap(Files.readAllBytes(Path.of(word("bodies"))));
        bodies = new byte[all.remaining() / bodyBytes][bodyBytes];
        for (byte[] body : bodies) all.get(body);
    }

    final String word(String name) {
        return words.get(name);
    }

    final int number(String name) {
        return Integer.parseInt(word(name));
    }

    /** Connects, for this mode. */
    abstract void open() throws Exception;

    /** How many threads call `send` in mode produce. */
    abstract int senders();

    /** One request of mode produce; how many messages were acknowledged, 0 if a callback counts them. */
    abstract int send(int thread) throws Exception;

    /** A message of mode latency, not waited for. */
    abstract void post(byte[] body) throws Exception;

    /** How many threads call `receive` in mode consume. */
    abstract int receivers();

    /** What is there for this consumer, or comes within a second or so; at the end of a backlog it starts again. */
    abstract void receive(int thread, Consumer<byte[]> each) throws Exception;

    /** Does all, and ends the program: threads of the client would keep it. There is no need to part in good order. */
    final void run() {
        int status = 0;
        try {
            measureAll();
        } catch (Throwable thrown) {
            thrown.printStackTrace();
            status = 1;
        }
        System.out.flush();
        Runtime.getRuntime().halt(status);
    }

    private void measureAll() throws Exception {
        open();
        switch (mode) {
            case "produce" -> start(senders(), this::sendAndMeasure);
            case "consume" -> start(receivers(), thread -> receive(thread, body -> messages.increment()));
            case "latency" -> {
                start(groups, thread -> receive(thread, this::received));
                Thread.sleep(START_MS);
                start(1, thread -> sendAtTheirTimes());
            }
            default -> throw new IllegalArgumentException(mode);
        }
        sleep(Double.parseDouble(word("warmup")));
        isMeasuring = true;
        long began = System.nanoTime(), before = messages.sum(), cpu = cpuNanos();
        sleep(Double.parseDouble(word("seconds")));
        double took = (System.nanoTime() - began) / (double) SECOND, used = (cpuNanos() - cpu) / (double) SECOND;
        long count = messages.sum() - before;
        isMeasuring = false;
        isOver = true;
        if (failure != null) throw new Exception(failure);
        if (count == 0) throw new Exception("nothing was sent or received");
        System.out.printf(
                Locale.ROOT,
                "{\"messages_s\": %.1f, \"mb_s\": %.2f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f,"
                        + " \"load_cpu\": %.3f, \"messages\": %d, \"errors\": %d}%n",
                count / took, count / took * bodyBytes / 1e6, quantile(0.5), quantile(0.99), quantile(0.999),
                used / took, count, errors.sum());
    }

    // ---- threads ----

    private interface Step {
        void run(int thread) throws Exception;
    }

    private void start(int threads, Step step) {
        for (int n = 0; n < threads; n++) {
            int number = n;
            Thread thread = new Thread(() -> {
                try {
                    while (!isOver) step.run(number);
                } catch (Throwable thrown) {
                    if (!isOver) failure = thrown;
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
    }

    private void sendAndMeasure(int thread) throws Exception {
        long began = System.nanoTime();
        int acknowledged = send(thread);
        if (acknowledged == 0) return;
        messages.add(acknowledged);
        measure(System.nanoTime() - began);
    }

    /** The n-th message goes out at its time, or as soon as it can; its body says when it was due. */
    private void sendAtTheirTimes() throws Exception {
        long began = System.nanoTime();
        for (long n = 0; !isOver; n++) {
            long due = began + n * SECOND / rate;
            for (long left; (left = due - System.nanoTime()) > 0; ) LockSupport.parkNanos(left);
            byte[] body = bodies[(int) (n % bodies.length)].clone();
            ByteBuffer.wrap(body).putLong(due);
            post(body);
        }
    }

    private void received(byte[] body) {
        messages.increment();
        measure(System.nanoTime() - ByteBuffer.wrap(body).getLong());
    }

    private void sleep(double seconds) throws InterruptedException {
        for (long until = System.nanoTime() + (long) (seconds * SECOND); failure == null; ) {
            long left = until - System.nanoTime();
            if (left <= 0) return;
            Thread.sleep(Math.min(left / 1_000_000 + 1, 100));
        }
    }

    // ---- figures ----

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }

    private void measure(long nanos) {
        if (!isMeasuring) return;
        int shift = nanos < FINE ? 0 : 63 - Long.numberOfLeadingZeros(nanos) - 6; // nanos >> shift is 64 to 127
        buckets.incrementAndGet((int) (shift * FINE + (Math.max(nanos, 0) >> shift)));
    }

    /** In microseconds. */
    private double quantile(double part) {
        long count = 0, seen = 0;
        for (int n = 0; n < buckets.length(); n++) count += buckets.get(n);
        for (int n = 0; n < buckets.length(); n++) {
            seen += buckets.get(n);
            if (seen <= (long) (part * count)) continue;
            int shift = Math.max(0, n / FINE - 1);
            return ((long) (n - shift * FINE) << shift) / 1e3;
        }
        return 0;
    }
}
