/* Chunks of address space, a table by address (blocks in use and in quick lists), and a tree of
 * free chunks by size. The caller holds the lock of the core.
 */

#define QUICK 256

enum { IS_FREE, IS_QUICK, IS_USED };

typedef struct Chunk {
    u64 address, size, wanted;
    struct Chunk *prev, *next;  /* neighbours by address, in one segment */
    struct Chunk *left, *right; /* in the tree of free chunks; left: next in a quick list */
    u64 given_back;             /* bytes of a free chunk whose pages were released */
    struct Segment *segment;
    u64 serial; /* counts allocations: tells a block from a later one at its address */
    uint32_t priority, stack;
    uint16_t tag;
    uint8_t state;
} Chunk;

typedef struct Segment {
    u64 base, length, reserved; /* length is in use; up to `reserved` it can grow */
    int arena, kind;            /* kind 0: bookkeeping, 1: mprotect makes it usable, 2: fixed */
    Chunk *first, *last;
    struct Segment *next;
} Segment;

typedef struct Core {
    PyObject_HEAD
    pthread_mutex_t lock;
    struct Core *next_core;
    Segment *segments;
    Chunk *trees[2];
    Chunk *spare; /* chunk structs to use again, linked by next */
    struct { u64 size; Chunk *head; } quick[QUICK];
    size_t quick_count;
    Chunk **table; /* address -> chunk that is used or quick */
    size_t table_room, table_count;
    uint32_t random;
    u64 small_limit, limit, cache_limit, step[2];
    u64 allocated, peak_allocated, active, peak_active, reserved, peak_reserved, cumulative;
    u64 allocs, frees, hits, misses, live, peak_live;
    int host, pinned, place, closed, hard;
    Log *log;
    PyObject *grow, *trim, *weakrefs;
} Core;

static Core *all_cores = NULL;

/* Whether there is a callback: from Python, None means that there is none. */
static int is_set(PyObject *callback) { return callback && callback != Py_None; }

static size_t slot_of(Core *core, u64 address) {
    return (size_t)(((address >> 9) * 11400714819323198485ULL) >> 20) & (core->table_room - 1);
}

static Chunk *table_find(Core *core, u64 address) {
    for (size_t at = slot_of(core, address); core->table[at]; at = (at + 1) & (core->table_room - 1))
        if (core->table[at]->address == address) return core->table[at];
    return NULL;
}

static int table_add(Core *core, Chunk *chunk) {
    if (2 * (core->table_count + 1) > core->table_room) {
        size_t old_room = core->table_room;
        Chunk **old = core->table, **fresh = calloc(2 * old_room, sizeof(Chunk *));
        if (!fresh) return 0;
        core->table = fresh;
        core->table_room = 2 * old_room;
        for (size_t i = 0; i < old_room; i++)
            if (old[i]) {
                size_t at = slot_of(core, old[i]->address);
                while (fresh[at]) at = (at + 1) & (core->table_room - 1);
                fresh[at] = old[i];
            }
        free(old);
    }
    size_t at = slot_of(core, chunk->address);
    while (core->table[at]) at = (at + 1) & (core->table_room - 1);
    core->table[at] = chunk;
    core->table_count++;
    return 1;
}

static void table_remove(Core *core, u64 address) {
    size_t mask = core->table_room - 1, at = slot_of(core, address);
    while (core->table[at] && core->table[at]->address != address) at = (at + 1) & mask;
    if (!core->table[at]) return;
    core->table_count--;
    for (size_t hole = at;;) { /* close the gap, so that searches need no tombstones */
        core->table[hole] = NULL;
        for (;;) {
            at = (at + 1) & mask;
            if (!core->table[at]) return;
            size_t home = slot_of(core, core->table[at]->address);
            if (((at - home) & mask) >= ((at - hole) & mask)) break;
        }
        core->table[hole] = core->table[at];
        hole = at;
    }
}

/* A treap ordered by (size, address). */
static int before(const Chunk *a, u64 size, u64 address) {
    return a->size < size || (a->size == size && a->address < address);
}

static void tree_split(Chunk *root, u64 size, u64 address, Chunk **low, Chunk **high) {
    while (root) {
        if (before(root, size, address)) {
            *low = root;
            low = &root->right;
            root = root->right;
        } else {
            *high = root;
            high = &root->left;
            root = root->left;
        }
    }
    *low = *high = NULL;
}

static Chunk *tree_merge(Chunk *low, Chunk *high) {
    Chunk *root = NULL, **at = &root;
    while (low && high) {
        if (low->priority >= high->priority) {
            *at = low;
            at = &low->right;
            low = low->right;
        } else {
            *at = high;
            at = &high->left;
            high = high->left;
        }
    }
    *at = low ? low : high;
    return root;
}

static void tree_add(Core *core, Chunk *chunk) {
    Chunk **at = &core->trees[chunk->segment->arena];
    core->random ^= core->random << 13;
    core->random ^= core->random >> 17;
    core->random ^= core->random << 5;
    chunk->priority = core->random;
    while (*at && (*at)->priority >= chunk->priority)
        at = before(*at, chunk->size, chunk->address) ? &(*at)->right : &(*at)->left;
    Chunk *rest = *at;
    *at = chunk;
    tree_split(rest, chunk->size, chunk->address, &chunk->left, &chunk->right);
    chunk->state = IS_FREE;
}

static void tree_remove(Core *core, Chunk *chunk) {
    Chunk **at = &core->trees[chunk->segment->arena];
    while (*at != chunk) at = before(*at, chunk->size, chunk->address) ? &(*at)->right : &(*at)->left;
    *at = tree_merge(chunk->left, chunk->right);
    chunk->left = chunk->right = NULL;
}

static Chunk *tree_best(Core *core, int arena, u64 size) {
    Chunk *best = NULL;
    for (Chunk *at = core->trees[arena]; at;)
        if (at->size >= size) {
            best = at;
            at = at->left;
        } else
            at = at->right;
    return best;
}

static Chunk *chunk_new(Core *core) {
    Chunk *chunk = core->spare;
    if (chunk) core->spare = chunk->next;
    else chunk = malloc(sizeof(Chunk));
    if (chunk) memset(chunk, 0, sizeof(Chunk));
    return chunk;
}

static void chunk_forget(Core *core, Chunk *chunk) {
    chunk->next = core->spare;
    core->spare = chunk;
}
