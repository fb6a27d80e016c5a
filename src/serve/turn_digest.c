#include "serve/turn_digest.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "text/chat_json.h"
#include "text/spaces.h"

enum { EXACT_DIGITS = 15 }; /* every number of so many digits is a double of its own */

static turn_digest of_bytes(const void *data, size_t n, char kind) {
    XXH128_hash_t hash = XXH3_128bits_withSeed(data, n, (XXH64_hash_t)(unsigned char)kind);
    return (turn_digest){.low = hash.low64, .high = hash.high64};
}

static turn_digest join(turn_digest a, turn_digest b, char kind) {
    const turn_digest both[2] = {a, b};
    return of_bytes(both, sizeof both, kind);
}

static turn_digest of_text(const char *text, char kind) { return of_bytes(text, strlen(text), kind); }

/* ----------------------------------------------------------------------------------------------------- JSON values */

static turn_digest of_value(const cJSON *value);

/* One with more digits than a double holds is a text, so that different ones stay different. */
static turn_digest of_number(const char *spelled) {
    const double number = atof(spelled);
    if (strlen(spelled) > EXACT_DIGITS) return join(of_text("", 'l'), of_text(spelled, 's'), 'n');
    return of_bytes(number == 0 ? &(double){0} : &number, sizeof number, 'n');
}

/* The sum over members does not depend on their order. */
static turn_digest of_object(const cJSON *object) {
    turn_digest sum = {0, 0};
    const cJSON *member;
    cJSON_ArrayForEach(member, object) {
        turn_digest d = join(of_text(member->string ? member->string : "", 'k'), of_value(member), 'm');
        sum.low += d.low;
        sum.high += d.high;
    }
    return join(sum, sum, 'o');
}

static turn_digest of_value(const cJSON *value) {
    turn_digest digest = of_text("", 'e');
    const cJSON *item;
    if (cJSON_IsObject(value)) return of_object(value);
    if (cJSON_IsArray(value)) {
        cJSON_ArrayForEach(item, value) digest = join(digest, of_value(item), 'a');
        return digest;
    }
    if (cJSON_IsString(value)) return of_text(value->valuestring, 's');
    if (cJSON_IsRaw(value)) return of_number(value->valuestring);
    return of_text(cJSON_IsTrue(value) ? "true" : cJSON_IsFalse(value) ? "false" : "null", 'l');
}

/* The text of an object. What is no JSON stands for its letters, and so does a text of more values than a tree may
 * have. */
static turn_digest of_arguments(const char *text) {
    if (!text) text = "";
    const char *json = text[strspn(text, " \t\r\n")] ? text : "{}";
    cJSON *value = NULL;
    (void)chat_json_parse("arguments", json, strlen(json), &value, NULL);
    turn_digest digest = value ? of_value(value) : of_text(text, 't');
    cJSON_Delete(value);
    return digest;
}

/* -------------------------------------------------------------------------------------------------------- messages */

static turn_digest of_trimmed(const char *text, size_t n) {
    space_trim(&text, &n);
    return of_bytes(text, n, 'c');
}

/* The texts, one behind the other, then pictures and sounds. */
static turn_digest of_content(const kakeya_chat_message *m) {
    if (m->content || !m->n_parts) return of_trimmed(m->content ? m->content : "", m->content ? strlen(m->content) : 0);
    size_t n = 0;
    for (size_t i = 0; i < m->n_parts; i++) n += m->parts[i].text ? strlen(m->parts[i].text) : 0;
    char *all = malloc(n + 1), *to = all;
    if (!all) return of_text("", 'x');
    *to = '\0';
    for (size_t i = 0; i < m->n_parts; i++) to = m->parts[i].text ? stpcpy(to, m->parts[i].text) : to;
    turn_digest digest = of_trimmed(all, n);
    for (size_t i = 0; i < m->n_parts; i++) {
        const media_digest *medium = m->parts[i].type == KAKEYA_CHAT_TEXT ? NULL : m->parts[i].user;
        if (medium) digest = join(digest, of_text(medium->text, 'p'), 'p');
    }
    free(all);
    return digest;
}

turn_digest turn_digest_said(const kakeya_chat_message *m) {
    turn_digest digest = of_content(m);
    for (size_t i = 0; i < m->n_calls; i++) {
        digest = join(digest, of_text(m->calls[i].name ? m->calls[i].name : "", 'f'), 'f');
        digest = join(digest, of_arguments(m->calls[i].arguments), 'g');
    }
    return digest;
}

turn_digest turn_digest_start(void) { return of_text("", 'b'); }

turn_digest turn_digest_message(turn_digest before, const kakeya_chat_message *m, turn_digest said) {
    const char *role = m->role ? m->role : "";
    if (strcmp(role, "model") == 0) role = "assistant";
    return join(join(before, of_text(role, 'r'), 'r'), said, 'd');
}

turn_digest turn_digest_ids(const int32_t *ids, size_t n) { return of_bytes(ids, n * sizeof *ids, 't'); }

turn_digest turn_digest_id(const char *id) { return of_text(id, 'i'); }
