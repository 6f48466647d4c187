/* Many sockets with one call: what has arrived in a turn comes in with one call, the turn's answers leave with one.
 *
 * The fast form of world/server.py's SocketPort, which is what it must behave like; world/polled.py has the rest of it.
 * A Poller is an epoll of its own, which the event loop watches as one file. A Link is one connection: what has arrived
 * of its next frame, and what it has not sent yet. Nothing here knows what is in a frame.
 *
 * One thread uses it. The GIL is given back around the system calls: they are where the time goes, and threads that
 * sync wait for it. Every length is checked before it is used; a peer's claims never decide what is allocated.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* What happened to a link besides frames. */
enum { ENDED = 1, BROKEN, LOST, DRAINED, EMPTY };

enum {
    EVENTS_MAX = 256,
    PIECES_MAX = 64, /* of one sendmsg */
    FRAME_BYTES_MIN = 23,
    ROOM_BYTES_MIN = 4 << 10, CHUNK_BYTES = 256 << 10, LARGE_CHUNK_BYTES = 1 << 20, BUSY_BYTES = 64 << 10,
    DISCARD_BYTES = 64 << 10,
};
#define FRAME_MAGIC 0xCAFEBEBEu

typedef struct Poller Poller;

typedef struct {
    PyObject_HEAD
    Poller *poller; /* NULL unless it is open */
    PyObject *session;
    int fd;
    uint32_t watched; /* the events that epoll knows of */
    char is_paused, is_full, is_done, is_busy, is_dirty, tells_empty;
    long long frame_began_ms;
    /* What has arrived: bytes of `chunk`, a memoryview of a bytearray; frames are slices of it. */
    PyObject *chunk;
    uint8_t *base;
    int64_t chunk_bytes, start, end;
    /* What is to be sent: `pieces` from `first` on, and of that one the bytes from `sent_of_first` on. */
    Py_buffer *pieces;
    int first, count, room;
    int64_t sent_of_first, unsent;
    /* Of the system calls under way. */
    ssize_t got, sent;
    int receive_errno, send_errno;
    unsigned int broken_word; /* the first four bytes of what is no frame, if a stream has come out of step */
} Link;

struct Poller {
    PyObject_HEAD
    int fd, links_room, dirty_count, dirty_room;
    int64_t frame_bytes_max, output_bytes_max;
    PyObject *wants_flush; /* called when the first link has something to send */
    Link **links; /* by file descriptor */
    Link **dirty;
    struct epoll_event events[EVENTS_MAX];
    Link *ready[EVENTS_MAX];
    uint8_t discarded[DISCARD_BYTES];
};

static inline uint32_t get32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* ---- what arrives -------------------------------------------------------------------------------------------------- */

static void let_chunk_go(Link *link) {
    Py_CLEAR(link->chunk);
    link->base = NULL;
    link->chunk_bytes = link->start = link->end = 0;
}

/* Whether nobody holds a slice of the chunk: every memoryview of a bytearray counts in what they share. */
static inline int is_chunk_ours(const Link *link) {
    return ((PyMemoryViewObject *)link->chunk)->mbuf->exports == 1 && Py_REFCNT(link->chunk) == 1;
}

static int begin_chunk(Link *link) {
    int64_t held = link->end - link->start, bytes_max = link->poller->frame_bytes_max;
    int64_t size = link->is_busy ? LARGE_CHUNK_BYTES : CHUNK_BYTES;
    int64_t grown = (2 * held < bytes_max ? 2 * held : bytes_max) + ROOM_BYTES_MIN;
    if (grown > size) size = grown;
    PyObject *bytes = PyByteArray_FromStringAndSize(NULL, size);
    PyObject *view = bytes ? PyMemoryView_FromObject(bytes) : NULL;
    Py_XDECREF(bytes);
    if (view == NULL) return 0;
    uint8_t *base = PyMemoryView_GET_BUFFER(view)->buf;
    if (held) memcpy(base, link->base + link->start, (size_t)held);
    let_chunk_go(link);
    link->chunk = view;
    link->base = base;
    link->chunk_bytes = size;
    link->end = held;
    return 1;
}

