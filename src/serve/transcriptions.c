/* POST /v1/audio/transcriptions: a form with a sound becomes a turn of a chat, in the words of Google's model card, and
 * its answer the transcript. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/platform.h"
#include "serve/media.h"
#include "serve/multipart.h"
#include "serve/openai_chat.h"
#include "serve/routes.h"
#include "serve/sounds.h"
#include "text/utf8.h"

enum { MOST_FIELDS = 32, MOST_TEXT = 8192 };

typedef struct transcription {
    call *call;
    bool stream, plain;    /* events; text alone */
    text_buffer text, out; /* so far; events that were not sent */
} transcription;

/* ---------------------------------------------------------------------------------------------------------- answers */

static void free_job(transcription *job) {
    text_free(&job->text);
    text_free(&job->out);
    free(job);
}

static void put_text(text_buffer *out, const text_buffer *text) {
    text_json(out, text->data ? text->data : "", text->n);
    out->failed |= text->failed;
}

static void put_usage(text_buffer *out, const answer_usage *u) {
    text_format(out,
                ",\"usage\":{\"type\":\"tokens\",\"input_tokens\":%zu,\"input_token_details\":{\"text_tokens\":%zu,"
                "\"audio_tokens\":%zu},\"output_tokens\":%zu,\"total_tokens\":%zu}",
                u->prompt_tokens, u->prompt_tokens - u->audio_tokens, u->audio_tokens, u->completion_tokens,
                u->prompt_tokens + u->completion_tokens);
}

static void end(transcription *job, const answer_event *e) {
    call *c = job->call;
    text_buffer body = {0};
    if (e->type == ANSWER_FAILED && !c->streaming) {
        const api_error error = *e->error;
        free_job(job);
        call_fail(c, &error);
        return;
    }
    if (c->streaming) {
        text_add(&job->out, "data: ");
        if (e->type == ANSWER_FAILED) {
            api_error_openai(e->error, &job->out);
        } else {
            text_add(&job->out, "{\"type\":\"transcript.text.done\",\"text\":");
            put_text(&job->out, &job->text);
            put_usage(&job->out, e->usage);
            text_add(&job->out, "}");
        }
        text_add(&job->out, "\n\ndata: [DONE]\n\n");
        call_stream_write(c, &job->out);
        free_job(job);
        call_stream_end(c);
        return;
    }
    if (job->plain) {
        text_bytes(&body, job->text.data ? job->text.data : "", job->text.n);
        text_add(&body, "\n");
    } else {
        text_add(&body, "{\"text\":");
        put_text(&body, &job->text);
        put_usage(&body, e->usage);
        text_add(&body, "}");
    }
    body.failed |= job->text.failed;
    const bool plain = job->plain;
    free_job(job);
    call_reply(c, 200, plain && !body.failed ? "text/plain; charset=utf-8" : "application/json", &body);
}

static void on_event(void *user, const answer_event *e) {
    transcription *job = user;
    switch (e->type) {
    case ANSWER_BEGIN:
        if (job->stream) call_stream_begin(job->call);
        break;
    case ANSWER_CONTENT:
        text_bytes(&job->text, e->text, e->text_bytes);
        if (!job->stream) break;
        text_add(&job->out, "data: {\"type\":\"transcript.text.delta\",\"delta\":");
        text_json(&job->out, e->text, e->text_bytes);
        text_add(&job->out, "}\n\n");
        break;
    case ANSWER_PING:
        text_add(&job->out, ": ping\n\n");
        break;
    case ANSWER_FLUSH:
        call_stream_write(job->call, &job->out);
        break;
    case ANSWER_DONE:
    case ANSWER_FAILED:
        end(job, e);
        break;
    default:
        break;
    }
}

/* --------------------------------------------------------------------------------------------------------- requests */

typedef struct form {
    const multipart_field *file;
    char *model, *language, *prompt, *response_format, *temperature, *stream; /* malloc'ed; NULL: not given */
} form;

static void form_free(form *f) {
    char **const texts[] = {&f->model, &f->language, &f->prompt, &f->response_format, &f->temperature, &f->stream};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) free(*texts[i]);
}

