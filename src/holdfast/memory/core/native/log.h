/* A log of events, each with its Python stack. In Python: event_log.py.
 *
 * The lock of a log is taken last, for a few instructions; stacks are only made with the GIL.
 */

#define MAX_DEPTH 64

typedef struct {
    int64_t time_ns;
    u64 address;
    int64_t size;
    uint32_t stack;
    uint16_t place, tag;
    uint8_t kind;
} Record;

#define PART 65536
typedef struct Part {
    struct Part *next;
    size_t used;
    Record records[PART];
} Part;

typedef struct {
    uint32_t depth;
    u64 hash;
    struct { PyObject *code; int lasti; } frames[];
} Stack;

typedef struct Log {
    PyObject_HEAD
    pthread_mutex_t lock;
    struct Log *next_log;
    int depth, on;
    char *skip; /* frames of files that begin so are left out at the top of a stack */
    size_t skip_length;
    int64_t started_ns;
    Part *first, *last;
    size_t count;
    Stack **stacks; /* stacks[0] is NULL: not known */
    size_t stack_count, stack_room;
    uint32_t *index; /* open addressing, power of two */
    size_t index_room;
    u64 lost;
} Log;

enum { ALLOC = 0, FREE = 1, RESERVE = 2, RELEASE = 3 };

static Log *all_logs = NULL;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void log_add(Log *log, int kind, u64 address, int64_t size, uint32_t stack, int place,
                    int tag) {
    pthread_mutex_lock(&log->lock);
    if (!log->on) {
        pthread_mutex_unlock(&log->lock);
        return;
    }
    if (!log->last || log->last->used == PART) {
        Part *part = malloc(sizeof(Part));
        if (!part) {
            log->lost++;
            pthread_mutex_unlock(&log->lock);
            return;
        }
        part->next = NULL;
        part->used = 0;
        if (log->last) log->last->next = part;
        else log->first = part;
        log->last = part;
    }
    Record *r = &log->last->records[log->last->used++];
    r->time_ns = now_ns() - log->started_ns;
    r->address = address;
    r->size = size;
    r->stack = stack;
    r->place = (uint16_t)place;
    r->tag = (uint16_t)tag;
    r->kind = (uint8_t)kind;
    log->count++;
    pthread_mutex_unlock(&log->lock);
}

static int log_reindex(Log *log, size_t room) {
    uint32_t *index = calloc(room, sizeof(uint32_t));
    if (!index) return 0;
    for (size_t i = 1; i < log->stack_count; i++) {
        size_t at = log->stacks[i]->hash & (room - 1);
        while (index[at]) at = (at + 1) & (room - 1);
        index[at] = (uint32_t)i;
    }
    free(log->index);
    log->index = index;
    log->index_room = room;
    return 1;
}

static int is_ours(Log *log, PyCodeObject *code) {
    Py_ssize_t length;
    const char *file = PyUnicode_AsUTF8AndSize(code->co_filename, &length);
    if (!file) PyErr_Clear();
    return file && (size_t)length >= log->skip_length && !memcmp(file, log->skip, log->skip_length);
}

/* Python says yes to PyGILState_Check() when it has ended, too. */
static int has_gil(void) { return Py_IsInitialized() && PyGILState_Check(); }

/* The number of the stack of the running Python code; 0 where there is none. To be called with the
 * GIL, and without a lock: it makes objects, which may collect garbage. */
static uint32_t log_stack(Log *log) {
    PyObject *codes[MAX_DEPTH];
    int lastis[MAX_DEPTH], depth = 0;
    u64 hash = 1469598103934665603ULL;
    if (log->depth <= 0 || !log->on) return 0;
    PyThreadState *thread = PyThreadState_Get();
    PyFrameObject *frame = PyThreadState_GetFrame(thread);
    while (frame && depth < log->depth) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        if (!depth && log->skip_length && is_ours(log, code)) {
            Py_DECREF(code);
        } else {
            codes[depth] = (PyObject *)code; /* a new reference */
            lastis[depth] = PyFrame_GetLasti(frame);
            hash = (hash ^ (u64)(uintptr_t)code) * 1099511628211ULL;
            hash = (hash ^ (u64)(uint32_t)lastis[depth]) * 1099511628211ULL;
            depth++;
        }
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    if (!depth) return 0;
    hash ^= hash >> 29;

    uint32_t found = 0;
    pthread_mutex_lock(&log->lock);
    if (!log->index) { /* it was closed meanwhile */
        pthread_mutex_unlock(&log->lock);
        for (int i = 0; i < depth; i++) Py_DECREF(codes[i]);
        return 0;
    }
    size_t at = hash & (log->index_room - 1);
    for (; log->index[at]; at = (at + 1) & (log->index_room - 1)) {
        Stack *s = log->stacks[log->index[at]];
        if (s->hash != hash || s->depth != (uint32_t)depth) continue;
        int same = 1;
        for (int i = 0; i < depth && same; i++)
            same = s->frames[i].code == codes[i] && s->frames[i].lasti == lastis[i];
        if (same) {
            found = log->index[at];
            break;
        }
    }
    if (!found && log->stack_count + 1 < log->index_room) { /* an empty slot ends every search */
        Stack *s = malloc(sizeof(Stack) + (size_t)depth * sizeof(s->frames[0]));
        if (s && log->stack_count == log->stack_room) {
            Stack **more = realloc(log->stacks, 2 * log->stack_room * sizeof(Stack *));
            if (more) {
                log->stacks = more;
                log->stack_room *= 2;
            } else {
                free(s);
                s = NULL;
            }
        }
        if (s) {
            s->depth = (uint32_t)depth;
            s->hash = hash;
            for (int i = 0; i < depth; i++) {
                s->frames[i].code = codes[i];
                s->frames[i].lasti = lastis[i];
            }
            found = (uint32_t)log->stack_count;
            log->stacks[log->stack_count++] = s;
            log->index[at] = found;
            if (2 * log->stack_count > log->index_room) log_reindex(log, 2 * log->index_room);
            pthread_mutex_unlock(&log->lock);
            return found; /* the stack keeps the references */
        }
    }
    pthread_mutex_unlock(&log->lock);
    for (int i = 0; i < depth; i++) Py_DECREF(codes[i]);
    return found;
}
