/* torch's own CPU kernels for tensors on the device, without a step through Python.
 *
 * Covers: memory of tensors, one kernel for each overload that the CPU has, a generator, host memory
 * that counts as pinned.  Leaves to others: the Python handlers (the twin), which know the engines
 * and word the errors; when this is built and loaded (shim.py).
 *
 * A tensor on the device lies in memory of the host, so a CPU kernel can read it. Each argument is
 * shown to the kernel as a CPU tensor over the same memory (an alias); what comes out is marked as a
 * tensor on the device. The twin has its handlers under the key PrivateUse2, which no tensor has: a
 * call goes there where engines must compute (strict), while memory is watched, and with arguments
 * that are not for the CPU's kernel. Nothing here needs the GIL.
 */
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/_copy_from_ops.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::StorageImpl;
using c10::TensorImpl;
using torch::jit::Stack;

namespace {

const c10::Device DEVICE(c10::DeviceType::PrivateUse1, 0);
const DispatchKeySet ON_HOST(DispatchKey::CPU), BY_TWIN(DispatchKey::PrivateUse2);

/* ---- memory: from the pool, small blocks from malloc */

struct Pool {
    void *(*take)(void *context, size_t size) = nullptr; /* null: there is no compiled pool */
    void (*give)(void *context, void *p, size_t size) = nullptr;
    void *context = nullptr;
    size_t least = 0;
} pool;

thread_local int inside = 0; /* a CPU kernel computes for the device */

struct Inside {
    Inside() { ++inside; }
    ~Inside() { --inside; }
};

std::atomic<void (*)()> arm_twin{nullptr}; /* null once its handlers are there */

void ready_twin() { /* its handlers take a third of a second: they come when they are needed */
    if (auto arm = arm_twin.load(std::memory_order_acquire)) arm();
}

/* In Python (shim.py): collect garbage, or raise with what is in use and the limit. */
void make_room(size_t size) {
    Stack stack{IValue(static_cast<int64_t>(std::min<size_t>(size, INT64_MAX)))};
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("holdfast::make_room", "");
    op.redispatchBoxed(BY_TWIN, &stack);
}

void give_back(void *p) { /* the pool tells by the address whose it is */
    if (!p) return;
    c10::profiledCPUMemoryReporter().Delete(p);
    pool.give(pool.context, p, 0);
}

c10::DataPtr from_pool(size_t size, c10::Device device) {
    void *p = pool.take(pool.context, size);
    if (!p) {
        make_room(size);
        p = pool.take(pool.context, size);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, p, "holdfast: you tried to allocate ", size, " bytes");
    c10::profiledCPUMemoryReporter().New(p, size);
    return {p, p, &give_back, device};
}

/* What torch uses for CPU tensors: kernels that compute for the device get memory from the pool. */
struct HostAllocator final : c10::Allocator {
    c10::Allocator *own = c10::GetDefaultCPUAllocator();

