#include "serve/openai_request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/nul.h"
#include "base/platform.h"
#include "kakeya_study.h"

enum { MAX_STOP_BYTES = 1024, MAX_BIASES = 1024 };

void openai_read_stops(const call *c, fields *f, const char *name, answer_options *out) {
    static const char expected[] = "a string, or a list of 1 to 16 strings of 1 to 1024 bytes";
    const cJSON *stop = fields_get(f, name);
    const bool has_tokenizer = kakeya_engine_tokenizer(c->server->engine) != NULL;
    if (!stop) return;
    const cJSON *item = cJSON_IsArray(stop) ? stop->child : stop;
    if (!cJSON_IsArray(stop) && !cJSON_IsString(stop)) {
        fields_wrong_type(f, name, stop, expected);
        return;
    }
    for (; item; item = cJSON_IsArray(stop) ? item->next : NULL) {
        size_t bytes = cJSON_IsString(item) ? strlen(item->valuestring) : 0;
        if (!cJSON_IsString(item)) {
            fields_wrong_type(f, name, stop, expected);
            return;
        }
        if (bytes == 0 || bytes > MAX_STOP_BYTES || out->n_stops == ANSWER_MAX_STOPS) {
            fields_wrong_value(f, name, stop, expected);
            return;
        }
        out->stops[out->n_stops++] = item->valuestring;
    }
    if (out->n_stops && !has_tokenizer)
        api_fail(f->error, 400, "unsupported_parameter", name, "%s: the model has no tokenizer to make text", name);
}

static void read_stop_tokens(call *c, fields *f, answer_options *out) {
    int vocab = kakeya_engine_vocab_size(c->server->engine);
    const cJSON *list = fields_array(f, "stop_token_ids"), *item;
    cJSON_ArrayForEach(item, list) {
        bool id = cJSON_IsNumber(item) && item->valuedouble == floor(item->valuedouble) && item->valuedouble >= 0 &&
                  item->valuedouble < vocab;
        if (!id || out->n_stop_tokens == ANSWER_MAX_STOP_TOKENS) {
            fields_wrong_value(f, "stop_token_ids", list, "a list of at most 64 token ids");
            return;
        }
        out->stop_tokens[out->n_stop_tokens++] = (int32_t)item->valuedouble;
    }
}

/* An id, as a number or in digits, or a text that is one token; -1: neither. */
static int32_t biased_token(const call *c, const cJSON *key, const char *text) {
    int vocab = kakeya_engine_vocab_size(c->server->engine);
    if (cJSON_IsNumber(key)) return json_is_integer(key, 0, vocab - 1) ? (int32_t)key->valuedouble : -1;
    size_t digits = text ? strlen(text) : 0;
    if (digits && strspn(text, "0123456789") == digits) {
        long id = digits < 10 ? atol(text) : -1;
        return id < vocab ? (int32_t)id : -1;
    }
    int32_t *ids = NULL, token = -1;
    size_t n = 0;
    if (digits && openai_tokenize(c, text, KAKEYA_TEXT_PARSE_SPECIAL, 2, &ids, &n, NULL) == KAKEYA_OK && n == 1)
        token = ids[0];
    kakeya_free(ids);
    return token;
}

/* {"15043": 1, " hello": false}, or the same as a list of pairs. false bans. */
static void read_biases(call *c, fields *f, answer_options *out) {
    static const char expected[] = "an object, or a list of pairs, of at most 1024 entries";
    const cJSON *object = fields_get(f, "logit_bias"), *item;
    int n = cJSON_GetArraySize(object);
    if (!object) return;
    if (!cJSON_IsObject(object) && !cJSON_IsArray(object)) {
        fields_wrong_type(f, "logit_bias", object, expected);
        return;
    }
    if (n == 0) return;
    if (n > MAX_BIASES) {
        fields_wrong_value(f, "logit_bias", object, expected);
        return;
    }
    out->bias = calloc((size_t)n + 1, sizeof *out->bias); /* one more for what tools want */
    if (!out->bias) {
        api_out_of_memory(f->error);
        return;
    }
    cJSON_ArrayForEach(item, object) {
        const bool pair = cJSON_IsArray(item) && cJSON_GetArraySize(item) == 2;
        const cJSON *key = pair ? item->child : NULL, *value = pair ? key->next : item;
        const char *text = pair ? cJSON_GetStringValue(key) : item->string;
        int32_t token = cJSON_IsObject(object) || pair ? biased_token(c, key, text) : -1;
        if (token < 0) {
            char shown[80];
            fields_show(pair ? key : item, shown);
            api_fail(f->error, 400, "invalid_value", "logit_bias",
                     "logit_bias: %.80s is neither a token id nor a text of one token", text ? text : shown);
            return;
        }
        if (!cJSON_IsFalse(value) &&
            (!cJSON_IsNumber(value) || !(value->valuedouble >= -100 && value->valuedouble <= 100))) {
            fields_wrong_value(f, "logit_bias", value, "a number from -100 to 100, or false");
            return;
        }
        float bias = cJSON_IsFalse(value) || value->valuedouble <= -100 ? -INFINITY : (float)value->valuedouble;
        out->bias[out->n_bias++] = (kakeya_logit_bias){.token = token, .bias = bias};
    }
}

