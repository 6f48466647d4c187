import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** RocketMQ's Java client: one producer for all threads, which wait for each answer; pulls by queue and offset. */
final class RocketLoad extends PeerLoad {
    private static final String BROKER = "broker-a", GROUP = "bench-client";

    private DefaultMQProducer producer;
    private DefaultMQPullConsumer consumer;
    private long[] positions, ends;

    private RocketLoad(String[] arguments) throws Exception {
        super(arguments);
    }

    public static void main(String[] arguments) throws Exception {
        new RocketLoad(arguments).run();
    }

    @Override
    void open() throws Exception {
        String names = "127.0.0.1:" + word("name_server_port");
        if (!mode.equals("consume")) {
            producer = new DefaultMQProducer(GROUP);
            producer.setNamesrvAddr(names);
            producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
            producer.setRetryTimesWhenSendFailed(0);
            producer.start();
        }
        if (mode.equals("produce")) {
            send(0); // finds the route and connects, at which threads that all begin at once fail
            return;
        }
        consumer = new DefaultMQPullConsumer(GROUP);
        consumer.setNamesrvAddr(names);
        consumer.start();
        boolean isBacklog = mode.equals("consume");
        positions = new long[isBacklog ? connections : groups];
        ends = new long[positions.length];
        for (int n = 0; n < ends.length; n++) ends[n] = isBacklog ? consumer.maxOffset(queue(n)) : Long.MAX_VALUE;
    }

    private MessageQueue queue(int thread) {
        return new MessageQueue(topic, BROKER, thread % partitions);
    }

    @Override
    int senders() {
        return connections;
    }

    @Override
    int send(int thread) throws Exception {
        SendResult result;
        if (batch == 1) {
            result = producer.send(new Message(topic, bodies[thread % bodies.length]), queue(thread));
        } else {
            List<Message> all = new ArrayList<>(batch);
            for (int n = 0; n < batch; n++) all.add(new Message(topic, bodies[n % bodies.length]));
            result = producer.send(all, queue(thread));
        }
        if (result.getSendStatus() != SendStatus.SEND_OK) errors.increment();
        return batch;
    }

    @Override
    int receivers() {
        return connections;
    }

    @Override
    void post(byte[] body) throws Exception {
        producer.send(new Message(topic, body), queue(0), new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {}

            @Override
            public void onException(Throwable thrown) {
                errors.increment();
            }
        });
    }

    @Override
    void receive(int thread, Consumer<byte[]> each) throws Exception {
        int countMax = Math.max(1, fetchBytes / bodyBytes);
        PullResult result = consumer.pullBlockIfNotFound(queue(thread), "*", positions[thread], countMax);
        if (result.getPullStatus() == PullStatus.FOUND)
            for (MessageExt message : result.getMsgFoundList()) each.accept(message.getBody());
        positions[thread] = result.getNextBeginOffset() >= ends[thread] ? 0 : result.getNextBeginOffset();
    }
}
