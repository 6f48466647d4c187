/* AMQP 0-9-1, as RabbitMQ speaks it. A "reply" is one frame.
 *
 * A producer's request is one basic.publish or many; confirms may come for one message or for all up to one, and for
 * single ones out of order. A consumer's request is basic.consume; then the server pushes, as long as not too much is
 * without an ack: every ACK_EVERY messages all that came are acked at once.
 */
#include "load.h"

enum {
    METHOD = 1, HEADER = 2, BODY = 3, HEARTBEAT = 8, END = 0xCE, HEAD = 7, /* bytes before a frame's content */
    CONNECTION_CLOSE = 10 << 16 | 50, CHANNEL_CLOSE = 20 << 16 | 40, CONSUME_OK = 60 << 16 | 21, RETURN = 60 << 16 | 50,
    DELIVER = 60 << 16 | 60, ACK = 60 << 16 | 80, NACK = 60 << 16 | 120, CANCEL = 60 << 16 | 30,
    ACK_EVERY = 100, TAGS = 1 << 20, /* that may be confirmed before an older one is */
};

/* Of a producer: all up to FLOOR are confirmed, COUNT in all; a circle of one byte a tag has those beyond FLOOR. */
enum { FLOOR, COUNT, CIRCLE };
/* Of a consumer: what is still to come of a body, the last message's tag, how many came since the last ack. */
enum { LEFT, TAG, UNACKED };

static size_t length_of(const uint8_t *bytes, size_t count) {
    if (count >= 4 && !memcmp(bytes, "AMQP", 4)) refuse("RabbitMQ speaks another version of AMQP");
    if (count < HEAD) return 0;
    size_t length = HEAD + (size_t)get32(bytes + 3) + 1;
    if (length > count) return 0;
    if (bytes[length - 1] != END) refuse("what came back is not AMQP");
    return length;
}

static uint32_t method_of(const uint8_t *frame) { return frame[0] == METHOD ? get32(frame + HEAD) : 0; }

/* A method that ends things: 1 after it was told. Its reason is a short text behind a code. */
static int is_close(const uint8_t *frame) {
    uint32_t method = method_of(frame);
    if (method == CANCEL) {
        wrong("RabbitMQ cancelled the consumer of a queue", 0);
        return 1;
    }
    if (method != CONNECTION_CLOSE && method != CHANNEL_CLOSE && method != RETURN) return 0;
    wrong_text("RabbitMQ", frame + HEAD + 7, frame[HEAD + 6]);
    return 1;
}

static int set_up(Peer *peer, const uint8_t *frame, size_t length) {
    (void)peer, (void)length;
    is_close(frame);
    return frame[0] == METHOD;
}

static int64_t confirm_up_to(Peer *peer, uint8_t *circle, int64_t tag) {
    int64_t fresh = 0;
    for (; peer->state[FLOOR] < tag; fresh += !circle[peer->state[FLOOR] % TAGS], circle[peer->state[FLOOR] % TAGS] = 0)
        peer->state[FLOOR]++;
    return fresh;
}

/* How many messages this confirm is about that no other was. */
static int64_t confirm(Peer *peer, int64_t tag, int is_multiple) {
    if (!peer->state[CIRCLE]) peer->state[CIRCLE] = (int64_t)(intptr_t)allocate(TAGS);
    uint8_t *circle = (uint8_t *)(intptr_t)peer->state[CIRCLE];
    int64_t fresh = 1;
    if (tag - peer->state[FLOOR] >= TAGS) refuse("a confirm of a message that is far from being next");
    if (is_multiple || tag == peer->state[FLOOR] + 1) fresh = confirm_up_to(peer, circle, tag);
    else circle[tag % TAGS] = 1;
    while (circle[(peer->state[FLOOR] + 1) % TAGS]) circle[++peer->state[FLOOR] % TAGS] = 0;
    return fresh;
}

static Answer produced(Peer *peer, const uint8_t *frame, size_t length, int64_t messages) {
    (void)length;
    if (is_close(frame)) return (Answer){1, -1};
    uint32_t method = method_of(frame);
    if (method == NACK) return wrong("RabbitMQ did not take message", (int64_t)get64(frame + HEAD + 4));
    if (method != ACK) return (Answer){0, 0};
    int64_t before = peer->state[COUNT] / messages;
    int64_t fresh = confirm(peer, (int64_t)get64(frame + HEAD + 4), frame[HEAD + 12] & 1);
    peer->state[COUNT] += fresh;
    return (Answer){peer->state[COUNT] / messages - before, fresh};
}

static void write_ack(Peer *peer) {
    uint8_t *p = peer->request;
    p[0] = METHOD;
    put16(p + 1, 1); /* the channel */
    put32(p + 3, 13);
    put32(p + HEAD, ACK);
    put64(p + HEAD + 4, (uint64_t)peer->state[TAG]);
    p[HEAD + 12] = 1; /* and all before */
    p[HEAD + 13] = END;
    peer->request_bytes = HEAD + 14;
}

static Answer received(Peer *peer) {
    if (++peer->state[UNACKED] < ACK_EVERY) return (Answer){0, 1};
    peer->state[UNACKED] = 0;
    write_ack(peer);
    return (Answer){1, 1};
}

static Answer consumed(Peer *peer, const uint8_t *frame, size_t length) {
    if (is_close(frame)) return (Answer){1, -1};
    switch (frame[0]) {
    case METHOD:
        if (method_of(frame) == DELIVER) /* behind the consumer's name */
            peer->state[TAG] = (int64_t)get64(frame + HEAD + 4 + 1 + frame[HEAD + 4]);
        return (Answer){0, 0};
    case HEADER:
        peer->state[LEFT] = (int64_t)get64(frame + HEAD + 4);
        return peer->state[LEFT] ? (Answer){0, 0} : received(peer);
    case BODY:
        peer->state[LEFT] -= (int64_t)(length - HEAD - 1);
        if (peer->state[LEFT] < 0) return wrong("more of a body than was announced", -peer->state[LEFT]);
        return peer->state[LEFT] ? (Answer){0, 0} : received(peer);
    case HEARTBEAT: return (Answer){0, 0};
    default: return wrong("a frame of type", frame[0]);
    }
}

const Protocol amqp = {"amqp", length_of, set_up, produced, consumed, NULL};
