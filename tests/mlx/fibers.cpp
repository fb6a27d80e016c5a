#include "mlx/fibers.hpp"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <ucontext.h>
#include <vector>

namespace {

enum { STACK_BYTES = 64 << 10 };

// Fibers are kept from threadgroup to threadgroup. Each is entered once; later changes are jumps, which ask no system.
struct fiber {
    ucontext_t context;
    jmp_buf at;
    std::unique_ptr<char[]> stack;
    int simdgroup, lane;
    bool entered, done;
    float *values; // that it has brought to a meeting
};

struct meeting {
    int arrived = 0;
    long times = 0;
};

struct threadgroup {
    std::vector<meeting> of_simdgroup;
    meeting of_all;
    const std::function<void(int, int)> *body;
    size_t threads;
};

std::vector<std::unique_ptr<fiber>> fibers_kept;
jmp_buf scheduler;
threadgroup *current;
fiber *running;

void pause() {
    if (!_setjmp(running->at)) _longjmp(scheduler, 1);
}

void enter() {
    for (;;) {
        (*current->body)(running->simdgroup, running->lane);
        running->done = true;
        pause();
    }
}

// Until the fiber pauses.
__attribute__((noinline)) void resume(fiber *f) {
    running = f;
    if (_setjmp(scheduler)) return;
    if (f->entered) _longjmp(f->at, 1);
    f->entered = true;
    setcontext(&f->context);
}

void prepare(fiber *f) {
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack.get();
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, enter, 0);
}

fiber *fiber_at(size_t i) {
    while (fibers_kept.size() <= i) {
        auto f = std::make_unique<fiber>();
        f->stack.reset(new char[STACK_BYTES]);
        f->simdgroup = static_cast<int>(fibers_kept.size()) / fibers::LANES;
        f->lane = static_cast<int>(fibers_kept.size()) % fibers::LANES;
        f->entered = false;
        prepare(f.get());
        fibers_kept.push_back(std::move(f));
    }
    return fibers_kept[i].get();
}

// True in the one that comes last, which works for all before they go on.
template <class F> void meet(meeting &m, int all, F last) {
    long before = m.times;
    if (++m.arrived == all) {
        last();
        m.arrived = 0;
        m.times++;
        return;
    }
    while (m.times == before) pause();
}

template <class F> void meet_lanes(float *values, F last) {
    size_t simdgroup = static_cast<size_t>(running->simdgroup);
    running->values = values;
    meet(current->of_simdgroup[simdgroup], fibers::LANES, [&] { last(&fibers_kept[simdgroup * fibers::LANES]); });
}

// combine(a, b) over lanes whose numbers differ in one bit after the other.
template <class F> void butterfly(std::unique_ptr<fiber> *lanes, int n, F combine) {
    for (int i = 0; i < n; i++) {
        float now[fibers::LANES], next[fibers::LANES];
        for (int l = 0; l < fibers::LANES; l++) now[l] = lanes[l]->values[i];
        for (int bit = fibers::LANES / 2; bit; bit /= 2) {
            for (int l = 0; l < fibers::LANES; l++) next[l] = combine(now[l], now[l ^ bit]);
            for (int l = 0; l < fibers::LANES; l++) now[l] = next[l];
        }
        for (int l = 0; l < fibers::LANES; l++) lanes[l]->values[i] = now[l];
    }
}

} // namespace

namespace fibers {

void run(int simdgroups, const std::function<void(int, int)> &body) {
    threadgroup group;
    group.threads = static_cast<size_t>(simdgroups) * LANES;
    group.of_simdgroup.resize(static_cast<size_t>(simdgroups));
    group.body = &body;
    current = &group;
    for (size_t i = 0; i < group.threads; i++) fiber_at(i)->done = false;
    long met_before = -1;
    for (size_t waiting = group.threads; waiting;) {
        size_t before = waiting;
        for (size_t i = 0; i < group.threads; i++) {
            fiber *f = fibers_kept[i].get();
            if (f->done) continue;
            resume(f);
            waiting -= f->done;
        }
        long met = group.of_all.times;
        for (const meeting &m : group.of_simdgroup) met += m.times;
        if (waiting == before && met == met_before) {
            std::fprintf(stderr, "threads wait at a meeting where not all arrive\n");
            std::abort();
        }
        met_before = met;
    }
    current = nullptr;
}

void sum(float *values, int n) {
    meet_lanes(values,
               [&](std::unique_ptr<fiber> *lanes) { butterfly(lanes, n, [](float a, float b) { return a + b; }); });
}

float largest(float value) {
    meet_lanes(&value, [](std::unique_ptr<fiber> *lanes) {
        butterfly(lanes, 1, [](float a, float b) { return a < b ? b : a; });
    });
    return value;
}

int least(int value) {
    float exact = static_cast<float>(value); // indices below 2^24
    meet_lanes(&exact, [](std::unique_ptr<fiber> *lanes) {
        butterfly(lanes, 1, [](float a, float b) { return b < a ? b : a; });
    });
    return static_cast<int>(exact);
}

void barrier() {
    meet(current->of_all, static_cast<int>(current->threads), [] {});
}

} // namespace fibers
