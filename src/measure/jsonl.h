/* Prompts from JSON lines, plain or gzip: one object a line with "prompt", or "turns" of which the first is taken, and
 * if it has them "task_id" or "question_id", and "category". */
#ifndef KAKEYA_MEASURE_JSONL_H
#define KAKEYA_MEASURE_JSONL_H

#include <stddef.h>

#include "base/error.h"

typedef struct jsonl_prompt {
    char name[64];     /* the task_id or question_id, or "line-N" */
    char category[32]; /* "": it has none */
    char *text;
} jsonl_prompt;

typedef struct jsonl_prompts {
    jsonl_prompt *prompt;
    size_t n;
} jsonl_prompts;

/* At most `limit` prompts (0: all). Errors name file and line. *out needs jsonl_prompts_free in every case. */
kakeya_status jsonl_read_prompts(const char *path, size_t limit, jsonl_prompts *out, kakeya_error *error);
void jsonl_prompts_free(jsonl_prompts *prompts);

#endif
