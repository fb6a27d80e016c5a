#include "serve/responses_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "serve/images.h"
#include "serve/media.h"
#include "serve/openai_request.h"
#include "serve/reasoning_seal.h"
#include "serve/responses_items.h"

enum { MAX_ITEMS = 10000 };

/* What is known while a request is read. */
typedef struct reader {
    call *call;
    fields *f;
    responses_request *r;
    size_t n_earlier; /* of the items: those of the responses in front, oldest first */
    chat_shape shape;
    chat_wish wish;
    cJSON *tools, *choice; /* in the form of chat completions: those that are offered, which one is chosen */
} reader;

void responses_request_init(responses_request *r) {
    *r = (responses_request){0};
    answer_options_init(&r->options);
}

void responses_request_free(responses_request *r) {
    answer_options_free(&r->options);
    text_free(&r->input);
    text_free(&r->echo);
    response_tools_free(&r->tools);
    cJSON_Delete(r->items);
}

unsigned long long responses_owner(const call *c) { return auth_needs_key(c->server->auth) ? c->client : 0; }

/* JSON of a value as it came; "null" where there is none. */
static void add_json(text_buffer *out, const cJSON *item) {
    char *json = item ? json_text_print(item) : NULL;
    if (item && !json) out->failed = true;
    text_add(out, json ? json : "null");
    cJSON_free(json);
}

/* ------------------------------------------------------------------------------------------------- the conversation */

static cJSON *find_item(void *user, const char *id) {
    const reader *k = user;
    cJSON *item = response_store_item(k->call->server->responses, responses_owner(k->call), id);
    if (!item || call_hold(k->call, body_value_bytes(item), k->f->error)) return item;
    cJSON_Delete(item);
    return NULL;
}

static char *unseal(void *user, const char *sealed) {
    const reader *k = user;
    return reasoning_seal_open(&k->call->server->seal, sealed);
}

/* Appends what a JSON list holds. */
static bool append_list(cJSON *to, const text_buffer *list, api_error *error) {
    cJSON *items = json_text_read(list->data, list->n), *item;
    while (items && (item = cJSON_DetachItemFromArray(items, 0)) != NULL) {
        if (cJSON_AddItemToArray(to, item)) continue;
        cJSON_Delete(item);
        cJSON_Delete(items);
        return api_out_of_memory(error);
    }
    bool good = items || !list->data;
    cJSON_Delete(items);
    return good || api_out_of_memory(error);
}

/* The texts of a response and the trees that are made of them. */
static bool hold_texts(call *c, const response_texts *texts, api_error *error) {
    size_t bytes = texts->object.n;
    const text_buffer *lists[] = {&texts->input, &texts->output};
    for (size_t i = 0; i < 2; i++)
        if (lists[i]->n) bytes += lists[i]->n + body_tree_bytes(lists[i]->data, lists[i]->n);
    return call_hold(c, bytes, error);
}

/* The items of all responses in front of this one. */
static bool read_earlier(reader *k, const char *id, api_error *error) {
    enum { MOST_LINKS = RESPONSE_STORE_ENTRIES };
    response_texts *chain = calloc(MOST_LINKS, sizeof *chain);
    size_t n = 0;
    bool good = chain != NULL || api_out_of_memory(error);
    char next[RESPONSE_ID_BYTES];
    snprintf(next, sizeof next, "%s", id);
    if (good && strlen(id) >= sizeof next) next[0] = '?';
    while (good && next[0]) {
        good =
            n < MOST_LINKS && response_store_get(k->call->server->responses, next, responses_owner(k->call), &chain[n]);
        if (!good) break;
        good = chain[n].output.n > 0; /* it has ended */
        if (good) snprintf(next, sizeof next, "%s", chain[n].previous);
        good = good && hold_texts(k->call, &chain[n], error);
        n++;
    }
    if (!good)
        api_fail(error, 400, "previous_response_not_found", "previous_response_id",
                 "previous_response_id: there is no stored response %.64s", next[0] == '?' ? id : next);
    for (size_t i = n; i-- > 0;) {
        good = good && append_list(k->r->items, &chain[i].input, error) &&
               append_list(k->r->items, &chain[i].output, error);
        response_texts_free(&chain[i]);
    }
    free(chain);
    k->n_earlier = (size_t)cJSON_GetArraySize(k->r->items);
    return good;
}

