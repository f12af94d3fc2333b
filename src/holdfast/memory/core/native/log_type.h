/* The Python type Log: construction, reading as columns and stacks, closing, destruction. */

static PyObject *log_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"depth", "skip", NULL};
    int depth = 1;
    const char *skip = "";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|is", names, &depth, &skip)) return NULL;
    Log *log = (Log *)type->tp_alloc(type, 0);
    if (!log) return NULL;
    pthread_mutex_init(&log->lock, NULL);
    log->depth = depth > MAX_DEPTH ? MAX_DEPTH : depth;
    log->skip = strdup(skip);
    log->skip_length = strlen(skip);
    log->on = 1;
    log->started_ns = now_ns();
    log->stack_room = 256;
    log->stacks = calloc(log->stack_room, sizeof(Stack *));
    log->stack_count = 1;
    log->index_room = 1024;
    log->index = calloc(log->index_room, sizeof(uint32_t));
    pthread_mutex_lock(&all_lock);
    log->next_log = all_logs;
    all_logs = log;
    pthread_mutex_unlock(&all_lock);
    if (log->skip && log->stacks && log->index) return (PyObject *)log;
    Py_DECREF(log);
    return PyErr_NoMemory();
}

static void stacks_free(Stack **stacks, size_t count) {
    for (size_t i = 1; i < count; i++) {
        if (!stacks[i]) continue;
        for (uint32_t f = 0; f < stacks[i]->depth; f++) Py_DECREF(stacks[i]->frames[f].code);
        free(stacks[i]);
    }
    free(stacks);
}

/* Give back all that a log holds. Nothing is written to it any more. */
static void log_empty(Log *log) {
    pthread_mutex_lock(&log->lock);
    Part *part = log->first;
    Stack **stacks = log->stacks;
    size_t count = log->stack_count;
    log->on = 0;
    log->first = log->last = NULL;
    log->stacks = NULL;
    log->count = log->stack_count = 0;
    free(log->index);
    log->index = NULL;
    pthread_mutex_unlock(&log->lock);
    while (part) {
        Part *next = part->next;
        free(part);
        part = next;
    }
    stacks_free(stacks, count);
}

static PyObject *py_log_close(Log *log, PyObject *unused) {
    (void)unused;
    log_empty(log);
    Py_RETURN_NONE;
}

static void log_dealloc(Log *log) {
    pthread_mutex_lock(&all_lock);
    for (Log **at = &all_logs; *at; at = &(*at)->next_log)
        if (*at == log) {
            *at = log->next_log;
            break;
        }
    pthread_mutex_unlock(&all_lock);
    log_empty(log);
    free(log->skip);
    pthread_mutex_destroy(&log->lock);
    Py_TYPE(log)->tp_free((PyObject *)log);
}

static PyObject *py_log_add(Log *log, PyObject *args) {
    int kind, place;
    unsigned long long address;
    long long size;
    if (!PyArg_ParseTuple(args, "iKLi", &kind, &address, &size, &place)) return NULL;
    uint32_t stack = kind == ALLOC ? log_stack(log) : 0;
    log_add(log, kind, address, size, stack, place, current_tag);
    Py_RETURN_NONE;
}

/* A tuple of seven bytes objects with room for `count` events, not written yet; `to`: into them. */
static PyObject *columns_new(size_t count, char *to[7]) {
    static const size_t widths[7] = {8, 1, 8, 8, 4, 2, 2};
    PyObject *made = PyTuple_New(7);
    for (int i = 0; made && i < 7; i++) {
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * widths[i]));
        if (!bytes) {
            Py_CLEAR(made);
            break;
        }
        PyTuple_SET_ITEM(made, i, bytes);
        to[i] = PyBytes_AS_STRING(bytes);
    }
    return made;
}

/* The first `count` events as columns. The lock is held. */
static void columns_fill(Log *log, size_t count, char *to[7]) {
    size_t at = 0;
    for (Part *part = log->first; part; part = part->next)
        for (size_t i = 0; i < part->used && at < count; i++, at++) {
            Record *r = &part->records[i];
            ((int64_t *)(void *)to[0])[at] = r->time_ns;
            ((uint8_t *)to[1])[at] = r->kind;
            ((u64 *)(void *)to[2])[at] = r->address;
            ((int64_t *)(void *)to[3])[at] = r->size;
            ((uint32_t *)(void *)to[4])[at] = r->stack;
            ((uint16_t *)(void *)to[5])[at] = r->place;
            ((uint16_t *)(void *)to[6])[at] = r->tag;
        }
}

static size_t log_count(Log *log) {
    pthread_mutex_lock(&log->lock);
    size_t count = log->count;
    pthread_mutex_unlock(&log->lock);
    return count;
}