/* Room for the socket to write to. A chunk that nobody reads any more is used again: its memory is warm. */
static int make_room(Link *link) {
    if (link->chunk != NULL && link->start && is_chunk_ours(link)) {
        int64_t held = link->end - link->start;
        if (held) memmove(link->base, link->base + link->start, (size_t)held);
        link->start = 0;
        link->end = held;
        if (!held && link->chunk_bytes > LARGE_CHUNK_BYTES) let_chunk_go(link); /* one large frame is no reason to keep it */
    }
    return link->chunk_bytes - link->end >= ROOM_BYTES_MIN || begin_chunk(link);
}

/* Where the whole frames end; *is_sound is whether what follows may become one. As wire.frame.whole_frames_python. */
static int64_t whole_frames(const uint8_t *p, int64_t at, int64_t end, int64_t bytes_max, int *is_sound) {
    *is_sound = 1;
    while (end - at >= 4) {
        int64_t length = (int32_t)get32(p + at);
        *is_sound = length >= FRAME_BYTES_MIN && length <= bytes_max && (end - at < 8 || get32(p + at + 4) == FRAME_MAGIC);
        if (!*is_sound || end - at < length) break;
        at += length;
    }
    return at;
}

static int tell(PyObject **happened, Link *link, int what) {
    if (*happened == NULL && (*happened = PyList_New(0)) == NULL) return 0;
    PyObject *pair = Py_BuildValue("(Oi)", link, what);
    int ok = pair != NULL && PyList_Append(*happened, pair) == 0;
    Py_XDECREF(pair);
    return ok;
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

/* `got` bytes have arrived behind those that were there. 0 with an exception set if there is no memory. */
static int take_in(Link *link, int64_t now_ms, PyObject *arrivals, PyObject **happened) {
    int is_sound;
    int64_t start = link->start;
    link->end += link->got;
    int64_t stop = whole_frames(link->base, start, link->end, link->poller->frame_bytes_max, &is_sound);
    if (stop > start) {
        link->frame_began_ms = 0;
        link->start = stop;
        if (stop - start >= BUSY_BYTES) link->is_busy = 1;
        if (link->session != NULL && link->session != Py_None) {
            PyObject *frames = slice_of(link->chunk, start, stop);
            PyObject *pair = frames != NULL ? PyTuple_Pack(2, link->session, frames) : NULL;
            int ok = pair != NULL && PyList_Append(arrivals, pair) == 0;
            Py_XDECREF(frames);
            Py_XDECREF(pair);
            if (!ok) return 0;
        }
    }
    if (!is_sound) {
        link->is_done = 1;
        link->broken_word = get32(link->base + stop); /* fewer than four bytes are always sound */
        let_chunk_go(link); /* keep nothing of a stream that is out of step */
        return tell(happened, link, BROKEN);
    }
    if (link->end > link->start && !link->frame_began_ms) link->frame_began_ms = now_ms;
    return 1;
}

/* ---- what is sent -------------------------------------------------------------------------------------------------- */

/* As much as the socket takes. Needs no GIL: what the pieces point to is held by them. */
static void send_some(Link *link) {
    link->sent = 0;
    link->send_errno = 0;
    int at = link->first;
    int64_t skip = link->sent_of_first;
    while (at < link->count) {
        struct iovec parts[PIECES_MAX];
        int n = 0;
        int64_t wanted = 0;
        for (; n < PIECES_MAX && at + n < link->count; n++) {
            const Py_buffer *piece = &link->pieces[at + n];
            int64_t before = n ? 0 : skip;
            parts[n] = (struct iovec){(uint8_t *)piece->buf + before, (size_t)(piece->len - before)};
            wanted += piece->len - before;
        }
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)n};
        ssize_t sent;
        do sent = n == 1 ? send(link->fd, parts[0].iov_base, parts[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
                         : sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (sent < 0 && errno == EINTR);
        if (sent < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) link->send_errno = errno;
            return;
        }
        link->sent += sent;
        if (sent < wanted) return;
        at += n;
        skip = 0;
    }
}

static void forget_pieces(Link *link) {
    while (link->first < link->count) PyBuffer_Release(&link->pieces[link->first++]);
    link->first = link->count = 0;
    link->sent_of_first = link->unsent = 0;
}