    c10::DataPtr allocate(size_t size) override {
        /* Who watches torch's memory stands before this one, and takes its blocks for malloc's. */
        const bool first = c10::GetCPUAllocator() == this;
        if (inside && first && pool.take && size >= pool.least) return from_pool(size, c10::kCPU);
        return own->allocate(size);
    }
    c10::DeleterFnPtr raw_deleter() const override {
        return pool.take ? &give_back : own->raw_deleter();
    }
    void copy_data(void *to, const void *from, size_t count) const override {
        default_copy_data(to, from, count);
    }
};

struct DeviceAllocator final : c10::Allocator {
    c10::DataPtr allocate(size_t size) override {
        Inside now;
        c10::DataPtr made = c10::GetCPUAllocator()->allocate(size);
        made.unsafe_set_device(DEVICE);
        return made;
    }
    c10::DeleterFnPtr raw_deleter() const override { return c10::GetCPUAllocator()->raw_deleter(); }
    void copy_data(void *to, const void *from, size_t count) const override {
        default_copy_data(to, from, count);
    }
};
DeviceAllocator *device_allocator = nullptr;

/* Memory of the host is the device's already; to be pinned is to be in this list. */
struct Pinned final : c10::Allocator {
    static std::mutex &lock() { static auto *made = new std::mutex; return *made; }
    static std::map<char *, size_t> &all() {
        static auto *made = new std::map<char *, size_t>;
        return *made;
    }
    static void remove(void *p) {
        {
            std::lock_guard<std::mutex> held(lock());
            all().erase(static_cast<char *>(p));
        }
        free(p);
    }
    static bool holds(const void *data) {
        char *p = static_cast<char *>(const_cast<void *>(data));
        std::lock_guard<std::mutex> held(lock());
        auto next = all().upper_bound(p);
        if (next == all().begin()) return false;
        --next;
        return p < next->first + next->second;
    }
    c10::DataPtr allocate(size_t size) override {
        void *p = nullptr;
        TORCH_CHECK_WITH(OutOfMemoryError, !posix_memalign(&p, 64, size ? size : 1),
                         "holdfast: you tried to pin ", size, " bytes");
        std::lock_guard<std::mutex> held(lock());
        all()[static_cast<char *>(p)] = size ? size : 1;
        return {p, p, &remove, c10::kCPU};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &remove; }
    void copy_data(void *to, const void *from, size_t count) const override {
        default_copy_data(to, from, count);
    }
};

/* ---- who computes: the CPU's kernels, or the twin */

std::atomic<int> twin_wanted{0}; /* in all threads: memory is watched, or HOLDFAST_STRICT is set */
std::atomic<int> strict_used{0}; /* somebody has said for a thread whether it is strict */

/* torch takes these along into the threads in which it computes gradients (strictness.py). */
const std::string &STRICT = *new std::string("holdfast.strict");
const std::string &LENIENT = *new std::string("holdfast.lenient");

bool twin_computes() {
    const bool wanted = twin_wanted.load(std::memory_order_relaxed);
    if (!strict_used.load(std::memory_order_relaxed)) return wanted;
    using Local = at::impl::ThreadLocalPythonObjects;
    return Local::contains(STRICT) || (wanted && !Local::contains(LENIENT));
}

/* Nobody but the twin has words for a device that is not there. */
void check_place(const std::optional<c10::Device> &device) {
    if (!device || device->index() <= 0 || device->type() != DEVICE.type()) return;
    ready_twin();
    at::_ops::empty_memory_format::redispatch(BY_TWIN, c10::SymIntArrayRef{}, std::nullopt,
                                              std::nullopt, device, std::nullopt, std::nullopt);
}

/* ---- a call of a CPU kernel */

struct Alias {
    at::Tensor device, host;
    void *start;
};

class Call {
    c10::SmallVector<Alias, 4> aliases_;
    const bool writes_;

    c10::Storage host_storage(const at::Tensor &tensor, void *&start) {
        StorageImpl *own = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
        for (Alias &other : aliases_) /* kernels compare storages to see whether tensors overlap */
            if (other.device.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == own) {
                start = other.start;
                return other.host.storage();
            }
        start = writes_ ? own->mutable_data() : const_cast<void *>(own->data());
        return c10::Storage(c10::make_intrusive<StorageImpl>(
            StorageImpl::use_byte_size_t(), own->nbytes(), c10::DataPtr(start, c10::kCPU),
            c10::GetCPUAllocator(), true));
    }

    const Alias *alias_of(const StorageImpl *storage) const {
        for (const Alias &one : aliases_)
            if (one.host.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == storage)
                return &one;
        return nullptr;
    }

  public:
    explicit Call(bool writes) : writes_(writes) {}

    at::Tensor lower(const at::Tensor &tensor) {
        if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
        for (Alias &other : aliases_)
            if (other.device.is_same(tensor)) return other.host;
        TensorImpl *from = tensor.unsafeGetTensorImpl();
        void *start = nullptr;
        auto made = c10::make_intrusive<TensorImpl>(TensorImpl::VIEW, host_storage(tensor, start),
                                                    ON_HOST, from->dtype());
        made->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
        if (tensor.is_conj()) made->_set_conj(true);
        if (tensor.is_neg()) made->_set_neg(true);
        if (from->is_wrapped_number()) made->set_wrapped_number(true);
        aliases_.push_back({tensor, at::Tensor(std::move(made)), start});
        return aliases_.back().host;
    }