static uint64_t random_seed(void) {
    uint64_t seed;
    while (!platform_random(&seed, sizeof seed)) {
    }
    return seed;
}

static const char *read_salt(fields *f) {
    const char *salt = fields_string(f, "cache_salt", NULL);
    if (salt && !*salt) fields_wrong_value(f, "cache_salt", fields_get(f, "cache_salt"), "a string that is not empty");
    return salt;
}

void openai_read_sampling(call *c, fields *f, answer_options *out) {
    const kakeya_sampling *defaults = &c->server->sampling;
    kakeya_sampling *s = &out->sampling;
    s->temperature = (float)fields_number(f, "temperature", 0, 2, (double)defaults->temperature);
    s->top_p = (float)fields_number(f, "top_p", 0, 1, (double)defaults->top_p);
    int64_t top_k = fields_count(f, "top_k", -1, 1 << 30, defaults->top_k);
    s->top_k = top_k > 0 ? (int)top_k : 0;
    s->min_p = (float)fields_number(f, "min_p", 0, 1, 0);
    double repetition = fields_number(f, "repeat_penalty", 1e-3, 1e3, 1);
    s->repetition_penalty = (float)fields_number(f, "repetition_penalty", 1e-3, 1e3, repetition);
    out->presence_penalty = (float)fields_number(f, "presence_penalty", -2, 2, 0);
    out->frequency_penalty = (float)fields_number(f, "frequency_penalty", -2, 2, 0);
    if (!fields_seed(f, "seed", &s->seed)) s->seed = random_seed();
    out->choices = (size_t)fields_integer(f, "n", 1, ANSWER_MAX_CHOICES, 1);
    openai_read_stops(c, f, "stop", out);
    read_stop_tokens(c, f, out);
    read_biases(c, f, out);
    out->ignore_stop_tokens = fields_bool(f, "ignore_eos", false);
    out->min_tokens = (size_t)fields_count(f, "min_tokens", 0, 1 << 24, 0);
    out->keep_stop = fields_bool(f, "include_stop_str_in_output", false);
    out->token_ids = fields_bool(f, "return_token_ids", false);
    out->fresh = !fields_bool(f, "cache_prompt", true);
    out->least_cached = fields_number(f, "cache_hit_threshold", 0, 1, 0);
    out->salt = read_salt(f);
}

int openai_read_max_tokens(fields *f, const char *const *names, int64_t least, int fallback) {
    int found = fallback;
    bool given = false;
    for (; *names; names++) {
        const cJSON *item = fields_get(f, *names);
        if (!item || (cJSON_IsNumber(item) && item->valuedouble == -1)) continue;
        int64_t tokens = fields_count(f, *names, least, 1 << 30, 0);
        if (!given) found = (int)tokens;
        given = true;
    }
    return found;
}

kakeya_status openai_tokenize(const call *c, const char *text, int how, size_t most, int32_t **ids, size_t *n_ids,
                              kakeya_error *why) {
    size_t bytes = strlen(text);
    char *meant = nul_is_spelled(text, bytes) ? malloc(bytes) : NULL;
    if (meant) bytes = nul_read(meant, text, bytes); /* without memory for it the tokenizer refuses the spelling */
    kakeya_status status = kakeya_tokenize_at_most(kakeya_engine_tokenizer(c->server->engine), meant ? meant : text,
                                                   bytes, how, most, ids, n_ids, why);
    free(meant);
    return status;
}

