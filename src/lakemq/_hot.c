/* The compiled twins of record.py's hot loops, and a CRC-32 that does not hold them up.
 *
 * What record.py says is the definition. measure and scan answer None for anything they do not accept, and the caller
 * asks the definition why; so only what is accepted here has to agree, and one test suite runs on both.
 * Nothing here keeps a reference or allocates per message.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#include "_message.h"

static inline int is_allowed(const uint8_t *m, const Parts *parts, int64_t bytes_max, int64_t *index_count) {
    uint16_t code = get16(m + SYSTEM_CODE);
    if (parts->length > bytes_max || (code & VERSION_AND_RESERVED) != VERSION_1) return 0;
    if (code & COMPRESSED && (code & COMPRESSION) >> 4 > COMPRESSION_NUMBER_MAX) return 0;
    const uint8_t *body = m + BODY + 4;
    if (code & BATCH) {
        int16_t flag = (int16_t)get16(m + FLAG);
        if (flag < 1) return 0;
        if (!(code & COMPRESSED) && (parts->body_bytes < 6 || (int32_t)get32(body) != parts->body_bytes ||
                                     (int16_t)get16(body + 4) != flag)) return 0;
        *index_count += flag;
    } else
        *index_count += 1;
    int64_t characters = utf8_characters(m + parts->business_id, parts->business_id_bytes);
    if (characters < 0 || characters > BUSINESS_ID_CHARACTERS_MAX) return 0;
    if (utf8_characters(m + parts->attributes, parts->attributes_bytes) < 0) return 0;
    if (parts->app_bytes > NAME_BYTES_MAX || utf8_characters(m + parts->app, parts->app_bytes) < 0) return 0;
    int64_t crc = (int64_t)get64(m + CRC);
    return crc == 0 || crc == -1 || crc == (int64_t)crc32_of(0, body, (size_t)parts->body_bytes);
}

/* ---- what Python sees ---------------------------------------------------------------------------------------------- */

/* Whole-number arguments after the buffer, into `out`; 0 with an exception set if one is not a number. */
static int numbers(PyObject *const *args, Py_ssize_t n, int64_t *out) {
    for (Py_ssize_t i = 0; i < n; i++) {
        out[i] = PyLong_AsLongLong(args[i]);
        if (out[i] == -1 && PyErr_Occurred()) return 0;
    }
    return 1;
}

static int wants(const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, %zd given", name, wanted, given);
    return 0;
}

static PyObject *hot_crc32(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    if (n != 1 && !wants("crc32", n, 2)) return NULL;
    int64_t value = 0;
    if (n == 2 && !numbers(args + 1, 1, &value)) return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE)) return NULL;
    uint32_t crc = crc32_of((uint32_t)value, data.buf, (size_t)data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

/* measure(data, start, end, count) -> end of the last message, or None */
static PyObject *hot_measure(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t a[3];
    if (!wants("measure", n, 4) || !numbers(args + 1, 3, a)) return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE)) return NULL;
    int64_t at = a[0], end = a[1] < data.len ? a[1] : data.len, count = a[2];
    int ok = at >= 0;
    for (Parts parts; ok && count > 0; count--) {
        ok = find_parts((const uint8_t *)data.buf + at, end - at, &parts);
        if (ok) at += parts.length;
    }
    PyBuffer_Release(&data);
    if (!ok) Py_RETURN_NONE;
    return PyLong_FromLongLong(at);
}

/* scan(data, start, end, count, message_bytes_max) -> (end, partition, index_count), or None */
static PyObject *hot_scan(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t a[4];
    if (!wants("scan", n, 5) || !numbers(args + 1, 4, a)) return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE)) return NULL;
    int64_t at = a[0], end = a[1] < data.len ? a[1] : data.len, count = a[2], index_count = 0;
    int partition = 0, ok = at >= 0;
    for (int64_t nth = 0; ok && nth < count; nth++) {
        const uint8_t *m = (const uint8_t *)data.buf + at;
        Parts parts;
        ok = find_parts(m, end - at, &parts);
        if (!ok) break;
        int named = (int16_t)get16(m + PARTITION);
        if (nth == 0) partition = named;
        ok = named == partition && is_allowed(m, &parts, a[3], &index_count);
        at += parts.length;
    }
    PyBuffer_Release(&data);
    if (!ok) Py_RETURN_NONE;
    return Py_BuildValue("(LiL)", (long long)at, partition, (long long)index_count);
}

static inline void stamp_one(uint8_t *m, const Parts *parts, int64_t partition, int64_t index, int64_t term, int64_t now) {
    put16(m + PARTITION, (uint16_t)partition);
    put64(m + INDEX, (uint64_t)index);
    put32(m + TERM, (uint32_t)term);
    int64_t sent = (int64_t)get64(m + SEND_TIME), after;
    if (__builtin_sub_overflow(now, sent, &after)) after = sent < 0 ? INT32_MAX : 0;
    put32(m + STORE_TIME, (uint32_t)(after < 0 ? 0 : after > INT32_MAX ? INT32_MAX : after));
    int64_t crc = (int64_t)get64(m + CRC);
    if (crc == 0 || crc == -1) put64(m + CRC, crc32_of(0, m + BODY + 4, (size_t)parts->body_bytes));
}