static void read_conversation(reader *k) {
    fields *f = k->f;
    cJSON *input = (cJSON *)(uintptr_t)fields_get(f, "input");
    const bool empty = cJSON_IsArray(input) && !input->child; /* an empty list says what an empty text does */
    const char *previous = fields_string(f, "previous_response_id", NULL);
    const char *instructions = fields_string(f, "instructions", NULL);
    const item_source source = {
        .find = find_item, .unseal = unseal, .user = k, .pictures = images_are_read(k->call->server)};
    chat_conversation *said = &k->call->conversation;
    cJSON *own = NULL, *item;
    k->r->items = cJSON_CreateArray();
    if (!k->r->items) {
        api_out_of_memory(f->error);
        return;
    }
    if (!input && !previous) {
        api_fail(f->error, 400, "missing_required_parameter", "input", "input is missing");
        return;
    }
    if (previous && !read_earlier(k, previous, f->error)) return;
    if (input && !items_read(input, &source, &own, f->error)) return;
    if (own) {
        add_json(&k->r->input, own);
    } else {
        text_add(&k->r->input, "[]");
    }
    while (own && (item = cJSON_DetachItemFromArray(own, 0)) != NULL) cJSON_AddItemToArray(k->r->items, item);
    cJSON_Delete(own);
    if (cJSON_GetArraySize(k->r->items) > MAX_ITEMS) {
        api_fail(f->error, 400, "invalid_value", "input",
                 "input: with those of earlier responses there are %d items, but at most %d are allowed",
                 cJSON_GetArraySize(k->r->items), MAX_ITEMS);
        return;
    }
    if (previous) snprintf(k->r->previous, sizeof k->r->previous, "%s", previous);
    kakeya_chat_message *message = instructions ? chat_add(said, "system") : NULL;
    if (message) message->content = instructions;
    if (items_to_messages(k->r->items, k->n_earlier, &source, said, &k->call->ignored, f->error))
        media_take(k->call, f->error);
    if (f->error->status == 0 && empty && said->n == 0) {
        message = chat_add(said, "user");
        if (message) message->content = "";
    }
    if (said->failed) api_out_of_memory(f->error);
    if (said->n == 0)
        api_fail(f->error, 400, "invalid_value", "input", "input holds nothing that the model could answer");
}

/* ------------------------------------------------------------------------------------------------------------- tools
 */

static void read_tools(reader *k, text_buffer *echo) {
    const cJSON *tools = fields_array(k->f, "tools");
    k->tools = tools ? cJSON_CreateArray() : NULL;
    text_add(echo, ",\"tools\":[");
    if (tools && !k->tools) api_out_of_memory(k->f->error);
    if (k->tools) response_tools_read(tools, k->tools, &k->r->tools, echo, &k->call->ignored, k->f->error);
    text_add(echo, "]");
    k->wish.tools = openai_check_tools(k->tools, k->f->error);
}

static void read_tool_choice(reader *k, text_buffer *echo) {
    const cJSON *choice = fields_get(k->f, "tool_choice");
    const char *mode = cJSON_IsString(choice) ? choice->valuestring : NULL;
    bool free_choice = !choice || (mode && (strcmp(mode, "auto") == 0 || strcmp(mode, "none") == 0));
    text_add(echo, ",\"tool_choice\":");
    if (choice) {
        add_json(echo, choice);
    } else {
        text_add(echo, "\"auto\"");
    }
    if (choice && free_choice && !k->wish.tools)
        choice = NULL; /* agents choose "auto" whether or not they have tools */
    if (cJSON_IsObject(choice)) {
        k->choice = response_tools_choice(choice, k->f->error);
        if (!k->choice)
            fields_wrong_value(k->f, "tool_choice", choice,
                               "none, auto, required or one of the tools that are offered");
        choice = k->choice;
    }
    openai_take_tool_choice(k->f, choice, k->wish.tools, &k->wish.form);
}

/* ------------------------------------------------------------------------------------------------ form of the answer
 */

static void read_format(reader *k, text_buffer *echo) {
    const cJSON *text = fields_object(k->f, "text");
    fields inner;
    fields_begin(&inner, text, "text.", k->f->error);
    const cJSON *format = fields_object(&inner, "format");
    fields_string(&inner, "verbosity", NULL);
    fields_end(&inner, k->call->server->settings->strict, &k->call->ignored);
    text_add(echo, ",\"text\":{\"format\":");
    if (!format) {
        text_add(echo, "{\"type\":\"text\"}}");
        return;
    }
    add_json(echo, format);
    text_add(echo, "}");
    openai_take_format(format, "text.format", "text.format.schema", &k->wish.form, k->f->error);
}

