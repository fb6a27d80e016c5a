/* The file: a line that names the form, a line with the size of the messages in bytes, the messages as JSON in OpenAI's
 * form, with pictures and sounds the bytes of their files one after the other, and the session as the library saves it.
 * A part of type "image" says how many bytes its file has and the budget, one of type "audio" how many bytes. The first
 * line of files without sounds is the one from before there were any, so that older programs read them. */
#include "cli/saved_chat.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "cli/input.h"

static const char form[] = "kakeya chat 1\n", form_with_pictures[] = "kakeya chat 2\n",
                  form_with_sounds[] = "kakeya chat 3\n";

enum { MAX_MESSAGES_BYTES = 1 << 28 };

/* ------------------------------------------------------------------------------------------------ messages */

void conversation_cut(conversation *c, size_t n) {
    while (c->n > n) free((void *)(uintptr_t)c->messages[--c->n].content);
    while (c->n_media && c->media[c->n_media - 1].message >= n) cli_medium_free(&c->media[--c->n_media].medium);
}

bool conversation_add_medium(conversation *c, const cli_medium *medium) {
    conversation_medium *larger = realloc(c->media, (c->n_media + 1) * sizeof *larger);
    if (!larger) return false;
    c->media = larger;
    c->media[c->n_media++] = (conversation_medium){.message = c->n, .medium = *medium};
    return true;
}

bool conversation_add(conversation *c, const char *role, const char *content) {
    if (c->n == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 16;
        kakeya_message *larger = realloc(c->messages, capacity * sizeof *larger);
        if (!larger) return false;
        c->messages = larger;
        c->capacity = capacity;
    }
    char *copy = strdup(content);
    if (!copy) return false;
    c->messages[c->n++] = (kakeya_message){.role = role, .content = copy};
    return true;
}

void conversation_free(conversation *c) {
    conversation_cut(c, 0);
    free(c->messages);
    free(c->media);
    *c = (conversation){0};
}

static bool add_part(cJSON *parts, cJSON *part) {
    if (part && cJSON_AddItemToArray(parts, part)) return true;
    cJSON_Delete(part);
    return false;
}

/* The text of message i behind its pictures and sounds, of which *next is the next. */
static bool add_parts(cJSON *message, const conversation *c, size_t i, size_t *next) {
    cJSON *parts = cJSON_AddArrayToObject(message, "content");
    for (; *next < c->n_media && c->media[*next].message == i; ++*next) {
        const cli_medium *medium = &c->media[*next].medium;
        cJSON *part = cJSON_CreateObject();
        if (!add_part(parts, part)) return false;
        if (!cJSON_AddStringToObject(part, "type", medium->is_sound ? "audio" : "image") ||
            !cJSON_AddNumberToObject(part, "bytes", (double)medium->bytes))
            return false;
        if (!medium->is_sound && !cJSON_AddNumberToObject(part, "budget", medium->media.budget)) return false;
    }
    cJSON *text = cJSON_CreateObject();
    return add_part(parts, text) && cJSON_AddStringToObject(text, "type", "text") &&
           cJSON_AddStringToObject(text, "text", c->messages[i].content);
}

char *conversation_print(const conversation *c) {
    cJSON *list = cJSON_CreateArray();
    bool made = list != NULL;
    size_t next = 0;
    for (size_t i = 0; i < c->n && made; i++) {
        const char *role = strcmp(c->messages[i].role, "model") == 0 ? "assistant" : c->messages[i].role;
        const bool plain = next == c->n_media || c->media[next].message != i;
        cJSON *message = cJSON_CreateObject();
        made = add_part(list, message) && cJSON_AddStringToObject(message, "role", role) &&
               (plain ? cJSON_AddStringToObject(message, "content", c->messages[i].content) != NULL
                      : add_parts(message, c, i, &next));
    }
    char *text = made ? cJSON_PrintUnformatted(list) : NULL;
    cJSON_Delete(list);
    return text;
}