/* stamp(data, start, count, partition, index, term, now_ms) -> next index; the messages were scanned before */
static PyObject *hot_stamp(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t a[6];
    if (!wants("stamp", n, 7) || !numbers(args + 1, 6, a)) return NULL;
    int64_t at = a[0], count = a[1], partition = a[2], index = a[3], term = a[4], now = a[5];
    if (partition != (int16_t)partition || term != (int32_t)term || at < 0) {
        PyErr_SetString(PyExc_ValueError, "partition or term is out of range");
        return NULL;
    }
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_WRITABLE)) return NULL;
    int ok = 1;
    for (; ok && count > 0; count--) {
        uint8_t *m = (uint8_t *)data.buf + at;
        Parts parts;
        ok = find_parts(m, data.len - at, &parts);
        if (!ok) break;
        stamp_one(m, &parts, partition, index, term, now);
        index += get16(m + SYSTEM_CODE) & BATCH ? (int16_t)get16(m + FLAG) : 1;
        at += parts.length;
    }
    PyBuffer_Release(&data);
    if (!ok) {
        PyErr_SetString(PyExc_ValueError, "stamp: the messages were not scanned");
        return NULL;
    }
    return PyLong_FromLongLong(index);
}

/* ---- index entries -------------------------------------------------------------------------------------------------- */

enum { ENTRY_BYTES = 48, ENTRY_CRC = 44, NO_TAG = 0, UNKNOWN_TAG = 1 };

/* storage.index.tag_hash: 0 none, 1 cannot tell without parsing, else a hash of the value. */
static uint32_t tag_hash(const uint8_t *p, int64_t n) {
    if (n == 0) return NO_TAG;
    /* One look at each byte: attributes are short, and memchr and memmem are slow to begin. */
    const uint8_t *end = p + n, *tags = NULL;
    int is_twice = 0;
    for (const uint8_t *q = p; q < end; q++) {
        if (*q == '\\' || *q == '\r') return UNKNOWN_TAG;
        if (*q == 'T' && end - q >= 4 && !memcmp(q, "TAGS", 4)) {
            is_twice = tags != NULL;
            if (is_twice) break;
            tags = q;
        }
    }
    if (is_twice) return UNKNOWN_TAG;
    if (tags == NULL) return NO_TAG;
    const uint8_t *value = tags + 5;
    int is_key = (tags == p || tags[-1] == '\n') && value <= end && tags[4] == '=';
    if (!is_key) return UNKNOWN_TAG;
    if (value < end && (*value == ' ' || *value == '\t' || *value == '\f')) return UNKNOWN_TAG;
    const uint8_t *stop = memchr(value, '\n', (size_t)(end - value));
    size_t value_bytes = (size_t)((stop == NULL ? end : stop) - value);
    if (memchr(value, ',', value_bytes) != NULL) return UNKNOWN_TAG; /* several tags: each of them counts */
    uint32_t hash = crc32_of(0, value, value_bytes);
    return hash < 2 ? 2 : hash;
}

/* The entry of one stamped message, into `e`; how many indexes it takes. */
static inline int64_t entry_of(uint8_t *e, const uint8_t *m, const Parts *parts, int64_t position, int64_t left,
                               int64_t record_offset, uint32_t record_length, int64_t store_time) {
    int is_batch = get16(m + SYSTEM_CODE) & BATCH;
    uint16_t count = is_batch ? get16(m + FLAG) : 1;
    memcpy(e, m + INDEX, 8);
    put64(e + 8, (uint64_t)position);
    put32(e + 16, (uint32_t)parts->length);
    put16(e + 20, count);
    put16(e + 22, (uint16_t)left);
    put32(e + 24, is_batch ? UNKNOWN_TAG : tag_hash(m + parts->attributes, parts->attributes_bytes));
    put32(e + 28, (uint32_t)record_offset);
    put32(e + 32, record_length);
    put64(e + 36, (uint64_t)store_time);
    put32(e + ENTRY_CRC, crc32_of(0, e, ENTRY_CRC));
    return count;
}

/* make_entries(data, start, count, position, record_offset, record_length, store_time_ms) -> bytes */
static PyObject *hot_make_entries(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t a[6];
    if (!wants("make_entries", n, 7) || !numbers(args + 1, 6, a)) return NULL;
    int64_t at = a[0], count = a[1], position = a[2], record_offset = a[3];
    if (at < 0 || count < 0 || count > UINT16_MAX) {
        PyErr_SetString(PyExc_ValueError, "make_entries: start or count is out of range");
        return NULL;
    }
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE)) return NULL;
    PyObject *out = PyBytes_FromStringAndSize(NULL, count * ENTRY_BYTES);
    if (out == NULL) { PyBuffer_Release(&data); return NULL; }
    uint8_t *e = (uint8_t *)PyBytes_AS_STRING(out);
    int ok = 1;
    for (int64_t left = count - 1; ok && left >= 0; left--, e += ENTRY_BYTES) {
        const uint8_t *m = (const uint8_t *)data.buf + at;
        Parts parts;
        ok = find_parts(m, data.len - at, &parts);
        if (!ok) break;
        int64_t into = at - a[0];
        entry_of(e, m, &parts, position + into, left, record_offset + into, (uint32_t)a[4], a[5]);
        at += parts.length;
    }
    PyBuffer_Release(&data);
    if (!ok) {
        Py_DECREF(out);
        PyErr_SetString(PyExc_ValueError, "make_entries: the messages were not scanned");
        return NULL;
    }
    return out;
}

