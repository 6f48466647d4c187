/* The baseline of bench/broker.py: the least program that takes and answers the same frames.
 *
 * usage: broker_baseline JOURNAL BYTES [STORE MESSAGE COUNT PARTITIONS] -> its port on stdout
 *
 * One thread, one epoll loop, 127.0.0.1 only. In one turn it reads every connection that has
 * something, checks and stamps the messages where they lie, writes them to the journal with one
 * call, and answers.
 *
 * PRODUCE_MESSAGE: bounds and body CRC of every message are checked; partition, index, term and
 * storeTime are set in place; an index entry a message goes to memory. The journal is preallocated;
 * at its end it begins again. Where ACK_FLUSH is asked for, a second thread syncs, and replies leave
 * after the sync that covers them.
 *
 * FETCH_PARTITION_MESSAGE and FETCH_TOPIC_MESSAGE are answered from STORE, a mapped file that is
 * made at the start: COUNT copies of the message in the file MESSAGE for each partition, with
 * indexes from 0.
 *
 * Left out on purpose, so that it is a bound and not a broker: tokens, names, UTF-8, limits, record
 * headers, indexes on disk, syncs nobody waits for, leases. A connection either produces or
 * fetches, one topic a request.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "load_common.h"

#define MAGIC 0xCAFEBEBEu

enum {
    HEADER = 23, REPLY_HEADER = 26,
    ADD_CONNECTION = 1, ADD_CONSUMER = 3, ADD_PRODUCER = 5, HEARTBEAT = 7,
    FETCH_TOPIC_MESSAGE = 30, FETCH_PARTITION_MESSAGE = 31, COMMIT_ACK = 32, PRODUCE_MESSAGE = 50,
    UNKNOWN_TYPE = 6, /* the status */
    CONNECTIONS_MAX = 1024, PARTITIONS_MAX = 64, EVENTS_MAX = 256, SLICES_MAX = 1024,
    IN_BYTES = 1 << 20, OUT_BYTES = 1 << 18, FETCH_BYTES_MAX = 1 << 20,
    INDEX_ENTRIES = 1 << 16, /* a partition, written in a circle */
    TERM_NOW = 1,
};

/* Where the fields of a MESSAGE lie. */
enum {
    PARTITION = 4, INDEX = 6, TERM = 14, SYSTEM_CODE = 18, SEND_TIME = 21, STORE_TIME = 29,
    CRC = 33, FLAG = 41, BODY = 43, MESSAGE_BYTES_MIN = 57, BATCH = 0x1000,
};

/* ---- CRC-32 of the body ---------------------------------------------------------------------- */

/* By carry-less multiplication, 64 bytes a step, as the broker's compiled twin does for bodies
 * of this size: with a table alone the baseline would lose to the broker what the broker should
 * be measured by. The table, eight bytes a step, finishes the last bytes, and does everything on
 * processors that cannot multiply that way. */

static uint32_t table[8][256];
static uint64_t far_low, far_high, near_low, near_high; /* carry 128 bits over 512 and over 128 bits */
static int can_fold;

/* x to the power n, modulo the polynomial, bits reflected. */
static uint64_t power_of_x(int n) {
    uint32_t r = 1u << 31;
    while (n-- > 0) r = r >> 1 ^ (r & 1 ? 0xEDB88320u : 0);
    return (uint64_t)r << 1;
}

static void prepare_crc(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int bit = 0; bit < 8; bit++) c = c >> 1 ^ (c & 1 ? 0xEDB88320u : 0);
        table[0][n] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int n = 0; n < 256; n++)
            table[k][n] = table[0][table[k - 1][n] & 0xFF] ^ table[k - 1][n] >> 8;
    far_low = power_of_x(512 + 32);
    far_high = power_of_x(512 - 32);
    near_low = power_of_x(128 + 32);
    near_high = power_of_x(128 - 32);
#if defined(__x86_64__)
    can_fold = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