static bool read_text(const multipart_field *field, char **out, api_error *error) {
    if (field->bytes > MOST_TEXT || memchr(field->data, 0, field->bytes) ||
        utf8_valid_bytes(field->data, field->bytes) < field->bytes)
        return api_fail(error, 400, "invalid_value", field->name, "%s is not a text in UTF-8 of at most %d bytes",
                        field->name, MOST_TEXT);
    free(*out);
    *out = strndup(field->data, field->bytes);
    return *out || api_out_of_memory(error);
}

static bool is_one_of(const char *name, const char *const *list) {
    while (*list && strcmp(*list, name) != 0) list++;
    return *list != NULL;
}

static bool read_form(call *c, const multipart_field *given, size_t n, form *f, api_error *error) {
    static const char *const refused[] = {
        "timestamp_granularities[]",  "timestamp_granularities", "include[]", "include",
        "known_speaker_references[]", "known_speaker_names[]",   NULL};
    static const char *const names[] = {"model", "language", "prompt", "response_format", "temperature", "stream"};
    char **const texts[] = {&f->model, &f->language, &f->prompt, &f->response_format, &f->temperature, &f->stream};
    for (size_t i = 0; i < n; i++) {
        const char *name = given[i].name;
        size_t k = 0;
        while (k < sizeof names / sizeof *names && strcmp(names[k], name) != 0) k++;
        if (strcmp(name, "file") == 0) {
            f->file = &given[i];
        } else if (k < sizeof names / sizeof *names) {
            if (!read_text(&given[i], texts[k], error)) return false;
        } else if (is_one_of(name, refused) || c->server->settings->strict) {
            return api_fail(error, 400, "unsupported_parameter", name, "%s is not supported here", name);
        } else {
            ignored_add(&c->ignored, "%s", name);
        }
    }
    return true;
}

static bool check_format(const form *f, transcription *job, api_error *error) {
    const char *format = f->response_format ? f->response_format : "json", *stream = f->stream ? f->stream : "false";
    job->plain = strcmp(format, "text") == 0;
    job->stream = strcmp(stream, "true") == 0 || strcmp(stream, "True") == 0 || strcmp(stream, "1") == 0;
    if (job->plain || strcmp(format, "json") == 0) return true;
    return api_fail(error, 400, "unsupported_value", "response_format",
                    "response_format: %.32s is not json or text; the model tells no times", format);
}

/* ISO 639-1; what the model was told in training is the name. Others are given by their names. */
static const char *language_name(const char *code) {
    static const char *const known[][2] = {
        {"af", "Afrikaans"},  {"ar", "Arabic"},     {"az", "Azerbaijani"}, {"be", "Belarusian"}, {"bg", "Bulgarian"},
        {"bn", "Bengali"},    {"bs", "Bosnian"},    {"ca", "Catalan"},     {"cs", "Czech"},      {"cy", "Welsh"},
        {"da", "Danish"},     {"de", "German"},     {"el", "Greek"},       {"en", "English"},    {"es", "Spanish"},
        {"et", "Estonian"},   {"fa", "Persian"},    {"fi", "Finnish"},     {"fr", "French"},     {"gl", "Galician"},
        {"gu", "Gujarati"},   {"he", "Hebrew"},     {"hi", "Hindi"},       {"hr", "Croatian"},   {"hu", "Hungarian"},
        {"hy", "Armenian"},   {"id", "Indonesian"}, {"is", "Icelandic"},   {"it", "Italian"},    {"ja", "Japanese"},
        {"kk", "Kazakh"},     {"kn", "Kannada"},    {"ko", "Korean"},      {"lt", "Lithuanian"}, {"lv", "Latvian"},
        {"mi", "Maori"},      {"mk", "Macedonian"}, {"ml", "Malayalam"},   {"mr", "Marathi"},    {"ms", "Malay"},
        {"ne", "Nepali"},     {"nl", "Dutch"},      {"no", "Norwegian"},   {"pa", "Punjabi"},    {"pl", "Polish"},
        {"pt", "Portuguese"}, {"ro", "Romanian"},   {"ru", "Russian"},     {"sk", "Slovak"},     {"sl", "Slovenian"},
        {"sr", "Serbian"},    {"sv", "Swedish"},    {"sw", "Swahili"},     {"ta", "Tamil"},      {"te", "Telugu"},
        {"th", "Thai"},       {"tl", "Tagalog"},    {"tr", "Turkish"},     {"uk", "Ukrainian"},  {"ur", "Urdu"},
        {"vi", "Vietnamese"}, {"zh", "Chinese"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i][0], code) == 0) return known[i][1];
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz ";
    const size_t n = strlen(code);
    return n > 3 && n <= 32 && strspn(code, letters) == n ? code : NULL;
}