/* ---- journal records ----------------------------------------------------------------------------------------------- */

enum { HEADER_BYTES = 76, HEADER_CRC = 72, PAYLOAD_CRC = 68, RECORD_MAGIC = 0x4C4D5152, RECORD_FORMAT = 1,
       MESSAGES_TYPE = 1 };

/* The bytes may be those of a mapped file, and a disk that cannot give them answers with SIGBUS. Where this thread is
 * looking at such bytes the signal leads back here; anywhere else it means what it always does. */
static __thread sigjmp_buf bus_error;
static __thread volatile sig_atomic_t is_looking;
static struct sigaction handler_before;

static void on_bus_error(int number) {
    if (is_looking) siglongjmp(bus_error, number);
    sigaction(SIGBUS, &handler_before, NULL); /* not ours: back, and the same access asks the one before */
}

/* How many of the bytes at `p`, which are those of the journal from `position` on, are whole records one by one. */
static int64_t whole_records(const uint8_t *p, int64_t size, int64_t position) {
    int64_t at = 0;
    while (size - at >= HEADER_BYTES) {
        const uint8_t *r = p + at;
        int64_t length = get32(r);
        if (get32(r + 4) != RECORD_MAGIC || r[8] != RECORD_FORMAT || length < HEADER_BYTES || length > size - at) break;
        uint8_t place[8];
        put64(place, (uint64_t)(position + at));
        if (crc32_of(crc32_of(0, r, HEADER_CRC), place, 8) != get32(r + HEADER_CRC)) break;
        if (crc32_of(0, r + HEADER_BYTES, (size_t)(length - HEADER_BYTES)) != get32(r + PAYLOAD_CRC)) break;
        at += length;
    }
    return at;
}

/* whole_records(data, position) -> bytes, or -1 if the disk would not give them */
static PyObject *hot_whole_records(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t position;
    if (!wants("whole_records", n, 2) || !numbers(args + 1, 1, &position)) return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE)) return NULL;
    struct sigaction guard;
    memset(&guard, 0, sizeof guard);
    guard.sa_handler = on_bus_error;
    sigemptyset(&guard.sa_mask);
    sigaction(SIGBUS, &guard, &handler_before);
    volatile int64_t found = -1;
    if (sigsetjmp(bus_error, 1) == 0) {
        is_looking = 1;
        found = whole_records(data.buf, data.len, position);
    }
    is_looking = 0;
    sigaction(SIGBUS, &handler_before, NULL);
    PyBuffer_Release(&data);
    return PyLong_FromLongLong(found);
}

/* What take_records found of one record: where the wanted messages lie in the mapped file, and what they are. */
typedef struct {
    int64_t begin, size, count, first_index, next_index, store_time;
    const uint8_t *address;
} Taken;

enum { TAKEN_MAX = 128 };

/* What it looks for, and how far it came: in memory, not in registers, for a bus error may cut it short. */
typedef struct {
    const uint8_t *mapped, *block;
    int64_t mapped_bytes, base, written, block_bytes, last_next, index, end_index, bytes_max, bytes_left, topic, partition;
    volatile int64_t at, count, is_over;
    Taken found[TAKEN_MAX];
} Taking;

static inline int is_entry(const uint8_t *e) { return crc32_of(0, e, ENTRY_CRC) == get32(e + ENTRY_CRC); }

/* As many of a record's `messages` from entry `e` on as are within the limits, the first at least; 0 if an entry is none. */
static int cut_record(const Taking *t, const uint8_t *e, int64_t *messages, int64_t *size, int64_t *next) {
    int64_t low = 0, high = *messages - 1, start = (int64_t)get64(e + 8);
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        const uint8_t *m = e + middle * ENTRY_BYTES;
        if (!is_entry(m)) return 0;
        int64_t end = (int64_t)get64(m + 8) + (int32_t)get32(m + 16);
        if ((int64_t)get64(m) < t->end_index && end - start <= t->bytes_left) low = middle;
        else high = middle - 1;
    }
    const uint8_t *last = e + low * ENTRY_BYTES;
    if (!is_entry(last)) return 0;
    *messages = low + 1;
    *size = (int64_t)get64(last + 8) + (int32_t)get32(last + 16) - start;
    *next = (int64_t)get64(last) + (int16_t)get16(last + 20);
    return *size > 0;
}