    /* Sizes and memory that a kernel gave to what it wrote. */
    void write_back() {
        for (Alias &one : aliases_) {
            TensorImpl *host = one.host.unsafeGetTensorImpl();
            TensorImpl *device = one.device.unsafeGetTensorImpl();
            StorageImpl *mine = host->unsafe_storage().unsafeGetStorageImpl();
            StorageImpl *theirs = device->unsafe_storage().unsafeGetStorageImpl();
            if (mine->data() != one.start || mine->nbytes() != theirs->nbytes()) moved(one);
            if (device->sizes() != host->sizes() || device->strides() != host->strides() ||
                device->storage_offset() != host->storage_offset())
                device->set_sizes_and_strides(host->sizes(), host->strides(),
                                              host->storage_offset());
        }
    }

    /* It got more memory. A storage that Python made cannot grow, as an array goes with it: its
     * tensor gets another. */
    void moved(Alias &one) {
        StorageImpl *mine = one.host.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
        StorageImpl *theirs =
            one.device.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
        void *start = mine->mutable_data();
        if (start == one.start) return; /* another view of this storage was here before */
        c10::DataPtr memory = mine->set_data_ptr(c10::DataPtr(start, c10::kCPU));
        memory.unsafe_set_device(DEVICE);
        if (theirs->resizable()) {
            theirs->set_data_ptr_noswap(std::move(memory));
            theirs->set_nbytes(mine->nbytes());
        } else {
            one.device.unsafeGetTensorImpl()->set_storage_keep_dtype(
                c10::Storage(c10::make_intrusive<StorageImpl>(
                    StorageImpl::use_byte_size_t(), mine->nbytes(), std::move(memory),
                    device_allocator, true)));
        }
        for (Alias &other : aliases_)
            if (other.host.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == mine)
                other.start = start;
    }

    /* What a kernel returned, as a tensor on the device. `shared`: how many results have its storage. */
    at::Tensor raise(at::Tensor tensor, size_t shared) {
        if (!tensor.defined()) return tensor;
        for (Alias &one : aliases_)
            if (one.host.is_same(tensor)) return one.device;
        TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided && tensor.has_storage() &&
                                        !tensor.is_quantized(),
                                    "the device has no ", tensor.layout(),
                                    " tensors\n  expected: torch.strided\n  try: device=\"cpu\"");
        const bool mine = tensor.use_count() == 1;
        StorageImpl *storage =
            tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
        const Alias *viewed = alias_of(storage);
        if (!viewed && storage->device_type() == c10::kCPU) {
            if (tensor.unsafeGetTensorImpl()->unsafe_storage().use_count() > shared) { /* it is somebody else's too */
                at::Tensor copy = at::detail::empty_strided_generic(
                    tensor.sizes(), tensor.strides(), c10::GetCPUAllocator(), ON_HOST,
                    tensor.scalar_type());
                copy.copy_(tensor);
                return raise(std::move(copy), 1);
            }
            storage->_mutable_data_ptr_no_checks().unsafe_set_device(DEVICE);
            storage->set_allocator(device_allocator);
        }
        at::Tensor made = std::move(tensor);
        if (!mine) {
            TensorImpl *from = made.unsafeGetTensorImpl();
            auto other = c10::make_intrusive<TensorImpl>(
                TensorImpl::VIEW, c10::Storage(from->storage()), from->key_set(), from->dtype());
            other->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
            made = at::Tensor(std::move(other));
        }
        TensorImpl *impl = made.unsafeGetTensorImpl();
        impl->set_storage_keep_dtype(viewed ? viewed->device.storage() : made.storage());
        impl->_change_backend_component_keys(DEVICE);
        return made;
    }
};

/* ---- random numbers: a CPU generator that goes by the device's name */

class Numbers final : public c10::GeneratorImpl {
    at::Generator host_;

  public:
    explicit Numbers(at::Generator host)
        : GeneratorImpl(DEVICE, DispatchKeySet(DispatchKey::PrivateUse1)), host_(std::move(host)) {}
    const at::Generator &host() const { return host_; }
    void set_current_seed(uint64_t seed) override { host_.set_current_seed(seed); }
    void set_offset(uint64_t offset) override { host_.set_offset(offset); }
    uint64_t get_offset() const override { return host_.get_offset(); }
    uint64_t current_seed() const override { return host_.current_seed(); }
    uint64_t seed() override { return host_.unsafeGetGeneratorImpl()->seed(); }
    void set_state(const TensorImpl &state) override {
        host_.unsafeGetGeneratorImpl()->set_state(state);
    }
    c10::intrusive_ptr<TensorImpl> get_state() const override {
        return host_.unsafeGetGeneratorImpl()->get_state();
    }
    Numbers *clone_impl() const override { return new Numbers(host_.clone()); }
};

