/* The tag of each thread, and atomic counters of each tag, without a lock. In Python:
 * tag_counters.py.
 */

#define MAX_TAGS 4096

typedef struct {
    int64_t bytes, peak_bytes, total_bytes, count, peak_count, total_count;
    int parent;
} Tag;

static Tag tags[MAX_TAGS];
static __thread int current_tag = 0;

static void raise_peak(int64_t *peak, int64_t value) {
    int64_t seen = __atomic_load_n(peak, __ATOMIC_RELAXED);
    while (value > seen &&
           !__atomic_compare_exchange_n(peak, &seen, value, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static void tag_add(int tag, int64_t size) {
    for (; tag > 0; tag = tags[tag].parent) {
        Tag *t = &tags[tag];
        raise_peak(&t->peak_bytes, __atomic_add_fetch(&t->bytes, size, __ATOMIC_RELAXED));
        raise_peak(&t->peak_count, __atomic_add_fetch(&t->count, 1, __ATOMIC_RELAXED));
        __atomic_add_fetch(&t->total_bytes, size, __ATOMIC_RELAXED);
        __atomic_add_fetch(&t->total_count, 1, __ATOMIC_RELAXED);
    }
}

static void tag_remove(int tag, int64_t size) {
    for (; tag > 0; tag = tags[tag].parent) {
        __atomic_sub_fetch(&tags[tag].bytes, size, __ATOMIC_RELAXED);
        __atomic_sub_fetch(&tags[tag].count, 1, __ATOMIC_RELAXED);
    }
}

static PyObject *py_set_tag(PyObject *module, PyObject *given) {
    (void)module;
    long tag = PyLong_AsLong(given);
    if (tag == -1 && PyErr_Occurred()) return NULL;
    if (tag < 0 || tag >= MAX_TAGS) {
        PyErr_Format(PyExc_ValueError, "tag number %ld of %d", tag, MAX_TAGS);
        return NULL;
    }
    int old = current_tag;
    current_tag = (int)tag;
    return PyLong_FromLong(old);
}

static PyObject *py_declare_tag(PyObject *module, PyObject *args) {
    (void)module;
    int tag, parent;
    if (!PyArg_ParseTuple(args, "ii", &tag, &parent)) return NULL;
    if (tag <= 0 || tag >= MAX_TAGS || parent < 0 || parent >= tag) {
        PyErr_Format(PyExc_ValueError, "tag number %d below %d, of %d", tag, parent, MAX_TAGS);
        return NULL;
    }
    tags[tag].parent = parent;
    Py_RETURN_NONE;
}

static PyObject *py_tag_counters(PyObject *module, PyObject *given) {
    (void)module;
    long tag = PyLong_AsLong(given);
    if (tag == -1 && PyErr_Occurred()) return NULL;
    if (tag < 0 || tag >= MAX_TAGS) return PyErr_Format(PyExc_ValueError, "tag number %ld", tag);
    Tag t = tags[tag];
    return Py_BuildValue("(LLLLLL)", (long long)t.bytes, (long long)t.peak_bytes,
                         (long long)t.total_bytes, (long long)t.count, (long long)t.peak_count,
                         (long long)t.total_count);
}

/* set_tag_peaks(tag, bytes, count): the peaks become at least the present values. */
static PyObject *py_set_tag_peaks(PyObject *module, PyObject *args) {
    (void)module;
    int tag;
    long long bytes, count;
    if (!PyArg_ParseTuple(args, "iLL", &tag, &bytes, &count)) return NULL;
    if (tag <= 0 || tag >= MAX_TAGS) return PyErr_Format(PyExc_ValueError, "tag number %d", tag);
    tags[tag].peak_bytes = bytes > tags[tag].bytes ? bytes : tags[tag].bytes;
    tags[tag].peak_count = count > tags[tag].count ? count : tags[tag].count;
    Py_RETURN_NONE;
}
