#include "serve/media.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/call_media.h"
#include "serve/images.h"
#include "serve/sounds.h"
#include "serve/turn_digest.h"

static const char number_key[] = "kakeya_media", digest_key[] = TURN_MEDIA_MEMBER, quote_key[] = "kakeya_part",
                  place_key[] = "kakeya_place";

bool media_is_part(const cJSON *part) { return images_is_part(part) || sounds_is_part(part); }

bool media_is_taken(const cJSON *part) { return media_is_part(part) && body_member(part, digest_key); }

/* ------------------------------------------------------------------------------------------------------- messages */

static void digest_of(const kakeya_media *item, char out[65]) {
    if (item->sound) {
        const kakeya_sound_facts facts = kakeya_sound_describe(item->sound);
        memcpy(out, facts.digest, sizeof facts.digest);
        return;
    }
    kakeya_image_fit fit;
    KAKEYA_INIT(&fit);
    (void)kakeya_image_fitted(item->image, &fit);
    memcpy(out, fit.digest, sizeof fit.digest);
}

static size_t bytes_of(const kakeya_media *item) {
    if (item->sound) return kakeya_sound_describe(item->sound).samples * sizeof(float);
    kakeya_image_fit fit;
    KAKEYA_INIT(&fit);
    (void)kakeya_image_fitted(item->image, &fit);
    return 3 * (size_t)fit.width * (size_t)fit.height;
}

/* The part forgets what it was. */
static bool replace(cJSON *part, size_t number, const kakeya_media *item) {
    char digest[65];
    digest_of(item, digest);
    cJSON_Delete(part->child);
    part->child = NULL;
    return cJSON_AddStringToObject(part, "type", item->sound ? "audio" : "image") &&
           cJSON_AddNumberToObject(part, number_key, (double)number) &&
           cJSON_AddStringToObject(part, digest_key, digest);
}

bool media_put(call *c, const kakeya_media *item, cJSON *part, api_error *error) {
    const size_t n = c->media ? c->media->n : 0;
    if (!call_hold(c, bytes_of(item), error) || !call_media_add(&c->media, item)) {
        call_media_close(item);
        return error->status ? false : api_out_of_memory(error);
    }
    return replace(part, n, item) || api_out_of_memory(error);
}

static bool check_count(const call *c, bool sound, const char *place, api_error *error) {
    const serve_settings *settings = c->server->settings;
    const size_t sounds = c->media ? c->media->sounds : 0, images = c->media ? c->media->n - sounds : 0;
    const int most = sound ? sounds_limits(settings).count : images_limits(settings).count;
    if ((sound ? sounds : images) < (size_t)most) return true;
    return api_fail(error, 400, sound ? "too_many_sounds" : "too_many_images", place, "%s: more than %d %s (%s)", place,
                    most, sound ? "sounds" : "images", sound ? "--audio-count" : "--image-count");
}

static bool take(call *c, cJSON *part, const cJSON *given, const char *place, api_error *error) {
    const bool sound = sounds_is_part(part);
    kakeya_media item = {0};
    char name[144];
    snprintf(name, sizeof name, "%s", place); /* which may lie in the part */
    return check_count(c, sound, name, error) &&
           (sound ? sounds_read_part : images_read_part)(c, given, name, &item, error) &&
           media_put(c, &item, part, error) && (sound || images_note_smaller(c->media, name));
}

cJSON *media_quote(const cJSON *part, const char *place) {
    cJSON *quoted = cJSON_CreateObject(), *shown = quoted ? cJSON_CreateObjectReference(part->child) : NULL;
    bool good = shown && cJSON_AddItemToObject(quoted, quote_key, shown);
    if (!good) cJSON_Delete(shown);
    good =
        good && cJSON_AddStringToObject(quoted, "type", "image") && cJSON_AddStringToObject(quoted, place_key, place);
    if (good) return quoted;
    cJSON_Delete(quoted);
    return NULL;
}

static bool has_role(const cJSON *message, const char *role) {
    const char *its = body_string(message, "role");
    return its && strcmp(its, role) == 0;
}

