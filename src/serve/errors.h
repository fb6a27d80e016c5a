/* What goes wrong with a request, in the words of the APIs: a status, a type, a code, the field, and a line of text. */
#ifndef KAKEYA_SERVE_ERRORS_H
#define KAKEYA_SERVE_ERRORS_H

#include <stdbool.h>

#include "kakeya.h"
#include "serve/text.h"

enum { API_OK = 0 };

typedef struct api_error {
    int status;                    /* API_OK: none */
    const char *code;              /* a literal; NULL: none */
    char param[160];               /* the field, "" for none */
    char message[640];             /* one line */
    int retry_after;               /* seconds; 0: no such header */
    bool final;                    /* the same request would fail again */
    size_t n_prompt_tokens, n_ctx; /* of a prompt that is too long; 0: it is something else */
} api_error;

/* The first failure stays. code: a literal or NULL; param: NULL for none. Returns false, so that checks read
 * `return api_fail(...)`. */
bool api_fail(api_error *error, int status, const char *code, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* What a status is called where nothing more is known; NULL: nothing. */
const char *api_code(int status);
/* 503, since later there may be memory. */
bool api_out_of_memory(api_error *error);
/* What the library refused: KAKEYA_INVALID_ARGUMENT and the like are the client's (400, `code`), the rest is ours. */
bool api_fail_library(api_error *error, const char *code, const char *param, const kakeya_error *why);

/* A prompt that is too long, in the words by which clients know it: they shorten it, or ask a larger model. at_least:
 * "" or "at least ", where not all of it was read. */
bool api_fail_context(api_error *error, const char *param, const char *at_least, size_t tokens, size_t context);

/* {"error":{...}} as OpenAI's clients read it. */
void api_error_openai(const api_error *error, text_buffer *out);
/* {"type":"error",...} as Anthropic's clients read it. */
void api_error_anthropic(const api_error *error, const char *request_id, text_buffer *out);
/* The Anthropic status of an error: 529 for 503. */
int api_error_anthropic_status(const api_error *error);

#endif
