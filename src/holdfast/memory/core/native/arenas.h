/* Free chunks: merging neighbours, flushing the quick lists, growing segments, releasing pages.
 *
 * In Python: arenas.py. The caller holds the lock of the core.
 */

/* Make a chunk free and one with its free neighbours. */
static void make_free(Core *core, Chunk *chunk) {
    Chunk *other = chunk->prev;
    if (other && other->state == IS_FREE) {
        tree_remove(core, other);
        other->size += chunk->size;
        other->given_back += chunk->given_back;
        other->next = chunk->next;
        if (chunk->next) chunk->next->prev = other;
        else chunk->segment->last = other;
        chunk_forget(core, chunk);
        chunk = other;
    }
    other = chunk->next;
    if (other && other->state == IS_FREE) {
        tree_remove(core, other);
        chunk->size += other->size;
        chunk->given_back += other->given_back;
        chunk->next = other->next;
        if (other->next) other->next->prev = chunk;
        else chunk->segment->last = chunk;
        chunk_forget(core, other);
    }
    tree_add(core, chunk);
}

static void flush_quick(Core *core) {
    for (int i = 0; i < QUICK && core->quick_count; i++) {
        Chunk *chunk = core->quick[i].head;
        core->quick[i].head = NULL;
        while (chunk) {
            Chunk *next = chunk->left;
            chunk->left = NULL;
            core->quick_count--;
            table_remove(core, chunk->address);
            make_free(core, chunk);
            chunk = next;
        }
    }
}

static void count_reserved(Core *core, u64 more) {
    core->reserved += more;
    if (core->reserved > core->peak_reserved) core->peak_reserved = core->reserved;
}

/* A growable segment becomes long enough for `size` more at its end. 0: it cannot. */
static int extend(Core *core, Segment *segment, u64 size) {
    Chunk *last = segment->last;
    u64 have = last && last->state == IS_FREE ? last->size : 0;
    u64 step = core->step[segment->arena];
    u64 more = ((size - have + step - 1) / step) * step;
    if (segment->length + more > segment->reserved) {
        more = segment->reserved - segment->length;
        if (have + more < size) return 0;
    }
    if (core->limit && core->reserved + more > core->limit) {
        more = ((size - have + PAGE - 1) / PAGE) * PAGE;
        if (core->reserved + more > core->limit) return 0;
    }
    u64 end = segment->base + segment->length;
    Chunk *chunk = have ? NULL : chunk_new(core);
    if (!have && !chunk) return 0;
    if (segment->kind == 1 && mprotect((void *)(uintptr_t)end, more, PROT_READ | PROT_WRITE)) {
        if (chunk) chunk_forget(core, chunk);
        return 0;
    }
    segment->length += more;
    if (core->log) log_add(core->log, RESERVE, end, (int64_t)more, 0, core->place, 0);
    count_reserved(core, more);
    if (have) {
        tree_remove(core, last);
        last->size += more;
        tree_add(core, last);
        return 1;
    }
    chunk->address = end;
    chunk->size = more;
    chunk->segment = segment;
    chunk->prev = last;
    if (last) last->next = chunk;
    else segment->first = chunk;
    segment->last = chunk;
    tree_add(core, chunk);
    return 1;
}

/* Hand free pages of one segment to the system, at least `most` bytes where there are as many. */
static u64 give_back_from(Core *core, Segment *segment, u64 most) {
    u64 given = 0;
    if (segment->kind == 2) return 0;
    for (Chunk *c = segment->last; c && given < most; c = c->prev) { /* the low ones are used most */
        if (c->state != IS_FREE) continue;
        u64 low = (c->address + PAGE - 1) & ~(PAGE - 1), high = (c->address + c->size) & ~(PAGE - 1);
        if (high <= low || high - low <= c->given_back) continue;
        if (segment->kind == 1 && madvise((void *)(uintptr_t)low, high - low, MADV_DONTNEED)) continue;
        given += high - low - c->given_back;
        core->reserved -= high - low - c->given_back;
        c->given_back = high - low;
        if (core->log) log_add(core->log, RELEASE, low, (int64_t)(high - low), 0, core->place, 0);
    }
    return given;
}

/* Before an arena grows, release as many free pages of the other one. */
static void make_up_for(Core *core, int arena, u64 size) {
    for (Segment *s = core->segments; s && size; s = s->next)
        if (s->arena != arena) {
            u64 given = give_back_from(core, s, size);
            size = given < size ? size - given : 0;
        }
}

/* `size` from a free chunk; the rest of it stays free. NULL: no room for bookkeeping. */
static Chunk *carve(Core *core, Chunk *chunk, u64 size) {
    Chunk *rest = NULL;
    if (chunk->size > size) {
        rest = chunk_new(core);
        if (!rest) return NULL;
    }
    u64 back = chunk->given_back;
    if (back) { /* at worst, all that is taken are pages that are with the system */
        count_reserved(core, back < size ? back : size);
        back = back < size ? 0 : back - size;
        if (core->log) {
            u64 low = chunk->address & ~(PAGE - 1);
            u64 high = (chunk->address + size + PAGE - 1) & ~(PAGE - 1);
            log_add(core->log, RESERVE, low, (int64_t)(high - low), 0, core->place, 0);
        }
    }
    tree_remove(core, chunk);
    chunk->given_back = 0;
    if (rest) {
        rest->address = chunk->address + size;
        rest->size = chunk->size - size;
        rest->given_back = back;
        rest->segment = chunk->segment;
        rest->prev = chunk;
        rest->next = chunk->next;
        if (chunk->next) chunk->next->prev = rest;
        else chunk->segment->last = rest;
        chunk->next = rest;
        chunk->size = size;
        tree_add(core, rest);
    }
    if (!table_add(core, chunk)) {
        make_free(core, chunk);
        return NULL;
    }
    return chunk;
}

/* Whether the pages that come back from the system with a block are too many. */
static int over_limit(Core *core, Chunk *chunk, u64 size) {
    u64 more = chunk->given_back < size ? chunk->given_back : size;
    return core->limit && more && core->reserved + more > core->limit;
}
