#include "backend/program/program.h"

#include <stddef.h>

static bool verbs_match(const char *verbs, const program_op *o) {
    if (!verbs) return true;
    int i = 0;
    while (i < o->steps && verbs[i] == 'a' + o->step[i].verb) i++;
    return i == o->steps && !verbs[i];
}

static bool matches(const program_fusion *f, const program_op *ops, int n) {
    if (f->n > n) return false;
    for (int i = 0; i < f->n; i++) {
        const fusion_op *want = &f->pattern[i];
        if (want->kind != ops[i].kind || want->epilogue != ops[i].epilogue) return false;
        if (!verbs_match(want->verbs, &ops[i])) return false;
    }
    return true;
}

int program_launches(const program_machine *machine, const program_op *ops, int n, program_launch *out) {
    int launches = 0;
    for (int i = 0; i < n; i += out[launches++].n) {
        int f = 0;
        while (f < machine->fusions && !matches(&machine->fusion[f], ops + i, n - i)) f++;
        out[launches] =
            f < machine->fusions ? (program_launch){i, machine->fusion[f].n, f} : (program_launch){i, 1, -1};
    }
    return launches;
}

const char *op_kind_name(op_kind kind) {
    static const char *const names[OP_KINDS] = {
        [OP_EMBED] = "EMBED",     [OP_PRODUCTS] = "PRODUCTS", [OP_EXPERT_PRODUCTS] = "EXPERT_PRODUCTS",
        [OP_ROUTE] = "ROUTE",     [OP_HEADS] = "HEADS",       [OP_STORE] = "STORE",
        [OP_ATTEND] = "ATTEND",   [OP_ROWS] = "ROWS",         [OP_TAP] = "TAP",
        [OP_RESTORE] = "RESTORE", [OP_LOGITS] = "LOGITS",     [OP_CHOOSE] = "CHOOSE",
        [OP_AGREE] = "AGREE",     [OP_POOL] = "POOL",         [OP_CLUSTERS] = "CLUSTERS",
    };
    return names[kind];
}

const char *program_item_name(program_item item) {
    static const char *const names[PROGRAM_ITEMS] = {
        [DATA_NONE] = "",
        [DATA_TOKENS] = "tokens",
        [DATA_H] = "h",
        [DATA_X] = "x",
        [DATA_X_EXPERTS] = "x_experts",
        [DATA_X_ROUTER] = "x_router",
        [DATA_ROUTER] = "router",
        [DATA_ROUTE] = "route",
        [DATA_Q] = "q",
        [DATA_K] = "k",
        [DATA_V] = "v",
        [DATA_NEW_KV] = "new K/V",
        [DATA_KV] = "K/V",
        [DATA_LATENTS] = "latents",
        [DATA_RESTORED] = "restored K/V",
        [DATA_ATTENDED] = "attended",
        [DATA_BRANCH] = "branch",
        [DATA_ACT] = "act",
        [DATA_ACT_EXPERTS] = "act_experts",
        [DATA_EXPERTS_OUT] = "experts_out",
        [DATA_MIXED] = "mixed",
        [DATA_PLE] = "ple",
        [DATA_PLE_GATE] = "ple_gate",
        [DATA_NORMED] = "normed",
        [DATA_LOGITS] = "logits",
        [DATA_CHOICE] = "choice",
        [DATA_PATCHES] = "patches",
        [DATA_POOLED] = "pooled",
        [DATA_SOFT] = "soft rows",
        [DATA_OUTSIDE] = "outside",
        [DATA_PAIR] = "pair",
        [DATA_STATE] = "state",
        [DATA_CENTROIDS] = "centroids",
        [DATA_CLUSTERS] = "clusters",
    };
    return names[item];
}

const char *row_verb_name(row_verb verb) {
    static const char *const names[ROW_VERBS] = {
        [ROW_LOAD] = "load",   [ROW_LOOKUP] = "lookup", [ROW_MIX] = "mix",           [ROW_NORM] = "norm",
        [ROW_ADD] = "add",     [ROW_SCALE] = "scale",   [ROW_MULTIPLY] = "multiply", [ROW_GATED] = "gated",
        [ROW_SHIFT] = "shift", [ROW_CENTRE] = "centre",
    };
    return names[verb];
}
