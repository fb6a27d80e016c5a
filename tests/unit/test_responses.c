/* The parts of the Responses API that need no model: items, sealed reasoning, stored responses. */
#include "serve/responses_items.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "chat_reading.h"
#include "serve/reasoning_seal.h"
#include "serve/response_store.h"

static cJSON *find_none(void *user, const char *id) {
    (void)user;
    (void)id;
    return NULL;
}

static cJSON *find_call(void *user, const char *id) {
    (void)user;
    return strcmp(id, "fc_1") == 0
               ? cJSON_Parse("{\"type\":\"function_call\",\"id\":\"fc_1\",\"call_id\":\"c\",\"name\":\"f\","
                             "\"arguments\":\"{}\"}")
               : NULL;
}

static char *unseal_none(void *user, const char *sealed) {
    (void)user;
    return strcmp(sealed, "sealed") == 0 ? strdup("hidden") : NULL;
}

static const item_source none = {.find = find_none, .unseal = unseal_none},
                         stored = {.find = find_call, .unseal = unseal_none};

/* JSON that is written with single quotes; the caller's. */
static char *quoted(const char *json) {
    char *out = strdup(json);
    for (char *c = out; *c; c++)
        if (*c == '\'') *c = '"';
    return out;
}

/* The messages of an input, as JSON text of the caller's; or NULL with *error. */
static char *messages_of(const char *input, const item_source *source, size_t n_earlier, text_buffer *ignored,
                         api_error *error) {
    char *proper = quoted(input);
    cJSON *json = cJSON_Parse(proper), *items = NULL;
    chat_conversation said = {0};
    free(proper);
    assert_non_null(json);
    char *text = NULL;
    if (items_read(json, source, &items, error) && items_to_messages(items, n_earlier, source, &said, ignored, error)) {
        cJSON *messages = chats_as_json(&said);
        text = cJSON_PrintUnformatted(messages);
        cJSON_Delete(messages);
    }
    cJSON_Delete(json);
    chat_conversation_free(&said);
    cJSON_Delete(items);
    return text;
}

/* named: what of the input no message holds. */
static void check_naming(const char *input, const char *expected, const char *named) {
    api_error error = {0};
    text_buffer ignored = {0};
    char *text = messages_of(input, &stored, 0, &ignored, &error);
    assert_string_equal(error.message, "");
    assert_non_null(text);
    char *json = quoted(expected);
    assert_string_equal(text, json);
    assert_int_equal(ignored.n, strlen(named));
    if (ignored.n) assert_memory_equal(ignored.data, named, ignored.n);
    text_free(&ignored);
    cJSON_free(text);
    free(json);
}

static void check(const char *input, const char *expected) { check_naming(input, expected, ""); }

static void test_messages(void **state) {
    (void)state;
    check("'hi'", "[{'role':'user','content':'hi'}]");
    check("[{'role':'developer','content':'d'},{'role':'user','content':[{'type':'input_text','text':'a'},"
          "{'type':'input_text','text':'b'}]}]",
          "[{'role':'system','content':'d'},{'role':'user','content':[{'type':'text','text':'a'},"
          "{'type':'text','text':'b'}]}]");
    /* neighbouring items of an assistant are one message, until an output or somebody else's message */
    check("[{'type':'reasoning','content':[{'type':'reasoning_text','text':'r'}],'summary':[]},"
          "{'role':'assistant','content':'t'},"
          "{'type':'function_call','call_id':'c','name':'f','arguments':{'a':1}},"
          "{'type':'function_call_output','call_id':'c','output':'o'},"
          "{'role':'assistant','content':[{'type':'refusal','refusal':'no'}]}]",
          "[{'role':'assistant','reasoning_content':'r','content':'t','tool_calls':[{'id':'c','type':'function',"
          "'function':{'name':'f','arguments':'{\\'a\\':1}'}}]},"
          "{'role':'tool','tool_call_id':'c','content':'o'},{'role':'assistant','content':'no'}]");
    check("[{'type':'item_reference','id':'fc_1'},{'type':'function_call_output','call_id':'c','output':'o'}]",
          "[{'role':'assistant','tool_calls':[{'id':'c','type':'function','function':{'name':'f','arguments':'{}'}}]},"
          "{'role':'tool','tool_call_id':'c','content':'o'}]");
}

