#include "serve/routes.h"

enum { PUBLIC = ROUTE_PUBLIC | ROUTE_EARLY, WORK = ROUTE_WORKER | ROUTE_MODEL };

/* Each answers with /v1 in front and without. */
const route serve_routes[] = {
    {"/livez", CALL_GET, PUBLIC, liveness_call},
    {"/health", CALL_GET, PUBLIC, health_call},
    {"/healthz", CALL_GET, PUBLIC, health_call},
    {"/readyz", CALL_GET, PUBLIC, health_call},
    {"/v1/chat/completions", CALL_POST, WORK, chat_completions_call},
    {"/v1/completions", CALL_POST, WORK, completions_call},
    {"/v1/audio/transcriptions", CALL_POST, WORK | ROUTE_FORM, transcriptions_call},
    {"/v1/models", CALL_GET, 0, models_call},
    {"/v1/models/", CALL_GET, ROUTE_PREFIX, model_call},
    {"/tokenize", CALL_POST, WORK, tokenize_call},
    {"/tokenizer_info", CALL_GET, WORK, tokenizer_info_call},
    {"/detokenize", CALL_POST, WORK, detokenize_call},
    {"/apply-template", CALL_POST, WORK, apply_template_call},
    {"/props", CALL_GET, 0, props_call},
    {"/slots", CALL_GET, 0, slots_call},
    {"/model_info", CALL_GET, 0, model_info_call},
    {"/server_info", CALL_GET, 0, server_info_call},
    {"/get_load", CALL_GET, 0, get_load_call},
    {"/metrics", CALL_GET, PUBLIC, metrics_call},
    {"/v1/chat/completions/input_tokens", CALL_POST, WORK, chat_input_tokens_call},
    {"/v1/chat/completions/render", CALL_POST, WORK, chat_render_call},
    {"/v1/completions/render", CALL_POST, WORK, completions_render_call},
    {"/v1/responses", CALL_POST, WORK, responses_call},
    {"/v1/responses/input_tokens", CALL_POST, WORK, responses_input_tokens_call},
    {"/v1/responses/render", CALL_POST, WORK, responses_render_call},
    {"/v1/responses/", CALL_GET | CALL_POST | CALL_DELETE, ROUTE_WORKER | ROUTE_PREFIX, response_call},
    {"/v1/messages", CALL_POST, WORK, messages_call},
    {"/v1/messages/count_tokens", CALL_POST, WORK, messages_count_tokens_call},
    {"/v1/messages/render", CALL_POST, WORK, messages_render_call},
    {"/", CALL_GET, PUBLIC, page_call},
    {"/favicon.ico", CALL_GET, PUBLIC, favicon_call},
};
const size_t serve_n_routes = sizeof serve_routes / sizeof *serve_routes;

_Static_assert(sizeof serve_routes / sizeof *serve_routes < METRICS_ROUTES, "every route has its counters");
