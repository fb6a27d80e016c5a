/* What a checkpoint's chat_template.jinja says about its turn format. */
#ifndef KAKEYA_TEXT_CHAT_TEMPLATE_H
#define KAKEYA_TEXT_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

/* What opens the model's turn when thinking is off. */
typedef enum chat_style {
    CHAT_STYLE_PLAIN = 0,     /* nothing more: E2B, E4B and the demo model */
    CHAT_STYLE_EMPTY_THOUGHT, /* an empty thought block: 26B-A4B and 31B */
} chat_style;

typedef struct chat_template_info {
    bool known;       /* a revision whose output chat_render is tested against */
    bool gemma_turns; /* at least it writes this turn format; otherwise chat_render does not fit the model */
    chat_style style;
    char note[256]; /* what to report when it is not known; empty when it is */
} chat_template_info;

/* Looks at the text of a chat_template.jinja. */
chat_template_info chat_template_check(const char *text, size_t bytes);

#endif
