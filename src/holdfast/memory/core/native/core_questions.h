/* The queries of a core: owner of an address, chunks, segments, counters.
 *
 * Each answer is of one moment: copied under the lock, turned into objects after.
 */

static PyObject *py_owns(Core *core, PyObject *given) {
    u64 address;
    if (!any_address(given, &address)) return NULL;
    return PyBool_FromLong(core_owns_now(core, address));
}

/* chunks() -> [(segment base, arena, address, size, wanted, state, tag, stack)] by segment. */
static PyObject *py_chunks(Core *core, PyObject *unused) {
    (void)unused;
    size_t count = 0, made = 0;
    pthread_mutex_lock(&core->lock);
    for (Segment *s = core->segments; s; s = s->next)
        for (Chunk *c = s->first; c; c = c->next) count++;
    struct { u64 base; Chunk c; int arena; } *copy = malloc((count + 1) * sizeof(*copy));
    for (Segment *s = core->segments; s && copy; s = s->next)
        for (Chunk *c = s->first; c; c = c->next) {
            copy[made].base = s->base;
            copy[made].arena = s->arena;
            copy[made++].c = *c;
        }
    pthread_mutex_unlock(&core->lock);
    if (!copy) return PyErr_NoMemory();
    PyObject *list = PyList_New((Py_ssize_t)made);
    for (size_t i = 0; list && i < made; i++) {
        Chunk *c = &copy[i].c;
        if (c->state != IS_USED) c->wanted = c->tag = c->stack = 0; /* what was there before */
        PyObject *row = Py_BuildValue("(KiKKKiiI)", (unsigned long long)copy[i].base, copy[i].arena,
                                      (unsigned long long)c->address, (unsigned long long)c->size,
                                      (unsigned long long)c->wanted, (int)c->state, (int)c->tag,
                                      (unsigned int)c->stack);
        if (!row) Py_CLEAR(list);
        else PyList_SET_ITEM(list, (Py_ssize_t)i, row);
    }
    free(copy);
    return list;
}

static PyObject *py_segments(Core *core, PyObject *unused) {
    (void)unused;
    PyObject *list = PyList_New(0);
    if (!list) return NULL;
    pthread_mutex_lock(&core->lock);
    size_t count = 0;
    for (Segment *s = core->segments; s; s = s->next) count++;
    Segment *copy = malloc((count + 1) * sizeof(Segment));
    count = 0;
    for (Segment *s = core->segments; s && copy; s = s->next) copy[count++] = *s;
    pthread_mutex_unlock(&core->lock);
    for (size_t i = 0; copy && i < count; i++) {
        PyObject *row = Py_BuildValue("(KKKii)", (unsigned long long)copy[i].base,
                                      (unsigned long long)copy[i].length,
                                      (unsigned long long)copy[i].reserved, copy[i].arena, copy[i].kind);
        if (!row || PyList_Append(list, row)) {
            Py_XDECREF(row);
            Py_CLEAR(list);
            break;
        }
        Py_DECREF(row);
    }
    if (!copy) {
        Py_DECREF(list);
        return PyErr_NoMemory();
    }
    free(copy);
    return list;
}

/* state(address) -> "used" | "free" | "inside" | "foreign" */
static PyObject *py_state(Core *core, PyObject *given) {
    u64 address;
    const char *state = "foreign";
    if (!any_address(given, &address)) return NULL;
    pthread_mutex_lock(&core->lock);
    for (Segment *s = core->segments; s; s = s->next) {
        if (address < s->base || address >= s->base + s->reserved) continue;
        state = "free";
        for (Chunk *c = s->first; c; c = c->next)
            if (address >= c->address && address < c->address + c->size)
                state = c->state != IS_USED ? "free" : c->address == address ? "used" : "inside";
    }
    pthread_mutex_unlock(&core->lock);
    return PyUnicode_FromString(state);
}

static PyObject *py_counters(Core *core, PyObject *unused) {
    (void)unused;
    pthread_mutex_lock(&core->lock);
    Core c = *core;
    pthread_mutex_unlock(&core->lock);
#define N(x) #x, (unsigned long long)c.x
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsKsKsKsK}", N(allocated), N(peak_allocated), N(active),
                         N(peak_active), N(reserved), N(peak_reserved), N(cumulative), N(allocs),
                         N(frees), N(hits), N(misses), N(live), N(peak_live));
}

static PyObject *py_reset_peaks(Core *core, PyObject *unused) {
    (void)unused;
    pthread_mutex_lock(&core->lock);
    core->peak_allocated = core->allocated;
    core->peak_active = core->active;
    core->peak_reserved = core->reserved;
    core->peak_live = core->live;
    pthread_mutex_unlock(&core->lock);
    Py_RETURN_NONE;
}
