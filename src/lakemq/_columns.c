/* The compiled twins of columns.py: many messages taken apart into rows, and values gathered from where they lie.
 *
 * A row says where the parts of one message are in an arena of bytes; nothing is copied until a column is gathered.
 * What columns.py says is the definition. Every length is checked against the bytes that are there.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_message.h"

/* Laid out as columns.ROW is. */
typedef struct {
    int64_t index, sent_ms, stored_ms, crc;
    int64_t body_at, key_at, attributes_at, carrier_at, app_at;
    int32_t body_bytes, key_bytes, attributes_bytes, carrier_bytes, app_bytes;
    int32_t term;
    int16_t flag, code;
    int8_t priority, is_damaged, unused[2];
} Row;

enum { ITEM_BYTES_MIN = 17, BATCH_HEAD = 6, PRIORITY = 20 };

static int64_t count(const uint8_t *p, int64_t size) {
    int64_t at = 0, found = 0;
    while (size - at >= BYTES_MIN) {
        found++;
        int64_t length = (int32_t)get32(p + at);
        if (length < BYTES_MIN) break;
        at += length;
    }
    return found;
}

/* The row of the message at `at`, as it is carried; 0 if there is none. */
static int64_t lay_one(const uint8_t *p, int64_t at, int64_t size, Row *row) {
    Parts parts;
    const uint8_t *m = p + at;
    if (!find_parts(m, size - at, &parts)) return 0;
    row->index = (int64_t)get64(m + INDEX);
    row->sent_ms = (int64_t)get64(m + SEND_TIME);
    row->stored_ms = row->sent_ms + (int32_t)get32(m + STORE_TIME);
    row->crc = (int64_t)get64(m + CRC);
    row->body_at = at + BODY + 4;
    row->key_at = at + parts.business_id;
    row->attributes_at = row->carrier_at = at + parts.attributes;
    row->app_at = at + parts.app;
    row->body_bytes = (int32_t)parts.body_bytes;
    row->key_bytes = (int32_t)parts.business_id_bytes;
    row->attributes_bytes = (int32_t)parts.attributes_bytes;
    row->carrier_bytes = 0;
    row->app_bytes = (int32_t)parts.app_bytes;
    row->term = (int32_t)get32(m + TERM);
    row->flag = (int16_t)get16(m + FLAG);
    row->code = (int16_t)get16(m + SYSTEM_CODE);
    row->priority = (int8_t)m[PRIORITY];
    row->is_damaged = 0;
    memset(row->unused, 0, sizeof row->unused);
    return parts.length;
}

static int64_t lay(const uint8_t *p, int64_t size, Row *rows, int64_t rows_max) {
    int64_t at = 0, count = 0;
    while (at < size) {
        int64_t length = count == rows_max ? 0 : lay_one(p, at, size, rows + count);
        if (!length) return -1;
        at += length;
        count++;
    }
    return count;
}

/* The rows of the messages inside a batch: as the carrier's, but for what each has of its own; 0 if it is not whole. */
static int items(const uint8_t *body, int64_t size, const Row *carrier, Row *rows, int64_t count) {
    if (size < BATCH_HEAD || (int32_t)get32(body) != size || (int16_t)get16(body + 4) != count) return 0;
    int64_t at = BATCH_HEAD;
    for (int64_t k = 0; k < count; k++) {
        const uint8_t *m = body + at;
        if (size - at < ITEM_BYTES_MIN) return 0;
        int64_t length = (int32_t)get32(m);
        if (length < ITEM_BYTES_MIN || length > size - at) return 0;
        int64_t body_bytes = not_negative((int32_t)get32(m + 7));
        int64_t key = 11 + body_bytes;
        if (key > length - 6) return 0;
        int64_t key_bytes = not_negative((int32_t)get32(m + key));
        int64_t attributes = key + 4 + key_bytes;
        if (attributes > length - 2) return 0;
        int64_t attributes_bytes = not_negative((int16_t)get16(m + attributes));
        if (attributes + 2 + attributes_bytes != length) return 0;
        int64_t item = carrier->body_at + at;
        Row *row = rows + k;
        *row = *carrier;
        row->index += k;
        row->carrier_at = carrier->attributes_at;
        row->carrier_bytes = carrier->attributes_bytes;
        row->priority = (int8_t)m[4];
        row->flag = (int16_t)get16(m + 5);
        row->body_at = item + 11;
        row->body_bytes = (int32_t)body_bytes;
        row->key_at = item + key + 4;
        row->key_bytes = (int32_t)key_bytes;
        row->attributes_at = item + attributes + 2;
        row->attributes_bytes = (int32_t)attributes_bytes;
        at += length;
    }
    return at == size;
}

