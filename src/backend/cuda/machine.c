#include "backend/cuda/machine.h"

#include "backend/backend.h"

#define KERNELS(attention)                                                                                             \
    {                                                                                                                  \
        [OP_EMBED] = "embedding", [OP_PRODUCTS] = "products", [OP_EXPERT_PRODUCTS] = "experts", [OP_ROUTE] = "router", \
        [OP_HEADS] = "heads", [OP_STORE] = "rows into rings", [OP_RESTORE] = "latents", [OP_ATTEND] = (attention),     \
        [OP_ROWS] = "row program", [OP_TAP] = "copy", [OP_LOGITS] = "head", [OP_CHOOSE] = "head by int8 bounds",       \
        [OP_AGREE] = "exchange"                                                                                        \
    }

static const program_fusion fusions[CUDA_FUSIONS] = {
    [FUSE_NORMS_ROUTED] = {"norms, router",
                           3,
                           {{OP_ROWS, 0, "adaedddgf"}, {OP_PRODUCTS, 0, NULL}, {OP_ROUTE, 0, NULL}}},
    [FUSE_EMBED] = {"embedding", 2, {{OP_EMBED, 0, NULL}, {OP_ROWS, 0, "ad"}}},
    [FUSE_NORMS_MOE] = {"norms", 1, {{OP_ROWS, 0, "adaedddgf"}}},
    [FUSE_NORMS] = {"norms", 1, {{OP_ROWS, 0, "adaed"}}},
    [FUSE_ROUTER] = {"router", 2, {{OP_PRODUCTS, 0, NULL}, {OP_ROUTE, 0, NULL}}},
    [FUSE_GATE_UP] = {"dense and experts",
                      2,
                      {{OP_PRODUCTS, EPILOGUE_GATED, NULL}, {OP_EXPERT_PRODUCTS, EPILOGUE_GATED, NULL}}},
    [FUSE_DOWN] = {"dense and experts", 2, {{OP_PRODUCTS, 0, NULL}, {OP_EXPERT_PRODUCTS, 0, NULL}}},
    [FUSE_MIX_AGREE] = {"exchange", 2, {{OP_ROWS, 0, "cf"}, {OP_AGREE, 0, NULL}}},
    [FUSE_HEADS_STORE] = {"heads, store", 2, {{OP_HEADS, 0, NULL}, {OP_STORE, 0, NULL}}},
};

const program_machine *cuda_machine(bool prompt) {
    static const program_machine decode = {.kernel = KERNELS("flash decoding"),
                                           .fusion = fusions,
                                           .fusions = CUDA_FUSIONS,
                                           .most_rows = BACKEND_MAX_DECODE_ROWS,
                                           .rows = ROWS_DECODE};
    static const program_machine prompts = {.kernel = KERNELS("prompt attention"),
                                            .fusion = fusions + CUDA_PROMPT_FUSIONS,
                                            .fusions = CUDA_FUSIONS - CUDA_PROMPT_FUSIONS,
                                            .most_rows = CUDA_PROMPT_ROWS,
                                            .rows = ROWS_PROMPT};
    return prompt ? &prompts : &decode;
}
