#include "serve/errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int status;
    const char *openai, *anthropic;
} types[] = {
    {400, "invalid_request_error", "invalid_request_error"}, {401, "authentication_error", "authentication_error"},
    {403, "permission_error", "permission_error"},           {404, "not_found_error", "not_found_error"},
    {405, "invalid_request_error", "invalid_request_error"}, {413, "invalid_request_error", "request_too_large"},
    {415, "invalid_request_error", "invalid_request_error"}, {429, "rate_limit_error", "rate_limit_error"},
    {503, "unavailable_error", "overloaded_error"},
};

static const char *type_of(int status, bool anthropic) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status) return anthropic ? types[i].anthropic : types[i].openai;
    return anthropic ? "api_error" : "server_error";
}

bool api_fail(api_error *error, int status, const char *code, const char *param, const char *format, ...) {
    if (error->status) return false;
    error->status = status;
    error->code = code;
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return false;
}

const char *api_code(int status) { return status == 413 ? "request_too_large" : status == 503 ? "overloaded" : NULL; }

bool api_out_of_memory(api_error *error) {
    return api_fail(error, 503, "out_of_memory", NULL, "the server is out of memory");
}

bool api_fail_library(api_error *error, const char *code, const char *param, const kakeya_error *why) {
    switch (why->status) {
    case KAKEYA_CONTEXT_FULL:
        return api_fail(error, 400, "context_length_exceeded", param, "%s", why->message);
    case KAKEYA_INVALID_ARGUMENT:
    case KAKEYA_FORMAT:
    case KAKEYA_UNSUPPORTED:
        return api_fail(error, 400, code, param, "%s", why->message);
    case KAKEYA_OUT_OF_MEMORY:
        return api_fail(error, 503, "out_of_memory", NULL, "%s", why->message);
    default: /* what it was stands in the log, under the request's id */
        error->final = true;
        return api_fail(error, 500, why->status == KAKEYA_BACKEND ? "backend" : "internal", NULL,
                        "the answer could not be computed");
    }
}

/* As llama.cpp's clients read them, to shorten a conversation. */
static void add_context(const api_error *error, text_buffer *out) {
    if (error->n_ctx) text_format(out, ",\"n_prompt_tokens\":%zu,\"n_ctx\":%zu", error->n_prompt_tokens, error->n_ctx);
}

bool api_fail_context(api_error *error, const char *param, const char *what, size_t tokens, size_t context) {
    if (error->status) return false;
    error->n_prompt_tokens = tokens;
    error->n_ctx = context;
    return api_fail(error, 400, "context_length_exceeded", param,
                    "the prompt has %s%zu tokens; this model's maximum context length is %zu tokens, and the answer "
                    "needs one of them",
                    what, tokens, context);
}

void api_error_openai(const api_error *error, text_buffer *out) {
    text_add(out, "{\"error\":{\"message\":");
    text_json_string(out, error->message);
    text_format(out, ",\"type\":\"%s\",\"param\":", type_of(error->status, false));
    text_json_string(out, error->param[0] ? error->param : NULL);
    text_add(out, ",\"code\":");
    text_json_string(out, error->code);
    add_context(error, out);
    text_add(out, "}}");
}

void api_error_anthropic(const api_error *error, const char *request_id, text_buffer *out) {
    text_format(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type_of(error->status, true));
    text_json_string(out, error->message);
    add_context(error, out);
    text_add(out, "},\"request_id\":");
    text_json_string(out, request_id);
    text_add(out, "}");
}

int api_error_anthropic_status(const api_error *error) { return error->status == 503 ? 529 : error->status; }
