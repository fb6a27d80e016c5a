/* What a user hands to a verb: texts and token ids from files, from standard input or from the command line. */
#ifndef KAKEYA_CLI_INPUT_H
#define KAKEYA_CLI_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { INPUT_MAX_BYTES = 1 << 30 };

/* How messages call a path: "standard input" for "-". */
const char *input_name(const char *path);

/* Reads a whole file, or standard input for "-". The text is as it is in the file, a NUL behind it, freed with free. */
kakeya_status input_read(const char *path, char **text, size_t *bytes, kakeya_error *error);
/* The same for text: refuses what is not UTF-8, naming the first wrong byte. */
kakeya_status input_read_text(const char *path, char **text, size_t *bytes, kakeya_error *error);
kakeya_status input_check_utf8(const char *what, const char *text, size_t bytes, kakeya_error *error);

/* A JSON array of integers. vocab_size > 0: every id must be below it. *ids freed with free. */
kakeya_status input_read_ids(const char *path, int vocab_size, int32_t **ids, size_t *n, kakeya_error *error);

#endif
