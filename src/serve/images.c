#include "serve/images.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/base64.h"
#include "serve/call_images.h"
#include "serve/image_child.h"
#include "serve/turn_digest.h"

static const char number_key[] = "kakeya_image", digest_key[] = TURN_PICTURE_MEMBER, quote_key[] = "kakeya_part",
                  place_key[] = "kakeya_place", budget_key[] = "image_budget", soft_key[] = "max_soft_tokens";

images_limited images_limits(const serve_settings *s) {
    return (images_limited){
        .budget = s->image_budget ? s->image_budget : KAKEYA_DEFAULT_IMAGE_BUDGET,
        .bytes = s->image_bytes ? s->image_bytes : (size_t)20 << 20,
        .pixels = s->image_pixels ? s->image_pixels : IMAGE_MAX_PIXELS,
        .count = s->image_count ? s->image_count : 64,
    };
}

bool images_are_read(const server_context *s) { return kakeya_engine_image_token(s->engine) >= 0; }

static cJSON *member(const cJSON *object, const char *key) {
    cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item;
}

bool images_is_part(const cJSON *part) {
    static const char *const types[] = {"image", "image_url", "input_image", NULL};
    const char *type = body_string(part, "type");
    for (size_t i = 0; type && types[i]; i++)
        if (strcmp(type, types[i]) == 0) return true;
    return false;
}

bool images_is_taken(const cJSON *part) { return images_is_part(part) && member(part, digest_key); }

/* --------------------------------------------------------------------------------------------------------- budgets */

static bool is_budget(const cJSON *value) {
    for (size_t i = 0; cJSON_IsNumber(value) && kakeya_image_budget(i); i++)
        if (value->valuedouble == kakeya_image_budget(i)) return true;
    /* numbers that keep their spelling */
    for (size_t i = 0; cJSON_IsRaw(value) && kakeya_image_budget(i); i++) {
        char spelled[16];
        snprintf(spelled, sizeof spelled, "%d", kakeya_image_budget(i));
        if (strcmp(value->valuestring, spelled) == 0) return true;
    }
    return false;
}

static int budget_of(const cJSON *value) {
    return cJSON_IsRaw(value) ? atoi(value->valuestring) : (int)value->valuedouble;
}

static bool wrong_budget(const char *param, api_error *error) {
    return api_fail(error, 400, "invalid_value", param, "%s is not 70, 140, 280, 560 or 1120", param);
}

void images_read_budget(call *c, fields *f) {
    const cJSON *budget = fields_get(f, budget_key), *kwargs = fields_object(f, "mm_processor_kwargs");
    const char *param = budget_key;
    if (!budget && kwargs) {
        fields inner;
        fields_begin(&inner, kwargs, "mm_processor_kwargs.", f->error);
        budget = fields_get(&inner, soft_key);
        param = "mm_processor_kwargs.max_soft_tokens";
    }
    if (!budget) return;
    if (!is_budget(budget))
        wrong_budget(param, f->error);
    else
        c->image_budget = budget_of(budget);
}

