/* Redis: streams. A producer's request is one XADD or many, a consumer's one XREAD that waits if there is nothing.
 *
 * The last argument of XREAD is where it reads on, `<ms>-<number>` of the last entry. It has a fixed width, so that the
 * next request is the last one with other digits.
 */
#include "load.h"

enum { DIGITS = 20, ID = 2 * DIGITS + 1 };

/* The number behind a type byte, and the place behind its line through `at`; 0 if the line is not whole. */
static int read_line(const uint8_t *bytes, size_t count, size_t *at, int64_t *number) {
    size_t n = *at + 1;
    int is_minus = n < count && bytes[n] == '-';
    int64_t value = 0;
    for (n += (size_t)is_minus; n < count && bytes[n] >= '0' && bytes[n] <= '9'; n++)
        value = value * 10 + bytes[n] - '0';
    if (n < count && bytes[n] != '\r') { /* text */
        const uint8_t *found = memchr(bytes + n, '\r', count - n);
        n = found ? (size_t)(found - bytes) : count;
    }
    if (n + 2 > count) return 0;
    *number = is_minus ? -value : value;
    *at = n + 2;
    return 1;
}

static size_t length_of(const uint8_t *bytes, size_t count) {
    size_t at = 0;
    for (int64_t values = 1, number; values > 0; values--) {
        if (at >= count) return 0;
        int type = bytes[at];
        if (!memchr("+-:$*", type, 5)) refuse("what came back is not Redis's protocol");
        if (!read_line(bytes, count, &at, &number)) return 0;
        if (type == '*' && number > 0) values += number;
        if (type == '$' && number >= 0) at += (size_t)number + 2;
    }
    return at > count ? 0 : at;
}

static Answer refused(const uint8_t *reply, size_t length) { return wrong_text("Redis", reply + 1, length - 3); }

static int set_up(Peer *peer, const uint8_t *reply, size_t length) {
    (void)peer;
    if (reply[0] == '-') refused(reply, length);
    return 1;
}

/* A request of n XADDs has n replies. */
static Answer produced(Peer *peer, const uint8_t *reply, size_t length, int64_t messages) {
    if (reply[0] == '-') return refused(reply, length);
    if (reply[0] != '$') return wrong("not the id of an entry but type", reply[0]);
    if (++peer->state[0] < messages) return (Answer){0, 1};
    peer->state[0] = 0;
    return (Answer){1, 1};
}

static void write_number(uint8_t *place, const uint8_t *digits, size_t count) {
    if (count > DIGITS) refuse("the id of an entry is too long");
    memset(place, '0', DIGITS - count);
    memcpy(place + DIGITS - count, digits, count);
}

static void read_on_after(Peer *peer, const uint8_t *id, size_t bytes) {
    uint8_t *place = peer->request + peer->request_bytes - 2 - ID;
    const uint8_t *dash = memchr(id, '-', bytes);
    if (!dash) refuse("the id of an entry has no -");
    write_number(place, id, (size_t)(dash - id));
    write_number(place + DIGITS + 1, dash + 1, bytes - (size_t)(dash - id) - 1);
}

static void begin_again(Peer *peer) {
    read_on_after(peer, (const uint8_t *)"0-0", 3);
    peer->position = 0;
}

/* One line, which must be there and of that type; its number. */
static int64_t expect(const uint8_t *reply, size_t length, size_t *at, char type) {
    int64_t number = 0;
    if (*at >= length || reply[*at] != type || !read_line(reply, length, at, &number))
        refuse("the answer to XREAD is not what it should be");
    return number;
}

static void skip_text(const uint8_t *reply, size_t length, size_t *at) {
    *at += (size_t)expect(reply, length, at, '$') + 2;
}

/* [[key, [[id, [field, value]], ...]]], or a null when the time was over. */
static Answer consumed(Peer *peer, const uint8_t *reply, size_t length) {
    if (reply[0] == '-') return refused(reply, length);
    size_t at = 0;
    if (expect(reply, length, &at, '*') < 1) return (Answer){1, 0};
    expect(reply, length, &at, '*');
    skip_text(reply, length, &at);
    int64_t entries = expect(reply, length, &at, '*');
    for (int64_t n = 0; n < entries; n++) {
        expect(reply, length, &at, '*');
        size_t id_bytes = (size_t)expect(reply, length, &at, '$');
        if (n == entries - 1) read_on_after(peer, reply + at, id_bytes);
        at += id_bytes + 2;
        for (int64_t fields = expect(reply, length, &at, '*'); fields > 0; fields--) skip_text(reply, length, &at);
    }
    peer->position += entries;
    if (peer->end && peer->position >= peer->end) begin_again(peer);
    return (Answer){1, entries};
}

const Protocol redis = {"redis", length_of, set_up, produced, consumed, NULL};
