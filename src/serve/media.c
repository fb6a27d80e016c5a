#include "serve/media.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/call_media.h"
#include "serve/images.h"
#include "serve/sounds.h"
#include "serve/turn_digest.h"

/* What stands behind a part. */
typedef struct media_part {
    media_digest digest; /* once it has been read */
    cJSON *given;
    const char *place;
    size_t number; /* of the call's media */
} media_part;

static void digest_of(const kakeya_media *item, char out[MEDIA_DIGEST_BYTES]) {
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

void media_set(chat_conversation *c, kakeya_chat_part *part, cJSON *given, const char *place) {
    media_part *behind = part ? chat_take(c, sizeof *behind) : NULL;
    if (!behind) return;
    *behind = (media_part){.given = given, .place = chat_keep(c, place, strlen(place))};
    part->user = behind;
}

static kakeya_chat_part *add_part(chat_conversation *c, kakeya_chat_message *message, bool sound) {
    return chat_add_part(c, message, (kakeya_chat_part){.type = sound ? KAKEYA_CHAT_SOUND : KAKEYA_CHAT_IMAGE});
}

void media_add(chat_conversation *c, kakeya_chat_message *message, cJSON *given, const char *place) {
    media_set(c, add_part(c, message, sounds_is_part(given)), given, place);
}

/* The item becomes the call's. */
static bool keep(call *c, const kakeya_media *item, media_part *part, api_error *error) {
    part->number = c->media ? c->media->n : 0;
    digest_of(item, part->digest.text);
    if (call_hold(c, bytes_of(item), error) && call_media_add(&c->media, item)) return true;
    call_media_close(item);
    return error->status ? false : api_out_of_memory(error);
}

bool media_put(call *c, kakeya_chat_message *message, const kakeya_media *item, api_error *error) {
    kakeya_chat_part *part = add_part(&c->conversation, message, item->sound != NULL);
    media_set(&c->conversation, part, NULL, "");
    if (!c->conversation.failed) return keep(c, item, (media_part *)(uintptr_t)part->user, error);
    call_media_close(item);
    return api_out_of_memory(error);
}

static bool check_count(const call *c, bool sound, const char *place, api_error *error) {
    const serve_settings *settings = c->server->settings;
    const size_t sounds = c->media ? c->media->sounds : 0, images = c->media ? c->media->n - sounds : 0;
    const int most = sound ? sounds_limits(settings).count : images_limits(settings).count;
    if ((sound ? sounds : images) < (size_t)most) return true;
    return api_fail(error, 400, sound ? "too_many_sounds" : "too_many_images", place, "%s: more than %d %s (%s)", place,
                    most, sound ? "sounds" : "images", sound ? "--audio-count" : "--image-count");
}

static bool refuse(const call *c, const cJSON *part, const char *place, api_error *error) {
    char what[160];
    const char *type = body_string(part, "type");
    snprintf(what, sizeof what, "%.80s is a part of type \"%.32s\"", place, type ? type : "image");
    return (sounds_is_part(part) ? sounds_refuse : images_refuse)(c, what, place, error);
}

/* The request forgets what it was: its bytes are no longer wanted. */
static bool take(call *c, bool sound, media_part *part, api_error *error) {
    kakeya_media item = {0};
    const char *place = part->place;
    if (!(sound ? sounds_are_read : images_are_read)(c->server)) return refuse(c, part->given, place, error);
    if (!check_count(c, sound, place, error) ||
        !(sound ? sounds_read_part : images_read_part)(c, part->given, place, &item, error) ||
        !keep(c, &item, part, error))
        return false;
    cJSON_Delete(part->given->child);
    part->given->child = NULL;
    part->given = NULL;
    return sound || images_note_smaller(c->media, place);
}

/* Part k of a message, if it is a picture or a sound. */
static media_part *part_of(const kakeya_chat_message *message, size_t k) {
    const kakeya_chat_part *part = &message->parts[k];
    return part->type == KAKEYA_CHAT_TEXT ? NULL : (media_part *)(uintptr_t)part->user;
}

bool media_take(call *c, api_error *error) {
    const chat_conversation *all = &c->conversation;
    if (all->failed) return api_out_of_memory(error);
    for (size_t i = 0; i < all->n; i++) {
        for (size_t k = 0; k < all->messages[i].n_parts; k++) {
            media_part *part = part_of(&all->messages[i], k);
            const bool sound = all->messages[i].parts[k].type == KAKEYA_CHAT_SOUND;
            if (part && part->given && !take(c, sound, part, error)) return false;
        }
    }
    return true;
}

/* -------------------------------------------------------------------------------------------------------- prompts */

/* The next of the prompt's. param: of one without a place. */
static bool add_media(const call *c, const kakeya_media *item, const char *place, const char *param,
                      answer_options *out, int *n, api_error *error) {
    const kakeya_engine *engine = c->server->engine;
    if (!*place) place = param;
    kakeya_error why = {0};
    kakeya_status status = item->sound ? kakeya_engine_sound_tokens(engine, item->sound, n, &why)
                                       : kakeya_engine_image_tokens(engine, item, n, &why);
    if (status != KAKEYA_OK) {
        error_prefix(&why, status, "%s", place);
        return api_fail_library(error, item->sound ? "invalid_audio" : "invalid_image", place, &why);
    }
    out->media[out->n_media++] = *item;
    return true;
}

bool media_of_prompt(call *c, const char *param, answer_options *out, api_error *error) {
    const call_media *all = c->media;
    const chat_conversation *said = &c->conversation;
    free(out->media);
    free(out->keys);
    out->media = NULL;
    out->keys = NULL;
    out->n_media = 0;
    if (!all || !all->n) return true;
    out->media = calloc(all->n, sizeof *out->media);
    bool good = out->media || api_out_of_memory(error);
    for (size_t i = 0; i < said->n; i++) {
        for (size_t k = 0; k < said->messages[i].n_parts && good; k++) {
            const media_part *part = part_of(&said->messages[i], k);
            int *n = &chat_own_part(&said->messages[i], k)->n_tokens;
            if (part && out->n_media < all->n)
                good = add_media(c, &all->item[part->number], part->place, param, out, n, error);
        }
    }
    return good;
}

bool media_key_prompt(const call *c, const char *param, answer_options *out, api_error *error) {
    if (!out->n_media) return true;
    kakeya_error why = {0};
    out->keys = malloc(out->n_ids * sizeof *out->keys + 1);
    if (!out->keys) return api_out_of_memory(error);
    kakeya_status status =
        kakeya_prompt_keys(c->server->engine, out->ids, out->n_ids, out->media, out->n_media, out->keys, &why);
    return status == KAKEYA_OK || api_fail_library(error, "invalid_prompt", param, &why);
}
