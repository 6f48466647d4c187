/* The load of bench/broker.py: one process, one epoll loop, and as little work as it can do.
 *
 * usage: broker_load NAME=VALUE ... -> one JSON object on stdout; exit status 1 if a reply was wrong
 *
 *   port=N           of a server on 127.0.0.1
 *   mode=produce     the same PRODUCE_MESSAGE over and over, `window` outstanding on a connection
 *   mode=fetch       FETCH_PARTITION_MESSAGE from index 0 on, each from where the last answer ended
 *   mode=ack         FETCH_TOPIC_MESSAGE, then COMMIT_ACK of all that came
 *   setup=FILE       frames that every connection sends first, each after the last one's reply
 *   frame=FILE       the request; its ids, and by connection its partition, are patched in
 *   connections=N window=N partitions=N     connection k uses partition k mod partitions
 *   warmup=SECONDS seconds=SECONDS          what comes before `warmup` is not measured
 *   requests=N       end after so many on each connection, not by time (to fill a topic; no warm-up)
 *   end=INDEX        fetch: start again from 0 there
 *   total=N          ack: end when so many messages were acked, or when the time is over
 *
 * Latency is from handing a request to the connection until its whole reply is here. A new request
 * goes out when a reply has come (closed loop), so latencies are those of this load, not of a fixed
 * rate.
 */
#include "load_common.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAGIC 0xCAFEBEBEu

enum {
    HEADER = 23, REPLY_HEADER = 26, REQUEST_ID = 10, TYPE = 14, STATUS = 23,
    PRODUCE_MESSAGE = 50, FETCH_TOPIC_MESSAGE = 30, FETCH_PARTITION_MESSAGE = 31, COMMIT_ACK = 32,
    /* of a MESSAGE */
    PARTITION = 4, INDEX = 6, SYSTEM_CODE = 18, FLAG = 41, MESSAGE_BYTES_MIN = 57, BATCH = 0x1000,
    SLOT_BITS = 12, WINDOW_MAX = 1 << SLOT_BITS, CONNECTIONS_MAX = 1000,
    EVENTS_MAX = 256, RUNS_MAX = 16, ERRORS_MAX = 1000, EMPTY_MAX = 100000,
    IN_BYTES = 1 << 16, REPLY_BYTES_MAX = 16 << 20,
    STALL_SECONDS = 10, DRAIN_SECONDS = 3,
};

static void refuse(const char *what) {
    fprintf(stderr, "broker_load: %s\n", what);
    exit(1);
}

/* ---- what is measured ------------------------------------------------------------------------ */

static Histogram latencies;

typedef struct {
    uint64_t replies, messages, bytes;
} Counts;

static Counts measured, all; /* since the warm-up; since the start */
static uint64_t errors, empties;
static int is_measuring;

/* ---- connections ----------------------------------------------------------------------------- */

enum Mode { PRODUCE, FETCH, ACK };

typedef struct {
    int fd, is_waiting_for_room, partition, outstanding;
    int64_t requests_left, index;
    /* A slot is a place for one request that is outstanding; the copies of the request lie slot
     * after slot, so that slots that are free at once go out in one run. The id of a request is
     * its slot and a turn number. */
    uint8_t *requests;
    size_t request_bytes;
    uint32_t *ids;
    int64_t *sent_ns; /* 0: nothing outstanding */
    uint16_t *queue;  /* slots to be sent, in a circle of window + 1 */
    int queue_head, queue_tail;
    size_t head_sent; /* bytes of the first of them that are gone */
    uint8_t *in;
    size_t in_bytes, in_room;
} Connection;

static Connection *connections;
static int connection_count = 1, window = 1, partitions = 1, poller;
static enum Mode mode;
static int64_t end_index, total, requests_each = INT64_MAX;
static uint8_t *setup, *frame;
static size_t setup_bytes, frame_bytes, topic_bytes; /* the topic as a STRING, with its length */
static int frame_results, frame_messages;            /* MESSAGEs in the frame, messages in these */
static uint64_t acked_all;
static int is_stopping;

static void wait_for_room(Connection *c, int wanted) {
    if (c->is_waiting_for_room == wanted) return;
    c->is_waiting_for_room = wanted;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event)) fail("epoll_ctl");
}