static const char *known_role(const char *role) {
    static const struct {
        const char *written, *role;
    } roles[] = {{"system", "system"}, {"user", "user"}, {"assistant", "model"}};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (strcmp(role, roles[i].written) == 0) return roles[i].role;
    }
    return NULL;
}

static const char *kind_of(const cli_medium *medium) { return medium->is_sound ? "sound" : "picture"; }

/* A picture or a sound of the next message, whose file is not read yet. */
static kakeya_status parse_medium(const char *path, const cJSON *part, bool is_sound, conversation *c,
                                  kakeya_error *error) {
    json_reader reader = {.name = path, .error = error};
    const cli_medium medium = {.bytes = (size_t)json_int(&reader, part, "bytes", 1, INPUT_MAX_BYTES, 0),
                               .is_sound = is_sound,
                               .media.budget = is_sound ? 0 : json_int(&reader, part, "budget", 0, 1 << 20, 0)};
    if (!reader.status && !medium.bytes)
        return error_set(error, KAKEYA_FORMAT, "%s: a %s of message %zu has no size", path, kind_of(&medium), c->n);
    if (!reader.status && !conversation_add_medium(c, &medium))
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
    return reader.status;
}

/* A message's text; its pictures and sounds go to the conversation. */
static kakeya_status parse_content(const char *path, const cJSON *message, conversation *c, const char **text,
                                   kakeya_error *error) {
    const cJSON *parts = json_get(message, "content"), *part;
    json_reader reader = {.name = path, .error = error};
    *text = "";
    if (!cJSON_IsArray(parts)) {
        *text = json_string(&reader, message, "content", "");
        return reader.status;
    }
    cJSON_ArrayForEach(part, parts) {
        const char *type = json_string(&reader, part, "type", "");
        kakeya_status status = reader.status;
        const bool is_sound = strcmp(type, "audio") == 0;
        if (!status && (is_sound || strcmp(type, "image") == 0))
            status = parse_medium(path, part, is_sound, c, error);
        else if (!status)
            *text = json_string(&reader, part, "text", "");
        if (status) return status;
    }
    return reader.status;
}

static kakeya_status parse_messages(const char *path, const char *text, size_t bytes, conversation *c,
                                    kakeya_error *error) {
    cJSON *list;
    kakeya_status status = json_parse(path, text, bytes, &list, error);
    if (status) return status;
    if (!cJSON_IsArray(list)) status = error_set(error, KAKEYA_FORMAT, "%s: the messages are not a list", path);
    const cJSON *item;
    cJSON_ArrayForEach(item, list) {
        json_reader reader = {.name = path, .error = error};
        if (status) break;
        const char *role = json_string(&reader, item, "role", "");
        const char *content = "";
        status = reader.status;
        if (!status) status = parse_content(path, item, c, &content, error);
        if (!status && !known_role(role)) {
            status = error_set(error, KAKEYA_FORMAT, "%s: message %zu has the role \"%s\"", path, c->n, role);
        }
        if (!status && !conversation_add(c, known_role(role), content)) {
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
        }
    }
    cJSON_Delete(list);
    return status;
}

/* ------------------------------------------------------------------------------------------------ writing */

typedef struct sink {
    file_writer *writer;
    kakeya_error *error;
    kakeya_status status;
} sink;

static bool put(void *user, const void *data, size_t bytes) {
    sink *s = user;
    if (!s->status) s->status = file_writer_write(s->writer, data, bytes, s->error);
    return !s->status;
}

/* Pictures and sounds of messages; those after them wait for the next one. */
static size_t n_said(const conversation *c) {
    size_t n = c->n_media;
    while (n && c->media[n - 1].message >= c->n) n--;
    return n;
}

static const char *form_of(const conversation *c) {
    const size_t n = n_said(c);
    for (size_t i = 0; i < n; i++)
        if (c->media[i].medium.is_sound) return form_with_sounds;
    return n ? form_with_pictures : form;
}

