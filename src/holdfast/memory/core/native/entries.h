/* Plain C entry points for NumPy and torch: malloc and its kin over a core, or over the system's
 * allocator with a log. They run in any thread, with or without the GIL.
 */

/* With a context for NumPy's handlers and torch's allocator. Small blocks, and all where the pool is
 * full and its limit is not hard, come from the system's allocator; free() tells by the address whose
 * a block is. */
#define LEAST 16384 /* below that malloc's own caches are quicker, and make no page faults either */

static void *hf_malloc(void *context, size_t size) {
    if (size < LEAST) return malloc(size ? size : 1);
    Chunk *chunk = core_take(context, size, 0);
    if (chunk) return (void *)(uintptr_t)chunk->address;
    if (((Core *)context)->hard) return NULL;
    void *p = NULL;
    return posix_memalign(&p, 64, size ? size : 1) ? NULL : p;
}

static void hf_free(void *context, void *p, size_t size) {
    (void)size;
    if (!p) return;
    if (core_give(context, (u64)(uintptr_t)p, 0) < 0 && !core_owns_now(context, (u64)(uintptr_t)p))
        free(p);
}

static void *hf_calloc(void *context, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
    if (bytes < LEAST) return calloc(1, bytes ? bytes : 1);
    void *p = hf_malloc(context, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

static void *hf_realloc(void *context, void *p, size_t size) {
    Core *core = context;
    if (!p) return hf_malloc(context, size);
    u64 old = 0;
    pthread_mutex_lock(&core->lock);
    Chunk *chunk = table_find(core, (u64)(uintptr_t)p);
    if (chunk && chunk->state == IS_USED) old = chunk->wanted;
    pthread_mutex_unlock(&core->lock);
    if (!chunk && !core_owns_now(core, (u64)(uintptr_t)p)) return realloc(p, size ? size : 1);
    void *fresh = hf_malloc(context, size);
    if (fresh) {
        memcpy(fresh, p, old < size ? old : size);
        hf_free(context, p, old);
    }
    return fresh;
}

/* The same four over the system's allocator, which only write to a log. */
typedef struct {
    Log *log;
    int place;
    size_t least; /* smaller blocks are not logged; a free is skipped by its size */
} Watch;

static void watch_note(Watch *w, int kind, void *p, size_t size) {
    if (!w->log->on || size < w->least) return;
    uint32_t stack = kind == ALLOC && has_gil() ? log_stack(w->log) : 0;
    int64_t known = kind == ALLOC ? (int64_t)size : 0; /* of a FREE only the room is known */
    log_add(w->log, kind, (u64)(uintptr_t)p, known, stack, w->place, current_tag);
}

static void *hf_watch_malloc(void *context, size_t size) {
    void *p = malloc(size ? size : 1);
    if (p) watch_note(context, ALLOC, p, size);
    return p;
}

static void *hf_watch_aligned(void *context, size_t size) {
    void *p = NULL;
    if (posix_memalign(&p, 64, size ? size : 1)) return NULL;
    watch_note(context, ALLOC, p, size);
    return p;
}

static void *hf_watch_calloc(void *context, size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size ? size : 1);
    if (p) watch_note(context, ALLOC, p, count * size);
    return p;
}

static void hf_watch_free(void *context, void *p, size_t size) {
    (void)size; /* not every caller knows it; the room is at least as large, so no FREE is missed */
    if (!p) return;
    watch_note(context, FREE, p, block_room(p));
    free(p);
}

static void *hf_watch_realloc(void *context, void *p, size_t size) {
    Watch *w = context;
    if (p) watch_note(w, FREE, p, block_room(p));
    void *fresh = realloc(p, size ? size : 1);
    if (fresh) watch_note(w, ALLOC, fresh, size);
    else if (p) watch_note(w, ALLOC, p, block_room(p)); /* it is still there */
    return fresh;
}

/* An ALLOC or FREE noted by somebody else's code (the torch shim), with the stack of this thread. */
static void hf_watch_event(void *context, int kind, void *p, size_t size) {
    watch_note(context, kind, p, size);
}