static int after(int place) { return place == window ? 0 : place + 1; }

static void queue_request(Connection *c, int slot, int64_t now) {
    c->ids[slot] = (c->ids[slot] + WINDOW_MAX) & INT32_MAX;
    put32(c->requests + (size_t)slot * c->request_bytes + REQUEST_ID, c->ids[slot]);
    c->sent_ns[slot] = now;
    c->queue[c->queue_tail] = (uint16_t)slot;
    c->queue_tail = after(c->queue_tail);
    c->outstanding++;
    c->requests_left--;
}

/* As many slots as follow each other in memory make one part of what is sent. */
static int gather(Connection *c, struct iovec *runs) {
    int count = 0, last = -2;
    for (int place = c->queue_head; place != c->queue_tail; place = after(place)) {
        int slot = c->queue[place];
        if (slot == last + 1) {
            runs[count - 1].iov_len += c->request_bytes;
        } else {
            if (count == RUNS_MAX) break;
            uint8_t *request = c->requests + (size_t)slot * c->request_bytes;
            runs[count++] = (struct iovec){request, c->request_bytes};
        }
        last = slot;
    }
    runs[0].iov_base = (uint8_t *)runs[0].iov_base + c->head_sent;
    runs[0].iov_len -= c->head_sent;
    return count;
}

static void send_queued(Connection *c) {
    while (c->queue_head != c->queue_tail) {
        struct iovec runs[RUNS_MAX];
        struct msghdr message = {.msg_iov = runs, .msg_iovlen = (size_t)gather(c, runs)};
        ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            wait_for_room(c, 1);
            return;
        }
        if (sent < 0) fail("send");
        c->head_sent += (size_t)sent;
        for (; c->head_sent >= c->request_bytes; c->head_sent -= c->request_bytes)
            c->queue_head = after(c->queue_head);
    }
    wait_for_room(c, 0);
}

/* ---- replies --------------------------------------------------------------------------------- */

/* Counts what went wrong, and says the first of it. */
static int64_t wrong(const char *what, const uint8_t *reply, int64_t number) {
    if (!errors++) {
        fprintf(stderr, "broker_load: %s: %lld", what, (long long)number);
        if (reply[STATUS]) fprintf(stderr, " %.*s", get16(reply + 24), reply + REPLY_HEADER);
        fputc('\n', stderr);
    }
    return -1;
}

/* Where the payload's first entry goes on behind its topic, or 0 if it is not the one topic that
 * was asked for. */
static size_t after_topic(const uint8_t *reply, size_t length, size_t at, size_t more) {
    if (length < at + 2 + topic_bytes + more || get16(reply + at) != 1) return 0;
    if (memcmp(reply + at + 2, frame + HEADER + 2, topic_bytes)) return 0;
    return at + 2 + topic_bytes;
}

/* Each of these answers the number of messages, or -1 after it has counted an error. */

static int64_t read_produce_ack(Connection *c, const uint8_t *reply, size_t length, size_t at) {
    at = after_topic(reply, length, at, 6);
    if (!at) return wrong("not the ack of our topic, length", reply, (int64_t)length);
    if (get32(reply + at)) return wrong("code", reply, (int32_t)get32(reply + at));
    int count = get16(reply + at + 4);
    if (count != frame_results || length != at + 6 + 18 * (size_t)count)
        return wrong("number of results", reply, count);
    const uint8_t *first = reply + at + 6, *last = first + 18 * (count - 1);
    int64_t index = (int64_t)get64(first + 2), last_index = (int64_t)get64(last + 2);
    if (get16(first) != c->partition) return wrong("partition", reply, get16(first));
    if (get16(last) != c->partition) return wrong("last partition", reply, get16(last));
    if (index < 0) return wrong("index", reply, index);
    if (last_index != index + count - 1) return wrong("last index", reply, last_index);
    return frame_messages;
}

/* How many messages, and so indexes, a MESSAGE stands for. */
static int held_by(const uint8_t *m) {
    return get16(m + SYSTEM_CODE) & BATCH ? get16(m + FLAG) : 1;
}

/* The number of messages in `count` MESSAGEs, and the place after them through `at`; -1 if they
 * do not fit. */