static inline int64_t messages_of(const Row *carrier) {
    return carrier->code & BATCH && carrier->flag > 1 ? carrier->flag : 1;
}

/* One row for each of the `count` messages of a carrier. */
static void split_one(const uint8_t *p, int64_t arena_bytes, const Row *carrier, Row *rows, int64_t count) {
    int64_t at = carrier->body_at, size = carrier->body_bytes;
    if (!(carrier->code & BATCH))
        *rows = *carrier;
    else if (carrier->is_damaged || size < 0 || at < 0 || at > arena_bytes - size ||
             !items(p + at, size, carrier, rows, count))
        for (int64_t k = 0; k < count; k++) {
            rows[k] = *carrier;
            rows[k].index += k;
            if (k) rows[k].body_bytes = 0;
            rows[k].is_damaged = 1;
        }
}

/* The same for many; 0 if they are not as many as there is room for. */
static int split(const uint8_t *p, int64_t arena_bytes, const Row *carrier, int64_t carriers, Row *rows, int64_t room) {
    for (; carriers > 0; carriers--, carrier++) {
        int64_t count = messages_of(carrier);
        if (count > room) return 0;
        split_one(p, arena_bytes, carrier, rows, count);
        rows += count;
        room -= count;
    }
    return room == 0;
}

/* How many messages a block has, those inside batches counted; -1 if one is compressed or it is no block. */
static int64_t count_plain(const uint8_t *p, int64_t size) {
    int64_t at = 0, count = 0;
    Row row;
    while (at < size) {
        int64_t length = lay_one(p, at, size, &row);
        if (!length || row.code & COMPRESSED) return -1;
        count += messages_of(&row);
        at += length;
    }
    return count <= size / ITEM_BYTES_MIN ? count : -1; /* more than it can hold: not to be taken at its word */
}

/* ---- what Python sees ---------------------------------------------------------------------------------------------- */

static int wants(const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, given);
    return 0;
}

static int rows_of(PyObject *object, Py_buffer *buffer, int flags) {
    if (PyObject_GetBuffer(object, buffer, flags) < 0) return 0;
    if (buffer->len % (Py_ssize_t)sizeof(Row) == 0) return 1;
    PyBuffer_Release(buffer);
    PyErr_SetString(PyExc_ValueError, "these are no rows");
    return 0;
}

static PyObject *columns_count(PyObject *self, PyObject *data) {
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) return NULL;
    int64_t found = count(view.buf, view.len);
    PyBuffer_Release(&view);
    return PyLong_FromLongLong(found);
}

static PyObject *columns_lay(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    if (!wants("lay", n, 2)) return NULL;
    Py_buffer data, rows;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    if (!rows_of(args[1], &rows, PyBUF_WRITABLE)) {
        PyBuffer_Release(&data);
        return NULL;
    }
    int64_t count;
    Py_BEGIN_ALLOW_THREADS
    count = lay(data.buf, data.len, rows.buf, rows.len / (Py_ssize_t)sizeof(Row));
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&rows);
    PyBuffer_Release(&data);
    return PyLong_FromLongLong(count);
}