static void read_reasoning(reader *k, text_buffer *echo) {
    fields inner;
    fields_begin(&inner, fields_object(k->f, "reasoning"), "reasoning.", k->f->error);
    const char *effort = fields_string(&inner, "effort", NULL), *summary = fields_string(&inner, "summary", NULL);
    const char *older = fields_string(&inner, "generate_summary", NULL);
    if (effort) k->wish.thinks = openai_effort(effort);
    if (effort && k->wish.thinks < 0)
        fields_wrong_value(&inner, "effort", fields_get(&inner, "effort"), openai_efforts);
    fields_end(&inner, k->call->server->settings->strict, &k->call->ignored);
    if (!summary) summary = older;
    k->r->summary = summary != NULL;
    text_add(echo, ",\"reasoning\":{\"effort\":");
    text_json_string(echo, effort);
    text_add(echo, ",\"summary\":");
    text_json_string(echo, summary);
    text_add(echo, "}");
}

static void read_include(reader *k) {
    const cJSON *include = fields_array(k->f, "include"), *item;
    size_t i = 0;
    cJSON_ArrayForEach(item, include) {
        if (!cJSON_IsString(item)) {
            fields_wrong_type(k->f, "include", include, "a list of strings");
        } else if (strcmp(item->valuestring, "reasoning.encrypted_content") == 0) {
            k->r->seal = true;
        } else if (strcmp(item->valuestring, "message.output_text.logprobs") == 0) {
            k->r->logprobs = true;
        } else {
            ignored_add(&k->call->ignored, "include[%zu](%.64s)", i, item->valuestring);
        }
        i++;
    }
}

static void read_metadata(reader *k, text_buffer *echo) {
    const cJSON *metadata = fields_object(k->f, "metadata"), *value;
    openai_check_metadata(k->f);
    cJSON_ArrayForEach(value, metadata) {
        if (!cJSON_IsString(value)) fields_wrong_type(k->f, "metadata", value, "an object of strings");
    }
    text_add(echo, ",\"metadata\":");
    if (metadata) {
        add_json(echo, metadata);
    } else {
        text_add(echo, "{}");
    }
}

/* ----------------------------------------------------------------------------------------------------------- fields */

static void read_limits(reader *k, text_buffer *echo) {
    static const char *const limits[] = {"max_output_tokens", NULL};
    fields *f = k->f;
    answer_options *o = &k->r->options;
    const cJSON *given = fields_get(f, "max_output_tokens"), *calls = fields_get(f, "max_tool_calls");
    o->max_tokens = openai_read_max_tokens(f, limits, 1, k->call->server->settings->max_tokens);
    int64_t most = fields_count(f, "max_tool_calls", 1, 1 << 20, 0);
    if (most > 0 && (size_t)most < o->max_calls) o->max_calls = (size_t)most;
    text_add(echo, ",\"max_output_tokens\":");
    add_json(echo, given);
    text_add(echo, ",\"max_tool_calls\":");
    add_json(echo, calls);
}

static void read_sampling(reader *k, text_buffer *echo) {
    answer_options *o = &k->r->options;
    openai_read_sampling(k->call, k->f, o);
    if (o->choices != 1)
        api_fail(k->f->error, 400, "unsupported_parameter", "n", "n is not supported here: a response is one answer");
    o->choices = 1;
    o->token_ids = false;
    o->top_logprobs = (int)fields_integer(k->f, "top_logprobs", 0, KAKEYA_MAX_TOP_LOG_PROBABILITIES, 0);
    if (o->top_logprobs > 0) k->r->logprobs = true;
    o->logprobs = k->r->logprobs;
    /* single precision: as many digits as it has */
    text_format(echo, ",\"temperature\":%.7g,\"top_p\":%.7g,\"top_logprobs\":%d", (double)o->sampling.temperature,
                (double)o->sampling.top_p, o->top_logprobs);
}

static bool read_truncation(reader *k, text_buffer *echo) {
    const char *truncation = fields_string(k->f, "truncation", "disabled");
    bool automatic = strcmp(truncation, "auto") == 0;
    if (!automatic && strcmp(truncation, "disabled") != 0)
        fields_wrong_value(k->f, "truncation", fields_get(k->f, "truncation"), "auto or disabled");
    text_format(echo, ",\"truncation\":\"%s\"", automatic ? "auto" : "disabled");
    return automatic;
}

