#include "serve/images.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/media_bytes.h"
#include "serve/media_child.h"

static const char budget_key[] = "image_budget", soft_key[] = "max_soft_tokens";

images_limited images_limits(const serve_settings *s) {
    return (images_limited){
        .budget = s->image_budget ? s->image_budget : KAKEYA_DEFAULT_IMAGE_BUDGET,
        .bytes = s->image_bytes ? s->image_bytes : (size_t)20 << 20,
        .pixels = s->image_pixels ? s->image_pixels : IMAGE_MAX_PIXELS,
        .count = s->image_count ? s->image_count : 64,
    };
}

bool images_are_read(const server_context *s) { return kakeya_engine_image_token(s->engine) >= 0; }

bool images_is_part(const cJSON *part) {
    static const char *const types[] = {"image", "image_url", "input_image", NULL};
    const char *type = body_string(part, "type");
    for (size_t i = 0; type && types[i]; i++)
        if (strcmp(type, types[i]) == 0) return true;
    return false;
}

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
    const cJSON *own = body_member(part, budget_key);
    if (!own) own = body_member(part, soft_key);
    *out = c->image_budget ? c->image_budget : images_limits(c->server->settings).budget;
    if (own) {
        snprintf(param, sizeof param, "%.120s.%s", place, body_member(part, budget_key) ? budget_key : soft_key);
        if (!is_budget(own)) return wrong_budget(param, error);
        *out = budget_of(own);
    } else if (detail && strcmp(detail, "low") == 0) {
        *out = kakeya_image_budget(0);
    } else if (detail && (strcmp(detail, "high") == 0 || strcmp(detail, "original") == 0)) {
        for (size_t i = 0; kakeya_image_budget(i); i++) *out = kakeya_image_budget(i);
    } else if (detail && strcmp(detail, "auto") != 0) {
        snprintf(param, sizeof param, "%.120s.detail", place);
        return api_fail(error, 400, "invalid_value", param, "%s is not low, high, original or auto", param);
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

/* NULL: there is none; "": it is no text. */
static const char *detail_of(const cJSON *object) {
    const cJSON *detail = body_member(object, "detail");
    return cJSON_IsString(detail) ? detail->valuestring : detail ? "" : NULL;
}

static bool find_bytes(const cJSON *part, const char *place, encoded *out, api_error *error) {
    const cJSON *url = body_member(part, "image_url"), *source = body_member(part, "source");
    const char *given = cJSON_IsString(url) ? url->valuestring : body_string(url, "url");
    *out = (encoded){.detail = detail_of(cJSON_IsObject(url) ? url : part)};
    if (source) return read_source(source, place, out, error);
    if (given) return read_uri(given, place, out, error);
    if (body_member(part, "file_id") || body_member(part, "file"))
        return api_fail(error, 400, "unsupported_content", place,
                        "%s: files are not kept here; send the image as a data: URI", place);
    return api_fail(error, 400, "invalid_type", place, "%s: there is no image_url with a data: URI", place);
}

/* -------------------------------------------------------------------------------------------------------- pictures */

bool images_note_smaller(call_media *all, const char *place) {
    enum { MOST = 600 }; /* bytes of the list before its last picture */
    text_buffer *list = &all->smaller;
    const kakeya_image *picture = all->item[all->n - 1].image;
    const kakeya_image_facts facts = kakeya_image_describe(picture);
    kakeya_image_fit fit;
    KAKEYA_INIT(&fit);
    (void)kakeya_image_fitted(picture, &fit);
    if ((int64_t)fit.width * fit.height >= (int64_t)facts.width * facts.height || all->smaller_is_full) return true;
    all->smaller_is_full = list->n > MOST;
    if (all->smaller_is_full)
        text_add(list, "; and others");
    else
        text_format(list, "%s%s %dx%d to %dx%d", list->n ? "; " : "", place, facts.width, facts.height, fit.width,
                    fit.height);
    return true;
}

bool images_refuse(const call *c, const char *what, const char *place, api_error *error) {
    kakeya_error why = {0};
    int tokens;
    const kakeya_media none = {0};
    (void)kakeya_engine_image_tokens(c->server->engine, &none, &tokens, &why);
    return api_fail(error, 400, "unsupported_content", place, "%s; %s", what, why.message);
}

bool images_read_part(call *c, const cJSON *part, const char *place, kakeya_media *out, api_error *error) {
    const images_limited most = images_limits(c->server->settings);
    const media_limit limit = {"image", "--image-bytes", most.bytes};
    encoded given;
    int budget;
    size_t bytes;
    unsigned char *data;
    if (!find_bytes(part, place, &given, error) || !find_budget(c, part, given.detail, place, &budget, error) ||
        !media_read_base64(given.text, given.bytes, &limit, place, &data, &bytes, error))
        return false;
    image_wish wish = {.limits = {.side = IMAGE_MAX_SIDE, .pixels = most.pixels}, .budget = budget};
    kakeya_error why = {0};
    image_info info;
    image pixels;
    kakeya_image *picture = NULL;
    (void)kakeya_engine_image_grid(c->server->engine, &wish.patch, &wish.pooling);
    const char *program = c->server->settings->media_program;
    kakeya_status status = program ? media_child_read_image(program, place, data, bytes, &wish, &info, &pixels, &why)
                                   : image_reader_read(place, data, bytes, &wish, &info, &pixels, &why);
    free(data);
    if (status == KAKEYA_OK) {
        const kakeya_image_facts facts = {.format = image_format_name(info.format),
                                          .width = info.width,
                                          .height = info.height,
                                          .orientation = info.orientation};
        status = kakeya_image_of_fit(c->server->engine, &facts, budget, pixels.width, pixels.height, pixels.rgb,
                                     &picture, &why);
        image_free(&pixels);
    }
    *out = (kakeya_media){.image = picture};
    if (status == KAKEYA_OK) return true;
    return api_fail_library(error, status == KAKEYA_INVALID_ARGUMENT ? "image_too_large" : "image_parse_error", place,
                            &why);
}
