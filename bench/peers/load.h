/* What load.c needs to know of a protocol; one file load_NAME.c each.
 *
 * load.c has the sockets, the clock, the windows and the figures. A protocol says how long a reply is, how many
 * requests it answers and how many messages it stands for, and writes the next request of a consumer. Requests are
 * made beforehand (wire_NAME.py), so a producer's are sent as they are, over and over.
 */
#ifndef LOAD_H
#define LOAD_H
#include "../load_common.h" /* get16 to put64 */

typedef struct {
    int number;            /* of the connection, from 0; producers and consumers of mode=latency each from 0 */
    uint8_t *request;      /* a consumer's next request; `request_room` bytes are there */
    size_t request_bytes, request_room;
    int64_t position;      /* a consumer's, if the protocol has one: where it reads next */
    int64_t end;           /* consume: start again from the beginning at this position; 0: never */
    int64_t state[4];      /* the protocol's own */
    const uint8_t *first;  /* the connection's request as it was made, of `first_bytes` */
    size_t first_bytes;
} Peer;

typedef struct {
    int64_t requests;      /* that this reply answers: usually 1, 0 if more is to come, more for "up to n" */
    int64_t messages;      /* produced or received; -1: an error, already told by wrong() */
} Answer;

typedef struct {
    const char *name;
    /* Of the first whole reply in these bytes; 0 if it is not whole yet. refuse() if it cannot be one. */
    size_t (*length)(const uint8_t *bytes, size_t count);
    /* A reply to a part of the setup: 1 if all is well and it was the last for that part, 0 if more is to come. */
    int (*setup)(Peer *peer, const uint8_t *reply, size_t length);
    Answer (*produced)(Peer *peer, const uint8_t *reply, size_t length, int64_t messages_of_a_request);
    /* Also makes peer->request the next one, which is sent if `requests` of the answer is not 0. With request_bytes 0
     * nothing is sent: the protocol pushes, and there is nothing to ask. What is sent may be several requests in one,
     * if all but the last of their replies answer 0 requests. */
    Answer (*consumed)(Peer *peer, const uint8_t *reply, size_t length);
    /* May be NULL: makes a request of a producer the n-th one, if it must differ. */
    void (*number)(uint8_t *request, size_t bytes, uint64_t n);
} Protocol;

extern const Protocol jmq4, kafka, rocketmq, redis, nats, amqp;

/* From load.c. `wrong` counts an error and tells the first; `refuse` ends the program. */
Answer wrong(const char *what, int64_t number);
Answer wrong_text(const char *what, const uint8_t *text, size_t bytes);
void refuse(const char *what) __attribute__((noreturn));
#endif
