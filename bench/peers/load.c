/* The load of bench/peers: one process, one epoll loop, and as little work as it can do, whatever the protocol.
 *
 * usage: load NAME=VALUE ... -> one JSON object on stdout; exit status 1 if a reply was wrong
 *
 *   protocol=NAME    jmq4, kafka, rocketmq, redis, nats or amqp: load_NAME.c
 *   port=N           of a server on 127.0.0.1
 *   mode=produce     the same request over and over, `window` outstanding on a connection
 *   mode=consume     one request outstanding on a connection; the protocol makes the next one from the reply
 *   mode=latency     one connection sends a message each 1/rate seconds, `groups` connections receive all of them; with
 *                    batch=N it sends N at once, when the last of them is due
 *   setup=FILE       what every connection sends first, part by part, each after the last one's answer. A part is four
 *                    bytes of length, with the highest bit set if it has no answer, and its bytes
 *   requests=FILE size=BYTES      one or more requests of one size; connection k uses number k mod their count
 *                    #CONN# in setup and requests becomes the connection's number, 000000 for the first
 *   consumer_setup=FILE consumer_requests=FILE consumer_size=BYTES     latency: those of the receivers
 *   connections=N window=N batch=N     batch: messages in a request of a producer
 *   warmup=SECONDS seconds=SECONDS     what comes before `warmup` is not measured
 *   rotate=1         produce: each request of a connection is the next of `requests`, not always the same
 *   count=N          produce: end after so many requests on each connection, not by time (no warm-up)
 *   total=N          consume: end when so many messages were received, or when the time is over (no warm-up)
 *   end=POSITION     consume: start again from the beginning there
 *   rate=N groups=N  latency: messages a second; every group gets every message
 *
 * Replies on a connection come in the order of its requests. Latency of produce and consume is from handing a request
 * to the connection until its whole reply is here; a new one goes out when a reply has come (closed loop). Latency of
 * mode=latency is from when the k-th message was DUE to be sent until the k-th was received, so that a server or a
 * load that falls behind cannot hide it. That needs one partition, and nothing in it before.
 */
#include "load.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    WINDOW_MAX = 4096, CONNECTIONS_MAX = 1000, EVENTS_MAX = 256, ERRORS_MAX = 1000,
    RUNS_MAX = 64, SEND_BYTES = 1 << 18, /* in one system call */
    COPIES = 256, /* of a request that must differ each time: more are never on their way at once */
    IN_BYTES = 1 << 16, REPLY_BYTES_MAX = 64 << 20, REQUEST_ROOM = 16 << 20,
    STALL_SECONDS = 10, DRAIN_SECONDS = 3, NO_ANSWER = 1 << 31,
};
#define SETTLE_NS (SECOND / 5) /* latency: until all receivers wait for the first message */

enum Mode { PRODUCE, CONSUME, LATENCY };

static const Protocol *protocol;
static enum Mode mode;

/* ---- what is measured ---------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t requests, messages, bytes;
} Counts;

static Counts measured, all; /* since the warm-up; since the start */
static Histogram latencies, lateness;
static uint64_t errors;
static int is_measuring, is_stopping;

static int is_first_error(void) { return !errors++; }

Answer wrong(const char *what, int64_t number) {
    if (is_first_error()) fprintf(stderr, "load: %s: %lld\n", what, (long long)number);
    return (Answer){1, -1};
}

Answer wrong_text(const char *what, const uint8_t *text, size_t bytes) {
    if (is_first_error()) fprintf(stderr, "load: %s: %.*s\n", what, (int)(bytes < 500 ? bytes : 500), text);
    return (Answer){1, -1};
}

void refuse(const char *what) {
    fprintf(stderr, "load: %s\n", what);
    exit(1);
}

static void count(Counts *counts, Answer answer, size_t bytes) {
    counts->requests += (uint64_t)answer.requests;
    counts->messages += (uint64_t)answer.messages;
    counts->bytes += bytes;
}

/* ---- connections --------------------------------------------------------------------------------------------- */

