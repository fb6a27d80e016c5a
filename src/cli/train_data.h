/* Text to train on, as sequences of token ids. */
#ifndef KAKEYA_CLI_TRAIN_DATA_H
#define KAKEYA_CLI_TRAIN_DATA_H

#include "cli/options.h"
#include "kakeya.h"

typedef struct train_data {
    const char *const *files; /* text; conversations (.jsonl, one in a line, OpenAI form); arrays of ids (.json) */
    size_t n_files;
    int sequence;    /* tokens of a sequence, at most */
    int least;       /* shorter ones are left out */
    uint64_t seed;   /* of the order of files, and of what is held out */
    int held_tokens; /* a held-out sequence has so many */
    int held_out;    /* so many sequences are held out, at most: about one of eight */
    int answer;      /* above 0: sequences are prompts, with room for so many tokens behind them. Conversations end with
                        their      last question and the model's turn opened; of long ones the last tokens are taken */
    const kakeya_tokenizer *tokenizer; /* NULL: ids alone */
    int vocab;
} train_data;

/* A sequence of n tokens, to be held out or not; a prompt whose answer is too short for that may clear *held_out.
 * Anything but KAKEYA_OK ends the walk; *done set ends it as if the data had ended. */
typedef kakeya_status (*train_sequence_fn)(void *user, const int32_t *tokens, int n, bool *held_out, bool *done,
                                           kakeya_error *error);

/* The files of --data, then operands, in an array that is malloc'ed, also on failure. Names the first one that cannot
 * be read: data are read while a trainer runs, some of them hours after its start. */
kakeya_status train_data_files(const cli_texts *data, char *const *operands, size_t n, const char ***files,
                               size_t *n_files, kakeya_error *error);

/* File after file, in an order that the seed decides; a file at a time is in memory. Failures name the file. */
kakeya_status train_data_walk(const train_data *data, train_sequence_fn visit, void *user, kakeya_error *error);

#endif