/* open_plain(data): the rows of all messages, as bytes; None if one is compressed, or if these are no messages. */
static PyObject *columns_open_plain(PyObject *self, PyObject *object) {
    Py_buffer data;
    if (PyObject_GetBuffer(object, &data, PyBUF_SIMPLE) < 0) return NULL;
    int64_t count = count_plain(data.buf, data.len);
    PyObject *found = count > 0 ? PyByteArray_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(Row)) : NULL;
    if (found != NULL) {
        Row *rows = (Row *)(void *)PyByteArray_AS_STRING(found), carrier;
        Py_BEGIN_ALLOW_THREADS
        for (int64_t at = 0; at < data.len;) {
            at += lay_one(data.buf, at, data.len, &carrier);
            int64_t some = messages_of(&carrier);
            split_one(data.buf, data.len, &carrier, rows, some);
            rows += some;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    if (found != NULL || PyErr_Occurred()) return found;
    Py_RETURN_NONE;
}

/* split(arena, carriers, rows): False if rows has not room for just all. */
static PyObject *columns_split(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    if (!wants("split", n, 3)) return NULL;
    Py_buffer arena, carriers, rows;
    if (PyObject_GetBuffer(args[0], &arena, PyBUF_SIMPLE) < 0) return NULL;
    if (!rows_of(args[1], &carriers, PyBUF_SIMPLE)) goto no_carriers;
    if (!rows_of(args[2], &rows, PyBUF_WRITABLE)) goto no_rows;
    int is_whole;
    Py_BEGIN_ALLOW_THREADS
    is_whole = split(arena.buf, arena.len, carriers.buf, carriers.len / (int64_t)sizeof(Row), rows.buf,
                     rows.len / (int64_t)sizeof(Row));
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&rows);
    PyBuffer_Release(&carriers);
    PyBuffer_Release(&arena);
    return PyBool_FromLong(is_whole);
no_rows:
    PyBuffer_Release(&carriers);
no_carriers:
    PyBuffer_Release(&arena);
    return NULL;
}

/* A part of a row is told by where its place and its size are in the row. */
static int parts_of(PyObject *const *args, Py_ssize_t *at, Py_ssize_t *bytes) {
    *at = PyLong_AsSsize_t(args[0]);
    *bytes = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred()) return 0;
    if (*at >= 0 && *at <= (Py_ssize_t)sizeof(Row) - 8 && *bytes >= 0 && *bytes <= (Py_ssize_t)sizeof(Row) - 4) return 1;
    PyErr_SetString(PyExc_ValueError, "a row has no such part");
    return 0;
}

static inline int part(const Row *row, Py_ssize_t at_in_row, Py_ssize_t bytes_in_row, int64_t arena_bytes, int64_t *at,
                       int64_t *bytes) {
    int32_t size;
    memcpy(at, (const uint8_t *)row + at_in_row, 8);
    memcpy(&size, (const uint8_t *)row + bytes_in_row, 4);
    *bytes = size;
    return size >= 0 && *at >= 0 && *at <= arena_bytes - size;
}

/* gather(arena, rows, at, bytes, offsets, values, is_text): the number of rows that are not text, or -1 if a part lies
 * outside the arena or does not fit into values. */