static void read_rest(reader *k, text_buffer *echo) {
    static const char *const accepted[] = {"prompt_cache_key",
                                           "prompt_cache_retention",
                                           "client_metadata",
                                           "safety_identifier",
                                           "service_tier",
                                           "stream_options",
                                           NULL};
    static const char *const refused[] = {"conversation", "prompt", "context_management", "moderation", NULL};
    fields *f = k->f;
    openai_accept_routers_fields(f);
    if (fields_bool(f, "background", false))
        api_fail(f->error, 400, "unsupported_parameter", "background", "background is not supported here");
    fields_accept(f, accepted);
    fields_refuse(f, refused);
    const char *user = fields_string(f, "user", NULL);
    bool parallel = fields_bool(f, "parallel_tool_calls", true);
    k->wish.one_call = !parallel;
    const cJSON *instructions = fields_get(f, "instructions");
    k->r->stream = fields_bool(f, "stream", false);
    k->r->store = fields_bool(f, "store", true);
    text_format(echo,
                ",\"parallel_tool_calls\":%s,\"store\":%s,\"background\":false,\"user\":", parallel ? "true" : "false",
                k->r->store ? "true" : "false");
    text_json_string(echo, user);
    text_add(echo, ",\"instructions\":");
    add_json(echo, instructions);
    text_add(echo, ",\"previous_response_id\":");
    text_json_string(echo, k->r->previous[0] ? k->r->previous : NULL);
}

/* ---------------------------------------------------------------------------------------------------------- the prompt
 */

static bool render(reader *k, api_error *error) {
    kakeya_free(k->r->options.ids);
    k->r->options.ids = NULL;
    return openai_render_chat(k->call, &k->shape, &k->r->options, error);
}

/* The conversation without what comes from the first user's turn to where turn `n` begins. */
static void leave_out(const chat_conversation *all, size_t n, chat_conversation *out) {
    size_t turn = 0;
    bool leading = true;
    out->n = 0;
    for (size_t i = 0; i < all->n; i++) {
        const kakeya_chat_message *message = &all->messages[i];
        leading = leading && chat_is_role(message, "system");
        if (chat_is_role(message, "user")) turn++;
        /* what stands in front of the first user's message belongs to its turn */
        if (leading || (turn ? turn - 1 : 0) >= n) chat_add_copy(out, message);
    }
}

/* Leaves out as few of the oldest turns as it takes to leave room for the answer; the last turn stays. */
static bool truncate_turns(reader *k, api_error *error) {
    responses_request *r = k->r;
    size_t context = (size_t)k->call->server->context;
    size_t answer = r->options.max_tokens ? (size_t)r->options.max_tokens : context / 8;
    size_t room = context - (answer < context / 2 ? answer : context / 2);
    if (r->options.n_ids <= room) return true;
    chat_conversation *said = &k->call->conversation;
    chat_conversation all = {.messages = said->messages, .n = said->n};
    size_t turns = 0;
    for (size_t i = 0; i < all.n; i++) turns += chat_is_role(&all.messages[i], "user");
    if (turns < 2) return true;
    said->messages = NULL;
    said->n = said->room = 0;
    size_t low = 1, high = turns - 1; /* how many are left out */
    bool good = true;
    while (good && low <= high) {
        size_t middle = low == high ? low : (low + high) / 2;
        leave_out(&all, middle, said);
        good = render(k, error);
        if (low == high) break;
        if (r->options.n_ids <= room) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    free(all.messages);
    return good;
}

bool responses_request_read(call *c, bool counting, responses_request *r, api_error *error) {
    fields f;
    text_buffer *echo = &r->echo;
    if (!call_body(c, error)) return false;
    reader k = {.call = c, .f = &f, .r = r, .shape = {.param = "input"}};
    r->options.param = "input";
    chat_wish_init(&k.wish);
    fields_begin(&f, c->body, "", error);
    r->model = counting && !fields_get(&f, "model") ? c->server->settings->names[0] : openai_read_model(c, &f);
    text_add(echo, "\"model\":");
    text_json_string(echo, r->model);
    images_read_budget(c, &f);
    read_conversation(&k);
    read_include(&k);
    read_sampling(&k, echo);
    read_tools(&k, echo);
    read_tool_choice(&k, echo);
    read_format(&k, echo);
    read_reasoning(&k, echo);
    read_metadata(&k, echo);
    read_rest(&k, echo);
    bool automatic = read_truncation(&k, echo);
    k.shape.is_question = !counting && !automatic;
    openai_settle(c, &k.wish, &k.shape, &r->options, error);
    cJSON_Delete(k.tools);
    cJSON_Delete(k.choice);
    read_limits(&k, echo);
    fields_end(&f, c->server->settings->strict, &c->ignored);
    bool good = error->status == 0 && render(&k, error) && (!automatic || truncate_turns(&k, error));
    if (good && (echo->failed || r->input.failed)) good = api_out_of_memory(error);
    return good;
}
