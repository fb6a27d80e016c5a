/* Warpgroup matrix instructions of Hopper (sm_90a only) of every width that is a multiple of 8: d[64][8 C] (+)=
 * a[64][16] b[8 C][16]^T, both operands in shared memory, on the first 4 C of a thread's accumulators. Of e4m3 values k
 * is 32, and widths are up to 128. */
#ifndef KAKEYA_BACKEND_CUDA_PROMPT_WGMMA_WIDTHS_CUH
#define KAKEYA_BACKEND_CUDA_PROMPT_WGMMA_WIDTHS_CUH

#include "backend/cuda/prompt_wgmma.cuh"

#if PROMPT_WGMMA

namespace prompt {

/* The registers of C blocks of eight columns: their names in the instruction, and what they are bound to. */
#define PROMPT_D1  "%3,%4,%5,%6"
#define PROMPT_D2  PROMPT_D1 ",%7,%8,%9,%10"
#define PROMPT_D3  PROMPT_D2 ",%11,%12,%13,%14"
#define PROMPT_D4  PROMPT_D3 ",%15,%16,%17,%18"
#define PROMPT_D5  PROMPT_D4 ",%19,%20,%21,%22"
#define PROMPT_D6  PROMPT_D5 ",%23,%24,%25,%26"
#define PROMPT_D7  PROMPT_D6 ",%27,%28,%29,%30"
#define PROMPT_D8  PROMPT_D7 ",%31,%32,%33,%34"
#define PROMPT_D9  PROMPT_D8 ",%35,%36,%37,%38"
#define PROMPT_D10 PROMPT_D9 ",%39,%40,%41,%42"
#define PROMPT_D11 PROMPT_D10 ",%43,%44,%45,%46"
#define PROMPT_D12 PROMPT_D11 ",%47,%48,%49,%50"
#define PROMPT_D13 PROMPT_D12 ",%51,%52,%53,%54"
#define PROMPT_D14 PROMPT_D13 ",%55,%56,%57,%58"
#define PROMPT_D15 PROMPT_D14 ",%59,%60,%61,%62"
#define PROMPT_D16 PROMPT_D15 ",%63,%64,%65,%66"
#define PROMPT_D17 PROMPT_D16 ",%67,%68,%69,%70"
#define PROMPT_D18 PROMPT_D17 ",%71,%72,%73,%74"
#define PROMPT_D19 PROMPT_D18 ",%75,%76,%77,%78"
#define PROMPT_D20 PROMPT_D19 ",%79,%80,%81,%82"
#define PROMPT_D21 PROMPT_D20 ",%83,%84,%85,%86"
#define PROMPT_D22 PROMPT_D21 ",%87,%88,%89,%90"
#define PROMPT_D23 PROMPT_D22 ",%91,%92,%93,%94"
#define PROMPT_D24 PROMPT_D23 ",%95,%96,%97,%98"
#define PROMPT_D25 PROMPT_D24 ",%99,%100,%101,%102"
#define PROMPT_D26 PROMPT_D25 ",%103,%104,%105,%106"
#define PROMPT_D27 PROMPT_D26 ",%107,%108,%109,%110"
#define PROMPT_D28 PROMPT_D27 ",%111,%112,%113,%114"
#define PROMPT_D29 PROMPT_D28 ",%115,%116,%117,%118"
#define PROMPT_D30 PROMPT_D29 ",%119,%120,%121,%122"
#define PROMPT_D31 PROMPT_D30 ",%123,%124,%125,%126"
#define PROMPT_D32 PROMPT_D31 ",%127,%128,%129,%130"
#define PROMPT_R1  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define PROMPT_R2  PROMPT_R1, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define PROMPT_R3  PROMPT_R2, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define PROMPT_R4  PROMPT_R3, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define PROMPT_R5  PROMPT_R4, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define PROMPT_R6  PROMPT_R5, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define PROMPT_R7  PROMPT_R6, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define PROMPT_R8  PROMPT_R7, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define PROMPT_R9  PROMPT_R8, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define PROMPT_R10 PROMPT_R9, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define PROMPT_R11 PROMPT_R10, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define PROMPT_R12 PROMPT_R11, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define PROMPT_R13 PROMPT_R12, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define PROMPT_R14 PROMPT_R13, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define PROMPT_R15 PROMPT_R14, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define PROMPT_R16 PROMPT_R15, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define PROMPT_R17 PROMPT_R16, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define PROMPT_R18 PROMPT_R17, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define PROMPT_R19 PROMPT_R18, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define PROMPT_R20 PROMPT_R19, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define PROMPT_R21 PROMPT_R20, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define PROMPT_R22 PROMPT_R21, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define PROMPT_R23 PROMPT_R22, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define PROMPT_R24 PROMPT_R23, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define PROMPT_R25 PROMPT_R24, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define PROMPT_R26 PROMPT_R25, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define PROMPT_R27 PROMPT_R26, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define PROMPT_R28 PROMPT_R27, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define PROMPT_R29 PROMPT_R28, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define PROMPT_R30 PROMPT_R29, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define PROMPT_R31 PROMPT_R30, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define PROMPT_R32 PROMPT_R31, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

template <int BLOCKS> struct warpgroup_width;

#define PROMPT_WIDTH(BLOCKS, N)                                                                                        \
    template <> struct warpgroup_width<BLOCKS> {                                                                       \
        static __device__ __forceinline__ void multiply(float (&d)[128], uint64_t a, uint64_t b, int accumulate) {     \
            asm volatile("{.reg .pred p;\n"                                                                            \
                         "setp.ne.b32 p, %2, 0;\n"                                                                     \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" PROMPT_D##BLOCKS                 \
                         "}, %0, %1, p, 1, 1, 0, 0;}\n"                                                                \
                         : "+l"(a), "+l"(b), "+r"(accumulate), PROMPT_R##BLOCKS);                                      \
        }                                                                                                              \
    }

PROMPT_WIDTH(2, 16);
PROMPT_WIDTH(4, 32);
PROMPT_WIDTH(6, 48);
PROMPT_WIDTH(8, 64);
PROMPT_WIDTH(10, 80);
PROMPT_WIDTH(12, 96);
PROMPT_WIDTH(14, 112);
PROMPT_WIDTH(16, 128);
PROMPT_WIDTH(17, 136);
PROMPT_WIDTH(18, 144);
PROMPT_WIDTH(19, 152);
PROMPT_WIDTH(20, 160);
PROMPT_WIDTH(21, 168);
PROMPT_WIDTH(22, 176);
PROMPT_WIDTH(23, 184);
PROMPT_WIDTH(24, 192);
PROMPT_WIDTH(25, 200);
PROMPT_WIDTH(26, 208);
PROMPT_WIDTH(27, 216);
PROMPT_WIDTH(28, 224);
PROMPT_WIDTH(29, 232);
PROMPT_WIDTH(30, 240);
PROMPT_WIDTH(31, 248);
PROMPT_WIDTH(32, 256);

#undef PROMPT_WIDTH

template <int BLOCKS> struct warpgroup_f8_width;

#define PROMPT_F8_WIDTH(BLOCKS, N)                                                                                     \
    template <> struct warpgroup_f8_width<BLOCKS> {                                                                    \
        static __device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {      \
            asm volatile("{.reg .pred p;\n"                                                                            \
                         "setp.ne.b32 p, %2, 0;\n"                                                                     \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" PROMPT_D##BLOCKS                 \
                         "}, %0, %1, p, 1, 1;}\n"                                                                      \
                         : "+l"(a), "+l"(b), "+r"(accumulate), PROMPT_R##BLOCKS);                                      \
        }                                                                                                              \
    }

PROMPT_F8_WIDTH(1, 8);
PROMPT_F8_WIDTH(2, 16);
PROMPT_F8_WIDTH(3, 24);
PROMPT_F8_WIDTH(4, 32);
PROMPT_F8_WIDTH(5, 40);
PROMPT_F8_WIDTH(6, 48);
PROMPT_F8_WIDTH(7, 56);
PROMPT_F8_WIDTH(8, 64);
PROMPT_F8_WIDTH(9, 72);
PROMPT_F8_WIDTH(10, 80);
PROMPT_F8_WIDTH(11, 88);
PROMPT_F8_WIDTH(12, 96);
PROMPT_F8_WIDTH(13, 104);
PROMPT_F8_WIDTH(14, 112);
PROMPT_F8_WIDTH(15, 120);
PROMPT_F8_WIDTH(16, 128);

#undef PROMPT_F8_WIDTH

#undef PROMPT_D1
#undef PROMPT_D2
#undef PROMPT_D3
#undef PROMPT_D4
#undef PROMPT_D5
#undef PROMPT_D6
#undef PROMPT_D7
#undef PROMPT_D8
#undef PROMPT_D9
#undef PROMPT_D10
#undef PROMPT_D11
#undef PROMPT_D12
#undef PROMPT_D13
#undef PROMPT_D14
#undef PROMPT_D15
#undef PROMPT_D16
#undef PROMPT_D17
#undef PROMPT_D18
#undef PROMPT_D19
#undef PROMPT_D20
#undef PROMPT_D21
#undef PROMPT_D22
#undef PROMPT_D23
#undef PROMPT_D24
#undef PROMPT_D25
#undef PROMPT_D26
#undef PROMPT_D27
#undef PROMPT_D28
#undef PROMPT_D29
#undef PROMPT_D30
#undef PROMPT_D31
#undef PROMPT_D32
#undef PROMPT_R1
#undef PROMPT_R2
#undef PROMPT_R3
#undef PROMPT_R4
#undef PROMPT_R5
#undef PROMPT_R6
#undef PROMPT_R7
#undef PROMPT_R8
#undef PROMPT_R9
#undef PROMPT_R10
#undef PROMPT_R11
#undef PROMPT_R12
#undef PROMPT_R13
#undef PROMPT_R14
#undef PROMPT_R15
#undef PROMPT_R16
#undef PROMPT_R17
#undef PROMPT_R18
#undef PROMPT_R19
#undef PROMPT_R20
#undef PROMPT_R21
#undef PROMPT_R22
#undef PROMPT_R23
#undef PROMPT_R24
#undef PROMPT_R25
#undef PROMPT_R26
#undef PROMPT_R27
#undef PROMPT_R28
#undef PROMPT_R29
#undef PROMPT_R30
#undef PROMPT_R31
#undef PROMPT_R32

} // namespace prompt

#endif
#endif