typedef struct {
    Peer peer;
    int fd, is_waiting_for_room, is_consumer;
    const uint8_t *requests; /* all of its side's, or its own copy with its number in them */
    /* A producer: `queued` requests wait to be sent, of the first of them `head_sent` bytes are gone. All are the same
     * bytes, peer.first, or lie in a circle of `copies`. */
    int64_t queued, requests_left, made, outstanding;
    size_t head_sent;
    uint8_t *copies;
    int64_t *sent_ns; /* of the requests that are outstanding, in a circle of `window` */
    int64_t sent_head;
    /* A consumer: what is left to be sent. */
    uint8_t *out;
    size_t out_bytes, out_sent, out_room;
    int64_t asked_ns, received; /* messages */
    uint8_t *in;
    size_t in_bytes, in_room;
} Connection;

/* The connections of one kind, and what they send. */
typedef struct {
    uint8_t *setup, *requests;
    size_t setup_bytes, requests_bytes, size;
    Connection *connections;
    int count;
} Side;

static Side side, receivers; /* `receivers` of mode=latency; `side` is all else */
static int poller, is_rotating;
static int64_t window, batch, total, end_position, requests_each = INT64_MAX;

static void wait_for_room(Connection *c, int wanted) {
    if (c->is_waiting_for_room == wanted) return;
    c->is_waiting_for_room = wanted;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event)) fail("epoll_ctl");
}

/* Sends it all or as much as there is room for; how much that was. */
static size_t send_parts(Connection *c, struct iovec *parts, int number) {
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)number};
    ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) fail("send");
    return sent < 0 ? 0 : (size_t)sent;
}

/* ---- a producer's requests ----------------------------------------------------------------------------------- */

/* The n-th one since the start. */
static uint8_t *request_number(Connection *c, int64_t n) {
    if (c->copies) return c->copies + (size_t)(n % COPIES) * side.size;
    if (!is_rotating) return (uint8_t *)c->peer.first;
    return (uint8_t *)c->requests + side.size * ((size_t)(c->peer.number + n) % (side.requests_bytes / side.size));
}

static void send_queued(Connection *c) {
    size_t size = c->peer.first_bytes;
    while (c->queued) {
        struct iovec parts[RUNS_MAX];
        size_t bytes = 0;
        int number = 0;
        for (; number < RUNS_MAX && number < c->queued && bytes < SEND_BYTES; number++, bytes += size)
            parts[number] = (struct iovec){request_number(c, c->made - c->queued + number), size};
        parts[0].iov_base = (uint8_t *)parts[0].iov_base + c->head_sent;
        parts[0].iov_len -= c->head_sent;
        bytes -= c->head_sent;
        size_t sent = send_parts(c, parts, number);
        c->head_sent += sent;
        c->queued -= (int64_t)(c->head_sent / size);
        c->head_sent %= size;
        if (sent < bytes) {
            wait_for_room(c, 1);
            return;
        }
    }
    wait_for_room(c, 0);
}

static void queue_request(Connection *c, int64_t now) {
    if (c->copies) {
        if (c->queued >= COPIES) refuse("the server reads too slowly for what has to be sent");
        protocol->number(request_number(c, c->made), c->peer.first_bytes, (uint64_t)c->made);
    }
    if (c->sent_ns) c->sent_ns[(c->sent_head + c->outstanding) % window] = now;
    c->made++;
    c->queued++;
    c->outstanding++;
    c->requests_left--;
}

static void fill_window(Connection *c, int64_t now) {
    while (!is_stopping && c->requests_left > 0 && c->outstanding < window && (!c->copies || c->queued < COPIES))
        queue_request(c, now);
    send_queued(c);
}

static void take_produced(Connection *c, const uint8_t *reply, size_t length, int64_t now) {
    Answer answer = protocol->produced(&c->peer, reply, length, batch);
    if (answer.requests > c->outstanding) refuse("a reply to nothing that was asked");
    for (int64_t n = 0; n < answer.requests && c->sent_ns; n++) {
        if (is_measuring && answer.messages >= 0) note(&latencies, now - c->sent_ns[c->sent_head]);
        c->sent_head = (c->sent_head + 1) % window;
    }
    c->outstanding -= answer.requests;
    if (answer.messages < 0 || mode == LATENCY) return;
    size_t bytes = (size_t)answer.requests * c->peer.first_bytes;
    count(&all, answer, bytes);
    if (is_measuring) count(&measured, answer, bytes);
}

