/* Formats and forced calls of a request, as a grammar that its answer follows. */
#ifndef KAKEYA_SERVE_OPENAI_GRAMMAR_H
#define KAKEYA_SERVE_OPENAI_GRAMMAR_H

#include "serve/answer.h"
#include "serve/body.h"

enum { GRAMMAR_MAX_NAMES = 512 };

/* What a request wants of its answer's form. Texts point into the request, or are owned. */
typedef struct answer_form {
    kakeya_grammar_kind kind;
    kakeya_grammar_calls calls;
    char *text;                           /* schema, list of choices: owned; freed by openai_compile_form */
    const char *source;                   /* a regular expression, or rules: instead of text */
    bool any_order;                       /* members of objects need not come in the order of the schema */
    const char *param;                    /* the field that says so, for errors */
    const char *names[GRAMMAR_MAX_NAMES]; /* tools that may be called; none: all */
    size_t n_names;
} answer_form;

/* response_format and its extensions: json_schema, guided_json, guided_regex, guided_choice, guided_grammar, grammar,
 * structured_outputs, strict_order. */
void openai_read_format(fields *f, answer_form *form);
/* tool_choice. tools: the declared ones; NULL: none. */
void openai_read_tool_choice(fields *f, const cJSON *tools, answer_form *form);
/* Whether the form asks for more than free text. */
bool openai_is_forced(const answer_form *form);
/* The grammar of the form goes into out->grammar, where one is needed. thinking: a thought may come first. Frees what
 * the form owns, also with out NULL. Declarations that cannot be followed word by word are named in c->ignored. */
void openai_compile_form(call *c, fields *f, answer_form *form, bool has_tools, bool thinking, answer_options *out);

#endif
