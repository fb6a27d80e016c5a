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
    const size_t *tool_places; /* [n_tool_places]: how errors number the declared tools; NULL: as they come */
    size_t n_tool_places;
    const char *parameters; /* what errors call their parameters; NULL: "parameters" */
} answer_form;

/* response_format and its extensions: json_schema, guided_json, guided_regex, guided_choice, guided_grammar, grammar,
 * structured_outputs, strict_order. */
void openai_read_format(fields *f, answer_form *form);
/* A format, {"type": "text", "json_object" or "json_schema", "schema" ...}. param: the field; schema: where its schema
 * is to be, for errors. */
void openai_take_format(const cJSON *format, const char *param, const char *schema, answer_form *form,
                        api_error *error);
/* A schema as an object, or as the text of one. */
void openai_take_schema(const cJSON *schema, const char *param, answer_form *form, api_error *error);
/* tool_choice in the form of chat completions; NULL: there is none. tools: the declared ones; NULL: none. */
void openai_take_tool_choice(fields *f, const cJSON *choice, const cJSON *tools, answer_form *form);
/* The answer has to call a tool, whichever. False: *error, since there is none. */
bool openai_force_call(const cJSON *tools, answer_form *form, api_error *error);
/* That of this name. */
void openai_force_tool(const cJSON *tools, const char *name, answer_form *form, api_error *error);
/* Whether the form asks for more than free text. */
bool openai_is_forced(const answer_form *form);
/* The grammar of the form goes into out->grammar, where one is needed. thinking: a thought may come first. Frees what
 * the form owns, also with out NULL. Declarations that cannot be followed word by word are named in c->ignored. */
void openai_compile_form(call *c, answer_form *form, bool thinking, answer_options *out, api_error *error);

#endif