static uint32_t crc_by_table(uint32_t c, const uint8_t *p, size_t n) {
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t eight;
        memcpy(&eight, p, 8); /* little-endian, as are all machines this is run on */
        eight ^= c;
        c = 0;
        for (int k = 0; k < 8; k++) c ^= table[7 - k][eight >> 8 * k & 0xFF];
    }
    while (n--) c = table[0][(c ^ *p++) & 0xFF] ^ c >> 8;
    return c;
}

#if defined(__x86_64__)
#define FOLDING __attribute__((target("pclmul,sse4.1")))

FOLDING static inline __m128i carry(__m128i x, __m128i by, const uint8_t *onto) {
    __m128i low = _mm_clmulepi64_si128(x, by, 0x00), high = _mm_clmulepi64_si128(x, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), _mm_loadu_si128((const __m128i *)onto));
}

/* n is 64 at least. */
FOLDING static uint32_t crc_by_folding(uint32_t c, const uint8_t *p, size_t n) {
    __m128i lane[4], by = _mm_set_epi64x((long long)far_high, (long long)far_low);
    for (int k = 0; k < 4; k++) lane[k] = _mm_loadu_si128((const __m128i *)(p + 16 * k));
    lane[0] = _mm_xor_si128(lane[0], _mm_cvtsi32_si128((int)c));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
        lane[0] = carry(lane[0], by, p);
        lane[1] = carry(lane[1], by, p + 16);
        lane[2] = carry(lane[2], by, p + 32);
        lane[3] = carry(lane[3], by, p + 48);
    }
    uint8_t rest[16];
    by = _mm_set_epi64x((long long)near_high, (long long)near_low);
    for (int k = 1; k < 4; k++) {
        _mm_storeu_si128((__m128i *)rest, lane[k]);
        lane[0] = carry(lane[0], by, rest);
    }
    for (; n >= 16; p += 16, n -= 16) lane[0] = carry(lane[0], by, p);
    _mm_storeu_si128((__m128i *)rest, lane[0]);
    return crc_by_table(crc_by_table(0, rest, 16), p, n);
}
#endif

static uint32_t crc32_of(const uint8_t *p, size_t n) {
#if defined(__x86_64__)
    if (can_fold && n >= 64) return ~crc_by_folding(~0u, p, n);
#endif
    return ~crc_by_table(~0u, p, n);
}

/* ---- state ----------------------------------------------------------------------------------- */

typedef struct {
    int is_open, is_touched, is_waiting_for_room, number;
    uint8_t *in, *out;
    size_t in_bytes, taken; /* received; of these, served in this turn */
    /* Of the replies, bytes up to `ready` may leave, those up to `held` wait for the sync under
     * way, the rest for the one after it. */
    size_t out_bytes, ready, held;
    const uint8_t *slice; /* of the store: goes out behind `out`, and then so many zero bytes */
    size_t slice_bytes, zero_bytes;
    int64_t cursor; /* of FETCH_TOPIC_MESSAGE */
} Connection;

typedef struct {
    int64_t position;
    int32_t bytes, term;
} IndexEntry;

static Connection connections[CONNECTIONS_MAX]; /* by file descriptor */
static int touched[CONNECTIONS_MAX], touched_count, accepted_count;
static int poller;
static int64_t now_ms; /* read once a turn */

static int journal, sync_start, sync_done, is_syncing, is_sync_wanted;
static int64_t journal_bytes, journal_at;
/* What this turn adds to the journal; it still lies where it came in. */
static struct iovec slices[SLICES_MAX];
static int slice_count;
static size_t slices_bytes;

static int64_t next_index[PARTITIONS_MAX];
static IndexEntry *entries[PARTITIONS_MAX];

static const uint8_t *store;
static int64_t store_count, store_message_bytes, store_partitions;

static void touch(int fd) {
    if (connections[fd].is_touched) return;
    connections[fd].is_touched = 1;
    touched[touched_count++] = fd;
}

static void end_connection(int fd, const char *why) {
    if (why) fprintf(stderr, "broker_baseline: connection closed: %s\n", why);
    close(fd);
    connections[fd].is_open = 0;
}