static bool refuse(const call *c, const cJSON *part, const char *place, api_error *error) {
    char what[160];
    snprintf(what, sizeof what, "%.80s is a part of type \"%.32s\"", place, body_string(part, "type"));
    return (sounds_is_part(part) ? sounds_refuse : images_refuse)(c, what, place, error);
}

/* Whether parts of this type are read in messages of this role. */
static bool is_wanted(const call *c, const cJSON *message, const cJSON *part) {
    if (has_role(message, "user")) return media_is_part(part);
    return has_role(message, "tool") && images_is_part(part) && images_are_read(c->server);
}

bool media_take(call *c, cJSON *messages, bool quoted, size_t *found, api_error *error) {
    const cJSON *message;
    int i = 0;
    *found = 0;
    cJSON_ArrayForEach(message, messages) {
        cJSON *part, *content = body_member(message, "content");
        int k = 0;
        cJSON_ArrayForEach(part, content) {
            char place[80];
            snprintf(place, sizeof place, "messages[%d].content[%d]", i, k++);
            if (!is_wanted(c, message, part)) continue;
            const cJSON *given = quoted ? body_member(part, quote_key) : part;
            const char *name = quoted ? body_string(part, place_key) : place;
            if (!given || !name) continue;
            const bool read = sounds_is_part(part) ? sounds_are_read(c->server) : images_are_read(c->server);
            if (!read) return refuse(c, given, name, error);
            if (!take(c, part, given, name, error)) return false;
            ++*found;
        }
        i++;
    }
    return true;
}

/* -------------------------------------------------------------------------------------------------------- prompts */

void media_lengths_free(media_lengths *l) {
    free(l->images);
    free(l->sounds);
    *l = (media_lengths){0};
}

/* The next of the prompt's. */
static bool add_media(const call *c, const kakeya_media *item, answer_options *out, media_lengths *lengths,
                      api_error *error) {
    const kakeya_engine *engine = c->server->engine;
    kakeya_error why = {0};
    int n = 0;
    kakeya_status status = item->sound ? kakeya_engine_sound_tokens(engine, item->sound, &n, &why)
                                       : kakeya_engine_image_tokens(engine, item, &n, &why);
    if (status != KAKEYA_OK)
        return api_fail_library(error, item->sound ? "invalid_audio" : "invalid_image", "messages", &why);
    out->media[out->n_media++] = *item;
    if (item->sound)
        lengths->sounds[lengths->n_sounds++] = n;
    else
        lengths->images[lengths->n_images++] = n;
    return true;
}

bool media_of_prompt(call *c, const cJSON *messages, answer_options *out, media_lengths *lengths, api_error *error) {
    const call_media *all = c->media;
    const cJSON *message, *part;
    *lengths = (media_lengths){0};
    free(out->media);
    free(out->keys);
    out->media = NULL;
    out->keys = NULL;
    out->n_media = 0;
    if (!all || !all->n) return true;
    out->media = calloc(all->n, sizeof *out->media);
    lengths->images = calloc(all->n, sizeof *lengths->images);
    lengths->sounds = calloc(all->n, sizeof *lengths->sounds);
    bool good = (out->media && lengths->images && lengths->sounds) || api_out_of_memory(error);
    cJSON_ArrayForEach(message, messages) {
        cJSON_ArrayForEach(part, body_member(message, "content")) {
            const cJSON *number = media_is_taken(part) ? body_member(part, number_key) : NULL;
            if (!good || !cJSON_IsNumber(number) || out->n_media == all->n) continue;
            good = add_media(c, &all->item[(size_t)number->valuedouble], out, lengths, error);
        }
    }
    if (!good) media_lengths_free(lengths);
    return good;
}

bool media_key_prompt(const call *c, answer_options *out, api_error *error) {
    if (!out->n_media) return true;
    kakeya_error why = {0};
    out->keys = malloc(out->n_ids * sizeof *out->keys + 1);
    if (!out->keys) return api_out_of_memory(error);
    kakeya_status status =
        kakeya_prompt_keys(c->server->engine, out->ids, out->n_ids, out->media, out->n_media, out->keys, &why);
    return status == KAKEYA_OK || api_fail_library(error, "invalid_prompt", "messages", &why);
}