/* ---- a consumer's requests ----------------------------------------------------------------------------------- */

static void send_out(Connection *c) {
    while (c->out_sent < c->out_bytes) {
        struct iovec part = {c->out + c->out_sent, c->out_bytes - c->out_sent};
        size_t sent = send_parts(c, &part, 1);
        if (!sent) {
            wait_for_room(c, 1);
            return;
        }
        c->out_sent += sent;
    }
    c->out_bytes = c->out_sent = 0;
    wait_for_room(c, 0);
}

/* Sends peer.request; what of it finds no room is kept, because the next reply may make another request. */
static void ask_next(Connection *c, int64_t now) {
    size_t bytes = c->peer.request_bytes;
    c->asked_ns = now;
    if (!bytes) return;
    if (c->out_bytes + bytes > c->out_room) {
        c->out_room = c->out_bytes + bytes;
        c->out = realloc(c->out, c->out_room);
        if (!c->out) fail("realloc");
    }
    memcpy(c->out + c->out_bytes, c->peer.request, bytes);
    c->out_bytes += bytes;
    send_out(c);
}

static int64_t first_due_ns, interval_ns, measured_from, messages_due;
static int64_t due_ns(int64_t n) { return first_due_ns + n * interval_ns; }

/* The next messages of a receiver: which ones they are is known from their number alone. */
static void note_receipt(Connection *c, int64_t messages, int64_t now) {
    for (int64_t n = c->received; n < c->received + messages; n++) {
        if (!first_due_ns || due_ns(n) > now) refuse("a message came before it was sent: the topic was not empty");
        if (n >= messages_due) refuse("more messages came than were sent");
        if (n >= measured_from) note(&latencies, now - due_ns(n));
    }
}

static void take_consumed(Connection *c, const uint8_t *reply, size_t length, int64_t now) {
    Answer answer = protocol->consumed(&c->peer, reply, length);
    if (answer.messages >= 0) {
        if (mode == LATENCY) note_receipt(c, answer.messages, now);
        else if (is_measuring && answer.requests) note(&latencies, now - c->asked_ns);
        c->received += answer.messages;
        count(&all, answer, length);
        if (is_measuring) count(&measured, answer, length);
        if (total && all.messages >= (uint64_t)total) is_stopping = 1;
    }
    if (answer.requests && answer.messages >= 0 && !is_stopping) ask_next(c, now);
    /* A consumer whose request failed has nothing to ask: nobody waits for the others then. */
    if (answer.messages < 0) is_stopping = 1;
}

/* ---- replies ------------------------------------------------------------------------------------------------- */

static void make_room(Connection *c) {
    if (c->in_bytes < c->in_room) return;
    if (c->in_room >= REPLY_BYTES_MAX) refuse("a reply is longer than any should be");
    c->in_room *= 2;
    c->in = realloc(c->in, c->in_room);
    if (!c->in) fail("realloc");
}

/* More bytes; 0 if there are none now. */
static size_t read_more(Connection *c) {
    make_room(c);
    ssize_t got = recv(c->fd, c->in + c->in_bytes, c->in_room - c->in_bytes, 0);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got < 0) fail("recv");
    if (got == 0) refuse("the server closed a connection");
    c->in_bytes += (size_t)got;
    return (size_t)got;
}

static void drop_read(Connection *c, size_t bytes) {
    if (!bytes) return;
    memmove(c->in, c->in + bytes, c->in_bytes - bytes);
    c->in_bytes -= bytes;
}

static void receive(Connection *c) {
    if (!read_more(c)) return;
    int64_t now = now_ns();
    size_t at = 0, length;
    while (at < c->in_bytes && (length = protocol->length(c->in + at, c->in_bytes - at))) {
        if (c->is_consumer) take_consumed(c, c->in + at, length, now);
        else take_produced(c, c->in + at, length, now);
        at += length;
    }
    drop_read(c, at);
    if (errors >= ERRORS_MAX) is_stopping = 1;
    if (mode == PRODUCE) fill_window(c, now);
}

/* ---- the start ----------------------------------------------------------------------------------------------- */