static int64_t walk(const uint8_t *reply, size_t length, size_t *at, int count, int64_t *next_index) {
    int64_t messages = 0;
    for (; count > 0; count--) {
        if (*at + MESSAGE_BYTES_MIN > length) return -1;
        const uint8_t *m = reply + *at;
        size_t bytes = get32(m);
        if (bytes < MESSAGE_BYTES_MIN || bytes > length - *at) return -1;
        int held = held_by(m);
        *next_index = (int64_t)get64(m + INDEX) + held;
        messages += held;
        *at += bytes;
    }
    return messages;
}

static int64_t read_fetch_partition_ack(Connection *c, const uint8_t *reply, size_t length, size_t at) {
    at = after_topic(reply, length, at, 10);
    if (!at) return wrong("not the answer for our topic, length", reply, (int64_t)length);
    if (get16(reply + at) != 1 || get16(reply + at + 2) != c->partition)
        return wrong("partition", reply, get16(reply + at + 2));
    int count = get16(reply + at + 4);
    int64_t next = c->index, messages;
    at += 6;
    messages = walk(reply, length, &at, count, &next);
    if (messages < 0 || at + 4 != length) return wrong("misfit messages, in number", reply, count);
    if (get32(reply + at)) return wrong("code", reply, (int32_t)get32(reply + at));
    /* A batch may begin before the index that was asked for; there must be no gap. */
    if (count && (next <= c->index || next > c->index + messages))
        return wrong("next index", reply, next);
    if (!messages) empties++;
    c->index = messages && (!end_index || next < end_index) ? next : 0;
    put64(c->requests + HEADER + 2 + topic_bytes + 8, (uint64_t)c->index);
    return messages;
}

/* The request becomes a COMMIT_ACK of all messages of the reply, a run in a partition each. */
static void make_ack(Connection *c, const uint8_t *reply, size_t at, int count) {
    uint8_t *p = c->requests, *acks_count = NULL, *partitions_count;
    const uint8_t *app = frame + HEADER + 2 + topic_bytes + 2;
    int acks = 0, named = 0, last_partition = -1;
    p[TYPE] = COMMIT_ACK;
    partitions_count = p += HEADER + 2 + topic_bytes;
    p += 2;
    for (; count > 0; count--) {
        const uint8_t *m = reply + at;
        int partition = get16(m + PARTITION), held = held_by(m);
        if (partition != last_partition) {
            put16(p, (uint16_t)partition);
            acks_count = p + 2;
            p += 4;
            acks = 0;
            named++;
            last_partition = partition;
        }
        for (int n = 0; n < held; n++, p += 11) {
            put16(p, (uint16_t)partition);
            put64(p + 2, get64(m + INDEX) + (uint64_t)n);
            p[10] = 0; /* success */
        }
        acks += held;
        put16(acks_count, (uint16_t)acks);
        at += get32(m);
    }
    put16(partitions_count, (uint16_t)named);
    memcpy(p, app, 2u + get16(app));
    p += 2 + get16(app);
    c->request_bytes = (size_t)(p - c->requests);
    put32(c->requests, (uint32_t)c->request_bytes);
}

static int64_t read_fetch_topic_ack(Connection *c, const uint8_t *reply, size_t length, size_t at) {
    at = after_topic(reply, length, at, 2);
    if (!at) return wrong("not the answer for our topic, length", reply, (int64_t)length);
    int count = get16(reply + at);
    size_t start = at += 2;
    int64_t next = 0, messages = walk(reply, length, &at, count, &next);
    if (messages < 0 || at != length) return wrong("misfit messages, in number", reply, count);
    if (frame_bytes + 15 * (size_t)messages > REPLY_BYTES_MAX) refuse("too many messages to ack");
    if (!messages) {
        if (++empties > EMPTY_MAX) is_stopping = 1; /* it has run dry */
    } else {
        make_ack(c, reply, start, count);
        c->index = messages;
    }
    return 0; /* they count when their ack is answered */
}

