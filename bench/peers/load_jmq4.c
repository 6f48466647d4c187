/* jmq4, LakeMQ's own protocol.
 *
 * A consumer's request is FETCH_PARTITION_MESSAGE, which reads by index, or FETCH_TOPIC_MESSAGE, which waits until
 * there is something and lends it: then what came is acked in the same breath as the next is asked for.
 */
#include "load.h"

#define MAGIC 0xCAFEBEBEu

enum {
    HEADER = 23, REPLY_HEADER = 26, TYPE = 14, STATUS = 23, ERROR = 24,
    PRODUCE_MESSAGE = 50, FETCH_TOPIC_MESSAGE = 30, FETCH_PARTITION_MESSAGE = 31, COMMIT_ACK = 32,
    /* of a MESSAGE */
    PARTITION = 4, INDEX = 6, SYSTEM_CODE = 18, FLAG = 41, MESSAGE_BYTES_MIN = 57, BATCH = 0x1000,
};

static size_t length_of(const uint8_t *bytes, size_t count) {
    if (count < REPLY_HEADER) return 0;
    size_t length = get32(bytes);
    if (length < REPLY_HEADER || get32(bytes + 4) != MAGIC || !(bytes[9] & 1))
        refuse("what came back is not a response");
    if (length > count) return 0;
    if (REPLY_HEADER + (size_t)get16(bytes + ERROR) > length) refuse("the error text does not fit");
    return length;
}

static Answer refused(const uint8_t *reply) {
    char what[32];
    snprintf(what, sizeof what, "status %d", reply[STATUS]);
    return wrong_text(what, reply + REPLY_HEADER, get16(reply + ERROR));
}

static int set_up(Peer *peer, const uint8_t *reply, size_t length) {
    (void)peer, (void)length;
    if (reply[STATUS]) refused(reply);
    return 1;
}

/* Where a payload that begins with one topic goes on behind it; 0 if it does not, or has no `more` bytes then. */
static size_t after_topic(const uint8_t *reply, size_t length, size_t more) {
    size_t at = REPLY_HEADER + get16(reply + ERROR);
    if (length < at + 4 || get16(reply + at) != 1) return 0;
    at += 4 + get16(reply + at + 2);
    return length < at + more ? 0 : at;
}

static Answer produced(Peer *peer, const uint8_t *reply, size_t length, int64_t messages) {
    (void)peer;
    if (reply[STATUS]) return refused(reply);
    if (reply[TYPE] != (uint8_t)-PRODUCE_MESSAGE) return wrong("not the answer to PRODUCE_MESSAGE, type", reply[TYPE]);
    size_t at = after_topic(reply, length, 6);
    if (!at) return wrong("not the ack of one topic, length", (int64_t)length);
    if (get32(reply + at)) return wrong("code", (int32_t)get32(reply + at));
    int results = get16(reply + at + 4);
    if (results < 1 || length != at + 6 + 18 * (size_t)results) return wrong("number of results", results);
    int64_t index = (int64_t)get64(reply + at + 6 + 2);
    if (index < 0) return wrong("index", index);
    return (Answer){1, messages};
}

/* How many messages, and so indexes, a MESSAGE stands for. */
static int held_by(const uint8_t *m) { return get16(m + SYSTEM_CODE) & BATCH ? get16(m + FLAG) : 1; }

/* The number of messages in `count` MESSAGEs, and the place after them through `at`; -1 if they do not fit. */
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