/* One record after the other, for as long as there is nothing to decide: what is odd, cut or elsewhere is left. */
static void take_records(Taking *t) {
    while (t->count < TAKEN_MAX && t->at + ENTRY_BYTES <= t->block_bytes) {
        const uint8_t *e = t->block + t->at;
        if (!is_entry(e)) return;
        int64_t first = (int64_t)get64(e), position = (int64_t)get64(e + 8), messages = get16(e + 22) + 1;
        int64_t offset = (int32_t)get32(e + 28), length = (int32_t)get32(e + 32), next, size = length - offset;
        int64_t after = t->at + messages * ENTRY_BYTES, start = position - offset - t->base;
        if (length < HEADER_BYTES) return;
        if (after + ENTRY_BYTES <= t->block_bytes && is_entry(t->block + after)) next = (int64_t)get64(t->block + after);
        else if (after == t->block_bytes && t->last_next >= 0) next = t->last_next;
        else return;
        if ((!t->count && first > t->index) || offset < HEADER_BYTES || size <= 0) return;
        int is_cut = next > t->end_index;
        if (size > t->bytes_left || is_cut) {
            if (!t->count) return; /* at least one message is given out: the definition knows how */
            /* A record that is cut is checked twice, now and by the next fetch: not for the sake of a full answer. */
            t->is_over = !is_cut || (int32_t)get32(e + 16) > t->bytes_left || t->bytes_left <= t->bytes_max / 2;
            if (t->is_over || after > t->block_bytes) return;
            if (!cut_record(t, e, &messages, &size, &next)) return;
            after = t->at + messages * ENTRY_BYTES;
        }
        if (size > length - offset || start < 0 || start + length > t->mapped_bytes || t->base + start + length > t->written) return;
        const uint8_t *r = t->mapped + start;
        if (whole_records(r, length, t->base + start) != length || get32(r) != length) return;
        if ((int16_t)get16(r + 10) != t->partition || (int32_t)get32(r + 16) != t->topic) return;
        int64_t record_first = (int64_t)get64(r + 24), record_next = record_first + (int32_t)get32(r + 32);
        if (first < record_first || first >= record_next) return;
        int64_t real_next = next < record_next ? next : record_next;
        t->found[t->count] =
            (Taken){start + offset, size, messages, first, real_next, (int64_t)get64(r + 36), r + 52};
        t->bytes_left -= size;
        t->at = after;
        t->count++;
        t->is_over = is_cut || real_next != next || next >= t->end_index || after == t->block_bytes;
        if (t->is_over) return;
    }
}

/* The part from `start` to `stop` of a memoryview of bytes, as slicing it would give, in a third of the time. */
static PyObject *slice_of(PyObject *view, int64_t start, int64_t stop) {
    PyObject *part = PyMemoryView_FromObject(view);
    if (part == NULL) return NULL;
    Py_buffer *its = PyMemoryView_GET_BUFFER(part);
    if (its->ndim != 1 || its->itemsize != 1 || its->strides[0] != 1 || start < 0 || stop < start || stop > its->len) {
        Py_DECREF(part);
        PyErr_SetString(PyExc_ValueError, "no such part of a view of bytes");
        return NULL;
    }
    its->buf = (uint8_t *)its->buf + start;
    its->len = its->shape[0] = (Py_ssize_t)(stop - start);
    return part;
}

static PyObject *record_slice(PyObject *mapped, const Taken *one, PyTypeObject *type) {
    PyObject *messages = slice_of(mapped, one->begin, one->begin + one->size);
    if (!messages) return NULL;
    PyObject *facts = Py_BuildValue("(NLLLLy#)", messages, (long long)one->count, (long long)one->first_index,
                                    (long long)one->next_index, (long long)one->store_time, one->address,
                                    (Py_ssize_t)16);
    if (!facts) return NULL;
    PyObject *made = type->tp_alloc(type, PyTuple_GET_SIZE(facts)); /* as tuple.__new__ does it */
    for (Py_ssize_t n = 0; made && n < PyTuple_GET_SIZE(facts); n++)
        PyTuple_SET_ITEM(made, n, Py_NewRef(PyTuple_GET_ITEM(facts, n)));
    Py_DECREF(facts);
    return made;
}

/* take_records(mapped, base, written, block, last_next, index, end_index, bytes_max, topic, partition, type)
 *     -> (slices, entries, bytes left, is over) */
static PyObject *hot_take_records(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t a[2], b[6];
    if (!wants("take_records", n, 11) || !numbers(args + 1, 2, a) || !numbers(args + 4, 6, b)) return NULL;
    if (!PyType_Check(args[10]) || !PyType_IsSubtype((PyTypeObject *)args[10], &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "take_records: not a type of tuples");
        return NULL;
    }
    Py_buffer mapped, block;
    if (PyObject_GetBuffer(args[0], &mapped, PyBUF_SIMPLE)) return NULL;
    if (PyObject_GetBuffer(args[3], &block, PyBUF_SIMPLE)) {
        PyBuffer_Release(&mapped);
        return NULL;
    }
    Taking t;
    t.mapped = mapped.buf, t.mapped_bytes = mapped.len, t.base = a[0], t.written = a[1];
    t.block = block.buf, t.block_bytes = block.len, t.last_next = b[0], t.index = b[1], t.end_index = b[2];
    t.bytes_left = t.bytes_max = b[3], t.topic = b[4], t.partition = b[5];
    t.at = t.count = t.is_over = 0;
    struct sigaction guard;
    memset(&guard, 0, sizeof guard);
    guard.sa_handler = on_bus_error;
    sigemptyset(&guard.sa_mask);
    sigaction(SIGBUS, &guard, &handler_before);
    if (sigsetjmp(bus_error, 1) == 0) {
        is_looking = 1;
        take_records(&t);
    }
    is_looking = 0;
    sigaction(SIGBUS, &handler_before, NULL);
    PyObject *slices = PyList_New(t.count), *found = NULL;
    for (int64_t k = 0; slices && k < t.count; k++) {
        PyObject *one = record_slice(args[0], &t.found[k], (PyTypeObject *)args[10]);
        if (one) PyList_SET_ITEM(slices, k, one);
        else Py_CLEAR(slices);
    }
    if (slices)
        found = Py_BuildValue("(NLLO)", slices, (long long)(t.at / ENTRY_BYTES), (long long)t.bytes_left,
                              t.is_over ? Py_True : Py_False);
    PyBuffer_Release(&block);
    PyBuffer_Release(&mapped);
    return found;
}

