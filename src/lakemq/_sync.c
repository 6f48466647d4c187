/* One file synced at a time, by a thread that never runs Python.
 *
 * A Python thread would have to take the interpreter's lock twice for each sync, from the thread that is busy answering
 * clients: that costs both of them more than the sync itself, on a fast disk. This one is told by a condition and tells
 * by an eventfd, which an event loop watches. `world/syncing.py` uses it.
 */
#define _GNU_SOURCE /* dup3 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t asked;
    int event_fd;
    int own_fd;  /* taken at the start: a sync must not need one more descriptor than there are (F26) */
    bool is_asked; /* own_fd is the file to be synced; else it stands for event_fd */
    int outcome; /* of the last one: 0 or an errno; read once the eventfd says so */
    bool runs, is_out, ends;
} Syncer;

static void *syncs(void *given) {
    Syncer *syncer = given;
    pthread_mutex_lock(&syncer->mutex);
    for (;;) {
        while (!syncer->is_asked && !syncer->ends) pthread_cond_wait(&syncer->asked, &syncer->mutex);
        if (!syncer->is_asked) break;
        pthread_mutex_unlock(&syncer->mutex);
        int outcome = fdatasync(syncer->own_fd) ? errno : 0; /* no signal comes here, so it is never EINTR */
        dup3(syncer->event_fd, syncer->own_fd, O_CLOEXEC); /* lets the file go, and keeps the number */
        pthread_mutex_lock(&syncer->mutex);
        syncer->is_asked = false;
        syncer->outcome = outcome;
        uint64_t one = 1;
        ssize_t told = write(syncer->event_fd, &one, sizeof one);
        (void)told; /* an eventfd of 0 takes a 1 */
    }
    pthread_mutex_unlock(&syncer->mutex);
    return NULL;
}

static int start_thread(Syncer *syncer) {
    sigset_t all, before;
    sigfillset(&all); /* signals are for the thread that runs Python */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(&syncer->thread, NULL, syncs, syncer);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    syncer->runs = !failure;
    return failure;
}

static PyObject *syncer_begin(Syncer *syncer, PyObject *given) {
    int fd = PyObject_AsFileDescriptor(given);
    if (fd < 0) return NULL;
    if (syncer->is_out || syncer->ends) {
        PyErr_SetString(PyExc_RuntimeError, syncer->ends ? "it is closed" : "one sync at a time");
        return NULL;
    }
    if (!syncer->runs && (errno = start_thread(syncer)) != 0) return PyErr_SetFromErrno(PyExc_OSError);
    /* Whoever gave it may close it meanwhile, and its number come again. */
    if (dup3(fd, syncer->own_fd, O_CLOEXEC) < 0) return PyErr_SetFromErrno(PyExc_OSError);
    pthread_mutex_lock(&syncer->mutex);
    syncer->is_asked = true;
    pthread_cond_signal(&syncer->asked);
    pthread_mutex_unlock(&syncer->mutex);
    syncer->is_out = true;
    Py_RETURN_NONE;
}

static PyObject *syncer_end(Syncer *syncer, PyObject *nothing) {
    (void)nothing;
    uint64_t count;
    if (!syncer->is_out || read(syncer->event_fd, &count, sizeof count) < 0) Py_RETURN_NONE;
    syncer->is_out = false;
    pthread_mutex_lock(&syncer->mutex);
    int outcome = syncer->outcome;
    pthread_mutex_unlock(&syncer->mutex);
    return PyLong_FromLong(outcome);
}

static PyObject *syncer_fileno(Syncer *syncer, PyObject *nothing) {
    (void)nothing;
    return PyLong_FromLong(syncer->event_fd);
}

static PyObject *syncer_close(Syncer *syncer, PyObject *nothing) {
    (void)nothing;
    pthread_mutex_lock(&syncer->mutex);
    syncer->ends = true;
    pthread_cond_signal(&syncer->asked);
    pthread_mutex_unlock(&syncer->mutex);
    if (syncer->runs) {
        Py_BEGIN_ALLOW_THREADS
        pthread_join(syncer->thread, NULL);
        Py_END_ALLOW_THREADS
        syncer->runs = false;
    }
    if (syncer->own_fd >= 0) close(syncer->own_fd);
    if (syncer->event_fd >= 0) close(syncer->event_fd);
    syncer->own_fd = syncer->event_fd = -1;
    Py_RETURN_NONE;
}

static PyObject *syncer_new(PyTypeObject *type, PyObject *args, PyObject *names) {
    if (PyTuple_GET_SIZE(args) || (names != NULL && PyDict_GET_SIZE(names))) {
        PyErr_SetString(PyExc_TypeError, "Syncer takes nothing");
        return NULL;
    }
    Syncer *syncer = (Syncer *)type->tp_alloc(type, 0);
    if (syncer == NULL) return NULL;
    pthread_mutex_init(&syncer->mutex, NULL);
    pthread_cond_init(&syncer->asked, NULL);
    syncer->own_fd = -1;
    syncer->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (syncer->event_fd >= 0) syncer->own_fd = fcntl(syncer->event_fd, F_DUPFD_CLOEXEC, 0);
    if (syncer->own_fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(syncer);
        return NULL;
    }
    return (PyObject *)syncer;
}

static void syncer_dealloc(Syncer *syncer) {
    PyTypeObject *type = Py_TYPE(syncer);
    Py_XDECREF(syncer_close(syncer, NULL));
    pthread_cond_destroy(&syncer->asked);
    pthread_mutex_destroy(&syncer->mutex);
    type->tp_free((PyObject *)syncer);
    Py_DECREF(type);
}

static PyMethodDef syncer_methods[] = {
    {"begin", (PyCFunction)syncer_begin, METH_O, "Sync this file, beside everything else."},
    {"end", (PyCFunction)syncer_end, METH_NOARGS, "0 or the errno of the sync that ended; None while it goes on."},
    {"fileno", (PyCFunction)syncer_fileno, METH_NOARGS, "Readable when a sync has ended."},
    {"close", (PyCFunction)syncer_close, METH_NOARGS, "Wait for the one that goes on, and end the thread."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot syncer_slots[] = {
    {Py_tp_doc, "Syncs one file at a time, without Python."}, {Py_tp_methods, syncer_methods},
    {Py_tp_new, syncer_new}, {Py_tp_dealloc, syncer_dealloc}, {0, NULL},
};

static PyType_Spec syncer_spec = {"lakemq._sync.Syncer", sizeof(Syncer), 0, Py_TPFLAGS_DEFAULT, syncer_slots};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_sync", "Syncs beside Python.", -1, NULL};

PyMODINIT_FUNC PyInit__sync(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    PyObject *syncer = PyType_FromSpec(&syncer_spec);
    int ok = syncer != NULL && !PyModule_AddObjectRef(module, "Syncer", syncer);
    Py_XDECREF(syncer);
    if (ok) return module;
    Py_DECREF(module);
    return NULL;
}