static int64_t read_commit_ack_ack(Connection *c, const uint8_t *reply, size_t length, size_t at) {
    at = after_topic(reply, length, at, 2);
    if (!at) return wrong("not the ack of our topic, length", reply, (int64_t)length);
    int count = get16(reply + at);
    at += 2;
    if (length != at + 6 * (size_t)count) return wrong("number of partitions", reply, count);
    for (; count > 0; count--, at += 6)
        if (get32(reply + at + 2)) return wrong("code", reply, (int32_t)get32(reply + at + 2));
    memcpy(c->requests, frame, frame_bytes);
    c->request_bytes = frame_bytes;
    acked_all += (uint64_t)c->index;
    if (total && acked_all >= (uint64_t)total) is_stopping = 1;
    return c->index;
}

static int64_t read_reply(Connection *c, const uint8_t *reply, size_t length, int type) {
    size_t at = REPLY_HEADER + get16(reply + 24);
    if (reply[STATUS]) return wrong("status", reply, reply[STATUS]);
    switch (type) {
    case PRODUCE_MESSAGE: return read_produce_ack(c, reply, length, at);
    case FETCH_PARTITION_MESSAGE: return read_fetch_partition_ack(c, reply, length, at);
    case FETCH_TOPIC_MESSAGE: return read_fetch_topic_ack(c, reply, length, at);
    default: return read_commit_ack_ack(c, reply, length, at);
    }
}

static void count_reply(Counts *counts, int64_t messages, size_t bytes) {
    counts->replies++;
    counts->messages += (uint64_t)messages;
    counts->bytes += bytes;
}

static void check_header(const uint8_t *reply, size_t length, int type) {
    if (get32(reply + 4) != MAGIC || !(reply[9] & 1)) refuse("what came back is not a response");
    if (reply[TYPE] != (uint8_t)-type) refuse("the response is of another type than the request");
    if (REPLY_HEADER + (size_t)get16(reply + 24) > length) refuse("the error text does not fit");
}

static void take_reply(Connection *c, const uint8_t *reply, size_t length, int64_t now) {
    uint32_t id = get32(reply + REQUEST_ID);
    int slot = (int)(id & (WINDOW_MAX - 1));
    if (slot >= window || !c->sent_ns[slot] || c->ids[slot] != id)
        refuse("a response to nothing that was asked");
    int type = c->requests[TYPE];
    check_header(reply, length, type);
    size_t request_bytes = c->request_bytes;
    int64_t messages = read_reply(c, reply, length, type);
    if (messages >= 0) {
        size_t bytes = mode == PRODUCE ? request_bytes : length;
        count_reply(&all, messages, bytes);
        if (is_measuring) {
            count_reply(&measured, messages, bytes);
            note(&latencies, now - c->sent_ns[slot]);
        }
    }
    c->sent_ns[slot] = 0;
    c->outstanding--;
    if (errors >= ERRORS_MAX) is_stopping = 1;
    /* Even at the end, what was lent is acked: the next run should find no leases. */
    int is_ack_due = messages >= 0 && c->requests[TYPE] == COMMIT_ACK;
    if (is_ack_due || (!is_stopping && c->requests_left > 0)) queue_request(c, slot, now);
}

static void make_room(Connection *c, size_t bytes) {
    if (bytes > REPLY_BYTES_MAX) refuse("a response is longer than any should be");
    if (bytes <= c->in_room) return;
    c->in = realloc(c->in, bytes);
    if (!c->in) fail("realloc");
    c->in_room = bytes;
}

static void receive(Connection *c) {
    ssize_t got = recv(c->fd, c->in + c->in_bytes, c->in_room - c->in_bytes, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got < 0) fail("recv");
    if (got == 0) refuse("the server closed a connection");
    c->in_bytes += (size_t)got;
    int64_t now = now_ns();
    size_t at = 0;
    while (c->in_bytes - at >= REPLY_HEADER) {
        size_t length = get32(c->in + at);
        if (length < REPLY_HEADER) refuse("a response is shorter than its header");
        if (length > c->in_bytes - at) {
            if (!at) make_room(c, length);
            break;
        }
        take_reply(c, c->in + at, length, now);
        at += length;
    }
    if (at) {
        memmove(c->in, c->in + at, c->in_bytes - at);
        c->in_bytes -= at;
    }
    send_queued(c);
}

/* ---- the start ------------------------------------------------------------------------------- */

