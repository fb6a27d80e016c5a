/* A model's chat template: where it lies, and what it says about the turn format. It is never executed. */
#ifndef KAKEYA_TEXT_CHAT_TEMPLATE_H
#define KAKEYA_TEXT_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* How turns are written: in Gemma 4's form, and there what opens the model's turn when thinking is off; or in Gemma
 * 3's, which has neither thoughts nor tools. */
typedef enum chat_style {
    CHAT_STYLE_PLAIN = 0,     /* nothing more: E2B, E4B and the demo model */
    CHAT_STYLE_EMPTY_THOUGHT, /* an empty thought block: 26B-A4B and 31B */
    CHAT_STYLE_GEMMA3,
} chat_style;

/* The control token that opens a turn. */
const char *chat_style_turn(chat_style style);

typedef struct chat_template_info {
    bool known;       /* a revision whose output chat_render is tested against */
    bool gemma_turns; /* at least it writes one of these forms; otherwise chat_render does not fit the model */
    chat_style style;
    char note[256]; /* what to report when it is not known; empty when it is */
} chat_template_info;

/* Looks at the text of a template. */
chat_template_info chat_template_check(const char *text, size_t bytes);

/* The template of a model's directory: the text of chat_template.jinja, else the key chat_template of
 * chat_template.json or tokenizer_config.json, which is a text or a list of named ones whose "default" counts. *out is
 * malloc'ed, and NULL where there is none. */
kakeya_status chat_template_read(const char *directory, char **out, size_t *bytes, kakeya_error *error);

#endif