static Answer fetched_by_index(Peer *peer, const uint8_t *reply, size_t length) {
    size_t at = after_topic(reply, length, 10);
    if (!at || get16(reply + at) != 1) return wrong("not the answer for one partition, length", (int64_t)length);
    int count = get16(reply + at + 4);
    int64_t next = peer->position;
    at += 6;
    int64_t messages = walk(reply, length, &at, count, &next);
    if (messages < 0 || at + 4 != length) return wrong("misfit messages, in number", count);
    if (get32(reply + at)) return wrong("code", (int32_t)get32(reply + at));
    /* A batch may begin before the index that was asked for; there must be no gap. */
    if (count && (next <= peer->position || next > peer->position + messages)) return wrong("next index", next);
    peer->position = peer->end && next >= peer->end ? 0 : next;
    put64(peer->request + HEADER + 4 + get16(peer->request + HEADER + 2) + 8, (uint64_t)peer->position);
    return (Answer){1, messages};
}

/* COMMIT_ACK of all messages of a reply, a run in a partition each; its length. */
static size_t write_ack(const Peer *peer, uint8_t *request, const uint8_t *reply, size_t at, int count) {
    size_t head = HEADER + 4u + get16(peer->first + HEADER + 2); /* the same topic */
    const uint8_t *app = peer->first + head + 2;
    memcpy(request, peer->first, head);
    request[TYPE] = COMMIT_ACK;
    uint8_t *partitions = request + head, *p = partitions + 2, *acks = NULL;
    int number = 0, named = 0, last = -1;
    for (; count > 0; count--) {
        const uint8_t *m = reply + at;
        int partition = get16(m + PARTITION), held = held_by(m);
        if (partition != last) {
            put16(p, (uint16_t)partition);
            acks = p + 2;
            p += 4;
            number = 0;
            named++;
            last = partition;
        }
        for (int n = 0; n < held; n++, p += 11) {
            put16(p, (uint16_t)partition);
            put64(p + 2, get64(m + INDEX) + (uint64_t)n);
            p[10] = 0; /* success */
        }
        number += held;
        put16(acks, (uint16_t)number);
        at += get32(m);
    }
    put16(partitions, (uint16_t)named);
    memcpy(p, app, 2u + get16(app));
    p += 2 + get16(app);
    put32(request, (uint32_t)(p - request));
    return (size_t)(p - request);
}

static Answer lent(Peer *peer, const uint8_t *reply, size_t length) {
    size_t at = after_topic(reply, length, 2);
    if (!at) return wrong("not the answer for one topic, length", (int64_t)length);
    int count = get16(reply + at);
    size_t start = at += 2;
    int64_t next = 0, messages = walk(reply, length, &at, count, &next);
    if (messages < 0 || at != length) return wrong("misfit messages, in number", count);
    if (2 * peer->first_bytes + 15 * (size_t)messages > peer->request_room) refuse("too many messages to ack");
    size_t ack_bytes = messages ? write_ack(peer, peer->request, reply, start, count) : 0;
    memcpy(peer->request + ack_bytes, peer->first, peer->first_bytes);
    peer->request_bytes = ack_bytes + peer->first_bytes;
    return (Answer){1, messages};
}

static Answer acked(const uint8_t *reply, size_t length) {
    size_t at = after_topic(reply, length, 2);
    if (!at) return wrong("not the ack of one topic, length", (int64_t)length);
    int count = get16(reply + at);
    at += 2;
    if (length != at + 6 * (size_t)count) return wrong("number of partitions", count);
    for (; count > 0; count--, at += 6)
        if (get32(reply + at + 2)) return wrong("code", (int32_t)get32(reply + at + 2));
    return (Answer){0, 0}; /* the fetch that went out with it is still to be answered */
}

static Answer consumed(Peer *peer, const uint8_t *reply, size_t length) {
    if (reply[STATUS]) return refused(reply);
    switch ((uint8_t)-reply[TYPE]) {
    case FETCH_PARTITION_MESSAGE: return fetched_by_index(peer, reply, length);
    case FETCH_TOPIC_MESSAGE: return lent(peer, reply, length);
    case COMMIT_ACK: return acked(reply, length);
    default: return wrong("a response of another type than any request", reply[TYPE]);
    }
}

const Protocol jmq4 = {"jmq4", length_of, set_up, produced, consumed, NULL};
