/* CPU allocators for torch that call plain C functions given by Python: one that logs what torch's
 * own allocator does, and a few that take memory from a pool.
 *
 * torch frees a block through a bare function that gets the address alone, long after another
 * allocator may have taken over. So each pool has an allocator object and a deleter of its own, made
 * by a template; they are never destroyed.
 */
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdlib>
#include <utility>
#ifdef __APPLE__
#include <malloc/malloc.h>
#define block_room malloc_size
#else
#include <malloc.h>
#define block_room malloc_usable_size
#endif

extern "C" { /* from the Python that loads this */
int PyGILState_Ensure(void);
void PyGILState_Release(int);
void *PyGILState_GetThisThreadState(void);
int Py_IsInitialized(void);
}

namespace {

constexpr int POOLS = 16;

typedef void *(*Take)(void *context, size_t size);
typedef void (*Give)(void *context, void *p, size_t size);
typedef void (*Note)(void *context, int kind, void *p, size_t size);

/* torch lets go of the GIL while it works, and without it nobody can read the Python stack. Taken
 * only while somebody records, and only in threads that Python knows. */
std::atomic<int> stacks_wanted{0};

class Gil {
    int state_ = -1;

  public:
    Gil() {
        if (stacks_wanted.load(std::memory_order_relaxed) && Py_IsInitialized() &&
            PyGILState_GetThisThreadState())
            state_ = PyGILState_Ensure();
    }
    ~Gil() {
        if (state_ >= 0) PyGILState_Release(state_);
    }
    Gil(const Gil &) = delete;
    Gil &operator=(const Gil &) = delete;
};

c10::DataPtr wrap(void *p, size_t size, c10::DeleterFnPtr deleter) {
    if (!p && size) {
        c10::profiledCPUMemoryReporter().OutOfMemory(size);
        TORCH_CHECK_WITH(OutOfMemoryError, false, "holdfast: you tried to allocate ", size, " bytes");
    }
    c10::profiledCPUMemoryReporter().New(p, size); /* torch's own profiler goes on working */
    return {p, p, deleter, c10::Device(c10::DeviceType::CPU)};
}

/* ---- from a pool; small blocks from malloc, which is quicker there and needs no rounding */

struct Pool {
    Take take = nullptr;
    Give give = nullptr;
    void *context = nullptr;
    size_t least = 0;
};
Pool pools[POOLS];

template <int N> struct FromPool final : c10::Allocator {
    static void remove(void *p) {
        if (!p) return;
        c10::profiledCPUMemoryReporter().Delete(p);
        pools[N].give(pools[N].context, p, 0); /* tells by the address whose it is */
    }
    c10::DataPtr allocate(size_t size) override {
        Pool &pool = pools[N];
        void *p = nullptr;
        if (size >= pool.least && size) {
            Gil held;
            p = pool.take(pool.context, size);
        } else if (size && posix_memalign(&p, 64, size))
            p = nullptr;
        return wrap(p, size, &remove);
    }
    c10::DeleterFnPtr raw_deleter() const override { return &remove; }
    void copy_data(void *to, const void *from, size_t count) const override {
        default_copy_data(to, from, count);
    }
};

template <int... N> c10::Allocator *from_pool(int wanted, std::integer_sequence<int, N...>) {
    static c10::Allocator *all[] = {new FromPool<N>...};
    return all[wanted];
}

/* ---- from torch's own allocator, logged */

std::atomic<Note> note{nullptr};
std::atomic<void *> note_context{nullptr};
c10::Allocator *own = nullptr;

void write_down(int kind, void *p, size_t size) {
    Note call = note.load(std::memory_order_acquire);
    if (!call || !p) return;
    Gil held;
    call(note_context.load(std::memory_order_acquire), kind, p, size);
}

struct Watched final : c10::Allocator {
    static void remove(void *p) {
        if (p) write_down(1, p, block_room(p)); /* before: the address may be another's right after */
        own->raw_deallocate(p);
    }
    c10::DataPtr allocate(size_t size) override {
        void *p = own->raw_allocate(size);
        write_down(0, p, size);
        return {p, p, &remove, c10::Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &remove; }
    void copy_data(void *to, const void *from, size_t count) const override {
        default_copy_data(to, from, count);
    }
};

/* 1: torch uses it from now on. */
int use(c10::Allocator *allocator) {
    c10::SetCPUAllocator(allocator, 0);
    return c10::GetCPUAllocator() == allocator;
}

} // namespace

extern "C" {

/* Slot `at` takes memory from these functions. To be called once for each slot. */
void hf_torch_set_pool(int at, Take take, Give give, void *context, size_t least) {
    pools[at] = Pool{take, give, context, least};
}

int hf_torch_slots(void) { return POOLS; }

int hf_torch_use_pool(int at) {
    return use(from_pool(at, std::make_integer_sequence<int, POOLS>{}));
}

/* torch's own allocator, as it was before any of ours. */
int hf_torch_use_own(void) { return !own || use(own); }

int hf_torch_use_watched(void) {
    static c10::Allocator *watched = new Watched;
    return use(watched);
}

/* Remember torch's own allocator. 0: it has no plain free function, so it cannot be watched. */
int hf_torch_begin(void) {
    if (!own) own = c10::GetCPUAllocator();
    return own->raw_deleter() != nullptr;
}

/* Where to write events down, or nowhere. */
void hf_torch_note(Note call, void *context) {
    note.store(nullptr, std::memory_order_release);
    note_context.store(context, std::memory_order_release);
    note.store(call, std::memory_order_release);
}

void hf_torch_want_stacks(int wanted) { stacks_wanted.store(wanted); }
}