static kakeya_status write_all(sink *s, const char *path, const conversation *c, const kakeya_session *session,
                               kakeya_error *error) {
    char *messages = conversation_print(c), size[32];
    const char *name = form_of(c);
    if (!messages) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
    snprintf(size, sizeof size, "%zu\n", strlen(messages));
    bool written = put(s, name, strlen(name)) && put(s, size, strlen(size)) && put(s, messages, strlen(messages));
    cJSON_free(messages);
    const size_t n = n_said(c);
    for (size_t i = 0; i < n && written; i++) written = put(s, c->media[i].medium.data, c->media[i].medium.bytes);
    if (!written) return s->status;
    kakeya_status status = kakeya_session_save(session, put, s, error);
    return s->status ? s->status : status;
}

kakeya_status saved_chat_write(const char *path, const conversation *c, const kakeya_session *session,
                               kakeya_error *error) {
    sink s = {.error = error};
    kakeya_status status = file_writer_open(path, &s.writer, error);
    if (status) return status;
    status = write_all(&s, path, c, session, error);
    if (!status) return file_writer_commit(s.writer, error);
    file_writer_abort(s.writer);
    return status;
}

/* ------------------------------------------------------------------------------------------------ reading */

static size_t get(void *user, void *data, size_t bytes) { return fread(data, 1, bytes, user); }

/* The files of pictures and sounds, which then are decoded. */
static kakeya_status read_media(const char *path, FILE *file, conversation *c, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    size_t sounds = 0;
    for (size_t i = 0; i < c->n_media && !status; i++) {
        cli_medium *medium = &c->media[i].medium;
        const size_t index = medium->is_sound ? sounds : i - sounds;
        sounds += medium->is_sound;
        medium->data = malloc(medium->bytes);
        if (!medium->data)
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory for %zu bytes", path, medium->bytes);
        if (fread(medium->data, 1, medium->bytes, file) < medium->bytes)
            return error_set(error, KAKEYA_FORMAT, "%s: ends inside of %s %zu", path, kind_of(medium), index);
        status = cli_medium_decode(kind_of(medium), medium, error);
        if (status) error_prefix(error, status, "%s", path);
    }
    return status;
}

/* What stands before the session. */
static kakeya_status read_messages(const char *path, FILE *file, conversation *c, kakeya_error *error) {
    char line[32];
    if (!fgets(line, sizeof line, file) ||
        (strcmp(line, form) != 0 && strcmp(line, form_with_pictures) != 0 && strcmp(line, form_with_sounds) != 0)) {
        return error_set(error, KAKEYA_FORMAT, "%s: not a conversation written by /save", path);
    }
    char *end;
    unsigned long long bytes = fgets(line, sizeof line, file) ? strtoull(line, &end, 10) : 0;
    if (bytes == 0 || *end != '\n' || bytes > MAX_MESSAGES_BYTES) {
        return error_set(error, KAKEYA_FORMAT, "%s: the size of the messages is damaged", path);
    }
    char *text = malloc(bytes);
    if (!text) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory for %llu bytes", path, bytes);
    kakeya_status status = KAKEYA_OK;
    size_t got = fread(text, 1, bytes, file);
    if (got < bytes) {
        status = error_set(error, KAKEYA_FORMAT, "%s: ends after %zu of %llu bytes of messages", path, got, bytes);
    }
    if (!status) status = parse_messages(path, text, bytes, c, error);
    if (!status) status = read_media(path, file, c, error);
    free(text);
    return status;
}

kakeya_status saved_chat_read(const char *path, conversation *c, kakeya_session *session, kakeya_error *note,
                              kakeya_error *error) {
    *note = (kakeya_error){0};
    conversation read = {0};
    FILE *file = fopen(path, "rb");
    if (!file) return error_set(error, KAKEYA_IO, "%s: %s", path, strerror(errno));
    kakeya_status status = read_messages(path, file, &read, error);
    if (!status) (void)kakeya_session_load(session, get, file, note);
    fclose(file);
    if (status) {
        conversation_free(&read);
        return status;
    }
    conversation_free(c);
    *c = read;
    return KAKEYA_OK;
}