/* What a MESSAGES record is made from. */
typedef struct {
    int64_t count, partition, first, term, now, topic, position, synced;
    const char *address;
} RecordFacts;

/* Stamp the messages at `data`, write the record's header and their entries; the next index, or -1 if they were not
 * scanned. */
static int64_t write_record(uint8_t *data, int64_t size, const RecordFacts *f, uint8_t *h, uint8_t *e) {
    int64_t index = f->first, at = 0;
    uint32_t length = (uint32_t)(HEADER_BYTES + size);
    for (int64_t left = f->count - 1; left >= 0; left--, e += ENTRY_BYTES) {
        uint8_t *m = data + at;
        Parts parts;
        if (!find_parts(m, size - at, &parts)) return -1;
        stamp_one(m, &parts, f->partition, index, f->term, f->now);
        index += entry_of(e, m, &parts, f->position + HEADER_BYTES + at, left, HEADER_BYTES + at, length, f->now);
        at += parts.length;
    }
    if (at != size) return -1;
    uint8_t place[8];
    put32(h, length);
    put32(h + 4, RECORD_MAGIC);
    h[8] = RECORD_FORMAT;
    h[9] = MESSAGES_TYPE;
    put16(h + 10, (uint16_t)f->partition);
    put32(h + 12, (uint32_t)f->term);
    put32(h + 16, (uint32_t)f->topic);
    put32(h + 20, (uint32_t)f->count);
    put64(h + 24, (uint64_t)f->first);
    put32(h + 32, (uint32_t)(index - f->first));
    put64(h + 36, (uint64_t)f->now);
    put64(h + 44, (uint64_t)f->synced);
    memcpy(h + 52, f->address, 16);
    put32(h + PAYLOAD_CRC, crc32_of(0, data, (size_t)size));
    put64(place, (uint64_t)f->position);
    put32(h + HEADER_CRC, crc32_of(crc32_of(0, h, HEADER_CRC), place, 8));
    return index;
}

/* Whole numbers and an address, as the two functions below get them, checked; 0 with an exception set if they are not. */
static int record_facts(const char *name, const int64_t *a, PyObject *address, RecordFacts *f) {
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(address, &bytes, &size)) return 0;
    *f = (RecordFacts){a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], bytes};
    if (f->partition == (int16_t)f->partition && f->term == (int32_t)f->term && f->topic == (int32_t)f->topic &&
        size == 16 && f->count >= 0 && f->count <= UINT16_MAX) return 1;
    PyErr_Format(PyExc_ValueError, "%s: something is out of range", name);
    return 0;
}

/* make_record(messages, count, partition, first_index, term, now_ms, topic, position, synced_position, address)
 *     -> (header, entries, next_index); the messages were scanned before */
static PyObject *hot_make_record(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t a[8];
    RecordFacts facts;
    if (!wants("make_record", n, 10) || !numbers(args + 1, 8, a) || !record_facts("make_record", a, args[9], &facts)) return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_WRITABLE)) return NULL;
    PyObject *header = PyBytes_FromStringAndSize(NULL, HEADER_BYTES), *found = NULL;
    PyObject *entries = PyBytes_FromStringAndSize(NULL, facts.count * ENTRY_BYTES);
    if (header != NULL && entries != NULL) {
        int64_t next = write_record(data.buf, data.len, &facts, (uint8_t *)PyBytes_AS_STRING(header),
                                    (uint8_t *)PyBytes_AS_STRING(entries));
        if (next >= 0) found = Py_BuildValue("(OOL)", header, entries, (long long)next);
        else PyErr_SetString(PyExc_ValueError, "make_record: the messages were not scanned");
    }
    PyBuffer_Release(&data);
    Py_XDECREF(header);
    Py_XDECREF(entries);
    return found;
}

/* ---- runs of produce requests ---------------------------------------------------------------------------------------- */

enum { FRAME_MAGIC = 0xCAFEBEBE, PRODUCE = 50, FRAME_HEADER = 23, ACK_HEADER = 26, RESULT_BYTES = 18,
       RUN_MESSAGES_MAX = 32767, ORDERED = 0x0002, REQUEST_BYTES = 6 };

/* Whether attributes may hold one of produce_run.SPECIAL_ATTRIBUTES: a line that begins with one of these names, or a
 * backslash, behind which anything may hide. */
static inline int may_be_special(const uint8_t *p, int64_t n) {
    const uint8_t *end = p + n;
    int is_start = 1;
    for (; p < end; p++) {
        if (*p == '\\') return 1;
        if (*p == '\n' || *p == '\r') { is_start = 1; continue; }
        if (!is_start || *p == ' ' || *p == '\t' || *p == '\f') continue;
        is_start = 0;
        int64_t left = end - p;
        if ((*p == 'U' && left >= 7 && !memcmp(p, "UNIQ_ID", 7)) || (*p == 'E' && left >= 6 && !memcmp(p, "EXPIRE", 6)) ||
            (*p == 'D' && ((left >= 10 && !memcmp(p, "DELIVER_AT", 10)) || (left >= 11 && !memcmp(p, "DELAY_LEVEL", 11)))))
            return 1;
    }
    return 0;
}

