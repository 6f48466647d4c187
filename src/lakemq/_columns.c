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

static int64_t lay(const uint8_t *p, int64_t size, Row *rows, int64_t rows_max) {
    int64_t at = 0, count = 0;
    Parts parts;
    while (at < size) {
        const uint8_t *m = p + at;
        if (count == rows_max || !find_parts(m, size - at, &parts)) return -1;
        Row *row = rows + count++;
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
        at += parts.length;
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

/* One row for each message of each carrier; 0 if they are not as many as there is room for. */
static int split(const uint8_t *p, int64_t arena_bytes, const Row *carrier, int64_t carriers, Row *rows, int64_t room) {
    for (; carriers > 0; carriers--, carrier++) {
        int64_t count = carrier->code & BATCH && carrier->flag > 1 ? carrier->flag : 1;
        int64_t at = carrier->body_at, size = carrier->body_bytes;
        if (count > room) return 0;
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
        rows += count;
        room -= count;
    }
    return room == 0;
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

/* sums(rows): how many bytes all bodies, keys, attributes, attributes of carriers and apps have, and how many rows are
 * damaged. */
static PyObject *columns_sums(PyObject *self, PyObject *object) {
    Py_buffer rows;
    if (!rows_of(object, &rows, PyBUF_SIMPLE)) return NULL;
    int64_t count = rows.len / (int64_t)sizeof(Row), body = 0, key = 0, attributes = 0, carrier = 0, app = 0, damaged = 0;
    const Row *row = rows.buf;
    for (; count > 0; count--, row++) {
        body += row->body_bytes;
        key += row->key_bytes;
        attributes += row->attributes_bytes;
        carrier += row->carrier_bytes;
        app += row->app_bytes;
        damaged += row->is_damaged != 0;
    }
    PyBuffer_Release(&rows);
    return Py_BuildValue("LLLLLL", (long long)body, (long long)key, (long long)attributes, (long long)carrier,
                         (long long)app, (long long)damaged);
}

/* numbers(rows, index, stored_us, sent_us, term, flag, priority): False if one of them has not room for all. */
static PyObject *columns_numbers(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    static const Py_ssize_t widths[] = {8, 8, 8, 4, 2, 1};
    if (!wants("numbers", n, 7)) return NULL;
    Py_buffer rows, out[6];
    if (!rows_of(args[0], &rows, PyBUF_SIMPLE)) return NULL;
    int64_t count = rows.len / (int64_t)sizeof(Row);
    int held = 0, has_room = 1;
    for (; held < 6 && PyObject_GetBuffer(args[1 + held], &out[held], PyBUF_WRITABLE) == 0; held++)
        has_room &= out[held].len >= count * widths[held];
    if (held == 6 && has_room) {
        Py_BEGIN_ALLOW_THREADS
        const Row *row = rows.buf;
        int64_t *index = out[0].buf, *stored = out[1].buf, *sent = out[2].buf;
        int32_t *term = out[3].buf;
        int16_t *flag = out[4].buf;
        int8_t *priority = out[5].buf;
        for (int64_t i = 0; i < count; i++, row++) {
            index[i] = row->index;
            stored[i] = (int64_t)((uint64_t)row->stored_ms * 1000); /* a time that is none may be too large: it wraps */
            sent[i] = (int64_t)((uint64_t)row->sent_ms * 1000);
            term[i] = row->term;
            flag[i] = row->flag;
            priority[i] = row->priority;
        }
        Py_END_ALLOW_THREADS
    }
    int is_good = held == 6;
    while (held > 0) PyBuffer_Release(&out[--held]);
    PyBuffer_Release(&rows);
    return is_good ? PyBool_FromLong(has_room) : NULL;
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

/* is_alike(arena, rows, at, bytes): whether that part is the same in all rows; False also if one lies outside the arena. */
static PyObject *columns_is_alike(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    if (!wants("is_alike", n, 4)) return NULL;
    Py_ssize_t at_in_row, bytes_in_row;
    if (!parts_of(args + 2, &at_in_row, &bytes_in_row)) return NULL;
    Py_buffer arena, rows;
    if (PyObject_GetBuffer(args[0], &arena, PyBUF_SIMPLE) < 0) return NULL;
    if (!rows_of(args[1], &rows, PyBUF_SIMPLE)) {
        PyBuffer_Release(&arena);
        return NULL;
    }
    int64_t count = rows.len / (int64_t)sizeof(Row), first_bytes = 0, last_at = -1;
    const Row *row = rows.buf;
    const uint8_t *from = arena.buf, *first = NULL;
    int is_alike = count > 0;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < count && is_alike; i++) {
        int64_t at, bytes;
        is_alike = part(row + i, at_in_row, bytes_in_row, arena.len, &at, &bytes);
        if (!is_alike) break;
        if (first == NULL) {
            first = from + at;
            first_bytes = bytes;
        } else /* those of one batch speak of the very same bytes */
            is_alike = bytes == first_bytes && (at == last_at || !memcmp(from + at, first, (size_t)bytes));
        last_at = at;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&rows);
    PyBuffer_Release(&arena);
    return PyBool_FromLong(is_alike);
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

/* places(prefix, rows, offsets, values): prefix and index of each row, as text; how many bytes, or -1 without room. */
static PyObject *columns_places(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    if (!wants("places", n, 4)) return NULL;
    Py_buffer prefix, rows, offsets, values;
    if (PyObject_GetBuffer(args[0], &prefix, PyBUF_SIMPLE) < 0) return NULL;
    if (!rows_of(args[1], &rows, PyBUF_SIMPLE)) goto no_rows;
    if (PyObject_GetBuffer(args[2], &offsets, PyBUF_WRITABLE) < 0) goto no_offsets;
    if (PyObject_GetBuffer(args[3], &values, PyBUF_WRITABLE) < 0) goto no_values;
    int64_t count = rows.len / (int64_t)sizeof(Row), to = 0;
    if (offsets.len < (count + 1) * 4 || values.len < count * (prefix.len + 20)) to = -1;
    Py_BEGIN_ALLOW_THREADS
    if (to == 0) {
        const Row *row = rows.buf;
        uint8_t *out = values.buf;
        int32_t *ends = offsets.buf;
        ends[0] = 0;
        for (int64_t i = 0; i < count; i++) {
            uint8_t *text = out + to;
            if (i && row[i - 1].index >= 0 && row[i].index == row[i - 1].index + 1 && text[-1] != '9') {
                int64_t bytes = to - ends[i - 1]; /* as the one before, but for the last digit */
                memcpy(text, text - bytes, (size_t)bytes);
                text[bytes - 1]++;
                to += bytes;
            } else {
                memcpy(text, prefix.buf, (size_t)prefix.len);
                to += prefix.len + decimal(row[i].index < 0 ? 0 : (uint64_t)row[i].index, text + prefix.len);
            }
            ends[i + 1] = (int32_t)to;
        }
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&values);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&prefix);
    return PyLong_FromLongLong(to);
no_values:
    PyBuffer_Release(&offsets);
no_offsets:
    PyBuffer_Release(&rows);
no_rows:
    PyBuffer_Release(&prefix);
    return NULL;
}

static PyMethodDef methods[] = {
    {"places", (PyCFunction)(void (*)(void))columns_places, METH_FASTCALL, "Twin of columns.places_python."},
    {"count", columns_count, METH_O, "Twin of columns.count_python."},
    {"lay", (PyCFunction)(void (*)(void))columns_lay, METH_FASTCALL, "Twin of columns.lay_python."},
    {"split", (PyCFunction)(void (*)(void))columns_split, METH_FASTCALL, "Twin of columns.split_python."},
    {"sums", columns_sums, METH_O, "Twin of columns.sums_python."},
    {"numbers", (PyCFunction)(void (*)(void))columns_numbers, METH_FASTCALL, "Twin of columns.numbers_python."},
    {"gather", (PyCFunction)(void (*)(void))columns_gather, METH_FASTCALL, "Twin of columns.gather_python."},
    {"is_alike", (PyCFunction)(void (*)(void))columns_is_alike, METH_FASTCALL, "Twin of columns.is_alike_python."},
    {"crcs", (PyCFunction)(void (*)(void))columns_crcs, METH_FASTCALL, "Twin of columns.crcs_python."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_columns", "Compiled twins of columns.py.", -1, methods};

PyMODINIT_FUNC PyInit__columns(void) {
    prepare_crc();
    return PyModule_Create(&definition);
}