/* ---- the journal ----------------------------------------------------------------------------- */

static void write_journal(void) {
    if (!slice_count) return;
    if (pwritev(journal, slices, slice_count, journal_at) != (ssize_t)slices_bytes) fail("journal");
    journal_at += (int64_t)slices_bytes;
    slice_count = 0;
    slices_bytes = 0;
}

/* Where the next messages will lie, if they have at most so many bytes. */
static int64_t next_position(size_t bytes_max) {
    if (slice_count == SLICES_MAX) write_journal();
    if (journal_at + (int64_t)(slices_bytes + bytes_max) > journal_bytes) {
        write_journal();
        journal_at = 0;
    }
    return journal_at + (int64_t)slices_bytes;
}

static void add_to_journal(uint8_t *data, size_t bytes) {
    slices[slice_count++] = (struct iovec){data, bytes};
    slices_bytes += bytes;
}

static void *sync_when_told(void *unused) {
    (void)unused;
    for (uint64_t told; read(sync_start, &told, sizeof told) == sizeof told;) {
        if (fdatasync(journal)) fail("fdatasync");
        if (write(sync_done, &(uint64_t){1}, 8) != 8) fail("eventfd");
    }
    return NULL;
}

/* One sync for all replies made so far; those made while it runs wait for the next. */
static void start_sync(void) {
    for (int fd = 0; fd < CONNECTIONS_MAX; fd++)
        if (connections[fd].is_open) connections[fd].held = connections[fd].out_bytes;
    is_syncing = 1;
    is_sync_wanted = 0;
    if (write(sync_start, &(uint64_t){1}, 8) != 8) fail("eventfd");
}

static void end_sync(void) {
    uint64_t told;
    if (read(sync_done, &told, sizeof told) != sizeof told) fail("eventfd");
    is_syncing = 0;
    for (int fd = 0; fd < CONNECTIONS_MAX; fd++) {
        Connection *c = &connections[fd];
        if (!c->is_open || c->held <= c->ready) continue;
        c->ready = c->held;
        touch(fd);
    }
}

/* ---- replies --------------------------------------------------------------------------------- */

/* The header of the answer to `frame`, with room for `payload` bytes, which are returned; `more`
 * bytes will be sent behind them from elsewhere. NULL if the peer does not take its replies. */
static uint8_t *reply_to(Connection *c, const uint8_t *frame, int status, size_t payload, size_t more) {
    if (c->out_bytes + REPLY_HEADER + payload > OUT_BYTES) return NULL;
    uint8_t *p = c->out + c->out_bytes;
    c->out_bytes += REPLY_HEADER + payload;
    put32(p, (uint32_t)(REPLY_HEADER + payload + more));
    put32(p + 4, MAGIC);
    p[8] = frame[8];
    p[9] = (uint8_t)((frame[9] & 0x06) | 1);
    memcpy(p + 10, frame + 10, 4);
    p[14] = (uint8_t)-frame[14];
    put64(p + 15, (uint64_t)now_ms);
    p[23] = (uint8_t)status;
    put16(p + 24, 0);
    return p + REPLY_HEADER;
}

static void wait_for_room(int fd, int wanted) {
    Connection *c = &connections[fd];
    if (c->is_waiting_for_room == wanted) return;
    c->is_waiting_for_room = wanted;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.fd = fd};
    if (epoll_ctl(poller, EPOLL_CTL_MOD, fd, &event)) fail("epoll_ctl");
}

static size_t less(size_t a, size_t b) { return a < b ? a : b; }

static void forget_sent(Connection *c, size_t sent) {
    size_t n = less(sent, c->ready);
    if (n) {
        memmove(c->out, c->out + n, c->out_bytes - n);
        c->out_bytes -= n;
        c->ready -= n;
        c->held -= less(n, c->held);
        sent -= n;
    }
    n = less(sent, c->slice_bytes);
    c->slice += n;
    c->slice_bytes -= n;
    c->zero_bytes -= sent - n;
}

