/* What the server says about itself: health, properties, slots. */
#include "kakeya_study.h"
#include "serve/answer.h"
#include "serve/images.h"
#include "serve/lifecycle.h"
#include "serve/pressure.h"
#include "serve/routes.h"
#include "serve/sounds.h"

void liveness_call(call *c) {
    text_buffer body = {0};
    text_add(&body, "{\"status\":\"ok\"}");
    call_reply_json(c, &body);
}

/* A server whose model sleeps is well: the next request wakes it. */
void health_call(call *c) {
    server_context *s = c->server;
    text_buffer body = {0};
    static const char *const names[] = {[SERVER_LOADING] = "loading",
                                        [SERVER_READY] = "ok",
                                        [SERVER_SLEEPING] = "sleeping",
                                        [SERVER_WAKING] = "waking",
                                        [SERVER_DRAINING] = "draining"};
    int state = atomic_load(&s->state);
    bool loading = state == SERVER_LOADING, there = !loading && state != SERVER_DRAINING;
    const pressure taken = there ? pressure_now(s) : (pressure){PRESSURE_NONE, 0};
    bool refuses = taken.state == PRESSURE_REFUSES, well = there && !refuses;
    text_format(&body, "{\"status\":\"%s\"", refuses ? "overloaded" : names[state]);
    if (taken.state != PRESSURE_NONE)
        text_format(&body, ",\"memory\":\"%s\",\"memory_used_ratio\":%.3f", pressure_name(taken.state),
                    taken.used_ratio);
    if (there && lifecycle_weights(s->lifecycle).failing) text_add(&body, ",\"weights\":\"unreadable\"");
    if (!there || state == SERVER_WAKING)
        text_format(&body, ",\"progress\":%.3f", state == SERVER_DRAINING ? 1.0 : atomic_load(&s->progress) / 1000.0);
    if (well) {
        text_add(&body, ",\"model\":");
        text_json_string(&body, s->settings->names[0]);
        text_add(&body, ",\"backend\":");
        text_json_string(&body, s->model.backend);
        text_add(&body, "}");
        call_reply_json(c, &body);
        return;
    }
    text_format(&body, ",\"error\":{\"code\":503,\"message\":\"%s\",\"type\":\"unavailable_error\"}}",
                loading   ? "Loading model"
                : refuses ? "Answers that run have taken the memory"
                          : "Shutting down");
    c->retry_after = 2;
    call_reply(c, 503, "application/json", &body);
}

/* -----------------------------------------------------------------------------------------------------------
 * properties */

/* What pictures a request may bring; null: none. */
static void put_images(const server_context *s, text_buffer *out) {
    const images_limited most = images_limits(s->settings);
    if (!s->model.vision) {
        text_add(out, "null");
        return;
    }
    text_add(out, "{\"budgets\":[");
    for (size_t i = 0; kakeya_image_budget(i); i++) text_format(out, "%s%d", i ? "," : "", kakeya_image_budget(i));
    text_format(out,
                "],\"budget\":%d,\"max_bytes\":%zu,\"max_pixels\":%llu,\"max_side\":%d,\"max_count\":%d,"
                "\"weights_bytes\":%zu}",
                most.budget, most.bytes, (unsigned long long)most.pixels, IMAGE_MAX_SIDE, most.count,
                s->model.facts.vision_bytes);
}

/* The same of sounds. */
static void put_sounds(const server_context *s, text_buffer *out) {
    const sounds_limited most = sounds_limits(s->settings);
    if (!s->model.sound) {
        text_add(out, "null");
        return;
    }
    text_format(out,
                "{\"formats\":[\"wav\",\"mp3\",\"flac\"],\"max_bytes\":%zu,\"max_seconds\":%d,\"max_count\":%d,"
                "\"weights_bytes\":%zu}",
                most.bytes, most.seconds, most.count, s->model.facts.audio_bytes);
}

void props_call(call *c) {
    server_context *s = c->server;
    const serve_settings *settings = s->settings;
    const kakeya_session_options *o = &settings->session;
    const server_model_facts *model = &s->model;
    const int state = atomic_load(&s->state);
    text_buffer out = {0};
    size_t running, waiting;
    admission_counts(s->admission, &running, &waiting);
    text_format(&out, "{\"default_generation_settings\":{\"n_ctx\":%d,\"params\":{\"temperature\":", s->context);
    text_json_number(&out, (double)s->sampling.temperature);
    text_add(&out, ",\"top_p\":");
    text_json_number(&out, (double)s->sampling.top_p);
    text_format(&out, ",\"top_k\":%d,\"max_tokens\":%d}},\"total_slots\":%zu,\"model_path\":", s->sampling.top_k,
                settings->max_tokens ? settings->max_tokens : -1, admission_room(s->admission));
    text_json_string(&out, settings->names[0]);
    text_add(&out, ",\"chat_template\":");
    text_json_string(&out, model->chat_template ? model->chat_template : "");
    text_format(&out,
                ",\"modalities\":{\"vision\":%s,\"audio\":%s},\"build_info\":\"kakeya %s\","
                "\"is_sleeping\":%s,\"kakeya\":{\"backend\":",
                model->vision ? "true" : "false", model->sound ? "true" : "false", kakeya_version(),
                state == SERVER_SLEEPING || state == SERVER_WAKING ? "true" : "false");
    text_json_string(&out, model->backend);
    text_format(&out,
                ",\"attention\":\"%s\",\"sink\":%d,\"window\":%d,\"kv_bytes_per_token\":%zu,"
                "\"kv_bytes_per_session\":%zu,\"kv_bytes_of_a_full_context\":%zu,\"memory_limit\":%zu,"
                "\"thinking\":%s,\"images\":",
                kakeya_attention_name(o->attention), kakeya_options_sink(o), kakeya_options_window(o),
                model->kv_of_one.each_token, model->kv_of_one.total, model->kv_of_context.total,
                settings->engine.memory_limit_bytes, settings->thinking ? "true" : "false");
    put_images(s, &out);
    text_add(&out, ",\"sounds\":");
    put_sounds(s, &out);
    text_add(&out, "}}");
    call_reply_json(c, &out);
}

void slots_call(call *c) {
    if (call_query_asks(c, "fail_on_no_slot") && admission_is_full(c->server->admission)) {
        api_error error = {.retry_after = 1};
        api_fail(&error, 503, "no_slot", NULL, "no slot is free, and no more requests can wait");
        call_fail(c, &error);
        return;
    }
    text_buffer out = {0};
    answers_list(c->server, &out);
    call_reply_json(c, &out);
}
