/* The Python type Block: a buffer that is freed when the last reference goes.
 *
 * In Python: block.py. Arrays and tensors over a block are made by views.py for both.
 */

typedef struct {
    PyObject_HEAD
    Core *core;        /* frees it; NULL once it was freed */
    PyObject *owner;   /* or this one's give(address) */
    PyObject *weakrefs;
    u64 address, size, serial;
    Py_ssize_t exports;
    char host, pinned;
} Block;

static PyTypeObject BlockType, CoreType, LogType;

static PyObject *block_make(Core *core, u64 address, u64 size, u64 serial) {
    Block *block = PyObject_New(Block, &BlockType);
    if (!block) return NULL;
    block->core = (Core *)Py_NewRef(core);
    block->owner = NULL;
    block->weakrefs = NULL;
    block->address = address;
    block->size = size;
    block->serial = serial;
    block->exports = 0;
    block->host = (char)core->host;
    block->pinned = (char)core->pinned;
    return (PyObject *)block;
}

static PyObject *block_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"owner", "address", "size", "host", "pinned", NULL};
    PyObject *owner;
    unsigned long long address, size;
    int host = 1, pinned = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OKK|pp", names, &owner, &address, &size, &host,
                                     &pinned))
        return NULL;
    Block *block = PyObject_New(Block, &BlockType);
    if (!block) return NULL;
    (void)type;
    block->core = NULL;
    block->owner = Py_NewRef(owner);
    block->weakrefs = NULL;
    block->address = address;
    block->size = size;
    block->serial = 0;
    block->exports = 0;
    block->host = (char)host;
    block->pinned = (char)pinned;
    return (PyObject *)block;
}

/* After a free: trim(keep), where the cache became too large. */
static void core_after_free(Core *core) {
    if (!is_set(core->trim) || core->cache_limit == ~0ULL) return;
    pthread_mutex_lock(&core->lock);
    int enough = core->reserved - core->active <= core->cache_limit;
    pthread_mutex_unlock(&core->lock);
    if (enough) return;
    PyObject *type, *value, *trace, *trim = Py_NewRef(core->trim); /* it may close the core */
    PyErr_Fetch(&type, &value, &trace);
    PyObject *done = PyObject_CallFunction(trim, "K", (unsigned long long)core->cache_limit);
    if (!done) PyErr_WriteUnraisable((PyObject *)core);
    Py_XDECREF(done);
    Py_DECREF(trim);
    PyErr_Restore(type, value, trace);
}

static void block_dealloc(Block *block) {
    if (block->weakrefs) PyObject_ClearWeakRefs((PyObject *)block);
    if (block->core) {
        Core *core = block->core;
        core_give(core, block->address, block->serial);
        core_after_free(core);
        Py_DECREF(core);
    } else if (block->owner) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyObject *done = PyObject_CallMethod(block->owner, "give", "K", (unsigned long long)block->address);
        if (!done) PyErr_WriteUnraisable(block->owner);
        Py_XDECREF(done);
        Py_DECREF(block->owner);
        PyErr_Restore(type, value, trace);
    }
    PyObject_Free(block);
}

/* Whether the memory was freed, through the block or by its address. */
static int block_is_freed(Block *block) {
    if (block->owner) return 0;
    if (!block->core) return 1;
    pthread_mutex_lock(&block->core->lock);
    Chunk *chunk = table_find(block->core, block->address);
    int freed = !chunk || chunk->state != IS_USED || chunk->serial != block->serial;
    pthread_mutex_unlock(&block->core->lock);
    return freed;
}

static int block_getbuffer(Block *block, Py_buffer *view, int flags) {
    if (block_is_freed(block)) {
        PyErr_SetString(PyExc_BufferError, "this block was freed");
        view->obj = NULL;
        return -1;
    }
    if (!block->host) {
        PyErr_SetString(PyExc_BufferError, "this block is not in host memory");
        view->obj = NULL;
        return -1;
    }
    int failed = PyBuffer_FillInfo(view, (PyObject *)block, (void *)(uintptr_t)block->address,
                                   (Py_ssize_t)block->size, 0, flags);
    if (!failed) block->exports++;
    return failed;
}

static void block_releasebuffer(Block *block, Py_buffer *view) {
    (void)view;
    block->exports--;
}

static PyObject *block_index(Block *block) { return PyLong_FromUnsignedLongLong(block->address); }
static int block_bool(Block *block) {
    (void)block; /* also where it has no bytes */
    return 1;
}
static Py_ssize_t block_length(Block *block) { return (Py_ssize_t)block->size; }

static PyObject *block_get_freed(Block *block, void *unused) {
    (void)unused;
    return PyBool_FromLong(block_is_freed(block));
}