const at::Generator &default_numbers() {
    static auto *made =
        new at::Generator(at::make_generator<Numbers>(at::detail::createCPUGenerator()));
    return *made;
}

const at::Generator &host_of(const at::Generator &generator) {
    auto *ours = dynamic_cast<Numbers *>(generator.unsafeGetGeneratorImpl());
    return ours ? ours->host() : generator;
}

/* ---- one kernel for each overload */

/* Whether a tensor looks at more than its storage has, as it does after storage.resize_(0). */
bool is_beyond(const at::Tensor &tensor) {
    const TensorImpl *impl = tensor.unsafeGetTensorImpl();
    if (!impl->has_storage() || !impl->numel()) return false;
    int64_t last = impl->storage_offset();
    for (int64_t d = 0; d < impl->dim(); ++d) last += (impl->sizes()[d] - 1) * impl->strides()[d];
    return static_cast<size_t>(last + 1) * impl->itemsize() > impl->unsafe_storage().nbytes();
}

struct OnHost final : c10::OperatorKernel {
    const c10::OperatorHandle target; /* what computes: mostly the overload itself */
    const size_t arguments, returns;
    bool writes = false, compares_places = true, bias_sizes = false, aliased = true, always = false;
    bool reads = true; /* numbers, and not sizes alone */
    bool attends = false;
    int generator = -1;
    std::vector<int> returned; /* for each result the argument that it is, or -1 */

    OnHost(const c10::OperatorHandle &op, const c10::OperatorHandle &computes)
        : target(computes), arguments(op.schema().arguments().size()),
          returns(op.schema().returns().size()) {
        const auto &schema = op.schema();
        for (size_t i = 0; i < arguments; ++i) {
            const auto &argument = schema.arguments()[i];
            if (argument.alias_info() && argument.alias_info()->isWrite()) writes = true;
            if (argument.name() == "generator") generator = static_cast<int>(i);
        }
        for (const auto &result : schema.returns()) {
            int found = -1;
            if (result.alias_info() && result.alias_info()->isWrite())
                for (size_t i = 0; i < arguments; ++i)
                    if (schema.arguments()[i].alias_info() &&
                        *schema.arguments()[i].alias_info() == *result.alias_info())
                        found = static_cast<int>(i);
            returned.push_back(found);
        }
    }

    bool elsewhere(const at::Tensor &t) const { /* not for a CPU kernel of this device */
        if (!t.defined()) return false;
        if (t.is_privateuseone()) return !t.has_storage() || (reads && is_beyond(t));
        return !t.is_cpu() || t.layout() != c10::kStrided || (compares_places && t.dim());
    }

    bool elsewhere(const IValue &value) const {
        if (value.isTensor()) return elsewhere(value.toTensor());
        if (value.isTensorList()) {
            for (const at::Tensor &t : value.toTensorVector())
                if (elsewhere(t)) return true;
        } else if (value.isOptionalTensorList()) {
            for (const std::optional<at::Tensor> &t : value.toOptionalTensorVector())
                if (t && elsewhere(*t)) return true;
        }
        return false;
    }

    /* torch's attention has no groups of heads, no other width of values, and no masks of bool: on
     * the CPU somebody has seen to that before. The engine has all of them. */
    static bool is_for_engine(const Stack *stack, size_t first) {
        const at::Tensor *one = nullptr;
        for (size_t i = first, seen = 0; i < stack->size(); ++i) {
            if (!(*stack)[i].isTensor() || !(*stack)[i].toTensor().defined()) continue;
            const at::Tensor &t = (*stack)[i].toTensor();
            if (t.scalar_type() == c10::kBool) return true;
            if (++seen > 3) continue; /* query, key and value, behind their gradient in backward */
            if (t.dim() != 4 || t.stride(3) != 1) return true;
            if (one && (one->size(1) != t.size(1) || one->size(3) != t.size(3))) return true;
            one = &t;
        }
        return false;
    }