static int watch(Link *link, uint32_t wanted) {
    if (link->watched == wanted) return 1;
    struct epoll_event event = {.events = wanted, .data.fd = link->fd};
    if (epoll_ctl(link->poller->fd, EPOLL_CTL_MOD, link->fd, &event)) {
        PyErr_SetFromErrno(PyExc_OSError);
        return 0;
    }
    link->watched = wanted;
    return 1;
}

static int watch_again(Link *link) {
    return watch(link, (link->is_paused ? 0 : EPOLLIN) | (link->unsent ? EPOLLOUT : 0));
}

/* After `send_some`: what is sent is let go, and whoever waits for it is told. */
static int account(Link *link, PyObject **happened) {
    int64_t left = link->sent, most = link->poller->output_bytes_max;
    int was_over = link->unsent > most;
    if (link->send_errno) {
        forget_pieces(link);
        return tell(happened, link, LOST);
    }
    link->unsent -= left;
    while (link->first < link->count) {
        Py_buffer *piece = &link->pieces[link->first];
        int64_t of_it = piece->len - link->sent_of_first;
        if (left < of_it) {
            link->sent_of_first += left;
            break;
        }
        left -= of_it;
        link->sent_of_first = 0;
        link->first++;
        PyBuffer_Release(piece);
    }
    if (link->first == link->count) link->first = link->count = 0;
    if (!watch_again(link)) return 0;
    if (link->unsent > most)
        link->is_full = 1;
    else if (link->is_full ? link->unsent <= most / 4 : was_over) {
        link->is_full = 0;
        if (!tell(happened, link, DRAINED)) return 0;
    }
    return link->unsent || !link->tells_empty || tell(happened, link, EMPTY);
}

/* ---- Link ---------------------------------------------------------------------------------------------------------- */

static int is_open(const Link *link) {
    if (link->poller != NULL) return 1;
    PyErr_SetString(PyExc_ValueError, "the link is not open");
    return 0;
}

/* send(buffers) -> False if the peer does not read fast enough. They leave with Poller.flush. */
static PyObject *link_send(Link *link, PyObject *buffers) {
    if (link->poller == NULL || link->is_done) Py_RETURN_TRUE;
    Poller *poller = link->poller;
    PyObject *list = PySequence_Fast(buffers, "buffers must be a sequence");
    if (list == NULL) return NULL;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(list);
    if (link->first && link->count + n > link->room) { /* the room in front first */
        memmove(link->pieces, link->pieces + link->first, (size_t)(link->count - link->first) * sizeof(Py_buffer));
        link->count -= link->first;
        link->first = 0;
    }
    if (n > INT32_MAX / 4 - link->count) goto no_memory;
    if (link->count + n > link->room) {
        int room = 2 * (link->count + (int)n);
        Py_buffer *more = PyMem_Realloc(link->pieces, (size_t)room * sizeof(Py_buffer));
        if (more == NULL) goto no_memory;
        link->pieces = more;
        link->room = room;
    }
    for (Py_ssize_t k = 0; k < n; k++) {
        Py_buffer *piece = &link->pieces[link->count];
        if (PyObject_GetBuffer(PySequence_Fast_GET_ITEM(list, k), piece, PyBUF_SIMPLE)) {
            Py_DECREF(list);
            return NULL;
        }
        if (!piece->len) {
            PyBuffer_Release(piece);
            continue;
        }
        link->count++;
        link->unsent += piece->len;
    }
    Py_DECREF(list);
    if (!link->is_dirty) {
        if (poller->dirty_count == poller->dirty_room) {
            int room = poller->dirty_room ? 2 * poller->dirty_room : 64;
            Link **more = PyMem_Realloc(poller->dirty, (size_t)room * sizeof(Link *));
            if (more == NULL) return PyErr_NoMemory();
            poller->dirty = more;
            poller->dirty_room = room;
        }
        link->is_dirty = 1;
        poller->dirty[poller->dirty_count++] = (Link *)Py_NewRef(link);
        if (poller->dirty_count == 1) {
            PyObject *none = PyObject_CallNoArgs(poller->wants_flush);
            if (none == NULL) return NULL;
            Py_DECREF(none);
        }
    }
    return PyBool_FromLong(!link->is_full && link->unsent <= poller->output_bytes_max);
no_memory:
    Py_DECREF(list);
    return PyErr_NoMemory();
}

