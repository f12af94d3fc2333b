/* The calls of a core that allocate and free; pool_core.py documents each one. */

static int wanted_bytes(PyObject *given, u64 *size) {
    if (!PyLong_Check(given)) {
        PyObject *number = PyNumber_Index(given);
        if (!number) return 0;
        *size = PyLong_AsUnsignedLongLong(number);
        Py_DECREF(number);
    } else
        *size = PyLong_AsUnsignedLongLong(given);
    return !(*size == (u64)-1 && PyErr_Occurred());
}

/* The same for an address; one out of range becomes 0, which is never allocated. */
static int any_address(PyObject *given, u64 *address) {
    if (wanted_bytes(given, address)) return 1;
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return 0;
    PyErr_Clear();
    *address = 0;
    return 1;
}

/* A chunk, asking grow() for memory while that says it is worth another try. */
static Chunk *take_or_grow(Core *core, u64 size) {
    for (int tries = 0;; tries++) {
        Chunk *chunk = core_take(core, size, tries > 0);
        if (chunk) return chunk;
        if (!is_set(core->grow)) {
            PyErr_Format(PyExc_MemoryError, "no room for %llu bytes", (unsigned long long)size);
            return NULL;
        }
        PyObject *grow = Py_NewRef(core->grow); /* it may close the core */
        PyObject *again = PyObject_CallFunction(grow, "K", (unsigned long long)size);
        Py_DECREF(grow);
        if (!again) return NULL;
        Py_DECREF(again);
    }
}

static PyObject *py_allocate(Core *core, PyObject *given) {
    u64 size;
    if (!wanted_bytes(given, &size)) return NULL;
    Chunk *chunk = take_or_grow(core, size);
    if (!chunk) return NULL;
    u64 address = chunk->address;
    PyObject *block = block_make(core, address, size, chunk->serial);
    if (!block) core_give(core, address, 0);
    return block;
}

/* The address as a number. Frees the chunk if there is no memory for that. */
static PyObject *address_of(Core *core, Chunk *chunk) {
    u64 address = chunk->address;
    PyObject *number = PyLong_FromUnsignedLongLong(address);
    if (!number) core_give(core, address, 0);
    return number;
}

static PyObject *py_take(Core *core, PyObject *given) {
    u64 size;
    if (!wanted_bytes(given, &size)) return NULL;
    Chunk *chunk = take_or_grow(core, size);
    return chunk ? address_of(core, chunk) : NULL;
}

static PyObject *py_try_take(Core *core, PyObject *given) {
    u64 size;
    if (!wanted_bytes(given, &size)) return NULL;
    Chunk *chunk = core_take(core, size, 0);
    return chunk ? address_of(core, chunk) : PyLong_FromLong(0);
}

/* fits(size): whether a block of that size could be had now; nothing is counted. */
static PyObject *py_fits(Core *core, PyObject *given) {
    u64 wanted;
    if (!wanted_bytes(given, &wanted)) return NULL;
    if (wanted > (1ULL << 62)) Py_RETURN_FALSE;
    u64 size = wanted ? (wanted + ROUNDING - 1) & ~(ROUNDING - 1) : ROUNDING;
    int arena = size > core->small_limit, fits;
    pthread_mutex_lock(&core->lock);
    flush_quick(core);
    if (core->closed) { /* to grow would touch memory that may have gone away */
        pthread_mutex_unlock(&core->lock);
        Py_RETURN_FALSE;
    }
    Chunk *best = tree_best(core, arena, size);
    fits = best != NULL;
    for (Segment *s = core->segments; s && !fits; s = s->next)
        fits = s->arena == arena && s->kind != 2 && extend(core, s, size);
    if (fits && !best) best = tree_best(core, arena, size);
    fits = fits && best && !over_limit(core, best, size);
    pthread_mutex_unlock(&core->lock);
    return PyBool_FromLong(fits);
}

static PyObject *py_give(Core *core, PyObject *given) {
    u64 address;
    if (!any_address(given, &address)) return NULL;
    int64_t size = core_give(core, address, 0);
    if (size >= 0) core_after_free(core);
    return PyLong_FromLongLong(size);
}