    static void lower(Call &call, IValue &value) {
        if (value.isTensor()) {
            value = call.lower(value.toTensor());
        } else if (value.isTensorList()) {
            c10::List<at::Tensor> made;
            for (const at::Tensor &t : value.toTensorVector()) made.push_back(call.lower(t));
            value = std::move(made);
        } else if (value.isOptionalTensorList()) {
            c10::List<std::optional<at::Tensor>> made;
            for (const std::optional<at::Tensor> &t : value.toOptionalTensorVector())
                made.push_back(t ? std::optional<at::Tensor>(call.lower(*t)) : std::nullopt);
            value = std::move(made);
        } else if (value.isDevice()) {
            check_place(value.toDevice());
            value = c10::Device(c10::kCPU);
        } else if (value.isGenerator()) {
            value = host_of(value.toGenerator());
        }
    }

    void raise(Call &call, Stack *stack) const {
        const size_t first = stack->size() - returns;
        for (size_t i = 0; i < returns; ++i) {
            IValue &value = (*stack)[first + i];
            if (value.isTensor()) {
                size_t shared = returns == 1 ? 1 : sharing(stack, first, value.toTensor());
                value = call.raise(std::move(value).toTensor(), shared);
            } else if (value.isTensorList()) {
                std::vector<at::Tensor> found = std::move(value).toTensorVector();
                c10::List<at::Tensor> made;
                for (at::Tensor &t : found) {
                    size_t shared = 0;
                    for (at::Tensor &other : found)
                        shared += other.defined() && t.defined() && other.is_alias_of(t);
                    value = IValue(); /* the list holds on to its tensors */
                    made.push_back(call.raise(t, shared));
                }
                value = std::move(made);
            }
        }
    }

    size_t sharing(Stack *stack, size_t first, const at::Tensor &tensor) const {
        size_t found = 0;
        for (size_t i = first; i < stack->size(); ++i) {
            const IValue &other = (*stack)[i];
            found += other.isTensor() && tensor.defined() && other.toTensor().defined() &&
                     other.toTensor().has_storage() && tensor.has_storage() &&
                     other.toTensor().is_alias_of(tensor);
        }
        return found;
    }

    void operator()(const c10::OperatorHandle &op, DispatchKeySet, Stack *stack) const {
        const size_t first = stack->size() - arguments;
        bool twin = !always && twin_computes();
        for (size_t i = first; !twin && i < stack->size(); ++i) twin = elsewhere((*stack)[i]);
        if (twin || (attends && is_for_engine(stack, first))) {
            ready_twin();
            op.redispatchBoxed(BY_TWIN, stack);
            return;
        }
        if (!aliased) {
            target.redispatchBoxed(ON_HOST, stack);
            return;
        }
        c10::SmallVector<IValue, 2> given;
        for (int place : returned)
            if (place >= 0) given.push_back((*stack)[first + place]);
        Call call(writes);
        if (generator >= 0 && (*stack)[first + generator].isNone())
            (*stack)[first + generator] = default_numbers();
        for (size_t i = first; i < stack->size(); ++i) lower(call, (*stack)[i]);
        if (bias_sizes) add_bias_sizes(stack, first);
        {
            Inside now;
            target.redispatchBoxed(ON_HOST, stack);
        }
        if (writes) call.write_back();
        if (!given.empty() && given.size() == returns) {
            for (size_t i = 0; i < returns; ++i)
                (*stack)[stack->size() - returns + i] = std::move(given[i]);
        } else {
            raise(call, stack);
        }
    }

    /* convolution_backward wants the sizes of the bias, which the overload of devices leaves out. */
    static void add_bias_sizes(Stack *stack, size_t first) {
        const at::Tensor &weight = (*stack)[first + 2].toTensor();
        const bool transposed = (*stack)[first + 6].toBool();
        const int64_t groups = (*stack)[first + 8].toInt();
        const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
        stack->insert(stack->begin() + static_cast<long>(first) + 3,
                      IValue(c10::List<int64_t>({channels})));
    }
};