/* Waiting: nothing is measured yet. */
static void await_answer(Connection *c) {
    for (;;) {
        size_t length = c->in_bytes ? protocol->length(c->in, c->in_bytes) : 0;
        if (!length) {
            if (!read_more(c)) refuse("no reply to the setup for 10 seconds");
            continue;
        }
        int is_done = protocol->setup(&c->peer, c->in, length);
        if (errors) exit(1); /* it was told */
        drop_read(c, length);
        if (is_done) return;
    }
}

static void write_connection(uint8_t *part, size_t bytes, int number) {
    char digits[16];
    snprintf(digits, sizeof digits, "%06d", number);
    for (uint8_t *p = part; (p = memmem(p, bytes - (size_t)(p - part), "#CONN#", 6)); p += 6) memcpy(p, digits, 6);
}

static void send_setup(Connection *c, const Side *of) {
    for (size_t at = 0, bytes; at < of->setup_bytes; at += bytes) {
        if (of->setup_bytes - at < 4) refuse("the setup is not made of parts");
        uint32_t head = get32(of->setup + at);
        at += 4;
        bytes = head & ~(uint32_t)NO_ANSWER;
        if (bytes > of->setup_bytes - at) refuse("the setup is not made of parts");
        uint8_t *part = allocate(bytes + 1);
        memcpy(part, of->setup + at, bytes);
        write_connection(part, bytes, c->peer.number);
        if (send(c->fd, part, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) fail("send");
        free(part);
        if (!(head & (uint32_t)NO_ANSWER)) await_answer(c);
    }
}

static void connect_to(Connection *c, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct timeval patience = {.tv_sec = STALL_SECONDS};
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (void *)&address, sizeof address)) fail("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
}

static void make_requests(Connection *c, const Side *of) {
    c->requests = of->requests;
    if (memmem(of->requests, of->requests_bytes, "#CONN#", 6)) {
        uint8_t *own = allocate(of->requests_bytes);
        memcpy(own, of->requests, of->requests_bytes);
        write_connection(own, of->requests_bytes, c->peer.number);
        c->requests = own;
    }
    c->peer.first = c->requests + of->size * ((size_t)c->peer.number % (of->requests_bytes / of->size));
    c->peer.first_bytes = of->size;
    c->requests_left = requests_each;
    if (c->is_consumer) {
        c->peer.end = end_position;
        c->peer.request_room = REQUEST_ROOM; /* pages that are not used do not exist */
        c->peer.request = allocate(REQUEST_ROOM);
        c->peer.request_bytes = of->size;
        memcpy(c->peer.request, c->peer.first, of->size);
        return;
    }
    if (mode == PRODUCE) c->sent_ns = allocate((size_t)window * sizeof *c->sent_ns);
    if (!protocol->number) return;
    if (is_rotating) refuse("this protocol's requests are numbered, they cannot rotate");
    c->copies = allocate(of->size * COPIES);
    for (size_t n = 0; n < COPIES; n++) memcpy(c->copies + n * of->size, c->peer.first, of->size);
}

static void open_connection(Connection *c, const Side *of, int port) {
    c->in_room = IN_BYTES;
    c->in = allocate(c->in_room);
    connect_to(c, port);
    make_requests(c, of);
    send_setup(c, of);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll_ctl");
    if (c->in_bytes) refuse("more came than the setup asked for");
}

static void open_side(Side *of, int is_consumer, int port) {
    of->connections = allocate((size_t)of->count * sizeof *of->connections);
    for (int n = 0; n < of->count; n++) {
        Connection *c = &of->connections[n];
        c->peer.number = n;
        c->is_consumer = is_consumer;
        open_connection(c, of, port);
    }
}

/* ---- the run ------------------------------------------------------------------------------------------------- */

static int64_t began_ns, ended_ns, last_event_ns;
static double cpu_seconds;

static void begin_measuring(int64_t now) {
    is_measuring = 1;
    began_ns = now;
    cpu_seconds = own_cpu_seconds();
}

static void end_measuring(int64_t now) {
    ended_ns = now;
    is_measuring = 0;
    if (began_ns) cpu_seconds = own_cpu_seconds() - cpu_seconds;
}

static int64_t outstanding_count(void) {
    int64_t number = 0;
    for (int n = 0; n < side.count; n++) number += side.connections[n].outstanding;
    return number;
}