/* One request of the setup and its reply, waiting: nothing is measured yet. */
static void ask(int fd, const uint8_t *request, size_t bytes) {
    static uint8_t reply[1 << 16];
    if (send(fd, request, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) fail("send");
    if (recv(fd, reply, 4, MSG_WAITALL) != 4) fail("no reply to the setup");
    size_t length = get32(reply);
    if (length < REPLY_HEADER || length > sizeof reply) refuse("the setup got no proper reply");
    ssize_t rest = (ssize_t)length - 4;
    if (recv(fd, reply + 4, (size_t)rest, MSG_WAITALL) != rest) fail("no reply to the setup");
    check_header(reply, length, request[TYPE]);
    if (reply[STATUS]) {
        wrong("status of the setup", reply, reply[STATUS]);
        exit(1);
    }
}

static size_t slot_room(void) { return mode == ACK ? REPLY_BYTES_MAX : frame_bytes; }

static void make_requests(Connection *c) {
    c->request_bytes = frame_bytes;
    c->requests = allocate(slot_room() * (size_t)window); /* pages that are not used do not exist */
    for (int slot = 0; slot < window; slot++) {
        uint8_t *request = c->requests + (size_t)slot * frame_bytes;
        memcpy(request, frame, frame_bytes);
        c->ids[slot] = (uint32_t)slot;
        size_t at = HEADER + 2 + topic_bytes;
        if (mode == FETCH) {
            put16(request + at + 2, (uint16_t)c->partition);
            put64(request + at + 8, 0);
        }
        if (mode == PRODUCE) {
            at += 2 + get16(request + at) + 4 + 1 + 2; /* txId, timeout, qosLevel, count */
            for (int n = 0; n < frame_results; n++, at += get32(request + at))
                put16(request + at + PARTITION, (uint16_t)c->partition);
        }
    }
}

static void open_connection(Connection *c, int number, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct timeval patience = {.tv_sec = STALL_SECONDS};
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (void *)&address, sizeof address)) fail("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    for (size_t at = 0, length; at < setup_bytes; at += length) {
        length = setup_bytes - at < HEADER ? 0 : get32(setup + at);
        if (length < HEADER || length > setup_bytes - at) refuse("the setup is not made of frames");
        ask(c->fd, setup + at, length);
    }
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll_ctl");
    c->partition = number % partitions;
    c->requests_left = requests_each;
    c->ids = allocate((size_t)window * sizeof *c->ids);
    c->sent_ns = allocate((size_t)window * sizeof *c->sent_ns);
    c->queue = allocate((size_t)(window + 1) * sizeof *c->queue);
    c->in = allocate(IN_BYTES);
    c->in_room = IN_BYTES;
    make_requests(c);
}

/* What the frame is, and how many messages are in it. */
static void look_at_frame(void) {
    if (frame_bytes < HEADER + 4 || get32(frame) != frame_bytes || get16(frame + HEADER) != 1)
        refuse("the frame is not a request for one topic");
    topic_bytes = 2u + get16(frame + HEADER + 2);
    static const int types[] = {PRODUCE_MESSAGE, FETCH_PARTITION_MESSAGE, FETCH_TOPIC_MESSAGE};
    if (frame[TYPE] != types[mode]) refuse("the frame is not of the mode");
    if (mode != PRODUCE) {
        window = 1; /* where the next fetch begins is known from the reply */
        return;
    }
    size_t at = HEADER + 2 + topic_bytes;
    at += 2 + get16(frame + at) + 5;
    frame_results = get16(frame + at);
    at += 2;
    int64_t next = 0;
    frame_messages = (int)walk(frame, frame_bytes, &at, frame_results, &next);
    if (frame_messages < 1) refuse("the frame's messages do not fit");
}

/* ---- the run --------------------------------------------------------------------------------- */

static int outstanding_count(void) {
    int count = 0;
    for (int n = 0; n < connection_count; n++) count += connections[n].outstanding;
    return count;
}

static void begin_measuring(int64_t now, int64_t *began, double *cpu) {
    is_measuring = 1;
    *began = now;
    *cpu = own_cpu_seconds();
}

