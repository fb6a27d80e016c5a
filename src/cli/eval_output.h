/* What `kakeya eval` prints, and the files that it reads where none are named. */
#ifndef KAKEYA_CLI_EVAL_OUTPUT_H
#define KAKEYA_CLI_EVAL_OUTPUT_H

#include "measure/draft_study.h"
#include "measure/report.h"

/* The report's figures as aligned tables on stdout. */
void eval_print_tables(const eval_report *report);

/* What a report of mac-acceptance has found, and where it was written (NULL: nowhere). */
void eval_print_mac(const cJSON *report, const char *path);

/* Decodes the recordings under every policy and prints the speeds as tables, or as one JSON object. */
kakeya_status eval_print_draft_policies(const draft_traces *traces, bool json, kakeya_error *error);

/* The bundled source files that stand in where no files are given: paths, malloc'ed, freed with eval_corpus_free. Empty
 * when they are not beside the executable. */
typedef struct eval_corpus {
    char **paths;
    size_t n;
} eval_corpus;
void eval_corpus_find(eval_corpus *out);
void eval_corpus_free(eval_corpus *corpus);

#endif