const char *openai_read_model(call *c, fields *f) {
    const char *name = fields_string(f, "model", NULL);
    if (!name) {
        api_fail(f->error, 400, "missing_required_parameter", "model", "model is missing");
        return NULL;
    }
    const char *served = server_model(c->server, name);
    if (!served) api_fail(f->error, 404, "model_not_found", "model", "there is no model %.64s here", name);
    return served;
}

/* ------------------------------------------------------------------------------------------------------------- answers
 */

void openai_usage(text_buffer *out, const answer_usage *u) {
    text_format(out,
                "\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
                "\"prompt_tokens_details\":{\"cached_tokens\":%zu",
                u->prompt_tokens, u->completion_tokens, u->prompt_tokens + u->completion_tokens, u->cached_tokens);
    if (u->image_tokens) text_format(out, ",\"image_tokens\":%zu", u->image_tokens);
    if (u->audio_tokens) text_format(out, ",\"audio_tokens\":%zu", u->audio_tokens);
    text_format(out,
                "},\"completion_tokens_details\":{\"reasoning_tokens\":%zu,\"accepted_prediction_tokens\":%llu,"
                "\"rejected_prediction_tokens\":%llu}}",
                u->reasoning_tokens, (unsigned long long)u->predicted_accepted,
                (unsigned long long)(u->predicted - u->predicted_accepted));
}

static double per_second(size_t tokens, double seconds) { return seconds > 0 ? (double)tokens / seconds : 0; }

void openai_timings(text_buffer *out, const answer_usage *u) {
    size_t computed = u->prompt_tokens - u->cached_tokens;
    text_format(out,
                "\"timings\":{\"cache_n\":%zu,\"prompt_n\":%zu,\"prompt_ms\":%.3f,\"prompt_per_second\":%.3f,"
                "\"predicted_n\":%zu,\"predicted_ms\":%.3f,\"predicted_per_second\":%.3f,\"draft_n\":%llu,"
                "\"draft_n_accepted\":%llu,\"verifier_forwards\":%llu,\"kv_bytes\":%zu}",
                u->cached_tokens, computed, u->prefill_seconds * 1000, per_second(computed, u->prefill_seconds),
                u->completion_tokens, u->decode_seconds * 1000, answer_speed(u), (unsigned long long)u->drafted,
                (unsigned long long)u->accepted, (unsigned long long)u->forwards, u->kv_bytes);
}

void openai_token_bytes(text_buffer *out, const kakeya_tokenizer *t, int32_t token) {
    const char *piece = kakeya_tokenizer_piece(t, token);
    if (!piece) return;
    unsigned byte;
    if (strlen(piece) == 6 && sscanf(piece, "<0x%2X>", &byte) == 1) {
        const char raw = (char)byte;
        text_bytes(out, &raw, 1);
        return;
    }
    static const char space[] = "\xE2\x96\x81";
    for (const char *next; (next = strstr(piece, space)) != NULL; piece = next + 3) {
        text_bytes(out, piece, (size_t)(next - piece));
        text_bytes(out, " ", 1);
    }
    text_add(out, piece);
}

void openai_token_name(text_buffer *out, const kakeya_tokenizer *t, int32_t token) {
    if (t) {
        openai_token_bytes(out, t, token);
    } else {
        text_format(out, "token_id:%d", token);
    }
}

static void one_logprob(text_buffer *out, const kakeya_tokenizer *t, int32_t token, double value) {
    text_buffer bytes = {0};
    openai_token_bytes(&bytes, t, token);
    text_add(out, "{\"token\":");
    text_json(out, bytes.data ? bytes.data : "", bytes.n);
    text_add(out, ",\"logprob\":");
    text_json_number(out, value);
    text_add(out, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.n; i++) text_format(out, "%s%u", i ? "," : "", (unsigned char)bytes.data[i]);
    text_add(out, "]");
    out->failed |= bytes.failed;
    text_free(&bytes);
}

void openai_chat_logprobs(text_buffer *out, const kakeya_tokenizer *t, const answer_logprob *entries, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (i) text_add(out, ",");
        one_logprob(out, t, entries[i].token, entries[i].value);
        text_add(out, ",\"top_logprobs\":[");
        for (size_t k = 0; k < entries[i].n_top; k++) {
            if (k) text_add(out, ",");
            one_logprob(out, t, entries[i].top[k].token, entries[i].top[k].log_probability);
            text_add(out, "}");
        }
        text_add(out, "]}");
    }
}

