/* Coroutines of one block. A context is made once and then only jumped to: _setjmp and _longjmp ask the system nothing.
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include "backend/cuda/common.cuh"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace {

enum { MOST = 1024, STACK = 32768, WARP = 32 };

struct coroutine {
    ucontext_t context;
    jmp_buf at;
    bool begun, done;   /* has a stack; has ended in this block */
    unsigned exchanges; /* of its warp that it took part in */
    uint64_t bits[2];   /* what the lane gives: in even exchanges and in odd ones */
};

/* Threads that wait for each other. Those that have ended hold nobody up. */
struct meeting {
    unsigned members, arrived, passed;
};

coroutine thread_of[MOST];
char (*stacks)[STACK];
jmp_buf back;
const std::function<void()> *running;
unsigned current, threads;
meeting of_block, of_warp[MOST / WARP];

void switch_out() {
    if (!_setjmp(thread_of[current].at)) _longjmp(back, 1);
}

/* A thread of every block that there will be. */
void body() {
    for (;;) {
        (*running)();
        thread_of[current].done = true;
        switch_out();
    }
}

void step(unsigned i) {
    current = i;
    threadIdx = {i, 0, 0};
    coroutine *c = &thread_of[i];
    if (_setjmp(back)) return;
    if (c->begun) _longjmp(c->at, 1);
    c->begun = true;
    getcontext(&c->context);
    c->context.uc_stack.ss_sp = stacks[i];
    c->context.uc_stack.ss_size = STACK;
    c->context.uc_link = NULL;
    makecontext(&c->context, body, 0);
    setcontext(&c->context);
}

void pass_if_all(meeting *m) {
    if (!m->members || m->arrived < m->members) return;
    m->arrived = 0;
    m->passed++;
}

void meet(meeting *m) {
    unsigned before = m->passed;
    m->arrived++;
    pass_if_all(m);
    while (m->passed == before) switch_out();
}

void leave(meeting *m) {
    m->members--;
    pass_if_all(m);
}

} // namespace

void emulated_barrier(void) { meet(&of_block); }

uint64_t emulated_exchange(uint64_t bits, int lane_mask) {
    coroutine *me = &thread_of[current];
    unsigned n = me->exchanges++ % 2, other = current ^ (unsigned)lane_mask;
    me->bits[n] = bits;
    meet(&of_warp[current / WARP]);
    return thread_of[other].bits[n];
}

void emulated_run(dim3 grid, dim3 block, const std::function<void()> &kernel) {
    if (!stacks) stacks = (char(*)[STACK])malloc(MOST * sizeof *stacks);
    running = &kernel;
    gridDim = grid;
    blockDim = block;
    threads = block.x;
    if (!stacks || threads > MOST || !threads || !grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535) {
        fprintf(stderr, "emulated grid: %u x %u x %u blocks of %u threads\n", grid.x, grid.y, grid.z, threads);
        abort();
    }
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++) {
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++) {
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) {
                of_block = {threads, 0, 0};
                for (unsigned w = 0; w < MOST / WARP; w++) of_warp[w] = {0, 0, 0};
                for (unsigned i = 0; i < threads; i++) {
                    thread_of[i].done = false;
                    thread_of[i].exchanges = 0;
                    of_warp[i / WARP].members++;
                }
                for (unsigned left = threads; left;) {
                    for (unsigned i = 0; i < threads; i++) {
                        if (thread_of[i].done) continue;
                        step(i);
                        if (!thread_of[i].done) continue;
                        left--;
                        leave(&of_block);
                        leave(&of_warp[i / WARP]);
                    }
                }
            }
        }
    }
}