/* The messages of one request, if all may be stored and none needs a closer look. */
static int check_messages(const uint8_t *p, int64_t size, int count, int64_t bytes_max, int *partition,
                          int64_t *index_count) {
    int64_t at = 0;
    for (int nth = 0; nth < count; nth++) {
        const uint8_t *m = p + at;
        Parts parts;
        if (!find_parts(m, size - at, &parts)) return 0;
        int named = (int16_t)get16(m + PARTITION);
        if (nth == 0) *partition = named;
        if (named != *partition || !is_allowed(m, &parts, bytes_max, index_count)) return 0;
        if (named < 0 && get16(m + SYSTEM_CODE) & ORDERED) return 0;
        if (may_be_special(m + parts.attributes, parts.attributes_bytes)) return 0;
        at += parts.length;
    }
    return at == size;
}

/* What requests of one connection have in common. */
typedef struct {
    char *head, *prefix, *suffix;
    Py_ssize_t head_bytes, prefix_bytes, suffix_bytes;
} Alike;

static int alike_of(PyObject *const *args, Alike *alike) {
    return !PyBytes_AsStringAndSize(args[0], &alike->head, &alike->head_bytes) &&
           !PyBytes_AsStringAndSize(args[1], &alike->prefix, &alike->prefix_bytes) &&
           !PyBytes_AsStringAndSize(args[2], &alike->suffix, &alike->suffix_bytes);
}

/* Requests alike, their messages moved together. `requests` is to be freed. */
typedef struct {
    int64_t end, start, stop, index_count;
    int partition, message_count, request_count;
    uint8_t *requests;
} Run;

/* -1 with an exception set if there is no memory. `wanted` is the only partition to take, or INT_MAX for any. */
static int cut(uint8_t *p, int64_t size, int64_t at, const Alike *alike, int64_t bytes_max, int64_t message_bytes_max,
               int wanted, Run *run) {
    int64_t before = FRAME_HEADER + alike->prefix_bytes + 2;
    int room = 0;
    *run = (Run){at, at + before, at + before, 0, 0, 0, 0, NULL};
    while (at >= 0 && alike->head_bytes == 2 && size - at >= before) {
        uint8_t *f = p + at;
        int64_t length = (int32_t)get32(f), messages_bytes = length - before - alike->suffix_bytes;
        if (get32(f + 4) != FRAME_MAGIC || memcmp(f + 8, alike->head, 2) || f[14] != PRODUCE || length > size - at ||
            messages_bytes < 0 || memcmp(f + FRAME_HEADER, alike->prefix, (size_t)alike->prefix_bytes) ||
            memcmp(f + length - alike->suffix_bytes, alike->suffix, (size_t)alike->suffix_bytes)) break;
        int count = (int16_t)get16(f + before - 2), named = 0;
        int64_t indexes = 0;
        if (count < 1 || run->message_count + count > RUN_MESSAGES_MAX ||
            (run->request_count && run->stop - run->start + messages_bytes > bytes_max)) break;
        if (!check_messages(f + before, messages_bytes, count, message_bytes_max, &named, &indexes)) break;
        if ((run->request_count && named != run->partition) || (wanted != INT_MAX && named != wanted)) break;
        if (run->request_count == room) {
            room = room ? 2 * room : 64;
            uint8_t *more = PyMem_Realloc(run->requests, (size_t)room * REQUEST_BYTES);
            if (more == NULL) {
                PyMem_Free(run->requests);
                run->requests = NULL;
                PyErr_NoMemory();
                return -1;
            }
            run->requests = more;
        }
        memcpy(run->requests + (size_t)run->request_count * REQUEST_BYTES, f + 10, 4);
        put16(run->requests + (size_t)run->request_count * REQUEST_BYTES + 4, (uint16_t)count);
        if (run->stop != at + before) memmove(p + run->stop, f + before, (size_t)messages_bytes);
        run->partition = named;
        run->stop += messages_bytes;
        run->message_count += count;
        run->index_count += indexes;
        run->request_count++;
        run->end = at += length;
    }
    return 0;
}

/* cut_run(view, at, head, prefix, suffix, bytes_max, message_bytes_max)
 *     -> (end, start, stop, partition, message_count, index_count, requests), or None */
static PyObject *hot_cut_run(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t at, max[2];
    Alike alike;
    Run run;
    if (!wants("cut_run", n, 7) || !numbers(args + 1, 1, &at) || !alike_of(args + 2, &alike) || !numbers(args + 5, 2, max)) return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_WRITABLE)) return NULL;
    int failed = cut(data.buf, data.len, at, &alike, max[0], max[1], INT_MAX, &run);
    PyBuffer_Release(&data);
    if (failed) return NULL;
    PyObject *found = run.request_count
        ? Py_BuildValue("(LLLiiLy#)", (long long)run.end, (long long)run.start, (long long)run.stop, run.partition,
                        run.message_count, (long long)run.index_count, run.requests,
                        (Py_ssize_t)run.request_count * REQUEST_BYTES)
        : Py_NewRef(Py_None);
    PyMem_Free(run.requests);
    return found;
}