/* ---- making and viewing */

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin, std::optional<c10::MemoryFormat> format) {
    check_place(device);
    if (layout.value_or(c10::kStrided) != c10::kStrided || pin.value_or(false) ||
        twin_computes()) {
        ready_twin();
        return at::_ops::empty_memory_format::redispatch(
            BY_TWIN, c10::fromIntArrayRefSlow(size), dtype, layout, device, pin, format);
    }
    return at::detail::empty_generic(size, device_allocator,
                                     DispatchKeySet(DispatchKey::PrivateUse1),
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin) {
    check_place(device);
    if (layout.value_or(c10::kStrided) != c10::kStrided || pin.value_or(false) ||
        twin_computes()) {
        ready_twin();
        return at::_ops::empty_strided::redispatch(BY_TWIN, c10::fromIntArrayRefSlow(size),
                                                   c10::fromIntArrayRefSlow(stride), dtype, layout,
                                                   device, pin);
    }
    return at::detail::empty_strided_generic(size, stride, device_allocator,
                                             DispatchKeySet(DispatchKey::PrivateUse1),
                                             c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor &self, const at::Tensor &to, bool non_blocking) {
    if (is_beyond(self) || is_beyond(to)) {
        ready_twin();
        return at::_ops::_copy_from::redispatch(BY_TWIN, self, to, non_blocking);
    }
    Call call(true);
    at::Tensor source = call.lower(self), target = call.lower(to);
    at::AutoDispatchBelowADInplaceOrView below;
    target.copy_(source, non_blocking);
    return to;
}

at::Tensor &set_empty(at::Tensor &self) { /* torch's own would give it an empty CPU storage */
    c10::Storage none(c10::make_intrusive<StorageImpl>(
        StorageImpl::use_byte_size_t(), 0, device_allocator->allocate(0), device_allocator, true));
    self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(none));
    self.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef{0}, c10::IntArrayRef{1}, 0);
    return self;
}

/* ---- what torch asks of a device */

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    void setCurrentDevice(c10::DeviceIndex) const override {}
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
    const at::Generator &getDefaultGenerator(c10::DeviceIndex) const override {
        return default_numbers();
    }
    at::Generator getNewGenerator(c10::DeviceIndex index) const override {
        check_place(c10::Device(DEVICE.type(), index));
        return at::make_generator<Numbers>(at::detail::createCPUGenerator());
    }
    c10::Device getDeviceFromPtr(void *) const override { return DEVICE; }
    bool isPinnedPtr(const void *data) const override { return Pinned::holds(data); }
    c10::Allocator *getPinnedMemoryAllocator() const override {
        static auto *made = new Pinned;
        return made;
    }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t size) const override {
        StorageImpl *own = storage.unsafeGetStorageImpl();
        TORCH_CHECK(own->resizable(), "Trying to resize storage that is not resizable");
        c10::DataPtr memory = device_allocator->allocate(size);
        const size_t kept = std::min(size, own->nbytes());
        if (kept) memcpy(memory.get(), own->data(), kept);
        own->set_data_ptr_noswap(std::move(memory));
        own->set_nbytes(size);
    }
};

/* Results that are not strided, and what the device refuses: the twin knows what to do with them. */
bool is_twins(const std::string &name) {
    if (name == "_pin_memory") return true;
    for (const char *part : {"sparse", "nested", "mkldnn", "quantized"})
        if (name.find(part) != std::string::npos) return true;
    return name.rfind("quantize", 0) == 0;
}

void kernels(torch::Library &aten) {
    auto &all = c10::Dispatcher::singleton();
    /* Sizes, strides and storages: torch's own kernels never look at the numbers. */
    const std::set<std::string> direct{"set_.source_Storage", "set_.source_Storage_storage_offset",
        "set_.source_Tensor", "is_set_to", "as_strided_", "unfold", "view_as_real",
        "view_as_complex", "native_dropout"};
    const std::set<std::string> typed{"empty.memory_format", "empty_strided", "view", "as_strided",
        "_reshape_alias", "set_"};
    /* Places among numbers may be on the CPU; a copy has two sides. */
    const std::set<std::string> mixed{"index.Tensor", "index.Tensor_out", "_index_put_impl_",
        "_index_put_impl", "index_put_", "index_put", "_unsafe_index.Tensor", "copy_"};
    std::vector<std::pair<c10::OperatorName, c10::OperatorName>> names;
    for (const auto &name : all.getAllOpNames()) {
        auto op = all.findOp(name);
        if (name.name.rfind("aten::", 0) == 0 && op && op->hasSchema() &&
            op->hasKernelForDispatchKey(DispatchKey::CPU))
            names.emplace_back(name, name);
    }
    names.push_back({{"aten::copy_", ""}, {"aten::copy_", ""}});
    names.push_back({{"aten::convolution_overrideable", ""}, {"aten::convolution", ""}});
    names.push_back(
        {{"aten::convolution_backward_overrideable", ""}, {"aten::convolution_backward", ""}});
    for (const auto &[name, computes] : names) {
        const std::string plain =
            name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
        if (typed.count(plain) || is_twins(plain)) continue;
        auto kernel = std::make_unique<OnHost>(*all.findOp(name), *all.findOp(computes));
        kernel->compares_places = !mixed.count(plain);
        kernel->always = mixed.count(plain) ? plain == "copy_" : plain == "resize_";
        kernel->reads = plain != "resize_" && (!direct.count(plain) || plain == "native_dropout");
        kernel->attends = plain.find("flash_attention_for_cpu") != std::string::npos;
        kernel->bias_sizes = plain == "convolution_backward_overrideable";
        if (direct.count(plain)) {
            kernel->aliased = false;
            kernel->compares_places = false;
            kernel->always = plain != "native_dropout";
        }
        aten.impl(plain.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
    }
}

} // namespace

