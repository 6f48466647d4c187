/* RocketMQ's remoting, with binary headers (wire_rocketmq.py): SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and PULL_MESSAGE.
 *
 * A reply: total, kind and length of the header, header, body. The header: code, language, version, opaque, flag, then
 * remark and fields, each with its length before it; a field is a name and a value, all text.
 */
#include "load.h"

enum {
    PREFIX = 4,             /* the length of a reply, itself left out */
    REPLY_BYTES_MAX = 64 << 20,
    HEADER_LENGTH = 4, HEADER = 8, BINARY = 1,
    CODE = HEADER, REMARK = HEADER + 13, HEADER_BYTES_MIN = 21,
    SUCCESS = 0, PULL_NOT_FOUND = 19, PULL_RETRY_IMMEDIATELY = 20,
    OFFSET_DIGITS = 19,     /* at the end of a pull request */
    RECORD_BYTES_MIN = 91,  /* of a stored message */
};

static size_t length(const uint8_t *bytes, size_t count) {
    if (count < PREFIX) return 0;
    size_t whole = PREFIX + (size_t)get32(bytes);
    if (whole < HEADER + HEADER_BYTES_MIN || whole > REPLY_BYTES_MAX) refuse("rocketmq: a reply of an impossible size");
    return count < whole ? 0 : whole;
}

/* Where the body begins. */
static size_t body_at(const uint8_t *reply, size_t length) {
    uint32_t word = get32(reply + HEADER_LENGTH);
    size_t at = HEADER + (word & 0xFFFFFF);
    if (word >> 24 != BINARY || at < HEADER + HEADER_BYTES_MIN || at > length)
        refuse("rocketmq: a reply without a binary header");
    return at;
}

static Answer wrong_code(const char *what, const uint8_t *reply, size_t end) {
    size_t bytes = get32(reply + REMARK);
    if (bytes == 0 || bytes > end - REMARK - 4) return wrong(what, get16(reply + CODE));
    return wrong_text(what, reply + REMARK + 4, bytes);
}

/* The number in a field of the header that ends at `end`; -1 if there is no such field. */
static int64_t field(const uint8_t *reply, size_t end, const char *name) {
    size_t name_bytes = strlen(name), at = REMARK + 4 + (size_t)get32(reply + REMARK) + 4;
    while (at + 2 <= end) {
        size_t key_bytes = get16(reply + at), value_at = at + 2 + key_bytes + 4;
        if (value_at > end) break;
        size_t value_bytes = get32(reply + value_at - 4);
        if (value_bytes > end - value_at) break;
        if (key_bytes == name_bytes && !memcmp(reply + at + 2, name, name_bytes)) {
            int64_t number = 0;
            for (size_t n = 0; n < value_bytes; n++) number = number * 10 + (reply[value_at + n] - '0');
            return number;
        }
        at = value_at + value_bytes;
    }
    return -1;
}

static Answer produced(Peer *peer, const uint8_t *reply, size_t length, int64_t messages) {
    (void)peer;
    size_t body = body_at(reply, length);
    if (get16(reply + CODE) != SUCCESS) return wrong_code("rocketmq: a send was refused", reply, body);
    return (Answer){1, messages};
}

static int64_t records(const uint8_t *bytes, size_t count) {
    int64_t found = 0;
    while (count >= RECORD_BYTES_MIN) {
        size_t whole = get32(bytes);
        if (whole < RECORD_BYTES_MIN || whole > count) break;
        bytes += whole;
        count -= whole;
        found++;
    }
    if (count) refuse("rocketmq: bytes that are no message");
    return found;
}

static void ask_from(Peer *peer, int64_t offset) {
    uint8_t *digit = peer->request + peer->request_bytes;
    for (int n = 0; n < OFFSET_DIGITS; n++) {
        *--digit = (uint8_t)('0' + offset % 10);
        offset /= 10;
    }
}

static Answer consumed(Peer *peer, const uint8_t *reply, size_t length) {
    size_t body = body_at(reply, length);
    uint16_t code = get16(reply + CODE);
    if (code != SUCCESS && code != PULL_NOT_FOUND && code != PULL_RETRY_IMMEDIATELY)
        return wrong_code("rocketmq: a pull was refused", reply, body);
    int64_t next = field(reply, body, "nextBeginOffset");
    if (next < 0) refuse("rocketmq: a pull was answered without the next offset");
    int64_t messages = code == SUCCESS ? records(reply + body, length - body) : 0;
    if (messages && messages != next - peer->position)
        return wrong("rocketmq: messages are missing between two offsets", peer->position);
    peer->position = peer->end && next >= peer->end ? 0 : next;
    ask_from(peer, peer->position);
    return (Answer){1, messages};
}

const Protocol rocketmq = {
    .name = "rocketmq",
    .length = length,
    .produced = produced,
    .consumed = consumed,
};