static void put_ids(text_buffer *out, const int32_t *ids, size_t n) {
    text_add(out, "{\"token_ids\":[");
    for (size_t i = 0; i < n; i++) {
        if (i) text_bytes(out, ",", 1);
        text_unsigned(out, (uint64_t)ids[i]);
    }
    text_add(out, "],\"features\":");
}

void openai_rendered(text_buffer *out, const int32_t *ids, size_t n) {
    put_ids(out, ids, n);
    text_add(out, "null}");
}

static void put_hashes(text_buffer *out, const answer_options *o, bool sounds) {
    const char *before = "";
    for (size_t i = 0; i < o->n_media; i++) {
        kakeya_image_fit fit;
        kakeya_sound_facts facts;
        if ((o->media[i].sound != NULL) != sounds) continue;
        KAKEYA_INIT(&fit);
        if (sounds)
            facts = kakeya_sound_describe(o->media[i].sound);
        else
            (void)kakeya_image_fitted(o->media[i].image, &fit);
        text_format(out, "%s\"%s\"", before, sounds ? facts.digest : fit.digest);
        before = ",";
    }
}

static void put_places(text_buffer *out, const answer_options *o, bool sounds) {
    const char *before = "";
    for (size_t i = 0, end, n = 0; i < o->n_ids; i = end) {
        end = i + 1;
        if (o->keys[i] >= 0) continue;
        while (end < o->n_ids && o->keys[end] < 0) end++;
        if ((o->media[n++].sound != NULL) != sounds) continue;
        text_format(out, "%s{\"offset\":%zu,\"length\":%zu}", before, i, end - i);
        before = ",";
    }
}

/* "image":[...],"audio":[...], those that there are. */
static void put_kinds(text_buffer *out, const answer_options *o,
                      void (*put)(text_buffer *out, const answer_options *o, bool sounds)) {
    size_t sounds = 0;
    for (size_t i = 0; i < o->n_media; i++) sounds += o->media[i].sound != NULL;
    for (int kind = 0; kind < 2; kind++) {
        if ((kind ? sounds : o->n_media - sounds) == 0) continue;
        text_add(out, kind ? sounds < o->n_media ? ",\"audio\":[" : "\"audio\":[" : "\"image\":[");
        put(out, o, kind == 1);
        text_add(out, "]");
    }
}

void openai_rendered_prompt(text_buffer *out, const answer_options *o) {
    if (!o->n_media) {
        openai_rendered(out, o->ids, o->n_ids);
        return;
    }
    put_ids(out, o->ids, o->n_ids);
    text_add(out, "{\"mm_hashes\":{");
    put_kinds(out, o, put_hashes);
    text_add(out, "},\"mm_placeholders\":{");
    put_kinds(out, o, put_places);
    text_add(out, "}}}");
}

void openai_fingerprint(const server_context *s, char out[96]) {
    const char *backend = kakeya_engine_backend(s->engine), *name = s->settings->names[0];
    uint64_t hash = hash_fnv1a(HASH_FNV1A_START, backend, strcspn(backend, ","));
    hash = hash_fnv1a(hash, name, strlen(name));
    const kakeya_session_options *o = &s->settings->session;
    const int policy[] = {(int)o->attention,        (int)o->restore_layers, kakeya_options_sink(o),
                          kakeya_options_window(o), (int)o->kv_format,      (int)kakeya_engine_precision(s->engine)};
    hash = hash_fnv1a(hash, policy, sizeof policy);
    snprintf(out, 96, "kakeya-%s-%08llx-%s", kakeya_version(), (unsigned long long)(hash & 0xffffffff),
             kakeya_attention_name(o->attention));
}

void openai_accept_routers_fields(fields *f) {
    static const field_value added[] = {
        {"no_stop_trim", false},
        {"return_hidden_states", false},
        {"skip_special_tokens", true},
        {"separate_reasoning", true},
        {"stream_reasoning", true},
        {"spaces_between_special_tokens", true},
        {NULL, 0},
    };
    static const char *const any[] = {"priority", NULL};
    fields_accept_values(f, added);
    fields_accept(f, any);
}

void openai_check_metadata(fields *f) {
    const cJSON *metadata = fields_object(f, "metadata");
    if (cJSON_GetArraySize(metadata) > 16) fields_wrong_value(f, "metadata", metadata, "an object of at most 16 pairs");
}