/* columns() -> seven bytes objects, in the order of Recording's columns. */
static PyObject *py_log_columns(Log *log, PyObject *unused) {
    (void)unused;
    for (;;) {
        char *to[7];
        size_t count = log_count(log);
        PyObject *made = columns_new(count, to); /* which may collect garbage, and so close the log */
        if (!made) return NULL;
        pthread_mutex_lock(&log->lock);
        int there = log->count >= count;
        if (there) columns_fill(log, count, to);
        pthread_mutex_unlock(&log->lock);
        if (there) return made;
        Py_DECREF(made);
    }
}

/* Copies of all stacks with references of their own: making objects of them may collect garbage, and
 * so close the log. copies[0] is NULL. NULL: no memory. */
static Stack **stacks_copy(Log *log, size_t *count) {
    pthread_mutex_lock(&log->lock);
    *count = log->stack_count ? log->stack_count : 1;
    Stack **copies = calloc(*count, sizeof(Stack *));
    int failed = !copies;
    for (size_t i = 1; i < *count && !failed; i++) {
        size_t size = sizeof(Stack) + log->stacks[i]->depth * sizeof(log->stacks[i]->frames[0]);
        copies[i] = malloc(size);
        failed = !copies[i];
        if (failed) break;
        memcpy(copies[i], log->stacks[i], size);
        for (uint32_t f = 0; f < copies[i]->depth; f++) Py_INCREF(copies[i]->frames[f].code);
    }
    pthread_mutex_unlock(&log->lock);
    if (!failed) return copies;
    stacks_free(copies, copies ? *count : 0);
    return NULL;
}

/* [(code, lasti), ...] of a stack; NULL is the empty one. */
static PyObject *frames_of(Stack *s) {
    PyObject *frames = PyList_New(s ? (Py_ssize_t)s->depth : 0);
    for (uint32_t f = 0; frames && s && f < s->depth; f++) {
        PyObject *frame = Py_BuildValue("(Oi)", s->frames[f].code, s->frames[f].lasti);
        if (!frame) Py_CLEAR(frames);
        else PyList_SET_ITEM(frames, f, frame);
    }
    return frames;
}

/* stacks() -> [[(code, lasti), ...], ...], innermost first; the first is empty. */
static PyObject *py_log_stacks(Log *log, PyObject *unused) {
    (void)unused;
    size_t count;
    Stack **copies = stacks_copy(log, &count);
    if (!copies) return PyErr_NoMemory();
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *frames = frames_of(copies[i]);
        if (!frames || PyList_Append(list, frames)) Py_CLEAR(list);
        Py_XDECREF(frames);
    }
    stacks_free(copies, count);
    return list;
}

/* functions(place, least) -> addresses of the watching entry points, and their context. */
static PyObject *py_log_functions(Log *log, PyObject *args) {
    int place;
    Py_ssize_t least;
    if (!PyArg_ParseTuple(args, "in", &place, &least)) return NULL;
    Watch *watch = malloc(sizeof(Watch)); /* never freed: a block may be freed long after */
    if (!watch) return PyErr_NoMemory();
    watch->log = (Log *)Py_NewRef(log);
    watch->place = place;
    watch->least = (size_t)least;
    return Py_BuildValue("{sKsKsKsKsKsKsK}", "context", (unsigned long long)(uintptr_t)watch, "malloc",
                         (unsigned long long)(uintptr_t)hf_watch_malloc, "aligned",
                         (unsigned long long)(uintptr_t)hf_watch_aligned, "calloc",
                         (unsigned long long)(uintptr_t)hf_watch_calloc, "realloc",
                         (unsigned long long)(uintptr_t)hf_watch_realloc, "free",
                         (unsigned long long)(uintptr_t)hf_watch_free, "event",
                         (unsigned long long)(uintptr_t)hf_watch_event);
}

static PyMethodDef log_methods[] = {
    {"add", (PyCFunction)py_log_add, METH_VARARGS, NULL},
    {"close", (PyCFunction)py_log_close, METH_NOARGS, NULL},
    {"columns", (PyCFunction)py_log_columns, METH_NOARGS, NULL},
    {"stacks", (PyCFunction)py_log_stacks, METH_NOARGS, NULL},
    {"functions", (PyCFunction)py_log_functions, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};
static PyMemberDef log_members[] = {
    {"depth", T_INT, offsetof(Log, depth), READONLY, "frames kept of a stack"},
    {"on", T_INT, offsetof(Log, on), 0, "whether the watching entry points write"},
    {"count", T_PYSSIZET, offsetof(Log, count), READONLY, "events so far"},
    {"started_ns", T_LONGLONG, offsetof(Log, started_ns), READONLY, "time.monotonic_ns() of time 0"},
    {"lost", T_ULONGLONG, offsetof(Log, lost), READONLY, "events there was no memory for"},
    {NULL, 0, 0, 0, NULL}};
static PyTypeObject LogType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "holdfast.memory.Log",
    .tp_basicsize = sizeof(Log),
    .tp_dealloc = (destructor)log_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = log_methods,
    .tp_members = log_members,
    .tp_new = log_new,
};