static PyObject *columns_gather(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    if (!wants("gather", n, 7)) return NULL;
    Py_ssize_t at_in_row, bytes_in_row;
    int is_text = PyObject_IsTrue(args[6]);
    if (is_text < 0 || !parts_of(args + 2, &at_in_row, &bytes_in_row)) return NULL;
    Py_buffer arena, rows, offsets, values;
    if (PyObject_GetBuffer(args[0], &arena, PyBUF_SIMPLE) < 0) return NULL;
    if (!rows_of(args[1], &rows, PyBUF_SIMPLE)) goto no_rows;
    if (PyObject_GetBuffer(args[4], &offsets, PyBUF_WRITABLE) < 0) goto no_offsets;
    if (PyObject_GetBuffer(args[5], &values, PyBUF_WRITABLE) < 0) goto no_values;
    int64_t count = rows.len / (int64_t)sizeof(Row), to = 0, bad = 0;
    if (offsets.len < (count + 1) * 4) bad = -1;
    Py_BEGIN_ALLOW_THREADS
    const Row *row = rows.buf;
    const uint8_t *from = arena.buf;
    uint8_t *out = values.buf;
    int32_t *ends = offsets.buf;
    int64_t last_bytes = 0;
    int is_bad = 0;
    if (!bad) ends[0] = 0;
    for (int64_t i = 0; i < count && bad >= 0; i++) {
        int64_t at, bytes;
        if (!part(row + i, at_in_row, bytes_in_row, arena.len, &at, &bytes) || bytes > values.len - to) {
            bad = -1;
            break;
        }
        memcpy(out + to, from + at, (size_t)bytes);
        if (is_text && bytes) {
            /* Most are as the one before: an app sends many. */
            if (bytes != last_bytes || memcmp(out + to, out + to - bytes, (size_t)bytes) != 0)
                is_bad = utf8_characters(out + to, bytes) < 0;
            bad += is_bad;
        }
        last_bytes = bytes;
        to += bytes;
        ends[i + 1] = (int32_t)to;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&values);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&arena);
    return PyLong_FromLongLong(bad);
no_values:
    PyBuffer_Release(&offsets);
no_offsets:
    PyBuffer_Release(&rows);
no_rows:
    PyBuffer_Release(&arena);
    return NULL;
}

/* crcs(arena, rows, out): the CRC-32 of each body; False if one lies outside the arena. */
static PyObject *columns_crcs(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    if (!wants("crcs", n, 3)) return NULL;
    Py_buffer arena, rows, out;
    if (PyObject_GetBuffer(args[0], &arena, PyBUF_SIMPLE) < 0) return NULL;
    if (!rows_of(args[1], &rows, PyBUF_SIMPLE)) goto no_rows;
    if (PyObject_GetBuffer(args[2], &out, PyBUF_WRITABLE) < 0) goto no_out;
    int64_t count = rows.len / (int64_t)sizeof(Row);
    int is_good = out.len >= count * 8;
    Py_BEGIN_ALLOW_THREADS
    const Row *row = rows.buf;
    int64_t *crc = out.buf;
    for (int64_t i = 0; i < count && is_good; i++) {
        int64_t at, bytes;
        is_good = part(row + i, offsetof(Row, body_at), offsetof(Row, body_bytes), arena.len, &at, &bytes);
        if (is_good) crc[i] = crc32_of(0, (const uint8_t *)arena.buf + at, (size_t)bytes);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&out);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&arena);
    return PyBool_FromLong(is_good);
no_out:
    PyBuffer_Release(&rows);
no_rows:
    PyBuffer_Release(&arena);
    return NULL;
}

static const char DIGITS[] =
    "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748495051525354555657"
    "585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

static int decimal(uint64_t number, uint8_t *out) {
    uint8_t text[20];
    int at = 20;
    while (number >= 100) {
        at -= 2;
        memcpy(text + at, DIGITS + 2 * (number % 100), 2);
        number /= 100;
    }
    if (number >= 10) {
        at -= 2;
        memcpy(text + at, DIGITS + 2 * number, 2);
    } else
        text[--at] = (uint8_t)('0' + number);
    memcpy(out, text + at, (size_t)(20 - at));
    return 20 - at;
}

/* The text of a row's id behind that of the row before it; how long it is. Most are as the one before, but for the last
 * digit. */
static inline int64_t put_id(const Row *row, int64_t i, uint8_t *text, int64_t last_bytes, const Py_buffer *prefix) {
    if (i && row[i - 1].index >= 0 && row[i].index == row[i - 1].index + 1 && text[-1] != '9') {
        memcpy(text, text - last_bytes, (size_t)last_bytes);
        text[last_bytes - 1]++;
        return last_bytes;
    }
    memcpy(text, prefix->buf, (size_t)prefix->len);
    return prefix->len + decimal(row[i].index < 0 ? 0 : (uint64_t)row[i].index, text + prefix->len);
}