static void send_replies(int fd) {
    static uint8_t zeros[8];
    Connection *c = &connections[fd];
    while (c->is_open && c->ready + c->slice_bytes + c->zero_bytes) {
        struct iovec parts[3] = {
            {c->out, c->ready}, {(void *)c->slice, c->slice_bytes}, {zeros, c->zero_bytes}};
        size_t count = c->slice_bytes + c->zero_bytes ? 3 : 1;
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            wait_for_room(fd, 1);
            return;
        }
        if (sent < 0) {
            end_connection(fd, NULL);
            return;
        }
        forget_sent(c, (size_t)sent);
    }
    if (c->is_open) wait_for_room(fd, 0);
}

/* ---- commands: each returns what is wrong with the frame, or NULL ---------------------------- */

/* The end of the STRING at `at`, or 0 if it is not within the frame. */
static size_t after_string(const uint8_t *frame, size_t at, size_t length) {
    if (!at || at + 2 > length) return 0;
    at += 2 + get16(frame + at);
    return at <= length ? at : 0;
}

static const char *answer_connection(Connection *c, const uint8_t *frame) {
    uint8_t *p = reply_to(c, frame, 0, 2 + 5 + 2, 0);
    if (!p) return "no room";
    put16(p, 5);
    memcpy(p + 2, "bench", 5);
    put16(p + 7, 0);
    return NULL;
}

/* ADD_PRODUCER and ADD_CONSUMER of one topic: the topic and an id. */
static const char *answer_role(Connection *c, const uint8_t *frame, size_t length) {
    size_t at = HEADER + 2, end = after_string(frame, at, length);
    if (!end || get16(frame + HEADER) != 1) return "not one topic";
    uint8_t *p = reply_to(c, frame, 0, end - HEADER + 3, 0);
    if (!p) return "no room";
    memcpy(p, frame + HEADER, end - HEADER);
    put16(p + (end - HEADER), 1);
    p[end - HEADER + 2] = '1';
    return NULL;
}

/* The size of the message at `m`, where its body is, or 0 if its parts do not add up. */
static size_t measure(const uint8_t *m, size_t left, size_t *body_bytes) {
    if (left < MESSAGE_BYTES_MIN) return 0;
    size_t length = get32(m), body = get32(m + BODY);
    if (length < MESSAGE_BYTES_MIN || length > left || body > length - MESSAGE_BYTES_MIN) return 0;
    size_t at = BODY + 4 + body;
    at = after_string(m, at, length);                           /* businessId */
    at = after_string(m, at, length);                           /* attributes */
    if (!at || at + 4 > length) return 0;
    size_t extension = get32(m + at);
    if (extension > length - at - 4) return 0;
    at = after_string(m, at + 4 + extension, length);           /* app */
    *body_bytes = body;
    return at == length ? length : 0;
}

/* Checks and stamps the messages, notes them in the index, writes a result for each, and adds
 * them to the journal. The app comes behind them, so their end is known only then. */
static const char *take_messages(uint8_t *m, size_t left, int count, uint8_t *result) {
    int64_t position = next_position(left);
    uint8_t *start = m;
    for (; count > 0; count--, result += 18) {
        size_t body_bytes, length = measure(m, left, &body_bytes);
        if (!length) return "a message's parts do not add up";
        if (get64(m + CRC) != crc32_of(m + BODY + 4, body_bytes)) return "a CRC is wrong";
        uint16_t partition = get16(m + PARTITION);
        if (partition >= PARTITIONS_MAX) return "no such partition";
        int64_t index = next_index[partition], sent_ms = (int64_t)get64(m + SEND_TIME);
        int64_t age = now_ms - sent_ms;
        next_index[partition] += get16(m + SYSTEM_CODE) & BATCH ? get16(m + FLAG) : 1;
        put16(m + PARTITION, partition);
        put64(m + INDEX, (uint64_t)index);
        put32(m + TERM, TERM_NOW);
        put32(m + STORE_TIME, (uint32_t)(age < 0 ? 0 : age > INT32_MAX ? INT32_MAX : age));
        entries[partition][index % INDEX_ENTRIES] = (IndexEntry){position, (int32_t)length, TERM_NOW};
        put16(result, partition);
        put64(result + 2, (uint64_t)index);
        put64(result + 10, (uint64_t)sent_ms);
        m += length;
        left -= length;
        position += (int64_t)length;
    }
    add_to_journal(start, (size_t)(m - start));
    return NULL;
}

