/* Warpgroup matrix instructions of Hopper (sm_90a only). */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_WGMMA_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_WGMMA_CUH

#include "backend/cuda/prompt_tensor.cuh"

#if PROMPT_WGMMA

namespace prompt {

/* Descriptor of 16 rows of panels that lie `panel_bytes` apart, for an operand whose k runs over rows: groups of eight
 * rows are 1024 bytes apart. Adding 128 moves on by 16 rows. */
__device__ __forceinline__ uint64_t transposed_descriptor(uint32_t address, int panel_bytes) {
    return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(panel_bytes >> 4) << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | 1ull << 62;
}

#define PROMPT_ACC4(d, i)  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define PROMPT_ACC16(d, i) PROMPT_ACC4(d, i), PROMPT_ACC4(d, (i) + 4), PROMPT_ACC4(d, (i) + 8), PROMPT_ACC4(d, (i) + 12)
#define PROMPT_ACC32(d, i) PROMPT_ACC16(d, i), PROMPT_ACC16(d, (i) + 16)

/* What ordinary and cp.async stores wrote to shared memory becomes visible to the tensor cores after a barrier. */
__device__ __forceinline__ void warpgroup_publish() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }
__device__ __forceinline__ void warpgroup_begin() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }

template <int PENDING> __device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}

/* Keeps the compiler from moving uses of accumulators over a wait, or before the products begin. */
template <int SIZE> __device__ __forceinline__ void warpgroup_hold(float (&d)[SIZE]) {
#pragma unroll
    for (int i = 0; i < SIZE; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* A warpgroup's registers a thread, out of what others left. */
template <int REGISTERS> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> __device__ __forceinline__ void leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* Descriptor of rows of one panel, k contiguous: groups of eight rows are 1024 bytes apart, 128-byte swizzle. Adding
 * 2 moves on by 16 columns. */
__device__ __forceinline__ uint64_t panel_descriptor(uint32_t address) {
    return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | 1ull << 16 | static_cast<uint64_t>(1024 >> 4) << 32 |
           1ull << 62;
}

/* d[64][N] (+)= a[64][16] b[N][16]^T, both operands in shared memory; d is overwritten when !accumulate. N is twice the
 * number of accumulators. */
__device__ __forceinline__ void warpgroup_multiply(float (&d)[16], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{.reg .pred p;\n"
                 "setp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
                 "}, %16, %17, p, 1, 1, 0, 0;}\n"
                 : PROMPT_ACC16(d, 0)
                 : "l"(a), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void warpgroup_multiply(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{.reg .pred p;\n"
                 "setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
                 "}, %32, %33, p, 1, 1, 0, 0;}\n"
                 : PROMPT_ACC32(d, 0)
                 : "l"(a), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void warpgroup_multiply(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{.reg .pred p;\n"
                 "setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, %64, %65, p, 1, 1, 0, 0;}\n"
                 : PROMPT_ACC32(d, 0), PROMPT_ACC32(d, 32)
                 : "l"(a), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void warpgroup_multiply(float (&d)[128], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{.reg .pred p;\n"
                 "setp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
                 "}, %128, %129, p, 1, 1, 0, 0;}\n"
                 : PROMPT_ACC32(d, 0), PROMPT_ACC32(d, 32), PROMPT_ACC32(d, 64), PROMPT_ACC32(d, 96)
                 : "l"(a), "l"(b), "r"(accumulate));
}

/* The same with a in registers. */
__device__ __forceinline__ void warpgroup_multiply(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    asm volatile("{.reg .pred p;\n"
                 "setp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;}\n"
                 : PROMPT_ACC32(d, 0), PROMPT_ACC32(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

/* d[64][N] (+)= a[64][16] b[16][N], b's rows in shared memory (transposed_descriptor), a there or in registers; d is
 * overwritten when !accumulate. */
__device__ __forceinline__ void warpgroup_multiply_transposed(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{.reg .pred p;\n"
                 "setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
                 "}, %64, %65, p, 1, 1, 0, 1;}\n"
                 : PROMPT_ACC32(d, 0), PROMPT_ACC32(d, 32)
                 : "l"(a), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void warpgroup_multiply_transposed(float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile("{.reg .pred p;\n"
                 "setp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
                 "}, %128, %129, p, 1, 1, 0, 1;}\n"
                 : PROMPT_ACC32(d, 0), PROMPT_ACC32(d, 32), PROMPT_ACC32(d, 64), PROMPT_ACC32(d, 96)
                 : "l"(a), "l"(b));
}

__device__ __forceinline__ void warpgroup_multiply_transposed(float (&d)[128], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("{.reg .pred p;\n"
                 "setp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
                 "}, {%128,%129,%130,%131}, %132, p, 1, 1, 1;}\n"
                 : PROMPT_ACC32(d, 0), PROMPT_ACC32(d, 32), PROMPT_ACC32(d, 64), PROMPT_ACC32(d, 96)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef PROMPT_ACC4
#undef PROMPT_ACC16
#undef PROMPT_ACC32

} // namespace prompt

#endif
#endif
