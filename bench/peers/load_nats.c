/* NATS JetStream: text lines, some with a payload.
 *
 * A producer's request is one PUB or many, each with the connection's inbox as reply subject; the stream's answer to
 * each comes there. A consumer's first request makes an ordered push consumer, which then sends all there is; now and
 * then the server asks whether we still follow, and waits for the answer (flow control).
 */
#include "load.h"

#define INBOX "_r." /* where answers come; messages come under their own subject */

enum { WORDS_MAX = 6 };

typedef struct {
    const uint8_t *text;
    size_t bytes;
} Word;

/* The words of the first line; how many, 0 if it is not whole. The line's length with its end through `line`. */
static int split(const uint8_t *bytes, size_t count, Word *words, size_t *line) {
    const uint8_t *end = memchr(bytes, '\n', count), *p = bytes;
    if (!end) return 0;
    *line = (size_t)(end - bytes) + 1;
    if (end > bytes && end[-1] == '\r') end--;
    int number = 0;
    while (p < end && number < WORDS_MAX) {
        const uint8_t *blank = memchr(p, ' ', (size_t)(end - p));
        if (!blank) blank = end;
        words[number++] = (Word){p, (size_t)(blank - p)};
        p = blank + 1;
    }
    return number;
}

static size_t number_in(Word word) {
    size_t value = 0;
    for (size_t n = 0; n < word.bytes; n++) {
        if (word.text[n] < '0' || word.text[n] > '9') refuse("a length of NATS is not a number");
        value = value * 10 + word.text[n] - '0';
    }
    return value;
}

static int is_word(Word word, const char *text) {
    return word.bytes == strlen(text) && !memcmp(word.text, text, word.bytes);
}

/* MSG subject sid [reply] bytes; HMSG subject sid [reply] header-bytes bytes; anything else is one line. */
static size_t length_of(const uint8_t *bytes, size_t count) {
    Word words[WORDS_MAX];
    size_t line;
    int number = split(bytes, count, words, &line);
    if (!number) return 0;
    if (!is_word(words[0], "MSG") && !is_word(words[0], "HMSG")) return line;
    size_t length = line + number_in(words[number - 1]) + 2;
    return length > count ? 0 : length;
}

static Answer refused(const uint8_t *reply, size_t length) { return wrong_text("NATS", reply, length - 2); }

/* A line that is not an answer: 1 if all is well. */
static int is_fine(const uint8_t *reply, size_t length) {
    if (length >= 4 && !memcmp(reply, "-ERR", 4)) {
        refused(reply, length);
        return 0;
    }
    return 1;
}

/* Any part of the setup ends with PING. */
static int set_up(Peer *peer, const uint8_t *reply, size_t length) {
    (void)peer;
    is_fine(reply, length);
    return !memcmp(reply, "PONG", 4);
}

/* {"stream":..., "seq":...}, or with "error" */
static int is_error(const uint8_t *reply, size_t length) { return memmem(reply, length, "\"error\"", 7) != NULL; }

/* A request of n PUBs has n answers. */
static Answer produced(Peer *peer, const uint8_t *reply, size_t length, int64_t messages) {
    if (reply[0] == 'H') return refused(reply, length); /* no stream took it: an answer with a status and no payload */
    if (reply[0] != 'M') return is_fine(reply, length) ? (Answer){0, 0} : (Answer){1, -1};
    if (is_error(reply, length)) return refused(reply, length);
    if (++peer->state[0] < messages) return (Answer){0, 1};
    peer->state[0] = 0;
    return (Answer){1, 1};
}

/* An empty message to that subject is the next thing to send. */
static Answer say_to(Peer *peer, const uint8_t *subject, size_t bytes) {
    if (bytes + 16 > peer->request_room) refuse("a reply subject is too long");
    memcpy(peer->request, "PUB ", 4);
    memcpy(peer->request + 4, subject, bytes);
    memcpy(peer->request + 4 + bytes, " 0\r\n\r\n", 6);
    peer->request_bytes = bytes + 10;
    return (Answer){1, 0};
}

/* Status 100 is flow control: a reply subject, or one in a header of an idle heartbeat, wants an answer. */
static Answer controlled(Peer *peer, const uint8_t *reply, size_t length, const Word *words, int number, size_t line) {
    static const char stalled[] = "Nats-Consumer-Stalled:";
    if (length < line + 12 || memcmp(reply + line, "NATS/1.0 100", 12)) return refused(reply, length);
    if (number == 6) return say_to(peer, words[3].text, words[3].bytes);
    const uint8_t *found = memmem(reply, length, stalled, sizeof stalled - 1);
    if (!found) return (Answer){0, 0};
    for (found += sizeof stalled - 1; *found == ' ';) found++;
    const uint8_t *end = memchr(found, '\r', length - (size_t)(found - reply));
    return end ? say_to(peer, found, (size_t)(end - found)) : (Answer){0, 0};
}

static Answer consumed(Peer *peer, const uint8_t *reply, size_t length) {
    Word words[WORDS_MAX];
    size_t line;
    if (reply[0] != 'M' && reply[0] != 'H') return is_fine(reply, length) ? (Answer){0, 0} : (Answer){1, -1};
    int number = split(reply, length, words, &line);
    if (reply[0] == 'H') return controlled(peer, reply, length, words, number, line);
    if (words[1].bytes > 3 && !memcmp(words[1].text, INBOX, 3))
        return is_error(reply, length) ? refused(reply, length) : (Answer){0, 0};
    if (!peer->end || ++peer->position < peer->end) return (Answer){0, 1};
    peer->position = 0; /* a new consumer begins at the beginning; the old one has nothing more to send */
    memcpy(peer->request, peer->first, peer->first_bytes);
    peer->request_bytes = peer->first_bytes;
    return (Answer){1, 1};
}

const Protocol nats = {"nats", length_of, set_up, produced, consumed, NULL};