extern "C" {

/* Allocator, generator and hooks; before torch is told of the device. */
void hf_device_begin(void (*arm)()) {
    arm_twin.store(arm);
    device_allocator = new DeviceAllocator;
    c10::SetAllocator(c10::DeviceType::PrivateUse1, device_allocator);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
}

/* Blocks from `least` bytes on come from a pool; others from where torch has them for the CPU. Where
 * somebody else's allocator is under torch's CPU already, all of them do. */
void hf_device_pool(void *(*take)(void *, size_t), void (*give)(void *, void *, size_t),
                    void *context, size_t least) {
    pool = Pool{take, give, context, least};
    if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator())
        c10::SetCPUAllocator(new HostAllocator, 0);
}

/* A kernel for each overload. 0, or a text that says what went wrong. */
const char *hf_device_arm(void) {
    static std::string *wrong = new std::string;
    try {
        auto *aten = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::PrivateUse1,
                                        __FILE__, __LINE__);
        aten->impl("empty.memory_format", TORCH_FN(empty));
        aten->impl("empty_strided", TORCH_FN(empty_strided));
        aten->impl("view", TORCH_FN(at::native::view));
        aten->impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
        aten->impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
        aten->impl("_copy_from", TORCH_FN(copy_from));
        aten->impl("set_", TORCH_FN(set_empty));
        kernels(*aten);
        return nullptr;
    } catch (const std::exception &e) {
        *wrong = e.what();
        return wrong->c_str();
    }
}

void hf_device_twin(int wanted) { twin_wanted.store(wanted); }
void hf_device_twin_ready(void) { arm_twin.store(nullptr, std::memory_order_release); }
void hf_device_strict(void) { strict_used.store(1); }

/* The generator of the device, for those who draw in Python. */
static at::CPUGeneratorImpl *bits() {
    return host_of(default_numbers()).get<at::CPUGeneratorImpl>();
}

void hf_device_bits32(uint32_t *out, size_t count) {
    std::lock_guard<std::mutex> held(bits()->mutex_);
    for (size_t i = 0; i < count; ++i) out[i] = bits()->random();
}

void hf_device_seed(uint64_t seed) {
    std::lock_guard<std::mutex> held(bits()->mutex_);
    bits()->set_current_seed(seed);
}

struct State {
    uint64_t seed;
    double normal;
    int32_t has_normal, position;
    uint32_t words[624];
};

void hf_device_get_state(State *out) {
    std::lock_guard<std::mutex> held(bits()->mutex_);
    const auto data = bits()->engine().data();
    const auto normal = bits()->next_double_normal_sample();
    out->seed = data.seed_;
    out->normal = normal.value_or(0);
    out->has_normal = normal.has_value();
    out->position = 625 - data.left_;
    std::copy(data.state_.begin(), data.state_.end(), out->words);
}

void hf_device_set_state(const State *state) {
    std::lock_guard<std::mutex> held(bits()->mutex_);
    at::mt19937_data_pod data{};
    data.seed_ = state->seed;
    data.seeded_ = true;
    data.left_ = 625 - state->position;
    data.next_ = static_cast<uint32_t>(state->position % 624);
    std::copy(state->words, state->words + 624, data.state_.begin());
    at::mt19937 engine;
    engine.set_data(data);
    bits()->set_engine(engine);
    bits()->set_next_double_normal_sample(
        state->has_normal ? std::optional<double>(state->normal) : std::nullopt);
}
}
