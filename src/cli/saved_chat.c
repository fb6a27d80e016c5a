/* The file: a line that names the form, a line with the size of the messages in bytes, the messages as JSON in OpenAI's
 * form, and the session as the library saves it. */
#include "cli/saved_chat.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

static const char form[] = "kakeya chat 1\n";

enum { MAX_MESSAGES_BYTES = 1 << 28 };

/* ------------------------------------------------------------------------------------------------ messages */

void conversation_cut(conversation *c, size_t n) {
    while (c->n > n) free((void *)(uintptr_t)c->messages[--c->n].content);
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
    *c = (conversation){0};
}

/* Malloc'ed by cJSON; NULL when out of memory. */
static char *print_messages(const conversation *c) {
    cJSON *list = cJSON_CreateArray();
    bool made = list != NULL;
    for (size_t i = 0; i < c->n && made; i++) {
        bool model = strcmp(c->messages[i].role, "model") == 0;
        cJSON *message = cJSON_CreateObject();
        made = cJSON_AddStringToObject(message, "role", model ? "assistant" : c->messages[i].role) &&
               cJSON_AddStringToObject(message, "content", c->messages[i].content) &&
               cJSON_AddItemToArray(list, message);
        if (!made) cJSON_Delete(message);
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
        const char *content = json_string(&reader, item, "content", "");
        status = reader.status;
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

static kakeya_status write_all(sink *s, const char *path, const conversation *c, const kakeya_session *session,
                               kakeya_error *error) {
    char *messages = print_messages(c), size[32];
    if (!messages) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
    snprintf(size, sizeof size, "%zu\n", strlen(messages));
    bool written = put(s, form, sizeof form - 1) && put(s, size, strlen(size)) && put(s, messages, strlen(messages));
    cJSON_free(messages);
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

/* The messages in front of the session. */
static kakeya_status read_messages(const char *path, FILE *file, conversation *c, kakeya_error *error) {
    char line[32];
    if (!fgets(line, sizeof line, file) || strcmp(line, form) != 0) {
        return error_set(error, KAKEYA_FORMAT, "%s: not a conversation that /save has written", path);
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
