/* Custom tools: their input is a text, perhaps one that follows a grammar. To the model they are functions of one text,
 * and so they are declared; their calls are told as what they are. */
#ifndef KAKEYA_SERVE_CUSTOM_TOOLS_H
#define KAKEYA_SERVE_CUSTOM_TOOLS_H

#include "serve/call.h"

/* Declares a custom tool ({"name", "description", "format"}) in `functions`, a list of tools of chat completions, under
 * the name that the model knows. Its grammar goes along for kakeya_grammar_open. param: its place, for errors. False:
 * *error. */
bool custom_tool_declare(cJSON *functions, const cJSON *custom, const char *called, const char *param,
                         api_error *error);
/* Whether a list that custom_tool_declare has added to says so of the tool that the model calls. */
bool custom_tool_is(const cJSON *functions, const char *called);

/* The text that is the input of a custom tool, out of the arguments of a call. NULL: out of memory. malloc'ed. */
char *custom_tool_input(const char *arguments, size_t bytes, size_t *input_bytes);

/* Chat completions: custom tools of the body, the choice of one and their calls in its messages become functions and
 * theirs, in its tree. False: *error. */
bool custom_tools_rewrite(cJSON *body, api_error *error);

#endif
