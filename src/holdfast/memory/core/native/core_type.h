/* The Python type Core: construction, its log, closing, destruction, and its table of methods. */

static PyObject *core_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"small_limit", "small_step", "large_step", NULL};
    unsigned long long small = 1ULL << 20, small_step = 1ULL << 20, large_step = 1ULL << 21;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|KKK", names, &small, &small_step, &large_step))
        return NULL;
    if (!small_step || !large_step)
        return PyErr_Format(PyExc_ValueError, "a core cannot grow by steps of 0 bytes");
    Core *core = (Core *)type->tp_alloc(type, 0);
    if (!core) return NULL;
    pthread_mutex_init(&core->lock, NULL);
    core->table_room = 256;
    core->table = calloc(core->table_room, sizeof(Chunk *));
    core->random = 2463534242u;
    core->small_limit = small;
    core->step[0] = small_step;
    core->step[1] = large_step;
    core->cache_limit = ~0ULL;
    core->host = 1;
    pthread_mutex_lock(&all_lock);
    core->next_core = all_cores;
    all_cores = core;
    pthread_mutex_unlock(&all_lock);
    if (core->table) return (PyObject *)core;
    Py_DECREF(core);
    return PyErr_NoMemory();
}

static int core_traverse(Core *core, visitproc visit, void *arg) {
    Py_VISIT(core->grow);
    Py_VISIT(core->trim);
    Py_VISIT(core->log);
    return 0;
}

static int core_clear(Core *core) {
    Py_CLEAR(core->grow);
    Py_CLEAR(core->trim);
    return 0;
}

static void core_dealloc(Core *core) {
    PyObject_GC_UnTrack(core);
    if (core->weakrefs) PyObject_ClearWeakRefs((PyObject *)core);
    pthread_mutex_lock(&all_lock);
    for (Core **at = &all_cores; *at; at = &(*at)->next_core)
        if (*at == core) {
            *at = core->next_core;
            break;
        }
    pthread_mutex_unlock(&all_lock);
    core_clear(core);
    Py_CLEAR(core->log);
    for (Segment *s = core->segments; s;) {
        for (Chunk *c = s->first; c;) {
            Chunk *next = c->next;
            free(c);
            c = next;
        }
        Segment *next = s->next;
        free(s);
        s = next;
    }
    while (core->spare) {
        Chunk *next = core->spare->next;
        free(core->spare);
        core->spare = next;
    }
    free(core->table);
    pthread_mutex_destroy(&core->lock);
    Py_TYPE(core)->tp_free((PyObject *)core);
}

static PyObject *py_close(Core *core, PyObject *unused) {
    (void)unused;
    pthread_mutex_lock(&core->lock);
    core->closed = 1;
    pthread_mutex_unlock(&core->lock);
    core_clear(core);
    Py_RETURN_NONE;
}

static PyObject *py_watch_core(Core *core, PyObject *args) {
    PyObject *log;
    int place;
    if (!PyArg_ParseTuple(args, "Oi", &log, &place)) return NULL;
    if (log != Py_None && Py_TYPE(log) != &LogType) {
        PyErr_SetString(PyExc_TypeError, "a Log of the same core, or None");
        return NULL;
    }
    pthread_mutex_lock(&core->lock);
    Log *old = core->log;
    core->log = log == Py_None ? NULL : (Log *)Py_NewRef(log);
    core->place = place;
    pthread_mutex_unlock(&core->lock);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

/* functions() -> addresses of the C entry points and their context, for NumPy and torch. */
static PyObject *py_functions(Core *core, PyObject *unused) {
    (void)unused;
    return Py_BuildValue("{sKsKsKsKsK}", "context", (unsigned long long)(uintptr_t)core, "malloc",
                         (unsigned long long)(uintptr_t)hf_malloc, "calloc",
                         (unsigned long long)(uintptr_t)hf_calloc, "realloc",
                         (unsigned long long)(uintptr_t)hf_realloc, "free",
                         (unsigned long long)(uintptr_t)hf_free);
}

static PyMethodDef core_methods[] = {
    {"allocate", (PyCFunction)py_allocate, METH_O, NULL},
    {"take", (PyCFunction)py_take, METH_O, NULL},
    {"try_take", (PyCFunction)py_try_take, METH_O, NULL},
    {"fits", (PyCFunction)py_fits, METH_O, NULL},
    {"give", (PyCFunction)py_give, METH_O, NULL},
    {"give_block", (PyCFunction)py_give_block, METH_O, NULL},
    {"add_segment", (PyCFunction)py_add_segment, METH_VARARGS, NULL},
    {"drop_free_segments", (PyCFunction)py_drop, METH_O, NULL},
    {"give_back_pages", (PyCFunction)py_give_back_pages, METH_O, NULL},
    {"flush", (PyCFunction)py_flush, METH_NOARGS, NULL},
    {"owns", (PyCFunction)py_owns, METH_O, NULL},
    {"state", (PyCFunction)py_state, METH_O, NULL},
    {"chunks", (PyCFunction)py_chunks, METH_NOARGS, NULL},
    {"segments", (PyCFunction)py_segments, METH_NOARGS, NULL},
    {"counters", (PyCFunction)py_counters, METH_NOARGS, NULL},
    {"reset_peaks", (PyCFunction)py_reset_peaks, METH_NOARGS, NULL},
    {"close", (PyCFunction)py_close, METH_NOARGS, NULL},
    {"watch", (PyCFunction)py_watch_core, METH_VARARGS, NULL},
    {"functions", (PyCFunction)py_functions, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};
static PyMemberDef core_members[] = {
    {"limit", T_ULONGLONG, offsetof(Core, limit), 0, "most bytes to reserve; 0: no limit"},
    {"cache_limit", T_ULONGLONG, offsetof(Core, cache_limit), 0, "most free bytes to keep"},
    {"hard", T_INT, offsetof(Core, hard), 0, "whether the limit holds for NumPy and torch too"},
    {"host", T_INT, offsetof(Core, host), 0, "whether the CPU can reach the memory"},
    {"pinned", T_INT, offsetof(Core, pinned), 0, "whether its pages are locked"},
    {"grow", T_OBJECT, offsetof(Core, grow), 0, "grow(size): more memory, or an error"},
    {"trim", T_OBJECT, offsetof(Core, trim), 0, "trim(keep): called when the cache is too large"},
    {NULL, 0, 0, 0, NULL}};
static PyTypeObject CoreType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "holdfast.memory.Core",
    .tp_basicsize = sizeof(Core),
    .tp_dealloc = (destructor)core_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = (traverseproc)core_traverse,
    .tp_clear = (inquiry)core_clear,
    .tp_weaklistoffset = offsetof(Core, weakrefs),
    .tp_methods = core_methods,
    .tp_members = core_members,
    .tp_new = core_new,
};
