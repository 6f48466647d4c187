/* Kafka: Produce version 7 and Fetch version 4, one topic and one partition a request (wire_kafka.py).
 *
 * A fetch is answered with whole record batches as they lie in the log: the first may begin before the offset that was
 * asked for, the last may be cut off. Only what is new and whole counts.
 */
#include "load.h"

enum {
    PREFIX = 4,            /* the length of a reply, itself left out */
    REPLY_BYTES_MAX = 64 << 20,
    TOPIC = PREFIX + 4 + 4, /* Produce: after correlation id and one topic; Fetch has a throttle time, too */
    OFFSET_BEFORE_END = 12, /* of a fetch request: its offset, then 4 bytes of size */
    /* of a record batch */
    BATCH_LENGTH = 8, BATCH_HEAD = 12, LAST_OFFSET_DELTA = 23, BATCH_BYTES_MIN = 61,
};

static size_t length(const uint8_t *bytes, size_t count) {
    if (count < PREFIX) return 0;
    size_t whole = PREFIX + (size_t)get32(bytes);
    if (whole > REPLY_BYTES_MAX) refuse("kafka: a reply of more than 64 MB");
    return count < whole ? 0 : whole;
}

/* Where the partition begins: after the topic's name, which has its length before it, and the number of partitions. */
static size_t partition_at(const uint8_t *reply, size_t length, size_t topic, size_t wanted) {
    if (length < topic + 2) refuse("kafka: a reply without a topic");
    size_t at = topic + 2 + get16(reply + topic) + 4;
    if (length < at + wanted) refuse("kafka: a reply that is too short");
    return at;
}

static Answer produced(Peer *peer, const uint8_t *reply, size_t length, int64_t messages) {
    (void)peer;
    size_t at = partition_at(reply, length, TOPIC, 4 + 2 + 8); /* its number, the error code, the first offset */
    int16_t error = (int16_t)get16(reply + at + 4);
    if (error) return wrong("kafka: produce was answered with error", error);
    return (Answer){1, messages};
}

/* How many records of these batches are at or after the position, which moves behind the last of them. */
static int64_t walk(Peer *peer, const uint8_t *batches, size_t bytes) {
    int64_t records = 0;
    while (bytes >= BATCH_BYTES_MIN) {
        size_t whole = BATCH_HEAD + (size_t)get32(batches + BATCH_LENGTH);
        if (whole > bytes) break; /* cut off: it comes again */
        int64_t first = (int64_t)get64(batches);
        int64_t next = first + (int32_t)get32(batches + LAST_OFFSET_DELTA) + 1;
        if (first < peer->position) first = peer->position;
        if (next > first) {
            records += next - first;
            peer->position = next;
        }
        batches += whole;
        bytes -= whole;
    }
    return records;
}

static Answer consumed(Peer *peer, const uint8_t *reply, size_t length) {
    /* number, error code, high watermark, last stable offset, number of aborted transactions (-1 or 0), size */
    size_t at = partition_at(reply, length, TOPIC + 4, 4 + 2 + 8 + 8 + 4 + 4);
    int16_t error = (int16_t)get16(reply + at + 4);
    if (error) return wrong("kafka: fetch was answered with error", error);
    if ((int32_t)get32(reply + at + 22) > 0) refuse("kafka: there are aborted transactions");
    int32_t bytes = (int32_t)get32(reply + at + 26);
    at += 30;
    if (bytes > 0 && (size_t)bytes > length - at) refuse("kafka: records beyond the end of the reply");
    int64_t records = bytes > 0 ? walk(peer, reply + at, (size_t)bytes) : 0;
    if (peer->end && peer->position >= peer->end) peer->position = 0;
    put64(peer->request + peer->request_bytes - OFFSET_BEFORE_END, (uint64_t)peer->position);
    return (Answer){1, records};
}

const Protocol kafka = {
    .name = "kafka",
    .length = length,
    .produced = produced,
    .consumed = consumed,
};