/* The pieces of a sweep in the order of columns._ORDER. */
enum { P_INDEX, P_STORED, P_SENT, P_BODY_ENDS, P_ID_ENDS, P_TERM, P_FLAG, P_PRIORITY, P_IDS, P_BODY, PIECES };

typedef struct {
    int64_t body, key, attributes, carrier, app, damaged, ids;
    int is_app_alike;
} Found;

/* One pass over all rows; 0 if a body lies outside of the arena or does not fit into its room. */
static int sweep(const Py_buffer *arena, const Row *row, int64_t count, const Py_buffer *prefix, uint8_t *const *out,
                 int64_t body_room, Found *found) {
    const uint8_t *from = arena->buf, *first_app = NULL;
    int64_t *index = (void *)out[P_INDEX], *stored = (void *)out[P_STORED], *sent = (void *)out[P_SENT];
    int32_t *body_ends = (void *)out[P_BODY_ENDS], *id_ends = (void *)out[P_ID_ENDS], *term = (void *)out[P_TERM];
    int16_t *flag = (void *)out[P_FLAG];
    int8_t *priority = (void *)out[P_PRIORITY];
    int64_t at, bytes, app_bytes = 0, last_app_at = -1, id_bytes = 0;
    Found sum = {.is_app_alike = count > 0};
    if (body_ends) body_ends[0] = 0;
    if (id_ends) id_ends[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        const Row *one = row + i;
        index[i] = one->index;
        stored[i] = (int64_t)((uint64_t)one->stored_ms * 1000); /* a time that is none may be too large: it wraps */
        sent[i] = (int64_t)((uint64_t)one->sent_ms * 1000);
        if (term) {
            term[i] = one->term;
            flag[i] = one->flag;
            priority[i] = one->priority;
        }
        if (body_ends) {
            if (!part(one, offsetof(Row, body_at), offsetof(Row, body_bytes), arena->len, &at, &bytes) ||
                bytes > body_room - sum.body)
                return 0;
            memcpy(out[P_BODY] + sum.body, from + at, (size_t)bytes);
            body_ends[i + 1] = (int32_t)(sum.body + bytes);
        }
        if (id_ends) {
            id_bytes = put_id(row, i, out[P_IDS] + sum.ids, id_bytes, prefix);
            sum.ids += id_bytes;
            id_ends[i + 1] = (int32_t)sum.ids;
        }
        sum.body += one->body_bytes;
        sum.key += one->key_bytes;
        sum.attributes += one->attributes_bytes;
        sum.carrier += one->carrier_bytes;
        sum.app += one->app_bytes;
        sum.damaged += one->is_damaged != 0;
        if (sum.is_app_alike && one->app_at != last_app_at) { /* those of one batch speak of the very same bytes */
            sum.is_app_alike = part(one, offsetof(Row, app_at), offsetof(Row, app_bytes), arena->len, &at, &bytes) &&
                               (first_app == NULL || (bytes == app_bytes && !memcmp(from + at, first_app, (size_t)bytes)));
            if (first_app == NULL) {
                first_app = from + at;
                app_bytes = bytes;
            }
            last_app_at = one->app_at;
        }
    }
    *found = sum;
    return 1;
}

/* Where each piece begins in memory, by a tuple that has -1 for those that are not wanted; 0 if one has not room for all
 * rows. */