static const char *answer_produce(Connection *c, uint8_t *frame, size_t length) {
    size_t topic = HEADER + 2, at = after_string(frame, topic, length), topic_bytes = at - topic;
    at = after_string(frame, at, length); /* txId */
    if (!at || at + 7 > length || get16(frame + HEADER) != 1) return "not one topic";
    /* The stronger of body and header counts. */
    int is_flush = frame[at + 4] == 0 || (frame[9] & 0x06) == 0;
    int count = get16(frame + at + 5);
    at += 7;
    uint8_t *p = reply_to(c, frame, 0, 2 + topic_bytes + 4 + 2 + 18 * (size_t)count, 0);
    if (!p) return "no room";
    put16(p, 1);
    memcpy(p + 2, frame + topic, topic_bytes);
    put32(p + 2 + topic_bytes, 0);
    put16(p + 6 + topic_bytes, (uint16_t)count);
    if (is_flush) is_sync_wanted = 1;
    else c->ready = c->out_bytes;
    return take_messages(frame + at, length - at, count, p + 8 + topic_bytes);
}

/* The place in the store of up to `count` messages from `index` on; the number of them through
 * `found`. */
static const uint8_t *find_in_store(int64_t partition, int64_t index, int64_t count, int64_t *found) {
    int64_t most = FETCH_BYTES_MAX / store_message_bytes;
    if (count > most) count = most;
    if (count > store_count - index) count = store_count - index;
    if (index < 0 || count < 0 || partition < 0 || partition >= store_partitions) count = 0;
    *found = count;
    return count ? store + (partition * store_count + index) * store_message_bytes : store;
}

static const char *answer_fetch_partition(Connection *c, const uint8_t *frame, size_t length) {
    size_t topic = HEADER + 2, at = after_string(frame, topic, length), topic_bytes = at - topic;
    if (!at || at + 16 > length || get16(frame + HEADER) != 1 || get16(frame + at) != 1)
        return "not one topic and partition";
    int64_t partition = get16(frame + at + 2), count = get32(frame + at + 4);
    int64_t index = (int64_t)get64(frame + at + 8);
    const uint8_t *slice = find_in_store(partition, index, count, &count);
    size_t slice_bytes = (size_t)(count * store_message_bytes);
    uint8_t *p = reply_to(c, frame, 0, 2 + topic_bytes + 6, slice_bytes + 4);
    if (!p) return "no room";
    put16(p, 1);
    memcpy(p + 2, frame + topic, topic_bytes);
    put16(p + 2 + topic_bytes, 1);
    put16(p + 4 + topic_bytes, (uint16_t)partition);
    put16(p + 6 + topic_bytes, (uint16_t)count);
    c->slice = slice;
    c->slice_bytes = slice_bytes;
    c->zero_bytes = 4; /* the code, which follows the messages */
    c->ready = c->out_bytes;
    return NULL;
}

/* Each connection is lent a partition of its own, from the start again when it has come to the
 * end. */
static const char *answer_fetch_topic(Connection *c, const uint8_t *frame, size_t length) {
    size_t topic = HEADER + 2, at = after_string(frame, topic, length), topic_bytes = at - topic;
    if (!at || at + 2 > length || get16(frame + HEADER) != 1) return "not one topic";
    int64_t count = get16(frame + at);
    if (c->cursor >= store_count) c->cursor = 0;
    int64_t partition = store_partitions ? c->number % store_partitions : 0;
    const uint8_t *slice = find_in_store(partition, c->cursor, count, &count);
    size_t slice_bytes = (size_t)(count * store_message_bytes);
    uint8_t *p = reply_to(c, frame, 0, 2 + topic_bytes + 2, slice_bytes);
    if (!p) return "no room";
    put16(p, 1);
    memcpy(p + 2, frame + topic, topic_bytes);
    put16(p + 2 + topic_bytes, (uint16_t)count);
    c->slice = slice;
    c->slice_bytes = slice_bytes;
    c->cursor += count;
    c->ready = c->out_bytes;
    return NULL;
}

