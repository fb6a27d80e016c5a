/* Which tensor of a GGUF file is stored in which format: llama.cpp's choices, and what the user says instead. */
#ifndef KAKEYA_CONVERT_RECIPE_H
#define KAKEYA_CONVERT_RECIPE_H

#include <regex.h>

#include "convert/source.h"

typedef struct recipe {
    convert_target to;
    bool importances;
    int layers, layers_with_v;
    int values_seen;     /* matrices of values so far */
    int head, attention; /* a weight_format, or -1: as the target has it */
    struct recipe_keep {
        regex_t pattern;
        weight_format format;
        const char *text; /* as the user gave it */
        bool met;         /* by a tensor's name */
    } * keep;
    size_t n_keep;
} recipe;

/* KAKEYA_INVALID_ARGUMENT for what the options name that is no format or no expression. */
kakeya_status recipe_init(recipe *r, const convert_options *options, const source *from, kakeya_error *error);
void recipe_free(recipe *r);

/* The format of the next tensor; `name` is its name in the file. Asked once for each, in the order of the list. */
weight_format recipe_format(recipe *r, const source_tensor *t, const char *name);

/* After all tensors: KAKEYA_INVALID_ARGUMENT where an expression meant none of them. */
kakeya_status recipe_check_used(const recipe *r, kakeya_error *error);

/* The file's number in the key general.file_type. */
uint32_t recipe_file_type(convert_target to);

#endif
