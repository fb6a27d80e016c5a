/* Tools of the Responses API: flat functions, namespaces of them, and custom tools that take a free text. The model
 * knows them all as functions; its calls are told under the names that the client gave. */
#ifndef KAKEYA_SERVE_RESPONSES_TOOLS_H
#define KAKEYA_SERVE_RESPONSES_TOOLS_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "serve/errors.h"
#include "serve/text.h"

/* One whose calls are no plain function calls. */
typedef struct response_tool {
    char *called; /* the name that the model knows */
    char *name;   /* the client's */
    char *space;  /* namespace; NULL: none */
    bool custom;  /* the input is a text, not an object */
} response_tool;

typedef struct response_tools {
    response_tool *list;
    size_t n;
} response_tools;

/* Declares `tools` in `functions`, a list of tools of chat completions. Those that only another server could run are
 * named in `ignored`; echo gets the JSON of the others, with commas between. False: *error. */
bool response_tools_read(const cJSON *tools, cJSON *functions, response_tools *out, text_buffer *echo,
                         text_buffer *ignored, api_error *error);
void response_tools_free(response_tools *tools);
/* NULL: a plain function, or none. */
const response_tool *response_tools_find(const response_tools *tools, const char *called);

/* A tool_choice that is an object as chat completions have it. NULL: it names no tool that is offered, or *error. */
cJSON *response_tools_choice(const cJSON *choice, api_error *error);

#endif