static const char *answer_ack(Connection *c, const uint8_t *frame, size_t length) {
    size_t topic = HEADER + 2, at = after_string(frame, topic, length), topic_bytes = at - topic;
    if (!at || at + 2 > length || get16(frame + HEADER) != 1) return "not one topic";
    int count = get16(frame + at);
    at += 2;
    uint8_t *p = reply_to(c, frame, 0, 2 + topic_bytes + 2 + 6 * (size_t)count, 0);
    if (!p) return "no room";
    put16(p, 1);
    memcpy(p + 2, frame + topic, topic_bytes);
    put16(p + 2 + topic_bytes, (uint16_t)count);
    p += 4 + topic_bytes;
    for (; count > 0; count--, p += 6) {
        if (at + 4 > length) return "cut short";
        memcpy(p, frame + at, 2);
        put32(p + 2, 0);
        at += 4 + 11 * (size_t)get16(frame + at + 2);
    }
    c->ready = c->out_bytes;
    return at <= length ? NULL : "cut short";
}

static const char *answer(Connection *c, uint8_t *frame, size_t length) {
    const char *wrong = NULL;
    switch (frame[14]) {
    case PRODUCE_MESSAGE: return answer_produce(c, frame, length);
    case FETCH_PARTITION_MESSAGE: return answer_fetch_partition(c, frame, length);
    case FETCH_TOPIC_MESSAGE: return answer_fetch_topic(c, frame, length);
    case COMMIT_ACK: return answer_ack(c, frame, length);
    case ADD_CONNECTION: wrong = answer_connection(c, frame); break;
    case ADD_CONSUMER:
    case ADD_PRODUCER: wrong = answer_role(c, frame, length); break;
    case HEARTBEAT: wrong = reply_to(c, frame, 0, 0, 0) ? NULL : "no room"; break;
    default: wrong = reply_to(c, frame, UNKNOWN_TYPE, 0, 0) ? NULL : "no room";
    }
    c->ready = c->out_bytes;
    return wrong;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void serve(int fd) {
    Connection *c = &connections[fd];
    touch(fd);
    /* A fetch has to be sent before the next frame is looked at. */
    while (!c->slice_bytes && !c->zero_bytes) {
        uint8_t *frame = c->in + c->taken;
        size_t left = c->in_bytes - c->taken;
        if (left < HEADER) return;
        size_t length = get32(frame);
        if (length < HEADER || length > IN_BYTES || get32(frame + 4) != MAGIC) {
            end_connection(fd, "not a frame");
            return;
        }
        if (left < length) return;
        const char *wrong = answer(c, frame, length);
        if (wrong) {
            end_connection(fd, wrong);
            return;
        }
        c->taken += length;
    }
}

static void receive(int fd) {
    Connection *c = &connections[fd];
    if (c->in_bytes == IN_BYTES) return; /* there is a fetch to be sent first */
    ssize_t got = recv(fd, c->in + c->in_bytes, IN_BYTES - c->in_bytes, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        end_connection(fd, NULL);
        return;
    }
    c->in_bytes += (size_t)got;
    serve(fd);
}

static void end_turn(void) {
    write_journal();
    if (is_sync_wanted && !is_syncing) start_sync();
    for (int n = 0; n < touched_count; n++) {
        Connection *c = &connections[touched[n]];
        c->is_touched = 0;
        if (!c->is_open) continue;
        if (c->taken) { /* the journal has what lay here */
            memmove(c->in, c->in + c->taken, c->in_bytes - c->taken);
            c->in_bytes -= c->taken;
            c->taken = 0;
        }
        send_replies(touched[n]);
    }
    touched_count = 0;
}

static void watch(int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
}

static void accept_one(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0) return;
    if (fd >= CONNECTIONS_MAX) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    Connection *c = &connections[fd];
    uint8_t *in = c->in, *out = c->out;
    /* A connection that was closed in this turn may have had this number and is still on the
     * list of touched. */
    *c = (Connection){.is_open = 1, .is_touched = c->is_touched, .number = accepted_count++};
    c->in = in ? in : allocate(IN_BYTES);
    c->out = out ? out : allocate(OUT_BYTES);
    watch(fd);
}

