/* Blocks in use: taking and freeing under the lock, counters, who owns an address.
 *
 * In Python: pool_core.py.
 */

/* The lock is held. NULL: there is no room. `asked`: room had to be made, so it is no hit. */
static Chunk *take_locked(Core *core, u64 wanted, uint32_t stack, int asked) {
    if (wanted > (1ULL << 62) || core->closed) return NULL;
    u64 size = wanted ? (wanted + ROUNDING - 1) & ~(ROUNDING - 1) : ROUNDING;
    size_t at = (size_t)((size >> 9) * 2654435761ULL >> 8) & (QUICK - 1);
    Chunk *chunk = NULL;
    if (core->quick[at].head && core->quick[at].size == size) {
        chunk = core->quick[at].head;
        core->quick[at].head = chunk->left;
        chunk->left = NULL;
        core->quick_count--;
        core->hits++;
    } else {
        int arena = size > core->small_limit;
        if (core->quick_count) flush_quick(core);
        Chunk *best = tree_best(core, arena, size);
        int grown = !best;
        if (!best) {
            make_up_for(core, arena, size);
            for (Segment *s = core->segments; s && !best; s = s->next)
                if (s->arena == arena && s->kind != 2 && extend(core, s, size))
                    best = tree_best(core, arena, size);
        }
        if (!best || over_limit(core, best, size) || !(chunk = carve(core, best, size))) return NULL;
        if (grown || asked) core->misses++;
        else core->hits++;
    }
    chunk->state = IS_USED;
    chunk->wanted = wanted;
    chunk->tag = (uint16_t)current_tag;
    chunk->stack = stack;
    chunk->serial = ++core->allocs;
    core->cumulative += wanted;
    core->allocated += wanted;
    core->active += size;
    if (core->allocated > core->peak_allocated) core->peak_allocated = core->allocated;
    if (core->active > core->peak_active) core->peak_active = core->active;
    if (++core->live > core->peak_live) core->peak_live = core->live;
    if (chunk->tag) tag_add(chunk->tag, (int64_t)wanted);
    if (core->log)
        log_add(core->log, ALLOC, chunk->address, (int64_t)wanted, stack, core->place, chunk->tag);
    return chunk;
}

static u64 give_back_pages(Core *core, u64 keep);

static void give_locked(Core *core, Chunk *chunk) {
    if (core->log) {
        uint32_t none = 0;
        log_add(core->log, FREE, chunk->address, (int64_t)chunk->wanted, none, core->place, chunk->tag);
    }
    if (chunk->tag) tag_remove(chunk->tag, (int64_t)chunk->wanted);
    core->frees++;
    core->live--;
    core->allocated -= chunk->wanted;
    core->active -= chunk->size;
    size_t at = (size_t)((chunk->size >> 9) * 2654435761ULL >> 8) & (QUICK - 1);
    if (!core->quick[at].head || core->quick[at].size == chunk->size) {
        core->quick[at].size = chunk->size;
        chunk->left = core->quick[at].head;
        core->quick[at].head = chunk;
        chunk->state = IS_QUICK;
        core->quick_count++;
    } else {
        table_remove(core, chunk->address);
        make_free(core, chunk);
    }
    if (core->reserved - core->active > core->cache_limit && !is_set(core->trim) && !core->closed)
        give_back_pages(core, core->cache_limit);
}

/* Hand free pages of every segment to the system until `keep` bytes of cache are left. */
static u64 give_back_pages(Core *core, u64 keep) {
    u64 given = 0;
    flush_quick(core);
    if (core->closed) return 0; /* the addresses may be somebody else's by now */
    for (Segment *s = core->segments; s; s = s->next) {
        u64 cached = core->reserved - core->active;
        if (cached <= keep) break;
        given += give_back_from(core, s, cached - keep);
    }
    return given;
}

static Chunk *core_take(Core *core, u64 wanted, int asked) {
    Log *log = NULL;
    uint32_t stack = 0;
    if (core->log && has_gil() && core->log) { /* with the GIL, nobody else can change it */
        log = (Log *)Py_NewRef(core->log);     /* a collection on the way may take it from the core */
        stack = log_stack(log);
        if (log != core->log) stack = 0; /* the number is of no other log */
    }
    pthread_mutex_lock(&core->lock);
    Chunk *chunk = take_locked(core, wanted, stack, asked);
    pthread_mutex_unlock(&core->lock);
    Py_XDECREF(log);
    return chunk;
}

/* The requested size, or -1 if no such block is in use. A serial of 0 is any. */
static int64_t core_give(Core *core, u64 address, u64 serial) {
    int64_t size = -1;
    pthread_mutex_lock(&core->lock);
    Chunk *chunk = table_find(core, address);
    if (chunk && chunk->state == IS_USED && (!serial || chunk->serial == serial)) {
        size = (int64_t)chunk->wanted;
        give_locked(core, chunk);
    }
    pthread_mutex_unlock(&core->lock);
    return size;
}

static int core_owns(Core *core, u64 address) {
    for (Segment *s = core->segments; s; s = s->next)
        if (address >= s->base && address < s->base + s->reserved) return 1;
    return 0;
}

static int core_owns_now(Core *core, u64 address) {
    pthread_mutex_lock(&core->lock); /* segments come and go */
    int owns = core_owns(core, address);
    pthread_mutex_unlock(&core->lock);
    return owns;
}
