#include "mlx/fibers.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <ucontext.h>
#include <vector>

namespace {

enum { STACK_BYTES = 64 << 10 };

struct fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    int simdgroup, lane;
    bool done;
    float *values; // that it has brought to a meeting
};

struct meeting {
    int arrived = 0;
    long times = 0;
};

struct threadgroup {
    ucontext_t scheduler;
    std::vector<fiber> threads;
    std::vector<meeting> of_simdgroup;
    meeting of_all;
    const std::function<void(int, int)> *body;
    fiber *running;
    int simdgroups;
};

threadgroup *current;

void enter() {
    fiber *f = current->running;
    (*current->body)(f->simdgroup, f->lane);
    f->done = true;
    swapcontext(&f->context, &current->scheduler); // never comes back
}

void pause() {
    fiber *f = current->running;
    swapcontext(&f->context, &current->scheduler);
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
    fiber *f = current->running;
    f->values = values;
    fiber *lanes = &current->threads[static_cast<size_t>(f->simdgroup) * fibers::LANES];
    meet(current->of_simdgroup[static_cast<size_t>(f->simdgroup)], fibers::LANES, [&] { last(lanes); });
}

// combine(a, b) over lanes whose numbers differ in one bit after the other.
template <class F> void butterfly(fiber *lanes, int n, F combine) {
    for (int i = 0; i < n; i++) {
        float now[fibers::LANES], next[fibers::LANES];
        for (int l = 0; l < fibers::LANES; l++) now[l] = lanes[l].values[i];
        for (int bit = fibers::LANES / 2; bit; bit /= 2) {
            for (int l = 0; l < fibers::LANES; l++) next[l] = combine(now[l], now[l ^ bit]);
            for (int l = 0; l < fibers::LANES; l++) now[l] = next[l];
        }
        for (int l = 0; l < fibers::LANES; l++) lanes[l].values[i] = now[l];
    }
}

} // namespace

namespace fibers {

void run(int simdgroups, const std::function<void(int, int)> &body) {
    static std::vector<std::unique_ptr<char[]>> stacks; // kept from threadgroup to threadgroup
    threadgroup group;
    size_t threads = static_cast<size_t>(simdgroups) * LANES, waiting = threads;
    group.threads.resize(threads);
    group.of_simdgroup.resize(static_cast<size_t>(simdgroups));
    group.body = &body;
    group.simdgroups = simdgroups;
    current = &group;
    for (size_t i = 0; i < threads; i++) {
        fiber &f = group.threads[i];
        if (stacks.empty())
            f.stack.reset(new char[STACK_BYTES]);
        else {
            f.stack = std::move(stacks.back());
            stacks.pop_back();
        }
        f.simdgroup = static_cast<int>(i) / LANES;
        f.lane = static_cast<int>(i) % LANES;
        f.done = false;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.get();
        f.context.uc_stack.ss_size = STACK_BYTES;
        f.context.uc_link = nullptr;
        makecontext(&f.context, enter, 0);
    }
    while (waiting) {
        size_t before = waiting;
        long arrived = 0;
        for (fiber &f : group.threads) {
            if (f.done) continue;
            group.running = &f;
            swapcontext(&group.scheduler, &f.context);
            if (f.done) waiting--;
        }
        for (const meeting &m : group.of_simdgroup) arrived += m.times;
        static long last_arrived;
        if (waiting == before && arrived + group.of_all.times == last_arrived) {
            std::fprintf(stderr, "threads wait at a meeting where not all arrive\n");
            std::abort();
        }
        last_arrived = waiting ? arrived + group.of_all.times : -1;
    }
    for (fiber &f : group.threads) stacks.push_back(std::move(f.stack));
    current = nullptr;
}

void sum(float *values, int n) {
    meet_lanes(values, [&](fiber *lanes) { butterfly(lanes, n, [](float a, float b) { return a + b; }); });
}

float largest(float value) {
    meet_lanes(&value, [](fiber *lanes) { butterfly(lanes, 1, [](float a, float b) { return a < b ? b : a; }); });
    return value;
}

int least(int value) {
    float exact = static_cast<float>(value); // indices below 2^24
    meet_lanes(&exact, [](fiber *lanes) { butterfly(lanes, 1, [](float a, float b) { return b < a ? b : a; }); });
    return static_cast<int>(exact);
}

void barrier() {
    meet(current->of_all, static_cast<int>(current->threads.size()), [] {});
}

} // namespace fibers
