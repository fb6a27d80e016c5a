/* A forward as data: the list of operations that a model is, for a machine to execute (docs/design/program.md). An
 * operation carries all its operands: items (values of rows), slots (weights) and scalars. A machine receives an
 * address per item and a binding per slot, and knows nothing else of the model. A list is over all segments of a
 * forward; it has no pointers, so it can be printed, compared and kept. */
#ifndef KAKEYA_BACKEND_PROGRAM_PROGRAM_H
#define KAKEYA_BACKEND_PROGRAM_PROGRAM_H

#include <stdint.h>

#include "backend/program/op.h"
#include "backend/program/slots.h"
#include "model/shard.h"

/* What somebody wants to see of a forward: bits by tap_reason. */
#define PROGRAM_WANTS(reason) (UINT64_C(1) << (reason))

/* Rows that are computed alike. Machines whose prompt rows and decode rows share every operation make one list of both;
 * others make a list of each. */
typedef enum program_rows { ROWS_ALL = 0, ROWS_DECODE, ROWS_PROMPT } program_rows;

/* Layers as bits. */
typedef struct layer_set {
    uint64_t bits[MODEL_MAX_LAYERS / 64];
} layer_set;
static inline void layer_add(layer_set *set, int layer) { set->bits[layer / 64] |= UINT64_C(1) << layer % 64; }
static inline bool layer_in(const layer_set *set, int layer) { return set->bits[layer / 64] >> layer % 64 & 1; }

/* All that a list depends on beside the model. Compared whole. */
typedef struct program_shape {
    uint64_t wants;
    layer_set aux;      /* whose outputs are kept */
    layer_set rings;    /* whose prompt rows are stored late; read where the rows are one class */
    layer_set restores; /* that attend restored positions, which the machine does not restore while it attends */
    model_shard shard;
    int64_t rows; /* a program_rows */
} program_shape;

/* Room that a list needs. */
int program_most_ops(const model_config *config);
/* The verifier's forward. Returns the number of operations. */
int program_verifier(const model_config *config, const program_shape *shape, program_op *out);

/* One draft of an assistant for rows of one session each, all of whose drafts stand at one position. Tokens come with
 * their states, and leave with a choice and the next state. The embedding is the verifier's, other slots are of
 * assistant_weights (program_assistant_matrix); an ATTEND's source is a layer of the verifier, a HEADS' layer one of
 * the assistant. Returns the number of operations, at most program_most_assistant_ops. */
int program_most_assistant_ops(const assistant_config *config);
int program_assistant(const assistant_config *config, const model_config *verifier, program_op *out);

/* An exact pattern that one kernel does: operations that follow each other, compared by kind, epilogue and verbs. */
enum { FUSION_MAX_OPS = 4 };
typedef struct fusion_op {
    uint8_t kind, epilogue;
    const char *verbs; /* OP_ROWS: row_verb + 'a' each; NULL: any program */
} fusion_op;
typedef struct program_fusion {
    const char *kernel;
    int n;
    fusion_op pattern[FUSION_MAX_OPS];
} program_fusion;

/* How a machine runs lists: fusions are tried in order where an operation begins; what matches none goes to the kernel
 * of its kind. */
typedef struct program_machine {
    const char *kernel[OP_KINDS];
    const program_fusion *fusion;
    int fusions;
    int most_rows;     /* of a forward */
    program_rows rows; /* that its lists are of */
} program_machine;

typedef struct program_launch {
    int first, n;
    int fusion; /* -1: the kernel of the operation's kind */
} program_launch;

/* The launches of a list, at most n of them. Returns how many. */
int program_launches(const program_machine *machine, const program_op *ops, int n, program_launch *out);

const char *op_kind_name(op_kind kind);
const char *program_item_name(program_item item);
const char *row_verb_name(row_verb verb);

#endif