/* push() -> whether the socket is still good: send what waits now, without waiting for the end of the turn. */
static PyObject *link_push(Link *link, PyObject *unused) {
    PyObject *happened = NULL;
    if (!is_open(link)) return NULL;
    send_some(link);
    int is_good = !link->send_errno, ok = account(link, &happened);
    Py_XDECREF(happened); /* whoever calls it is about to close the link */
    return ok ? PyBool_FromLong(is_good) : NULL;
}

static PyObject *link_pause(Link *link, PyObject *unused) {
    link->is_paused = 1;
    if (link->poller != NULL && !watch_again(link)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *link_resume(Link *link, PyObject *unused) {
    link->is_paused = 0;
    if (link->poller != NULL && !watch_again(link)) return NULL;
    Py_RETURN_NONE;
}

/* open(poller, fd): watch that socket, which must not block; the caller closes it after `shut`. */
static PyObject *link_open(Link *link, PyObject *args);

static void forget_link(Link *link) {
    Poller *poller = link->poller;
    if (poller == NULL) return;
    link->poller = NULL;
    epoll_ctl(poller->fd, EPOLL_CTL_DEL, link->fd, NULL);
    if (link->fd < poller->links_room && poller->links[link->fd] == link) {
        poller->links[link->fd] = NULL;
        Py_DECREF(link);
    }
    forget_pieces(link);
    let_chunk_go(link);
    Py_DECREF(poller);
}

/* shut(): forget all of it. The second time nothing happens. */
static PyObject *link_shut(Link *link, PyObject *unused) {
    Py_INCREF(link); /* the poller's reference may be the last */
    forget_link(link);
    Py_DECREF(link);
    Py_RETURN_NONE;
}

static PyObject *link_held_bytes(Link *link, void *unused) { return PyLong_FromLongLong(link->end - link->start); }
static PyObject *link_unsent_bytes(Link *link, void *unused) { return PyLong_FromLongLong(link->unsent); }
static PyObject *link_is_open(Link *link, void *unused) { return PyBool_FromLong(link->poller != NULL); }

static int link_traverse(Link *link, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(link));
    Py_VISIT(link->session);
    Py_VISIT(link->poller);
    return 0;
}

static int link_clear(Link *link) {
    Py_CLEAR(link->session);
    return 0;
}

static void link_dealloc(Link *link) {
    PyTypeObject *type = Py_TYPE(link);
    PyObject_GC_UnTrack(link);
    forget_pieces(link); /* it is not open: the poller would hold it */
    PyMem_Free(link->pieces);
    let_chunk_go(link);
    Py_CLEAR(link->session);
    type->tp_free((PyObject *)link);
    Py_DECREF(type);
}

static PyMethodDef link_methods[] = {
    {"open", (PyCFunction)link_open, METH_VARARGS, "Watch a socket."},
    {"send", (PyCFunction)link_send, METH_O, "Send these with the next flush; False if the peer reads too slowly."},
    {"push", (PyCFunction)link_push, METH_NOARGS, "Send what waits now; False if the socket is broken."},
    {"pause", (PyCFunction)link_pause, METH_NOARGS, "Read no more for now."},
    {"resume", (PyCFunction)link_resume, METH_NOARGS, "Read on."},
    {"shut", (PyCFunction)link_shut, METH_NOARGS, "Forget the socket, and all that was to be sent."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef link_members[] = {
    {"session", T_OBJECT, offsetof(Link, session), 0, "Whom its frames are for; None: nobody looks at them."},
    {"frame_began_ms", T_LONGLONG, offsetof(Link, frame_began_ms), 0, "When an unfinished frame began; 0: there is none."},
    {"is_full", T_BOOL, offsetof(Link, is_full), READONLY, "Whether the peer does not read what it is sent."},
    {"is_done", T_BOOL, offsetof(Link, is_done), 0, "Whether what still arrives is not looked at."},
    {"broken_word", T_UINT, offsetof(Link, broken_word), READONLY, "The first four bytes of what is no frame."},
    {"tells_empty", T_BOOL, offsetof(Link, tells_empty), 0, "Whether to say EMPTY once all is sent."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef link_getset[] = {
    {"held_bytes", (getter)link_held_bytes, NULL, "What has arrived of a frame that is not whole.", NULL},
    {"unsent_bytes", (getter)link_unsent_bytes, NULL, "What is still to be sent.", NULL},
    {"is_open", (getter)link_is_open, NULL, "Whether a socket is watched.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot link_slots[] = {
    {Py_tp_doc, "One connection of a Poller."}, {Py_tp_methods, link_methods}, {Py_tp_members, link_members},
    {Py_tp_getset, link_getset}, {Py_tp_traverse, link_traverse}, {Py_tp_clear, link_clear},
    {Py_tp_dealloc, link_dealloc}, {0, NULL},
};

static PyType_Spec link_spec = {
    "lakemq._poll.Link", sizeof(Link), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, link_slots,
};

/* ---- Poller -------------------------------------------------------------------------------------------------------- */

static int poller_init(Poller *poller, PyObject *args, PyObject *kwargs) {
    long long frame_bytes_max, output_bytes_max;
    PyObject *wants_flush;
    if (!PyArg_ParseTuple(args, "LLO", &frame_bytes_max, &output_bytes_max, &wants_flush)) return -1;
    poller->frame_bytes_max = frame_bytes_max;
    poller->output_bytes_max = output_bytes_max;
    Py_XSETREF(poller->wants_flush, Py_NewRef(wants_flush));
    poller->fd = epoll_create1(EPOLL_CLOEXEC);
    if (poller->fd >= 0) return 0;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

static PyObject *poller_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Poller *poller = (Poller *)type->tp_alloc(type, 0);
    if (poller != NULL) poller->fd = -1;
    return (PyObject *)poller;
}

static PyObject *link_open(Link *link, PyObject *args) {
    PyObject *given;
    int fd;
    if (!PyArg_ParseTuple(args, "Oi", &given, &fd)) return NULL;
    Poller *poller = (Poller *)given;
    if (Py_TYPE(given)->tp_new != poller_new || poller->fd < 0 || fd < 0 || link->poller != NULL) {
        PyErr_SetString(PyExc_ValueError, "open takes an open poller and a socket, once");
        return NULL;
    }
    if (fd >= poller->links_room) {
        int room = 2 * fd + 64;
        Link **more = PyMem_Realloc(poller->links, (size_t)room * sizeof(Link *));
        if (more == NULL) return PyErr_NoMemory();
        memset(more + poller->links_room, 0, (size_t)(room - poller->links_room) * sizeof(Link *));
        poller->links = more;
        poller->links_room = room;
    }
    if (poller->links[fd] != NULL) {
        PyErr_SetString(PyExc_ValueError, "that socket was closed before its link was shut");
        return NULL;
    }
    link->watched = link->is_paused ? 0 : EPOLLIN;
    struct epoll_event event = {.events = link->watched, .data.fd = fd};
    if (epoll_ctl(poller->fd, EPOLL_CTL_ADD, fd, &event)) return PyErr_SetFromErrno(PyExc_OSError);
    link->fd = fd;
    link->poller = (Poller *)Py_NewRef(poller);
    poller->links[fd] = (Link *)Py_NewRef(link);
    Py_RETURN_NONE;
}

/* The system calls for one link that epoll named; without the GIL. */
static void serve_ready(Poller *poller, Link *link, uint32_t events) {
    link->got = -1;
    link->sent = -1;
    link->receive_errno = EAGAIN;
    link->send_errno = 0;
    if (events & EPOLLOUT && link->unsent) send_some(link);
    if (link->is_paused) {
        if (events & (EPOLLERR | EPOLLHUP)) link->receive_errno = ECONNRESET;
        return;
    }
    if (!(events & (EPOLLIN | EPOLLERR | EPOLLHUP))) return;
    uint8_t *room = link->is_done ? poller->discarded : link->base + link->end;
    size_t size = link->is_done ? DISCARD_BYTES : (size_t)(link->chunk_bytes - link->end);
    do link->got = recv(link->fd, room, size, MSG_DONTWAIT);
    while (link->got < 0 && errno == EINTR);
    link->receive_errno = link->got < 0 ? errno : 0;
}

/* What `serve_ready` found. 0 with an exception set if there is no memory. */
static int note_ready(Link *link, int64_t now_ms, PyObject *arrivals, PyObject **happened) {
    if (link->sent >= 0 || link->send_errno) {
        if (!account(link, happened)) return 0;
        if (link->send_errno) return 1; /* it is lost, which is told */
    }
    if (link->got > 0) return link->is_done || take_in(link, now_ms, arrivals, happened);
    if (link->got == 0) return tell(happened, link, ENDED);
    return link->receive_errno == EAGAIN || link->receive_errno == EWOULDBLOCK || tell(happened, link, LOST);
}

/* receive(now_ms) -> (arrivals, happened): sessions with their whole frames, links with what else happened or None.
 * Each ready connection is read from once, and from no more than EVENTS_MAX of them; the others come next time. */
static PyObject *poller_receive(Poller *poller, PyObject *now) {
    int64_t now_ms = PyLong_AsLongLong(now);
    if (now_ms == -1 && PyErr_Occurred()) return NULL;
    int count = epoll_wait(poller->fd, poller->events, EVENTS_MAX, 0), ready = 0, ok = 1;
    if (count < 0) {
        if (errno != EINTR) return PyErr_SetFromErrno(PyExc_OSError);
        count = 0;
    }
    PyObject *arrivals = PyList_New(0), *happened = NULL, *found = NULL;
    if (arrivals == NULL) return NULL;
    for (int k = 0; k < count; k++) {
        int fd = poller->events[k].data.fd;
        Link *link = fd < poller->links_room ? poller->links[fd] : NULL;
        if (link == NULL) continue;
        if (!link->is_paused && !link->is_done && !make_room(link)) { /* no memory for it: then it has to go */
            PyErr_Clear();
            if (!tell(&happened, link, LOST)) ok = 0;
            continue;
        }
        poller->events[ready].events = poller->events[k].events;
        poller->ready[ready++] = (Link *)Py_NewRef(link);
    }
    Py_BEGIN_ALLOW_THREADS
    for (int k = 0; k < ready; k++) serve_ready(poller, poller->ready[k], poller->events[k].events);
    Py_END_ALLOW_THREADS
    for (int k = 0; k < ready; k++) {
        ok = ok && note_ready(poller->ready[k], now_ms, arrivals, &happened);
        Py_DECREF(poller->ready[k]);
    }
    if (ok) found = PyTuple_Pack(2, arrivals, happened ? happened : Py_None);
    Py_DECREF(arrivals);
    Py_XDECREF(happened);
    return found;
}

/* look(microseconds) -> whether something is there to receive; without sleeping, for that long at most.
 * To be woken takes longer than what a lone client needs to send its next request. */
static PyObject *poller_look(Poller *poller, PyObject *microseconds) {
    int64_t left = PyLong_AsLongLong(microseconds);
    if (left == -1 && PyErr_Occurred()) return NULL;
    struct epoll_event event;
    struct timespec now;
    int count;
    Py_BEGIN_ALLOW_THREADS
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t until = now.tv_sec * 1000000000LL + now.tv_nsec + left * 1000;
    do {
        count = epoll_wait(poller->fd, &event, 1, 0);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (count == 0 && now.tv_sec * 1000000000LL + now.tv_nsec < until);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(count > 0);
}

/* flush() -> links with what happened, or None: send all that waits, on every link. */
static PyObject *poller_flush(Poller *poller, PyObject *unused) {
    int count = poller->dirty_count, ok = 1;
    Link **dirty = poller->dirty;
    if (!count) Py_RETURN_NONE;
    poller->dirty = NULL; /* what is let go below may send again */
    poller->dirty_count = poller->dirty_room = 0;
    Py_BEGIN_ALLOW_THREADS
    for (int k = 0; k < count; k++)
        if (dirty[k]->poller != NULL) send_some(dirty[k]);
    Py_END_ALLOW_THREADS
    PyObject *happened = NULL;
    for (int k = 0; k < count; k++) {
        dirty[k]->is_dirty = 0;
        if (dirty[k]->poller != NULL) ok = ok && account(dirty[k], &happened);
        Py_DECREF(dirty[k]);
    }
    if (poller->dirty == NULL) { /* keep the room */
        for (int k = 0; k < count; k++) dirty[k] = NULL;
        poller->dirty = dirty;
        poller->dirty_room = count;
    } else
        PyMem_Free(dirty);
    if (!ok) {
        Py_XDECREF(happened);
        return NULL;
    }
    return happened != NULL ? happened : Py_NewRef(Py_None);
}

static PyObject *poller_fileno(Poller *poller, PyObject *unused) { return PyLong_FromLong(poller->fd); }

static void close_poller(Poller *poller) {
    for (int fd = 0; fd < poller->links_room; fd++)
        if (poller->links[fd] != NULL) forget_link(poller->links[fd]);
    while (poller->dirty_count) {
        Link *link = poller->dirty[--poller->dirty_count];
        link->is_dirty = 0;
        Py_DECREF(link);
    }
    if (poller->fd >= 0) close(poller->fd);
    poller->fd = -1;
}

static PyObject *poller_close(Poller *poller, PyObject *unused) {
    close_poller(poller);
    Py_RETURN_NONE;
}

static int poller_traverse(Poller *poller, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(poller));
    Py_VISIT(poller->wants_flush);
    for (int fd = 0; fd < poller->links_room; fd++) Py_VISIT(poller->links[fd]);
    for (int k = 0; k < poller->dirty_count; k++) Py_VISIT(poller->dirty[k]);
    return 0;
}

static int poller_clear(Poller *poller) {
    Py_INCREF(poller); /* its links hold it */
    close_poller(poller);
    Py_CLEAR(poller->wants_flush);
    Py_DECREF(poller);
    return 0;
}

static void poller_dealloc(Poller *poller) {
    PyTypeObject *type = Py_TYPE(poller);
    PyObject_GC_UnTrack(poller);
    close_poller(poller); /* no link is open, for it would hold this */
    Py_CLEAR(poller->wants_flush);
    PyMem_Free(poller->links);
    PyMem_Free(poller->dirty);
    type->tp_free((PyObject *)poller);
    Py_DECREF(type);
}

static PyMethodDef poller_methods[] = {
    {"receive", (PyCFunction)poller_receive, METH_O, "What has arrived, and what else happened."},
    {"look", (PyCFunction)poller_look, METH_O, "Whether something arrives within so many microseconds, without sleeping."},
    {"flush", (PyCFunction)poller_flush, METH_NOARGS, "Send what waits; what happened."},
    {"fileno", (PyCFunction)poller_fileno, METH_NOARGS, "What an event loop watches for reading."},
    {"close", (PyCFunction)poller_close, METH_NOARGS, "Shut all links and give the epoll back."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot poller_slots[] = {
    {Py_tp_doc, "Reads from and sends to many sockets with one call."}, {Py_tp_methods, poller_methods},
    {Py_tp_new, poller_new}, {Py_tp_init, poller_init}, {Py_tp_traverse, poller_traverse},
    {Py_tp_clear, poller_clear}, {Py_tp_dealloc, poller_dealloc}, {0, NULL},
};

static PyType_Spec poller_spec = {
    "lakemq._poll.Poller", sizeof(Poller), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, poller_slots,
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_poll", "Many sockets with one call.", -1, NULL};

PyMODINIT_FUNC PyInit__poll(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    PyObject *link = PyType_FromSpec(&link_spec), *poller = PyType_FromSpec(&poller_spec);
    int ok = link != NULL && poller != NULL && !PyModule_AddObjectRef(module, "Link", link) &&
             !PyModule_AddObjectRef(module, "Poller", poller) && !PyModule_AddIntMacro(module, ENDED) &&
             !PyModule_AddIntMacro(module, BROKEN) && !PyModule_AddIntMacro(module, LOST) &&
             !PyModule_AddIntMacro(module, DRAINED) && !PyModule_AddIntMacro(module, EMPTY);
    Py_XDECREF(link);
    Py_XDECREF(poller);
    if (ok) return module;
    Py_DECREF(module);
    return NULL;
}