/* The words of Google's model card. */
static bool put_question(const form *f, text_buffer *out, api_error *error) {
    if (f->language && *f->language) {
        const char *name = language_name(f->language);
        if (!name)
            return api_fail(error, 400, "invalid_value", "language",
                            "language: %.32s is neither a known code of ISO 639-1 nor the name of a language",
                            f->language);
        text_format(out, "Transcribe the following speech segment in %s into %s text.", name, name);
    } else {
        text_add(out, "Transcribe the following speech segment in its original language.");
    }
    text_add(out, "\n\nFollow these specific instructions for formatting the answer:\n"
                  "* Only output the transcription, with no newlines.\n"
                  "* When transcribing numbers, write the digits, i.e. write 1.7 and not one point seven, and write 3 "
                  "instead of three.");
    if (f->prompt && *f->prompt) text_format(out, "\n\nWhat the segment follows, or is about: %s", f->prompt);
    return !out->failed || api_out_of_memory(error);
}

/* The call's conversation is this turn. */
static bool make_turn(call *c, const kakeya_media *sound, const char *question, api_error *error) {
    chat_conversation *said = &c->conversation;
    kakeya_chat_message *turn = chat_add(said, "user");
    if (!media_put(c, turn, sound, error)) return false;
    (void)chat_add_part(said, turn, (kakeya_chat_part){.text = chat_keep(said, question, strlen(question))});
    return !said->failed || api_out_of_memory(error);
}

static bool read_temperature(const form *f, kakeya_sampling *out, api_error *error) {
    char *end;
    *out = (kakeya_sampling){.top_p = 1, .repetition_penalty = 1};
    if (!f->temperature) return true;
    const double value = strtod(f->temperature, &end);
    if (end == f->temperature || *end || !(value >= 0 && value <= 2))
        return api_fail(error, 400, "invalid_value", "temperature", "temperature: %.32s is not a number from 0 to 2",
                        f->temperature);
    out->temperature = (float)value;
    while (!platform_random(&out->seed, sizeof out->seed)) {
    }
    return true;
}

static bool read_request(call *c, transcription *job, form *f, answer_options *options, api_error *error) {
    multipart_field given[MOST_FIELDS];
    size_t bytes, n;
    const char *body = http_body(c->exchange, &bytes);
    const char *type = http_head_find(http_request(c->exchange), "content-type");
    if (!multipart_read(type, body, bytes, given, MOST_FIELDS, &n, error) || !read_form(c, given, n, f, error))
        return false;
    if (!f->model) return api_fail(error, 400, "missing_required_parameter", "model", "model is missing");
    if (!server_model(c->server, f->model))
        return api_fail(error, 404, "model_not_found", "model", "there is no model %.64s here", f->model);
    if (!f->file) return api_fail(error, 400, "missing_required_parameter", "file", "file is missing");
    if (!sounds_are_read(c->server)) return sounds_refuse(c, "nothing is transcribed here", "file", error);
    if (!check_format(f, job, error) || !read_temperature(f, &options->sampling, error)) return false;
    kakeya_media sound;
    text_buffer question = {0};
    const bool read = put_question(f, &question, error) &&
                      sounds_read_file(c, f->file->data, f->file->bytes, "file", &sound, error) &&
                      make_turn(c, &sound, question.data, error);
    text_free(&question);
    if (!read) return false;
    const chat_shape shape = {.is_question = true};
    options->max_tokens = c->server->settings->max_tokens;
    options->hide_reasoning = true;
    options->without_calls = true;
    return openai_render_chat(c, &shape, options, error);
}

void transcriptions_call(call *c) {
    api_error error = {0};
    form f = {0};
    answer_options options;
    answer_options_init(&options);
    transcription *job = calloc(1, sizeof *job);
    if (!job) api_out_of_memory(&error);
    const bool read = job && read_request(c, job, &f, &options, &error);
    form_free(&f);
    if (!read) {
        answer_options_free(&options);
        free(job);
        call_fail(c, &error);
        return;
    }
    job->call = c;
    const answer_sink sink = {.event = on_event, .user = job, .streams = job->stream};
    answer_start(c, &options, &sink);
}