static int pieces_of(PyObject *starts, const Py_buffer *memory, int64_t count, int64_t id_bytes_max, uint8_t **out,
                     int64_t *body_room) {
    const int64_t needed[PIECES] = {8 * count, 8 * count, 8 * count, 4 * (count + 1),      4 * (count + 1),
                                    4 * count, 2 * count, count,     count * id_bytes_max, 0};
    if (!PyTuple_Check(starts) || PyTuple_GET_SIZE(starts) != PIECES) {
        PyErr_SetString(PyExc_TypeError, "a sweep has ten pieces");
        return 0;
    }
    for (int k = 0; k < PIECES; k++) {
        int64_t start = PyLong_AsLongLong(PyTuple_GET_ITEM(starts, k));
        if (start == -1 && PyErr_Occurred()) return 0;
        out[k] = start < 0 ? NULL : (uint8_t *)memory->buf + start;
        if (start < 0 ? k <= P_SENT : start > memory->len - needed[k]) {
            PyErr_SetString(PyExc_ValueError, "a piece has not room for all rows");
            return 0;
        }
        if (k == P_BODY) *body_room = start < 0 ? 0 : memory->len - start;
    }
    if (!out[P_TERM] == !out[P_FLAG] && !out[P_TERM] == !out[P_PRIORITY] && !out[P_BODY_ENDS] == !out[P_BODY] &&
        !out[P_ID_ENDS] == !out[P_IDS])
        return 1;
    PyErr_SetString(PyExc_ValueError, "pieces that belong together are wanted together");
    return 0;
}

/* sweep(arena, rows, prefix, memory, starts): the bytes of all bodies, keys, attributes, attributes of carriers and apps,
 * how many rows are damaged, whether apps are alike, the bytes of ids, or -1 if a body is not where it should be. */
static PyObject *columns_sweep(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    if (!wants("sweep", n, 5)) return NULL;
    Py_buffer arena, rows, prefix, memory;
    PyObject *result = NULL;
    if (PyObject_GetBuffer(args[0], &arena, PyBUF_SIMPLE) < 0) return NULL;
    if (!rows_of(args[1], &rows, PyBUF_SIMPLE)) goto no_rows;
    if (PyObject_GetBuffer(args[2], &prefix, PyBUF_SIMPLE) < 0) goto no_prefix;
    if (PyObject_GetBuffer(args[3], &memory, PyBUF_WRITABLE) < 0) goto no_memory;
    int64_t count = rows.len / (int64_t)sizeof(Row), body_room = 0;
    uint8_t *out[PIECES];
    if (pieces_of(args[4], &memory, count, prefix.len + 20, out, &body_room)) {
        Found found = {0};
        int is_good;
        Py_BEGIN_ALLOW_THREADS
        is_good = sweep(&arena, rows.buf, count, &prefix, out, body_room, &found);
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("LLLLLLOL", (long long)found.body, (long long)found.key, (long long)found.attributes,
                               (long long)found.carrier, (long long)found.app, (long long)found.damaged,
                               found.is_app_alike ? Py_True : Py_False, is_good ? (long long)found.ids : -1LL);
    }
    PyBuffer_Release(&memory);
no_memory:
    PyBuffer_Release(&prefix);
no_prefix:
    PyBuffer_Release(&rows);
no_rows:
    PyBuffer_Release(&arena);
    return result;
}

static PyMethodDef methods[] = {
    {"count", columns_count, METH_O, "Twin of columns.count_python."},
    {"lay", (PyCFunction)(void (*)(void))columns_lay, METH_FASTCALL, "Twin of columns.lay_python."},
    {"split", (PyCFunction)(void (*)(void))columns_split, METH_FASTCALL, "Twin of columns.split_python."},
    {"open_plain", columns_open_plain, METH_O, "Lays and splits what is not compressed, in one go."},
    {"sweep", (PyCFunction)(void (*)(void))columns_sweep, METH_FASTCALL, "Twin of columns.sweep_python."},
    {"gather", (PyCFunction)(void (*)(void))columns_gather, METH_FASTCALL, "Twin of columns.gather_python."},
    {"crcs", (PyCFunction)(void (*)(void))columns_crcs, METH_FASTCALL, "Twin of columns.crcs_python."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_columns", "Compiled twins of columns.py.", -1, methods};

PyMODINIT_FUNC PyInit__columns(void) {
    prepare_crc();
    return PyModule_Create(&definition);
}