/* block.detach(): forget the owner (the memory was freed, or moved). */
static PyObject *block_detach(Block *block, PyObject *unused) {
    (void)unused;
    Py_CLEAR(block->core);
    Py_CLEAR(block->owner);
    Py_RETURN_NONE;
}

/* Methods that are written in Python: holdfast.memory.core.views.NAME(block, ...). */
static PyObject *in_python(PyObject *self, const char *name, PyObject *args, PyObject *kwargs) {
    PyObject *result = NULL, *function = NULL, *all = NULL;
    PyObject *module = PyImport_ImportModule("holdfast.memory.core.views");
    if (module && (function = PyObject_GetAttrString(module, name))) {
        Py_ssize_t count = args ? PyTuple_GET_SIZE(args) : 0;
        all = PyTuple_New(count + 1);
        if (all) {
            PyTuple_SET_ITEM(all, 0, Py_NewRef(self));
            for (Py_ssize_t i = 0; i < count; i++)
                PyTuple_SET_ITEM(all, i + 1, Py_NewRef(PyTuple_GET_ITEM(args, i)));
            result = PyObject_Call(function, all, kwargs);
        }
    }
    Py_XDECREF(all);
    Py_XDECREF(function);
    Py_XDECREF(module);
    return result;
}

#define IN_PYTHON(name)                                                               \
    static PyObject *block_##name(PyObject *self, PyObject *args, PyObject *kwargs) { \
        return in_python(self, #name, args, kwargs);                                  \
    }
IN_PYTHON(array)
IN_PYTHON(tensor)
IN_PYTHON(view)
IN_PYTHON(content)
IN_PYTHON(dlpack)
IN_PYTHON(dlpack_device)
static PyObject *block_repr(PyObject *self) { return in_python(self, "describe", NULL, NULL); }
static PyObject *block_interface(PyObject *self, void *unused) {
    (void)unused;
    return in_python(self, "array_interface", NULL, NULL);
}
static PyObject *block_cuda_interface(PyObject *self, void *unused) {
    (void)unused;
    return in_python(self, "cuda_array_interface", NULL, NULL);
}

static PyMethodDef block_methods[] = {
    {"array", (PyCFunction)(void *)block_array, METH_VARARGS | METH_KEYWORDS, NULL},
    {"tensor", (PyCFunction)(void *)block_tensor, METH_VARARGS | METH_KEYWORDS, NULL},
    {"view", (PyCFunction)(void *)block_view, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__bytes__", (PyCFunction)(void *)block_content, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack__", (PyCFunction)(void *)block_dlpack, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", (PyCFunction)(void *)block_dlpack_device, METH_VARARGS | METH_KEYWORDS, NULL},
    {"detach", (PyCFunction)block_detach, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};
static PyMemberDef block_members[] = {
    {"ptr", T_ULONGLONG, offsetof(Block, address), READONLY, "the address"},
    {"address", T_ULONGLONG, offsetof(Block, address), READONLY, "the address"},
    {"size", T_ULONGLONG, offsetof(Block, size), READONLY, "requested bytes"},
    {"exports", T_PYSSIZET, offsetof(Block, exports), READONLY, "views that are open"},
    {"host", T_BOOL, offsetof(Block, host), READONLY, "whether the CPU can reach it"},
    {"pinned", T_BOOL, offsetof(Block, pinned), READONLY, "whether its pages are locked"},
    {NULL, 0, 0, 0, NULL}};
static PyGetSetDef block_getset[] = {
    {"freed", (getter)block_get_freed, NULL, "whether it was freed", NULL},
    {"__array_interface__", (getter)block_interface, NULL, NULL, NULL},
    {"__cuda_array_interface__", (getter)block_cuda_interface, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyNumberMethods block_number = {.nb_bool = (inquiry)block_bool, .nb_index = (unaryfunc)block_index, .nb_int = (unaryfunc)block_index};
static PySequenceMethods block_sequence = {.sq_length = (lenfunc)block_length};
static PyBufferProcs block_buffer = {(getbufferproc)block_getbuffer, (releasebufferproc)block_releasebuffer};
static PyTypeObject BlockType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "holdfast.memory.Block",
    .tp_basicsize = sizeof(Block),
    .tp_dealloc = (destructor)block_dealloc,
    .tp_repr = block_repr,
    .tp_as_number = &block_number,
    .tp_as_sequence = &block_sequence,
    .tp_as_buffer = &block_buffer,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_weaklistoffset = offsetof(Block, weakrefs),
    .tp_methods = block_methods,
    .tp_members = block_members,
    .tp_getset = block_getset,
    .tp_new = block_new,
};
