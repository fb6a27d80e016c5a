#include "mlx/failing_libmlx.h"

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <vector>

#include <mlx/mlx.h>

#include "backend/mlx/mlx_device.h"

namespace mx = mlx::core;

namespace {

failing failing_kind = FAILING_CALL;
int calls_left = -1;

bool fails(failing kind) { return kind == failing_kind && calls_left >= 0 && calls_left-- == 0; }

} // namespace

void fail_after(failing what, int calls) {
    failing_kind = what;
    calls_left = calls;
    mlx_device_fail_after(what == FAILING_CALL ? calls : -1);
}

const char *failing_name(failing what) {
    static const char *const names[] = {"call", "no buffer", "allocator", "evaluation", "unknown exception", "new"};
    return names[what];
}

// What the linker calls in place of mlx::core::X, and X itself.
mx::allocator::Allocator &real_allocator() __asm__("__real__ZN3mlx4core9allocator9allocatorEv");
mx::allocator::Allocator &failing_allocator() __asm__("__wrap__ZN3mlx4core9allocator9allocatorEv");
void real_eval(std::vector<mx::array>) __asm__("__real__ZN3mlx4core4evalESt6vectorINS0_5arrayESaIS2_EE");
void failing_eval(std::vector<mx::array>) __asm__("__wrap__ZN3mlx4core4evalESt6vectorINS0_5arrayESaIS2_EE");
void real_async_eval(std::vector<mx::array>) __asm__("__real__ZN3mlx4core10async_evalESt6vectorINS0_5arrayESaIS2_EE");
void
    failing_async_eval(std::vector<mx::array>) __asm__("__wrap__ZN3mlx4core10async_evalESt6vectorINS0_5arrayESaIS2_EE");
void *real_new(std::size_t) __asm__("__real__Znwm");
void *failing_new(std::size_t) __asm__("__wrap__Znwm");

namespace {

// Of its own arrays of one number libmlx does not look whether they have a buffer.
const size_t numbers = 8;

class failing_buffers : public mx::allocator::Allocator {
  public:
    mx::allocator::Buffer malloc(size_t size) override {
        if (size > numbers && fails(FAILING_NO_BUFFER)) return mx::allocator::Buffer(nullptr);
        if (fails(FAILING_ALLOCATOR)) throw std::bad_alloc();
        return real_allocator().malloc(size);
    }
    void free(mx::allocator::Buffer buffer) override { real_allocator().free(buffer); }
    size_t size(mx::allocator::Buffer buffer) const override { return real_allocator().size(buffer); }
    mx::allocator::Buffer make_buffer(void *data, size_t size) override {
        return real_allocator().make_buffer(data, size);
    }
    void release(mx::allocator::Buffer buffer) override { real_allocator().release(buffer); }
};

} // namespace

mx::allocator::Allocator &failing_allocator() {
    static failing_buffers buffers;
    return buffers;
}

void failing_eval(std::vector<mx::array> outputs) {
    if (fails(FAILING_EVALUATION)) throw std::runtime_error("failure asked for by a test");
    if (fails(FAILING_UNKNOWN)) throw 17;
    real_eval(std::move(outputs));
}

void failing_async_eval(std::vector<mx::array> outputs) {
    if (fails(FAILING_EVALUATION)) throw std::runtime_error("failure asked for by a test");
    if (fails(FAILING_UNKNOWN)) throw 17;
    real_async_eval(std::move(outputs));
}

void *failing_new(std::size_t bytes) {
    if (fails(FAILING_NEW)) throw std::bad_alloc();
    return real_new(bytes);
}