/* Of a picture: what its part says, else the request, else the server. */
static bool find_budget(const call *c, const cJSON *part, const char *detail, const char *place, int *out,
                        api_error *error) {
    char param[160];
    const cJSON *own = member(part, budget_key);
    if (!own) own = member(part, soft_key);
    *out = c->image_budget ? c->image_budget : images_limits(c->server->settings).budget;
    if (own) {
        snprintf(param, sizeof param, "%.120s.%s", place, member(part, budget_key) ? budget_key : soft_key);
        if (!is_budget(own)) return wrong_budget(param, error);
        *out = budget_of(own);
    } else if (detail && strcmp(detail, "low") == 0) {
        *out = kakeya_image_budget(0);
    } else if (detail && (strcmp(detail, "high") == 0 || strcmp(detail, "original") == 0)) {
        for (size_t i = 0; kakeya_image_budget(i); i++) *out = kakeya_image_budget(i);
    } else if (detail && strcmp(detail, "auto") != 0) {
        snprintf(param, sizeof param, "%.120s.detail", place);
        return api_fail(error, 400, "invalid_value", param, "%s: %.32s is not low, high, original or auto", param,
                        detail);
    }
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- bytes */

/* Base64 text of a picture. */
typedef struct encoded {
    const char *text;
    size_t bytes;
    const char *detail;
} encoded;

static bool refuse_url(const char *place, api_error *error) {
    return api_fail(error, 400, "unsupported_content", place,
                    "%s: pictures are not fetched from an address; send the image as a data: URI", place);
}

/* data:[type][;parameter...];base64,TEXT */
static bool read_uri(const char *uri, const char *place, encoded *out, api_error *error) {
    const char *comma = strchr(uri, ',');
    if (strncasecmp(uri, "data:", 5) != 0) return refuse_url(place, error);
    static const char mark[] = ";base64";
    const size_t n = sizeof mark - 1;
    if (!comma || (size_t)(comma - uri) < n || strncasecmp(comma - n, mark, n) != 0)
        return api_fail(error, 400, "invalid_image_url", place, "%s: the data: URI is not one of base64", place);
    out->text = comma + 1;
    out->bytes = strlen(out->text);
    return true;
}

/* {"type":"base64","data":...} of Anthropic. */
static bool read_source(const cJSON *source, const char *place, encoded *out, api_error *error) {
    const char *type = body_string(source, "type"), *data = body_string(source, "data");
    if (type && strcmp(type, "url") == 0) {
        const char *url = body_string(source, "url");
        return url && strncasecmp(url, "data:", 5) == 0 ? read_uri(url, place, out, error) : refuse_url(place, error);
    }
    if (type && strcmp(type, "base64") != 0)
        return api_fail(error, 400, "unsupported_content", place,
                        "%s: source.type %.32s is not supported; send the image as base64", place, type);
    if (!type || !data)
        return api_fail(error, 400, "invalid_type", place, "%s: source is not {\"type\":\"base64\",\"data\":...}",
                        place);
    out->text = data;
    out->bytes = strlen(data);
    return true;
}

static bool find_bytes(const cJSON *part, const char *place, encoded *out, api_error *error) {
    const cJSON *url = member(part, "image_url"), *source = member(part, "source");
    const char *given = cJSON_IsString(url) ? url->valuestring : body_string(url, "url");
    *out = (encoded){.detail = body_string(cJSON_IsObject(url) ? url : part, "detail")};
    if (source) return read_source(source, place, out, error);
    if (given) return read_uri(given, place, out, error);
    if (member(part, "file_id") || member(part, "file"))
        return api_fail(error, 400, "unsupported_content", place,
                        "%s: files are not kept here; send the image as a data: URI", place);
    return api_fail(error, 400, "invalid_type", place, "%s: there is no image_url with a data: URI", place);
}

/* -------------------------------------------------------------------------------------------------------- pictures */

static void note_smaller(call_images *all, const kakeya_image *picture, const char *place) {
    enum { MOST = 600 }; /* bytes of the list */
    const kakeya_image_facts facts = kakeya_image_describe(picture);
    kakeya_image_fit fit;
    kakeya_image_fit_init(&fit);
    (void)kakeya_image_fitted(picture, &fit);
    if ((int64_t)fit.width * fit.height >= (int64_t)facts.width * facts.height || all->smaller.n > MOST) return;
    text_format(&all->smaller, "%s%s %dx%d to %dx%d", all->smaller.n ? "; " : "", place, facts.width, facts.height,
                fit.width, fit.height);
}

static bool read_picture(call *c, const cJSON *part, const char *place, kakeya_image **out, api_error *error) {
    const images_limited most = images_limits(c->server->settings);
    encoded given;
    int budget;
    if (!find_bytes(part, place, &given, error) || !find_budget(c, part, given.detail, place, &budget, error))
        return false;
    if (given.bytes / 4 * 3 > most.bytes)
        return api_fail(error, 400, "image_too_large", place, "%s: the image has more than %zu bytes (--image-bytes)",
                        place, most.bytes);
    size_t bytes;
    unsigned char *data = malloc(given.bytes / 4 * 3 + 3);
    if (!data) return api_out_of_memory(error);
    if (!base64_read(data, &bytes, given.text, given.bytes)) {
        free(data);
        return api_fail(error, 400, "invalid_image_url", place, "%s: the image is not valid base64", place);
    }
    image_wish wish = {.limits = {.side = IMAGE_MAX_SIDE, .pixels = most.pixels}, .budget = budget};
    kakeya_error why = {0};
    image_info info;
    image pixels;
    (void)kakeya_engine_image_grid(c->server->engine, &wish.patch, &wish.pooling);
    const char *program = c->server->settings->image_program;
    kakeya_status status = program ? image_child_read(program, place, data, bytes, &wish, &info, &pixels, &why)
                                   : image_reader_read(place, data, bytes, &wish, &info, &pixels, &why);
    free(data);
    if (status == KAKEYA_OK) {
        const kakeya_image_facts facts = {.format = image_format_name(info.format),
                                          .width = info.width,
                                          .height = info.height,
                                          .orientation = info.orientation};
        status =
            kakeya_image_of_fit(c->server->engine, &facts, budget, pixels.width, pixels.height, pixels.rgb, out, &why);
        image_free(&pixels);
    }
    if (status == KAKEYA_OK) return true;
    return api_fail_library(error, status == KAKEYA_INVALID_ARGUMENT ? "image_too_large" : "image_parse_error", place,
                            &why);
}

/* The part forgets what it was. */
static bool replace(cJSON *part, size_t number, const kakeya_image *picture) {
    kakeya_image_fit fit;
    kakeya_image_fit_init(&fit);
    (void)kakeya_image_fitted(picture, &fit);
    cJSON_Delete(part->child);
    part->child = NULL;
    return cJSON_AddStringToObject(part, "type", "image") &&
           cJSON_AddNumberToObject(part, number_key, (double)number) &&
           cJSON_AddStringToObject(part, digest_key, fit.digest);
}

static bool take(call *c, cJSON *part, const cJSON *given, const char *place, api_error *error) {
    const int most = images_limits(c->server->settings).count;
    const size_t n = c->images ? c->images->n : 0;
    char name[144];
    snprintf(name, sizeof name, "%s", place); /* which may lie in the part */
    if (n >= (size_t)most)
        return api_fail(error, 400, "too_many_images", name, "%s: more than %d images (--image-count)", name, most);
    kakeya_image *picture;
    if (!read_picture(c, given, name, &picture, error)) return false;
    kakeya_image_fit fit;
    kakeya_image_fit_init(&fit);
    (void)kakeya_image_fitted(picture, &fit);
    if (!call_hold(c, 3 * (size_t)fit.width * (size_t)fit.height, error) || !call_images_add(&c->images, picture)) {
        kakeya_image_close(picture);
        return error->status ? false : api_out_of_memory(error);
    }
    note_smaller(c->images, picture, name);
    return replace(part, n, picture) || api_out_of_memory(error);
}

cJSON *images_quote(const cJSON *part, const char *place) {
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
    kakeya_error why = {0};
    int tokens;
    const kakeya_media none = {0};
    (void)kakeya_engine_image_tokens(c->server->engine, &none, &tokens, &why);
    return api_fail(error, 400, "unsupported_content", place, "%s is a part of type \"%.32s\"; %s", place,
                    body_string(part, "type"), why.message);
}

bool images_take(call *c, cJSON *messages, bool quoted, size_t *found, api_error *error) {
    const bool reads = images_are_read(c->server);
    const cJSON *message;
    int i = 0;
    *found = 0;
    cJSON_ArrayForEach(message, messages) {
        const bool tool = has_role(message, "tool");
        cJSON *part, *content = member(message, "content");
        int k = 0;
        cJSON_ArrayForEach(part, content) {
            char place[80];
            snprintf(place, sizeof place, "messages[%d].content[%d]", i, k++);
            if (!images_is_part(part) || (!tool && !has_role(message, "user")) || (tool && !reads)) continue;
            const cJSON *given = quoted ? member(part, quote_key) : part;
            const char *name = quoted ? body_string(part, place_key) : place;
            if (!given || !name) continue;
            if (!reads) return refuse(c, given, name, error);
            if (!take(c, part, given, name, error)) return false;
            ++*found;
        }
        i++;
    }
    return true;
}

/* -------------------------------------------------------------------------------------------------------- prompts */

bool images_of_prompt(call *c, const cJSON *messages, answer_options *out, int **tokens, api_error *error) {
    const call_images *all = c->images;
    const cJSON *message, *part;
    *tokens = NULL;
    free(out->media);
    free(out->keys);
    out->media = NULL;
    out->keys = NULL;
    out->n_media = 0;
    if (!all || !all->n) return true;
    out->media = calloc(all->n, sizeof *out->media);
    *tokens = calloc(all->n, sizeof **tokens);
    bool good = (out->media && *tokens) || api_out_of_memory(error);
    cJSON_ArrayForEach(message, messages) {
        cJSON_ArrayForEach(part, member(message, "content")) {
            const cJSON *number = images_is_taken(part) ? member(part, number_key) : NULL;
            if (!good || !cJSON_IsNumber(number) || out->n_media == all->n) continue;
            kakeya_error why = {0};
            kakeya_media *media = &out->media[out->n_media];
            media->image = all->image[(size_t)number->valuedouble];
            good =
                kakeya_engine_image_tokens(c->server->engine, media, &(*tokens)[out->n_media++], &why) == KAKEYA_OK ||
                api_fail_library(error, "invalid_image", "messages", &why);
        }
    }
    return good;
}

bool images_key_prompt(const call *c, answer_options *out, api_error *error) {
    if (!out->n_media) return true;
    kakeya_error why = {0};
    out->keys = malloc(out->n_ids * sizeof *out->keys + 1);
    if (!out->keys) return api_out_of_memory(error);
    kakeya_status status =
        kakeya_prompt_keys(c->server->engine, out->ids, out->n_ids, out->media, out->n_media, out->keys, &why);
    return status == KAKEYA_OK || api_fail_library(error, "invalid_prompt", "messages", &why);
}