/* give_block(block): the same for a block; -1 where it is not of this core, or was freed before. */
static PyObject *py_give_block(Core *core, PyObject *given) {
    if (Py_TYPE(given) != &BlockType) {
        PyErr_SetString(PyExc_TypeError, "a Block of a compiled core");
        return NULL;
    }
    Block *block = (Block *)given;
    int64_t size = block->core == core ? core_give(core, block->address, block->serial) : -1;
    if (size >= 0) core_after_free(core);
    return PyLong_FromLongLong(size);
}

static PyObject *py_add_segment(Core *core, PyObject *args) {
    int arena, kind;
    unsigned long long base, length, reserved;
    if (!PyArg_ParseTuple(args, "iiKKK", &arena, &kind, &base, &length, &reserved)) return NULL;
    Segment *segment = calloc(1, sizeof(Segment));
    if (!segment) return PyErr_NoMemory();
    segment->base = base;
    segment->reserved = reserved;
    segment->arena = arena != 0;
    segment->kind = kind;
    pthread_mutex_lock(&core->lock);
    Chunk *chunk = length ? chunk_new(core) : NULL;
    if (length && !chunk) {
        pthread_mutex_unlock(&core->lock);
        free(segment);
        return PyErr_NoMemory();
    }
    Segment **at = &core->segments; /* in the order they came, so that the first is filled first */
    while (*at) at = &(*at)->next;
    *at = segment;
    if (chunk) {
        chunk->address = base;
        chunk->size = length;
        chunk->segment = segment;
        segment->first = segment->last = chunk;
        segment->length = length;
        count_reserved(core, length);
        if (core->log) log_add(core->log, RESERVE, base, (int64_t)length, 0, core->place, 0);
        tree_add(core, chunk);
    }
    pthread_mutex_unlock(&core->lock);
    Py_RETURN_NONE;
}

/* Forget fixed segments that are wholly free until the cache is at most `keep` bytes: a list of them,
 * linked by next, which the caller frees. */
static Segment *take_out_free(Core *core, u64 keep) {
    Segment *out = NULL, **end = &out;
    for (Segment **at = &core->segments; *at;) {
        Segment *s = *at;
        if (s->kind != 2 || !s->first || s->first->state != IS_FREE || s->first->next ||
            core->reserved - core->active <= keep) {
            at = &s->next;
            continue;
        }
        tree_remove(core, s->first);
        chunk_forget(core, s->first);
        core->reserved -= s->length;
        if (core->log) log_add(core->log, RELEASE, s->base, (int64_t)s->length, 0, core->place, 0);
        *at = s->next;
        s->next = NULL;
        *end = s;
        end = &s->next;
    }
    return out;
}

/* drop_free_segments(keep) -> [(base, length)] */
static PyObject *py_drop(Core *core, PyObject *given) {
    u64 keep;
    if (!wanted_bytes(given, &keep)) return NULL;
    pthread_mutex_lock(&core->lock);
    flush_quick(core);
    Segment *out = take_out_free(core, keep);
    pthread_mutex_unlock(&core->lock);
    PyObject *list = PyList_New(0);
    while (out) {
        Segment *s = out;
        PyObject *row = list ? Py_BuildValue("(KK)", (unsigned long long)s->base,
                                             (unsigned long long)s->length)
                             : NULL;
        if (list && (!row || PyList_Append(list, row))) Py_CLEAR(list);
        Py_XDECREF(row);
        out = s->next;
        free(s);
    }
    return list;
}

static PyObject *py_give_back_pages(Core *core, PyObject *given) {
    u64 keep;
    if (!wanted_bytes(given, &keep)) return NULL;
    pthread_mutex_lock(&core->lock);
    u64 bytes = give_back_pages(core, keep);
    pthread_mutex_unlock(&core->lock);
    return PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *py_flush(Core *core, PyObject *unused) {
    (void)unused;
    pthread_mutex_lock(&core->lock);
    flush_quick(core);
    pthread_mutex_unlock(&core->lock);
    Py_RETURN_NONE;
}
