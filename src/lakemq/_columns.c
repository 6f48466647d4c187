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
    int8_t priority, unused[3];
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
        memset(row->unused, 0, sizeof row->unused);
        at += parts.length;
    }
    return count;
}

/* Each row is a copy of its carrier's; becomes that of the k-th message inside. */
static int items(const uint8_t *p, int64_t start, int64_t size, Row *rows, int64_t count) {
    const uint8_t *body = p + start;
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
        Row *row = rows + k;
        row->index += k;
        row->carrier_at = row->attributes_at;
        row->carrier_bytes = row->attributes_bytes;
        row->priority = (int8_t)m[4];
        row->flag = (int16_t)get16(m + 5);
        row->body_at = start + at + 11;
        row->body_bytes = (int32_t)body_bytes;
        row->key_at = start + at + key + 4;
        row->key_bytes = (int32_t)key_bytes;
        row->attributes_at = start + at + attributes + 2;
        row->attributes_bytes = (int32_t)attributes_bytes;
        at += length;
    }
    return at == size;
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

static PyObject *columns_items(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    if (!wants("items", n, 4)) return NULL;
    long long start = PyLong_AsLongLong(args[1]), size = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    Py_buffer arena, rows;
    if (PyObject_GetBuffer(args[0], &arena, PyBUF_SIMPLE) < 0) return NULL;
    if (!rows_of(args[3], &rows, PyBUF_WRITABLE)) {
        PyBuffer_Release(&arena);
        return NULL;
    }
    int is_whole = start >= 0 && size >= 0 && size <= arena.len && start <= arena.len - size &&
                   items(arena.buf, start, size, rows.buf, rows.len / (Py_ssize_t)sizeof(Row));
    PyBuffer_Release(&rows);
    PyBuffer_Release(&arena);
    return PyBool_FromLong(is_whole);
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
    if (!bad) ends[0] = 0;
    for (int64_t i = 0; i < count && bad >= 0; i++) {
        int64_t at, bytes;
        if (!part(row + i, at_in_row, bytes_in_row, arena.len, &at, &bytes) || bytes > values.len - to) {
            bad = -1;
            break;
        }
        memcpy(out + to, from + at, (size_t)bytes);
        if (is_text && bytes && utf8_characters(out + to, bytes) < 0) bad++;
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
            memcpy(out + to, prefix.buf, (size_t)prefix.len);
            to += prefix.len;
            to += decimal(row[i].index < 0 ? 0 : (uint64_t)row[i].index, out + to);
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
    {"items", (PyCFunction)(void (*)(void))columns_items, METH_FASTCALL, "Twin of columns.items_python."},
    {"gather", (PyCFunction)(void (*)(void))columns_gather, METH_FASTCALL, "Twin of columns.gather_python."},
    {"crcs", (PyCFunction)(void (*)(void))columns_crcs, METH_FASTCALL, "Twin of columns.crcs_python."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_columns", "Compiled twins of columns.py.", -1, methods};

PyMODINIT_FUNC PyInit__columns(void) {
    prepare_crc();
    return PyModule_Create(&definition);
}
