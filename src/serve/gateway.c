/* What SGLang's gateway asks a server: GET /model_info, /server_info and /get_load. tokenizer_path is left out: the
 * gateway would look for it on the Hugging Face Hub, and works without a tokenizer of its own. */
#include "serve/answer.h"
#include "serve/lifecycle.h"
#include "serve/routes.h"

void model_info_call(call *c) {
    const server_context *s = c->server;
    text_buffer body = {0};
    text_add(&body, "{\"model_path\":");
    text_json_string(&body, s->settings->names[0]);
    text_format(&body, ",\"is_generation\":true,\"context_length\":%d}", s->context);
    call_reply_json(c, &body);
}

void server_info_call(call *c) {
    server_context *s = c->server;
    const size_t each = s->model.kv_of_one.each_token, room = lifecycle_kv_room(s->lifecycle);
    text_buffer body = {0};
    text_add(&body, "{\"model_id\":");
    text_json_string(&body, s->settings->names[0]);
    text_add(&body, ",\"model_path\":");
    text_json_string(&body, s->settings->names[0]);
    text_add(&body, ",\"served_model_name\":");
    text_json_string(&body, s->settings->names[0]);
    text_format(&body,
                ",\"version\":\"kakeya %s\",\"dp_size\":1,\"tp_size\":1,\"max_running_requests\":%zu,"
                "\"max_total_num_tokens\":%zu,\"context_length\":%d}",
                kakeya_version(), admission_room(s->admission), each ? room / each : 0, s->context);
    call_reply_json(c, &body);
}

void get_load_call(call *c) {
    size_t running, waiting;
    text_buffer body = {0};
    admission_counts(c->server->admission, &running, &waiting);
    text_format(&body, "[{\"dp_rank\":0,\"num_reqs\":%zu,\"num_waiting_reqs\":%zu,\"num_tokens\":%zu}]",
                running + waiting, waiting, answers_tokens(c->server));
    call_reply_json(c, &body);
}
