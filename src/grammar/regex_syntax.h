/* A regular expression as a tree. */
#ifndef KAKEYA_GRAMMAR_REGEX_SYNTAX_H
#define KAKEYA_GRAMMAR_REGEX_SYNTAX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum { REGEX_MAX_BYTES = 16384, REGEX_MAX_REPEAT = 100000 };

typedef struct character_range {
    uint32_t low, high;
} character_range;

typedef enum regex_kind {
    REGEX_EMPTY,
    REGEX_SET,    /* one character out of ranges */
    REGEX_IN_ROW, /* children */
    REGEX_ONE_OF, /* children */
    REGEX_REPEAT, /* one child, minimum to maximum times */
    REGEX_BEGIN,  /* ^ */
    REGEX_END,    /* $ */
    REGEX_LOOK,   /* one child, which the text behind (or before) the place must begin (or end) with, or must not */
} regex_kind;

#define REGEX_NONE UINT32_MAX /* no node; no maximum */

typedef struct regex_node {
    regex_kind kind;
    uint32_t child, sibling; /* REGEX_NONE: none */
    bool behind, negative;   /* REGEX_LOOK */
    uint32_t minimum, maximum;
    uint32_t first_range, n_ranges; /* ascending, neither touching nor overlapping */
} regex_node;

typedef struct regex_tree {
    regex_node *nodes;
    uint32_t n_nodes, node_capacity, root;
    character_range *ranges;
    uint32_t n_ranges, range_capacity;
    bool looks; /* there are REGEX_LOOK */
} regex_tree;

kakeya_status regex_parse(const char *text, size_t bytes, regex_tree *out, kakeya_error *error);
void regex_tree_free(regex_tree *tree);

#endif