/* The answers to a run, into `o`, which has room for them; 0 if the messages are not those of the requests. */
static int write_acks(uint8_t *o, const uint8_t *messages, int64_t size, const uint8_t *requests, int64_t request_count,
                      const char *topic, int64_t topic_bytes, const char *head, int64_t now) {
    int64_t at = 0, before = ACK_HEADER + 2 + topic_bytes + 4 + 2;
    for (; request_count > 0; request_count--, requests += REQUEST_BYTES) {
        int count = get16(requests + 4);
        put32(o, (uint32_t)(before + count * RESULT_BYTES));
        put32(o + 4, FRAME_MAGIC);
        o[8] = (uint8_t)head[0];
        o[9] = (uint8_t)head[1] | 1;
        memcpy(o + 10, requests, 4);
        o[14] = (uint8_t)-PRODUCE;
        put64(o + 15, (uint64_t)now);
        memset(o + 23, 0, 3);
        put16(o + 26, 1);
        memcpy(o + 28, topic, (size_t)topic_bytes);
        put32(o + 28 + topic_bytes, 0);
        put16(o + 32 + topic_bytes, (uint16_t)count);
        o += before;
        for (; count > 0; count--, o += RESULT_BYTES) {
            if (size - at < BYTES_MIN) return 0;
            memcpy(o, messages + at + PARTITION, 10);
            memcpy(o + 10, messages + at + SEND_TIME, 8);
            at += (int32_t)get32(messages + at);
        }
    }
    return 1;
}


/* store_run(view, at, alike, partition, first_index, term, now_ms, position, synced_position, buffers)
 *     -> (end, record's size, message_count, next_index, requests, entries, acks), or None
 * with alike = (head, prefix, suffix, topic_string, address, topic, bytes_max, message_bytes_max).
 * cut_run of one partition, make_record and run_acks in one go; the record is added to `buffers`. */
static PyObject *hot_store_run(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t at, max[3], a[8] = {0};
    Alike alike;
    Run run;
    RecordFacts facts;
    char *topic;
    Py_ssize_t topic_bytes;
    if (!wants("store_run", n, 10)) return NULL;
    if (!PyTuple_Check(args[2]) || PyTuple_GET_SIZE(args[2]) != 8 || !PyList_Check(args[9])) {
        PyErr_SetString(PyExc_TypeError, "store_run wants a tuple of eight and a list");
        return NULL;
    }
    PyObject *const *same = &PyTuple_GET_ITEM(args[2], 0);
    if (!numbers(args + 1, 1, &at) || !alike_of(same, &alike) || PyBytes_AsStringAndSize(same[3], &topic, &topic_bytes) ||
        !numbers(same + 5, 3, max) || !numbers(args + 3, 4, a + 1) || !numbers(args + 7, 2, a + 6)) return NULL;
    a[5] = max[0];
    if (!record_facts("store_run", a, same[4], &facts)) return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_WRITABLE)) return NULL;
    PyObject *found = NULL, *header = NULL, *entries = NULL, *acks = NULL, *requests = NULL, *stored = NULL;
    if (cut(data.buf, data.len, at, &alike, max[1], max[2], (int)facts.partition, &run)) goto done;
    if (!run.request_count) {
        found = Py_NewRef(Py_None);
        goto done;
    }
    facts.count = run.message_count;
    header = PyBytes_FromStringAndSize(NULL, HEADER_BYTES);
    entries = PyBytes_FromStringAndSize(NULL, facts.count * ENTRY_BYTES);
    acks = PyBytes_FromStringAndSize(NULL, run.request_count * (ACK_HEADER + 2 + topic_bytes + 4 + 2) + facts.count * RESULT_BYTES);
    requests = PyBytes_FromStringAndSize((char *)run.requests, (Py_ssize_t)run.request_count * REQUEST_BYTES);
    stored = slice_of(args[0], run.start, run.stop);
    if (header == NULL || entries == NULL || acks == NULL || requests == NULL || stored == NULL) goto done;
    uint8_t *messages = (uint8_t *)data.buf + run.start;
    int64_t size = run.stop - run.start;
    int64_t next = write_record(messages, size, &facts, (uint8_t *)PyBytes_AS_STRING(header), (uint8_t *)PyBytes_AS_STRING(entries));
    if (next < 0 || !write_acks((uint8_t *)PyBytes_AS_STRING(acks), messages, size, run.requests, run.request_count, topic,
                                topic_bytes, alike.head, facts.now)) {
        PyErr_SetString(PyExc_ValueError, "store_run: what was cut cannot be stored");
        goto done;
    }
    if (PyList_Append(args[9], header) || PyList_Append(args[9], stored) || (found = PyTuple_New(7)) == NULL) goto done;
    int64_t told[4] = {run.end, HEADER_BYTES + size, run.message_count, next};
    for (int k = 0; k < 4; k++) {
        PyObject *number = PyLong_FromLongLong(told[k]);
        if (number == NULL) {
            Py_CLEAR(found);
            goto done;
        }
        PyTuple_SET_ITEM(found, k, number);
    }
    PyTuple_SET_ITEM(found, 4, Py_NewRef(requests));
    PyTuple_SET_ITEM(found, 5, Py_NewRef(entries));
    PyTuple_SET_ITEM(found, 6, Py_NewRef(acks));
