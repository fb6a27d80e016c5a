/* What `kakeya explain` prints: the list of operations of a step as a backend would run it, with what each must read
 * and do, and the time that the machine allows for that. No weights are read; nothing is printed here. */
#ifndef KAKEYA_MEASURE_EXPLAIN_H
#define KAKEYA_MEASURE_EXPLAIN_H

#include "backend/measure.h"
#include "session/description.h"

typedef struct explain_options {
    const char *model, *synthetic; /* one of them; a directory or GGUF file, or a shape */
    const char *backend, *isa;     /* as in kakeya_engine_options */
    int threads;
    kakeya_precision precision; /* AUTO: as an engine would choose */
    kakeya_session_options session;
    int decode_rows, position;                      /* a block of one session, behind so many tokens; 0 rows: none */
    int prompt_rows;                                /* of another session, from its first token on; 0: none */
    double read_bytes_per_second, flops_per_second; /* stated; 0: measured */
} explain_options;

typedef struct explain_row {
    const program_op *op;
    const char *kernel;
    int launch, rows;
    bool fused;
    double bytes, operations, bound_seconds;
} explain_row;

typedef struct explanation {
    const model_config *config;
    const char *backend;
    kakeya_precision precision;
    explain_row *row;
    int n, launches;
    int decode_rows, prompt_rows; /* of this forward: a prompt may be cut, as one takes most_rows */
    int most_rows;
    double read_bytes_per_second, flops_per_second;
    bool measured;
    explain_row total;
    /* what it is made of */
    mem_account account;
    language_model *model;
    program_op *ops;
} explanation;

/* KAKEYA_UNSUPPORTED for backends whose forward is no such list, and for restored attention, which lists do not tell.
 */
kakeya_status explain_make(const explain_options *options, explanation **out, kakeya_error *error);
void explain_free(explanation *e);

#endif