/* Items by letters: c calls c, c1 is its output "1", u is a user's message. */
static void check_outputs(const char *letters, const char *expected) {
    text_buffer input = {0};
    text_add(&input, "[");
    for (const char *at = letters; *at; at++) {
        if (at > letters) text_add(&input, ",");
        if (*at == 'u') {
            text_add(&input, "{'role':'user','content':'u'}");
        } else if (at[1] < '0' || at[1] > '9') {
            text_format(&input, "{'type':'function_call','call_id':'%c','name':'f','arguments':'{}'}", at[0]);
        } else {
            text_format(&input, "{'type':'function_call_output','call_id':'%c','output':'%c'}", at[0], at[1]);
            at++;
        }
    }
    text_add(&input, "]");
    api_error error = {0};
    text_buffer ignored = {0}, found = {0};
    char *text = messages_of(input.data, &stored, 0, &ignored, &error);
    assert_non_null(text);
    cJSON *messages = cJSON_Parse(text);
    const cJSON *message, *called;
    cJSON_ArrayForEach(message, messages) {
        const char *id = cJSON_GetStringValue(cJSON_GetObjectItem(message, "tool_call_id"));
        const char *content = cJSON_GetStringValue(cJSON_GetObjectItem(message, "content"));
        cJSON_ArrayForEach(called, cJSON_GetObjectItem(message, "tool_calls")) {
            text_add(&found, cJSON_GetStringValue(cJSON_GetObjectItem(called, "id")));
        }
        text_format(&found, "%s%s ", id ? id : "", content ? content : "");
    }
    assert_string_equal(found.data, expected);
    cJSON_Delete(messages);
    cJSON_free(text);
    text_free(&found);
    text_free(&ignored);
    text_free(&input);
}

/* Outputs belong behind the message with their call, which is where the template looks for them. */
static void test_outputs_behind_their_calls(void **state) {
    (void)state;
    check_outputs("cuuc1", "c c1 u u ");
    check_outputs("abub1a2aua3", "ab b1 a2 u a a3 u "); /* in the order in which they came, also where ids come back */
    check_outputs("abb1ua2b3u", "ab b1 a2 b3 u u ");    /* late ones and repeated ones are not lost */
    check_outputs("aa1bub1", "a a1 b b1 u ");
}