/* Serves what has happened, or happens within that time. */
static int64_t turn(int64_t wait_ns) {
    struct epoll_event events[EVENTS_MAX];
    struct timespec wait = {.tv_sec = wait_ns / SECOND, .tv_nsec = wait_ns % SECOND};
    int number = epoll_pwait2(poller, events, EVENTS_MAX, &wait, NULL);
    if (number < 0 && errno != EINTR) fail("epoll_pwait2");
    for (int n = 0; n < number; n++) {
        Connection *c = events[n].data.ptr;
        if (events[n].events & EPOLLOUT) (c->is_consumer ? send_out : send_queued)(c);
        if (events[n].events & ~(uint32_t)EPOLLOUT) receive(c);
    }
    int64_t now = now_ns();
    if (number > 0) last_event_ns = now;
    if (now - last_event_ns > STALL_SECONDS * SECOND) refuse("no reply for 10 seconds");
    return now;
}

/* Closed loop: produce and consume. */
static void run(double warmup, double seconds) {
    int64_t now = last_event_ns = now_ns(), warm = now + (int64_t)(warmup * SECOND);
    int64_t finish = warm + (int64_t)(seconds * SECOND);
    int is_by_time = requests_each == INT64_MAX;
    if (!is_by_time || total || warmup <= 0) begin_measuring(now);
    for (int n = 0; n < side.count; n++) {
        if (mode == PRODUCE) fill_window(&side.connections[n], now);
        else ask_next(&side.connections[n], now);
    }
    for (;;) {
        now = turn(SECOND / 20);
        if (!began_ns && now >= warm) begin_measuring(now);
        if (is_by_time && now >= finish) is_stopping = 1;
        int is_done = !is_by_time && !outstanding_count();
        if (!ended_ns && (is_stopping || is_done)) end_measuring(now);
        if (ended_ns && (!outstanding_count() || now > ended_ns + DRAIN_SECONDS * SECOND)) break;
    }
    if (outstanding_count() && !errors) refuse("the last replies did not come");
    if (!began_ns && !errors) refuse("it ended before the warm-up did");
}

static void settle(void) {
    last_event_ns = now_ns();
    for (int n = 0; n < receivers.count; n++) ask_next(&receivers.connections[n], now_ns());
    for (int64_t until = now_ns() + SETTLE_NS, now = now_ns(); now < until; now = turn(until - now))
        if (errors) exit(1);
}

static int64_t received_least(void) {
    int64_t least = INT64_MAX;
    for (int n = 0; n < receivers.count; n++)
        if (receivers.connections[n].received < least) least = receivers.connections[n].received;
    return least;
}

/* A request goes out when the last of its messages is due: the others wait for it, as in a client that batches. */
static int64_t request_due_ns(int64_t request) { return due_ns((request + 1) * batch - 1); }

/* All that are due by now. */
static void send_due(Connection *c, int64_t now) {
    for (; c->made * batch < messages_due && request_due_ns(c->made) <= now;) {
        if (c->made * batch >= measured_from) note(&lateness, now - request_due_ns(c->made));
        queue_request(c, now);
    }
    send_queued(c);
}

/* Open loop. The time a message was due follows from its number, so there is nothing to remember of it. */
static void run_latency(double warmup, double seconds, double rate) {
    prctl(PR_SET_TIMERSLACK, 1);
    settle();
    Connection *producer = &side.connections[0];
    interval_ns = (int64_t)((double)SECOND / rate);
    measured_from = (int64_t)(warmup * rate) / batch * batch;
    messages_due = measured_from + ((int64_t)(seconds * rate + 0.5) + batch - 1) / batch * batch;
    first_due_ns = now_ns() + SECOND / 100;
    int64_t now = now_ns(), last_due = due_ns(messages_due - 1);
    while (!is_stopping && (received_least() < messages_due || producer->outstanding)) {
        if (!began_ns && now >= due_ns(measured_from)) begin_measuring(now);
        send_due(producer, now);
        int64_t wait = producer->made * batch < messages_due ? request_due_ns(producer->made) - now_ns() : SECOND / 20;
        now = turn(wait > 0 ? wait : 0);
        if (now > last_due + STALL_SECONDS * SECOND) {
            wrong("messages that a group did not get", messages_due - received_least());
            break;
        }
    }
    if (!began_ns) begin_measuring(now);
    end_measuring(now);
    measured.messages = latencies.count;
}