static void print_figures(double elapsed, double cpu) {
    uint64_t replies = measured.replies;
    printf("{\"messages_s\": %.1f, ", (double)measured.messages / elapsed);
    printf("\"requests_s\": %.1f, ", (double)replies / elapsed);
    printf("\"mb_s\": %.2f, ", (double)measured.bytes / elapsed / 1e6);
    printf("\"p50_us\": %.1f, ", quantile_us(&latencies, 0.5));
    printf("\"p99_us\": %.1f, ", quantile_us(&latencies, 0.99));
    printf("\"p999_us\": %.1f, ", quantile_us(&latencies, 0.999));
    printf("\"load_cpu\": %.3f, \"seconds\": %.3f, ", cpu / elapsed, elapsed);
    printf("\"messages\": %llu, ", (unsigned long long)measured.messages);
    printf("\"messages_all\": %llu, ", (unsigned long long)all.messages);
    printf("\"empty\": %llu, ", (unsigned long long)empties);
    printf("\"errors\": %llu}\n", (unsigned long long)errors);
}

static void run(double warmup, double seconds) {
    struct epoll_event events[EVENTS_MAX];
    int64_t now = now_ns(), began = 0, ended = 0, warm = now + (int64_t)(warmup * SECOND);
    int64_t finish = warm + (int64_t)(seconds * SECOND), last_reply = now;
    double cpu = 0;
    int is_by_time = requests_each == INT64_MAX;
    if (!is_by_time) begin_measuring(now, &began, &cpu);
    for (int n = 0; n < connection_count; n++) {
        for (int slot = 0; slot < window && connections[n].requests_left > 0; slot++)
            queue_request(&connections[n], slot, now);
        send_queued(&connections[n]);
    }
    for (;;) {
        int count = epoll_wait(poller, events, EVENTS_MAX, 50);
        for (int n = 0; n < count; n++) {
            Connection *c = events[n].data.ptr;
            if (events[n].events & EPOLLOUT) send_queued(c);
            if (events[n].events & ~(uint32_t)EPOLLOUT) receive(c);
        }
        now = now_ns();
        if (count > 0) last_reply = now;
        if (!is_measuring && !ended && now >= warm) begin_measuring(now, &began, &cpu);
        if (is_by_time && now >= finish) is_stopping = 1;
        int is_done = !is_by_time && !outstanding_count();
        if (!ended && (is_stopping || is_done)) {
            ended = now;
            is_measuring = 0;
            cpu = own_cpu_seconds() - cpu;
        }
        if (ended && (!outstanding_count() || now > ended + DRAIN_SECONDS * SECOND)) break;
        if (now - last_reply > STALL_SECONDS * SECOND) refuse("no reply for 10 seconds");
    }
    if (outstanding_count()) refuse("the last replies did not come");
    if (!began) refuse("it ended before the warm-up did");
    print_figures((double)(ended - began) / SECOND, cpu);
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* nobody should have to look for it */
    const char *name = value_of(argc, argv, "mode", NULL);
    mode = !strcmp(name, "produce") ? PRODUCE : !strcmp(name, "fetch") ? FETCH : ACK;
    int port = atoi(value_of(argc, argv, "port", NULL));
    connection_count = atoi(value_of(argc, argv, "connections", "1"));
    window = atoi(value_of(argc, argv, "window", "1"));
    partitions = atoi(value_of(argc, argv, "partitions", "1"));
    end_index = atoll(value_of(argc, argv, "end", "0"));
    total = atoll(value_of(argc, argv, "total", "0"));
    int64_t requests = atoll(value_of(argc, argv, "requests", "0"));
    if (requests > 0) requests_each = requests;
    if (connection_count < 1 || connection_count > CONNECTIONS_MAX || window < 1 || window > WINDOW_MAX)
        refuse("too few or too many connections, or too wide a window");
    if (partitions < 1) refuse("no partitions");
    setup = read_whole(value_of(argc, argv, "setup", NULL), &setup_bytes);
    frame = read_whole(value_of(argc, argv, "frame", NULL), &frame_bytes);
    look_at_frame();
    poller = epoll_create1(0);
    if (poller < 0) fail("epoll_create1");
    connections = allocate((size_t)connection_count * sizeof *connections);
    for (int n = 0; n < connection_count; n++) open_connection(&connections[n], n, port);
    run(atof(value_of(argc, argv, "warmup", "0.3")), atof(value_of(argc, argv, "seconds", "1")));
    return errors != 0;
}