static void test_reasoning_sources(void **state) {
    (void)state;
    static const char answer[] = "[{'role':'assistant','reasoning_content':'%s','content':'t'}]";
    static const struct {
        const char *reasoning, *expected;
    } cases[] = {
        {"'content':[{'text':'c'}],'encrypted_content':'sealed','summary':[{'text':'s'}]", "c"},
        {"'content':null,'encrypted_content':'sealed','summary':[{'text':'s'}]", "hidden"},
        {"'content':[],'encrypted_content':null,'summary':[{'text':'s'},{'text':'u'}]", "s\\nu"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char input[512], expected[512];
        snprintf(input, sizeof input, "[{'type':'reasoning',%s},{'role':'assistant','content':'t'}]",
                 cases[i].reasoning);
        snprintf(expected, sizeof expected, answer, cases[i].expected);
        check(input, expected);
    }
    check("[{'type':'reasoning','content':null,'summary':[]},{'role':'user','content':'t'}]",
          "[{'role':'user','content':'t'}]");
}

static void test_foreign_calls(void **state) {
    (void)state;
    check_naming("[{'type':'custom_tool_call','call_id':'c','name':'patch','input':'x'},"
                 "{'type':'custom_tool_call_output','call_id':'c','output':[{'type':'input_image'}]}]",
                 "[{'role':'assistant','tool_calls':[{'id':'c','type':'function','function':{'name':'patch',"
                 "'arguments':'{\\'input\\':\\'x\\'}'}}]},"
                 "{'role':'tool','tool_call_id':'c','content':'[image]'}]",
                 "input[1].output[0](input_image)");
    /* without an output a call would leave the turn open: it gets one */
    check("[{'type':'web_search_call','id':'w','status':'completed'}]",
          "[{'role':'assistant','tool_calls':[{'id':'w','type':'function','function':{'name':'web_search',"
          "'arguments':'{}'}}]},{'role':'tool','tool_call_id':'w','content':'completed'}]");
    check_naming("[{'type':'image_call','id':'i','output':[{'type':'image'}]}]",
                 "[{'role':'assistant','tool_calls':[{'id':'i','type':'function','function':{'name':'image',"
                 "'arguments':'{}'}}]},{'role':'tool','tool_call_id':'i','content':'[image]'}]",
                 "");
    /* and an output without a call gets a call */
    check("[{'type':'local_shell_call_output','call_id':'l','output':{'a':1}}]",
          "[{'role':'assistant','tool_calls':[{'id':'l','type':'function','function':{'name':'local_shell',"
          "'arguments':''}}]},{'role':'tool','tool_call_id':'l','content':'{\\'a\\':1}'}]");
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *input, *code, *param;
    } cases[] = {
        {"5", "invalid_type", "input"},
        {"[5]", "invalid_type", "input[0]"},
        {"[{}]", "invalid_type", "input[0].type"},
        {"[{'role':'tool','content':'x'}]", "invalid_value", "input[0].role"},
        {"[{'role':'user'}]", "invalid_type", "input[0].content"},
        {"[{'role':'user','content':[{'type':'input_audio'}]}]", "unsupported_content", "input[0].content[0]"},
        {"[{'role':'user','content':[{'type':'input_text'}]}]", "invalid_type", "input[0].content[0].text"},
        {"[{'type':'input_file'}]", "unsupported_content", "input[0]"},
        {"[{'type':'item_reference','id':'x'}]", "invalid_value", "input[0]"},
        {"[{'type':'function_call','name':'f'}]", "invalid_type", "input[0].call_id"},
        {"[{'type':'reasoning','content':5}]", "invalid_type", "input[0].content"},
        {"[{'type':'function_call_output','call_id':'c','output':'x'}]", "invalid_prompt", "input[0].call_id"},
        {"[{'type':'function_call_output','call_id':'c','output':5}]", "invalid_type", "input[0].output"},
        {"[{'type':'function_call_output','call_id':'c','output':'x'},"
         "{'type':'function_call','call_id':'c','name':'f','arguments':''}]",
         "invalid_prompt", "input[0].call_id"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        api_error error = {0};
        text_buffer ignored = {0};
        assert_null(messages_of(cases[i].input, &none, 0, &ignored, &error));
        assert_int_equal(error.status, 400);
        assert_string_equal(error.code, cases[i].code);
        assert_string_equal(error.param, cases[i].param);
        text_free(&ignored);
    }
    /* items of earlier requests count for calls, not for the place */
    api_error error = {0};
    text_buffer ignored = {0};
    assert_null(messages_of("['a']", &none, 0, &ignored, &error));
    error = (api_error){0};
    assert_null(messages_of("[{'role':'user','content':'x'},"
                            "{'type':'function_call_output','call_id':'c','output':'x'}]",
                            &none, 1, &ignored, &error));
    assert_string_equal(error.param, "input[0].call_id");
    text_free(&ignored);
}

static void test_ignored(void **state) {
    (void)state;
    api_error error = {0};
    text_buffer ignored = {0};
    char *text = messages_of("[{'type':'mcp_list_tools'},{'role':'user','content':'x'},{'type':'a,\\nb'},"
                             "{'type':'reasoning','encrypted_content':'of somebody else'}]",
                             &none, 1, &ignored, &error);
    char *expected = quoted("[{'role':'user','content':'x'}]");
    assert_string_equal(text, expected);
    free(expected);
    assert_string_equal(ignored.data, "input[1].a??b, input[2].encrypted_content");
    cJSON_free(text);
    text_free(&ignored);
}

/* ----------------------------------------------------------------------------------------------------------- seals */

static void test_seal(void **state) {
    (void)state;
    reasoning_seal seal, other;
    assert_true(reasoning_seal_init(&seal) && reasoning_seal_init(&other));
    for (size_t n = 0; n < 40; n++) {
        char text[41];
        for (size_t i = 0; i < n; i++) text[i] = (char)(200 + 7 * i + n) | 1;
        text[n] = '\0';
        text_buffer sealed = {0};
        reasoning_seal_close(&seal, text, n, &sealed);
        assert_false(sealed.failed);
        char *back = reasoning_seal_open(&seal, sealed.data);
        assert_non_null(back);
        assert_string_equal(back, text);
        free(back);
        assert_null(reasoning_seal_open(&other, sealed.data));
        for (size_t i = 0; i < sealed.n; i++) { /* whatever character is changed or missing */
            char kept = sealed.data[i];
            sealed.data[i] = kept == 'A' ? 'B' : 'A';
            back = reasoning_seal_open(&seal, sealed.data);
            /* the last one may hold bits that mean nothing */
            if (back && (i + 1 < sealed.n || strcmp(back, text) != 0)) fail_msg("character %zu of %zu", i, sealed.n);
            free(back);
            sealed.data[i] = '\0';
            assert_null(reasoning_seal_open(&seal, sealed.data));
            sealed.data[i] = kept;
        }
        text_free(&sealed);
    }
    assert_null(reasoning_seal_open(&seal, ""));
    assert_null(reasoning_seal_open(&seal, "kk1."));
    assert_null(reasoning_seal_open(&seal, "kk1.===="));
}

/* ----------------------------------------------------------------------------------------------------------- store */

static text_buffer text(const char *t) {
    text_buffer out = {0};
    text_add(&out, t);
    return out;
}

static void nothing(void *user) { (void)user; }

static response_entry *begin(response_store *s, const char *id, unsigned long long owner, bool listed) {
    response_texts texts = {.object = text("{\"status\":\"in_progress\"}"), .input = text("[{\"id\":\"in_1\"}]")};
    return response_store_begin(s, id, owner, listed, &texts, nothing, NULL);
}

static void put(response_store *s, const char *id, unsigned long long owner, const char *output) {
    text_buffer object = text("{}"), list = text(output);
    response_store_end(s, begin(s, id, owner, true), &object, &list);
}

static bool has(response_store *s, const char *id, unsigned long long owner) {
    response_texts texts;
    bool found = response_store_get(s, id, owner, &texts);
    response_texts_free(&texts);
    return found;
}

static void test_store(void **state) {
    (void)state;
    response_store *s = response_store_open(3, 1 << 20, 1e9);
    put(s, "a", 1, "[{\"id\":\"msg_a\",\"x\":1}]");
    assert_true(has(s, "a", 1));
    assert_false(has(s, "a", 2));
    assert_false(has(s, "b", 1));
    cJSON *item = response_store_item(s, 1, "msg_a");
    assert_int_equal(cJSON_GetObjectItem(item, "x")->valueint, 1);
    cJSON_Delete(item);
    item = response_store_item(s, 1, "in_1");
    assert_non_null(item);
    cJSON_Delete(item);
    assert_null(response_store_item(s, 2, "msg_a"));
    assert_null(response_store_item(s, 1, "msg_"));
    assert_null(response_store_item(s, 1, ""));
    put(s, "b", 1, "[]");
    put(s, "c", 1, "[]");
    put(s, "d", 1, "[]"); /* the oldest one goes */
    assert_true(has(s, "b", 1) && has(s, "c", 1) && has(s, "d", 1));
    assert_int_equal(response_store_size(s), 3);
    assert_false(has(s, "a", 1));
    assert_true(has(s, "b", 1) && has(s, "c", 1) && has(s, "d", 1));
    assert_int_equal(response_store_delete(s, "b", 2), RESPONSE_UNKNOWN);
    assert_int_equal(response_store_delete(s, "b", 1), RESPONSE_ENDED);
    assert_int_equal(response_store_delete(s, "b", 1), RESPONSE_UNKNOWN);
    assert_int_equal(response_store_size(s), 2);
    response_store_close(s);

    s = response_store_open(100, 4096, 1e9); /* by bytes */
    char *big = malloc(2001);
    memset(big, ' ', 2000);
    big[2000] = '\0';
    put(s, "a", 1, big);
    put(s, "b", 1, big);
    assert_int_equal(response_store_size(s), 1);
    assert_false(has(s, "a", 1));
    assert_true(has(s, "b", 1));
    response_store_close(s);
    free(big);
    s = response_store_open(100, 1 << 20, 0); /* by time */
    put(s, "a", 1, "[]");
    assert_int_equal(response_store_size(s), 0);
    assert_false(has(s, "a", 1));
    response_store_close(s);
}

static void test_running(void **state) {
    (void)state;
    response_store *s = response_store_open(3, 1 << 20, 1e9);
    response_entry *listed = begin(s, "a", 1, true), *unlisted = begin(s, "b", 1, false);
    response_texts texts;
    assert_true(response_store_get(s, "a", 1, &texts));
    assert_int_equal(texts.output.n, 0);
    response_texts_free(&texts);
    assert_false(has(s, "b", 1));
    assert_int_equal(response_store_delete(s, "a", 1), RESPONSE_RUNNING);
    assert_null(response_store_item(s, 1, "in_1"));
    text_buffer object = text("{}"), output = text("[]"), other = text("{}"), none_of_it = text("[]");
    response_store_end(s, listed, &object, &output);
    response_store_end(s, unlisted, &other, &none_of_it);
    assert_true(has(s, "a", 1));
    assert_false(has(s, "b", 1));
    text_buffer last = {0};
    assert_int_equal(response_store_cancel(s, "a", 1, &last), RESPONSE_ENDED);
    assert_int_equal(response_store_cancel(s, "b", 1, &last), RESPONSE_UNKNOWN);
    assert_int_equal(last.n, 0);
    response_store_close(s);
}

typedef struct runner {
    response_store *store;
    response_entry *entry;
    pthread_t thread;
} runner;

static void *end_it(void *user) {
    runner *r = user;
    text_buffer object = text("{\"status\":\"cancelled\"}"), output = text("[]");
    response_store_end(r->store, r->entry, &object, &output);
    return NULL;
}

/* As the real one does: it asks another thread to end. */
static void ask_to_end(void *user) {
    runner *r = user;
    assert_int_equal(pthread_create(&r->thread, NULL, end_it, r), 0);
}

static void test_cancel(void **state) {
    (void)state;
    for (int listed = 0; listed < 2; listed++) {
        runner r = {.store = response_store_open(3, 1 << 20, 1e9)};
        response_texts texts = {.object = text("{}"), .input = text("[]")};
        r.entry = response_store_begin(r.store, "a", 1, listed, &texts, ask_to_end, &r);
        text_buffer object = {0};
        assert_int_equal(response_store_cancel(r.store, "a", 2, &object), RESPONSE_UNKNOWN);
        assert_int_equal(response_store_cancel(r.store, "a", 1, &object), RESPONSE_RUNNING);
        assert_string_equal(object.data, "{\"status\":\"cancelled\"}");
        text_free(&object);
        pthread_join(r.thread, NULL);
        assert_int_equal(has(r.store, "a", 1), listed);
        response_store_close(r.store);
    }
}

/* While a reference's item is looked for in a stored response, the store answers others: somebody asks it in the middle
 * of the parsing. Where the store were locked meanwhile, its answer would never come. */
static struct {
    response_store *store;
    bool armed, answered;
} asked;

static void *ask_size(void *user) { return response_store_size(user) == 1 ? user : NULL; }

static void *asking_malloc(size_t bytes) {
    if (asked.armed) {
        struct timespec until;
        pthread_t thread;
        void *answer = NULL;
        asked.armed = false;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 60;
        assert_int_equal(pthread_create(&thread, NULL, ask_size, asked.store), 0);
        asked.answered = pthread_timedjoin_np(thread, &answer, &until) == 0 && answer;
    }
    return malloc(bytes);
}

static void test_items_without_the_lock(void **state) {
    (void)state;
    cJSON_Hooks hooks = {.malloc_fn = asking_malloc, .free_fn = free};
    asked.store = response_store_open(3, 1 << 20, 1e9);
    put(asked.store, "a", 1, "[{\"id\":\"msg_a\"}]");
    cJSON_InitHooks(&hooks);
    asked.armed = true;
    cJSON *item = response_store_item(asked.store, 1, "msg_a");
    cJSON_InitHooks(NULL);
    assert_non_null(item);
    assert_true(asked.answered);
    cJSON_Delete(item);
    response_store_close(asked.store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_outputs_behind_their_calls),
        cmocka_unit_test(test_reasoning_sources),
        cmocka_unit_test(test_foreign_calls),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_ignored),
        cmocka_unit_test(test_seal),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_running),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_items_without_the_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