done:
    PyMem_Free(run.requests);
    PyBuffer_Release(&data);
    Py_XDECREF(header);
    Py_XDECREF(entries);
    Py_XDECREF(acks);
    Py_XDECREF(requests);
    Py_XDECREF(stored);
    return found;
}

/* whole_frames(data, start, end, frame_bytes_max) -> (end of the last whole frame, whether the rest may become one) */
static PyObject *hot_whole_frames(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t a[3];
    if (!wants("whole_frames", n, 4) || !numbers(args + 1, 3, a)) return NULL;
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE)) return NULL;
    const uint8_t *p = data.buf;
    int64_t at = a[0], end = a[1] < data.len ? a[1] : data.len, bytes_max = a[2];
    int is_sound = at >= 0;
    while (is_sound && end - at >= 4) {
        int64_t length = (int32_t)get32(p + at);
        is_sound = length >= FRAME_HEADER && length <= bytes_max && (end - at < 8 || get32(p + at + 4) == FRAME_MAGIC);
        if (!is_sound || end - at < length) break;
        at += length;
    }
    PyBuffer_Release(&data);
    return Py_BuildValue("(LO)", (long long)at, is_sound ? Py_True : Py_False);
}

/* run_acks(messages, requests, topic, head, now_ms) -> bytes */
static PyObject *hot_run_acks(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t now, message_count = 0;
    if (!wants("run_acks", n, 5) || !numbers(args + 4, 1, &now)) return NULL;
    char *requests, *topic, *head;
    Py_ssize_t requests_bytes, topic_bytes, head_bytes;
    if (PyBytes_AsStringAndSize(args[1], &requests, &requests_bytes) || PyBytes_AsStringAndSize(args[2], &topic, &topic_bytes) ||
        PyBytes_AsStringAndSize(args[3], &head, &head_bytes)) return NULL;
    int64_t request_count = requests_bytes / REQUEST_BYTES;
    for (int64_t k = 0; k < request_count; k++) message_count += get16((uint8_t *)requests + k * REQUEST_BYTES + 4);
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE)) return NULL;
    PyObject *out = PyBytes_FromStringAndSize(NULL, request_count * (ACK_HEADER + 2 + topic_bytes + 4 + 2) + message_count * RESULT_BYTES);
    if (out != NULL && (head_bytes != 2 || !write_acks((uint8_t *)PyBytes_AS_STRING(out), data.buf, data.len, (uint8_t *)requests,
                                                       request_count, topic, topic_bytes, head, now))) {
        Py_CLEAR(out);
        PyErr_SetString(PyExc_ValueError, "run_acks: the messages are not those of the requests");
    }
    PyBuffer_Release(&data);
    return out;
}

/* new_chunk(size) -> bytearray whose bytes are whatever they are: for a socket to write into */
static PyObject *hot_new_chunk(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    int64_t size;
    if (!wants("new_chunk", n, 1) || !numbers(args, 1, &size)) return NULL;
    return PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size);
}

static PyMethodDef methods[] = {
    {"new_chunk", (PyCFunction)(void (*)(void))hot_new_chunk, METH_FASTCALL, "A bytearray that is not cleared."},
    {"crc32", (PyCFunction)(void (*)(void))hot_crc32, METH_FASTCALL, "CRC-32 as zlib computes it."},
    {"measure", (PyCFunction)(void (*)(void))hot_measure, METH_FASTCALL, "Twin of record.measure_python."},
    {"scan", (PyCFunction)(void (*)(void))hot_scan, METH_FASTCALL, "Twin of record.scan_python."},
    {"stamp", (PyCFunction)(void (*)(void))hot_stamp, METH_FASTCALL, "Twin of record.stamp_python."},
    {"make_entries", (PyCFunction)(void (*)(void))hot_make_entries, METH_FASTCALL, "Twin of make_entries_python."},
    {"whole_records", (PyCFunction)(void (*)(void))hot_whole_records, METH_FASTCALL, "Twin of whole_records_python."},
    {"take_records", (PyCFunction)(void (*)(void))hot_take_records, METH_FASTCALL, "Twin of fetch._take_python."},
    {"store_run", (PyCFunction)(void (*)(void))hot_store_run, METH_FASTCALL, "Twin of runs.store_run_python."},
    {"make_record", (PyCFunction)(void (*)(void))hot_make_record, METH_FASTCALL, "Twin of make_record_python."},
    {"whole_frames", (PyCFunction)(void (*)(void))hot_whole_frames, METH_FASTCALL, "Twin of whole_frames_python."},
    {"cut_run", (PyCFunction)(void (*)(void))hot_cut_run, METH_FASTCALL, "Twin of produce_run.cut_run_python."},
    {"run_acks", (PyCFunction)(void (*)(void))hot_run_acks, METH_FASTCALL, "Twin of produce_run.run_acks_python."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_hot", "Compiled twins of record.py.", -1, methods};

PyMODINIT_FUNC PyInit__hot(void) {
    prepare_crc();
    return PyModule_Create(&definition);
}