static void print_figures(void) {
    double elapsed = (double)(ended_ns - began_ns) / SECOND;
    if (elapsed <= 0) elapsed = 1e-9;
    printf("{\"messages_s\": %.1f, ", (double)measured.messages / elapsed);
    printf("\"requests_s\": %.1f, ", (double)measured.requests / elapsed);
    printf("\"mb_s\": %.2f, ", (double)measured.bytes / elapsed / 1e6);
    printf("\"p50_us\": %.1f, ", quantile_us(&latencies, 0.5));
    printf("\"p99_us\": %.1f, ", quantile_us(&latencies, 0.99));
    printf("\"p999_us\": %.1f, ", quantile_us(&latencies, 0.999));
    printf("\"late_us_p99\": %.1f, ", quantile_us(&lateness, 0.99));
    printf("\"load_cpu\": %.3f, \"seconds\": %.3f, ", cpu_seconds / elapsed, elapsed);
    printf("\"messages\": %llu, ", (unsigned long long)measured.messages);
    printf("\"messages_all\": %llu, ", (unsigned long long)all.messages);
    printf("\"errors\": %llu}\n", (unsigned long long)errors);
}

/* ---- arguments ----------------------------------------------------------------------------------------------- */

static const Protocol *protocol_named(const char *name) {
    static const Protocol *const known[] = {&jmq4, &kafka, &rocketmq, &redis, &nats, &amqp};
    for (size_t n = 0; n < sizeof known / sizeof *known; n++)
        if (!strcmp(known[n]->name, name)) return known[n];
    refuse("no such protocol");
}

static enum Mode mode_named(const char *name) {
    static const char *const known[] = {"produce", "consume", "latency"};
    for (int n = 0; n < 3; n++)
        if (!strcmp(known[n], name)) return (enum Mode)n;
    refuse("no such mode");
}

static void read_side(Side *of, const char *setup, const char *requests, const char *size) {
    of->setup = read_whole(setup, &of->setup_bytes);
    of->requests = read_whole(requests, &of->requests_bytes);
    of->size = (size_t)atoll(size);
    if (!of->size || !of->requests_bytes || of->requests_bytes % of->size) refuse("the requests are not of that size");
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* nobody should have to look for it */
#define VALUE(name, otherwise) value_of(argc, argv, name, otherwise)
    protocol = protocol_named(VALUE("protocol", NULL));
    mode = mode_named(VALUE("mode", NULL));
    int port = atoi(VALUE("port", NULL));
    side.count = mode == LATENCY ? 1 : atoi(VALUE("connections", "1"));
    receivers.count = mode == LATENCY ? atoi(VALUE("groups", "1")) : 0;
    window = atoll(VALUE("window", "1"));
    batch = atoll(VALUE("batch", "1"));
    total = atoll(VALUE("total", "0"));
    end_position = atoll(VALUE("end", "0"));
    is_rotating = atoi(VALUE("rotate", "0"));
    int64_t each = atoll(VALUE("count", "0"));
    if (each > 0 && mode == PRODUCE) requests_each = each;
    double warmup = atof(VALUE("warmup", "0.3")), seconds = atof(VALUE("seconds", "1"));
    double rate = atof(VALUE("rate", "0"));
    if (side.count < 1 || side.count + receivers.count > CONNECTIONS_MAX || window < 1 || window > WINDOW_MAX)
        refuse("too few or too many connections, or too wide a window");
    read_side(&side, VALUE("setup", NULL), VALUE("requests", NULL), VALUE("size", NULL));
    if (mode == LATENCY) {
        if (rate <= 0 || receivers.count < 1) refuse("latency needs rate= and groups=");
        read_side(&receivers, VALUE("consumer_setup", NULL), VALUE("consumer_requests", NULL),
                  VALUE("consumer_size", NULL));
    }
    poller = epoll_create1(0);
    if (poller < 0) fail("epoll_create1");
    open_side(&receivers, 1, port);
    open_side(&side, mode == CONSUME, port);
    if (mode == LATENCY) run_latency(warmup, seconds, rate);
    else run(warmup, seconds);
    print_figures();
    return errors != 0;
}