static void on_event(int fd, uint32_t events) {
    if (!connections[fd].is_open) return;
    if (events & EPOLLOUT) {
        send_replies(fd);
        if (connections[fd].is_open && !connections[fd].is_waiting_for_room) serve(fd);
    }
    if (connections[fd].is_open && events & ~(uint32_t)EPOLLOUT) receive(fd);
}

static void run(int listener) {
    struct epoll_event events[EVENTS_MAX];
    for (;;) { /* until SIGTERM */
        int count = epoll_wait(poller, events, EVENTS_MAX, -1);
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        now_ms = t.tv_sec * 1000LL + t.tv_nsec / 1000000;
        for (int n = 0; n < count; n++) {
            int fd = events[n].data.fd;
            if (fd == listener) accept_one(listener);
            else if (fd == sync_done) end_sync();
            else on_event(fd, events[n].events);
        }
        end_turn();
    }
}

/* ---- the start ------------------------------------------------------------------------------- */

static void make_store(const char *path, const char *message_path, int64_t count, int64_t partitions) {
    static uint8_t message[1 << 20];
    FILE *file = fopen(message_path, "rb");
    size_t bytes = file ? fread(message, 1, sizeof message, file) : 0;
    if (bytes < MESSAGE_BYTES_MIN || get32(message) != bytes) fail(message_path);
    if (count < 1 || partitions < 1) fail("COUNT, PARTITIONS");
    fclose(file);
    int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
    size_t size = bytes * (size_t)(count * partitions);
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)size)) fail(path);
    uint8_t *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *m = map;
    if (map == MAP_FAILED) fail(path);
    put32(message + TERM, TERM_NOW);
    for (int64_t partition = 0; partition < partitions; partition++)
        for (int64_t index = 0; index < count; index++, m += bytes) {
            memcpy(m, message, bytes);
            put16(m + PARTITION, (uint16_t)partition);
            put64(m + INDEX, (uint64_t)index);
        }
    store = map;
    store_count = count;
    store_partitions = partitions;
    store_message_bytes = (int64_t)bytes;
}

static int listen_anywhere(void) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (listener < 0 || bind(listener, (void *)&address, size) || listen(listener, 512)) fail("listen");
    if (getsockname(listener, (void *)&address, &size)) fail("getsockname");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 7) {
        fprintf(stderr, "usage: broker_baseline JOURNAL BYTES [STORE MESSAGE COUNT PARTITIONS]\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* nobody should have to look for it */
    prepare_crc();
    if (crc32_of((const uint8_t *)"123456789", 9) != 0xCBF43926u) return 3;
    journal_bytes = atoll(argv[2]);
    journal = open(argv[1], O_CREAT | O_RDWR | O_TRUNC, 0600);
    if (journal < 0 || posix_fallocate(journal, 0, journal_bytes)) fail(argv[1]);
    if (argc == 7) make_store(argv[3], argv[4], atoll(argv[5]), atoll(argv[6]));
    else store_message_bytes = 1; /* nothing is there: every fetch is answered, and empty */
    for (int n = 0; n < PARTITIONS_MAX; n++) entries[n] = allocate(INDEX_ENTRIES * sizeof(IndexEntry));
    poller = epoll_create1(0);
    sync_start = eventfd(0, 0);
    sync_done = eventfd(0, EFD_NONBLOCK);
    pthread_t syncer;
    if (poller < 0 || pthread_create(&syncer, NULL, sync_when_told, NULL)) fail("start");
    int listener = listen_anywhere();
    watch(listener);
    watch(sync_done);
    run(listener);
}
