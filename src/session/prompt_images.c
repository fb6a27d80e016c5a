#include "session/prompt_images.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/sized.h"
#include "media/digest.h"
#include "media/resize.h"
#include "model/gemma4_vision.h"
#include "session/image.h"
#include "session/image_rows.h"
#include "session/session.h"

static kakeya_status need_vision(const kakeya_engine *engine, kakeya_error *error) {
    if (engine->vision_off)
        return error_set(error, KAKEYA_UNSUPPORTED, "images are not read here: vision is off (--vision off)");
    if (!engine->verifier->vision)
        return error_set(error, KAKEYA_UNSUPPORTED, "the model reads no images%s%s",
                         *engine->verifier->note ? ": " : "", engine->verifier->note);
    if (engine->ops->embed_image) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED, "backend %s reads no images: choose backend cpu", engine->ops->name);
}

kakeya_status prompt_images_load(const kakeya_engine *engine, kakeya_error *error) {
    kakeya_status status = need_vision(engine, error);
    if (status) return error_prefix(error, status, "--vision on");
    gemma4_vision_read(engine->verifier->vision);
    return engine->ops->load_vision ? engine->ops->load_vision(engine->model, engine->verifier->vision, error)
                                    : KAKEYA_OK;
}

static kakeya_status target_size(const gemma4_vision *v, const kakeya_media *media, int *width, int *height,
                                 kakeya_error *error) {
    const kakeya_image *picture = media->image;
    const int budget = media->budget ? media->budget : picture->budget ? picture->budget : v->budget;
    if (!image_budget_is_known(budget))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "the image budget is %d tokens, must be 70, 140, 280, 560 "
                         "or 1120",
                         budget);
    if (picture->budget && picture->budget != budget)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "an image budget of %d tokens, but it was fitted into %d",
                         budget, picture->budget);
    return image_target_size(picture->width, picture->height, budget, v->patch, v->pooling, width, height, error);
}

static int rows_of(const gemma4_vision *v, int width, int height) {
    const int side = v->patch * v->pooling;
    return width / side * (height / side);
}

int32_t kakeya_engine_image_token(const kakeya_engine *engine) {
    return need_vision(engine, NULL) == KAKEYA_OK ? engine->verifier->vision->image_token : -1;
}

bool kakeya_engine_image_grid(const kakeya_engine *engine, int *patch, int *pooling) {
    const bool reads = need_vision(engine, NULL) == KAKEYA_OK;
    *patch = reads ? engine->verifier->vision->patch : 0;
    *pooling = reads ? engine->verifier->vision->pooling : 0;
    return reads;
}

kakeya_status kakeya_engine_image_tokens(const kakeya_engine *engine, const kakeya_media *media, int *tokens,
                                         kakeya_error *error) {
    int width, height;
    kakeya_status status = need_vision(engine, error);
    if (status == KAKEYA_OK) status = target_size(engine->verifier->vision, media, &width, &height, error);
    if (status == KAKEYA_OK) *tokens = rows_of(engine->verifier->vision, width, height);
    return status;
}

void kakeya_engine_image_counts_sized(const kakeya_engine *engine, kakeya_image_counts *out) {
    kakeya_image_counts counts = {.computed = atomic_load(&engine->images_computed),
                                  .computed_rows = atomic_load(&engine->image_rows_computed)};
    image_rows_count(engine->image_rows, &counts);
    sized_write(out, &counts, sizeof counts);
}

/* The next run of the image token from `at` on; begin is n where there is none. */
static timeline_image next_run(const int32_t *tokens, size_t n, size_t at, int32_t token) {
    while (at < n && tokens[at] != token) at++;
    size_t end = at;
    while (end < n && tokens[end] == token) end++;
    return (timeline_image){.begin = at, .n = end - at};
}

static size_t count_runs(const int32_t *tokens, size_t n, int32_t token) {
    size_t runs = 0;
    for (timeline_image run = next_run(tokens, n, 0, token); run.n; run = next_run(tokens, n, run.begin + run.n, token))
        runs++;
    return runs;
}

static kakeya_status fit(const gemma4_vision *v, const kakeya_media *media, size_t index, bool borrow,
                         prompt_image *out, kakeya_error *error) {
    const kakeya_image *picture = media->image;
    int width, height;
    kakeya_status status = target_size(v, media, &width, &height, error);
    if (status != KAKEYA_OK) return error_prefix(error, status, "image %zu", index);
    if ((size_t)rows_of(v, width, height) != out->place.n)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "image %zu is %d tokens, but the prompt has room for %zu",
                         index, rows_of(v, width, height), out->place.n);
    const bool fits = picture->budget && picture->patch == v->patch && picture->pooling == v->pooling;
    if (picture->budget && !fits)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "image %zu was fitted for another model", index);
    if (fits) memcpy(out->place.digest, picture->digest, sizeof out->place.digest);
    if (fits && borrow) {
        out->pixels = picture->pixels;
        out->borrowed = true;
        return KAKEYA_OK;
    }
    status = image_resize(&picture->pixels, width, height, &out->pixels, error);
    return status == KAKEYA_OK && !fits ? image_digest(&out->pixels, out->place.digest, error) : status;
}

kakeya_status prompt_images_create(const kakeya_engine *engine, const int32_t *tokens, size_t n,
                                   const kakeya_media *media, size_t n_media, bool borrow, prompt_images *out,
                                   kakeya_error *error) {
    *out = (prompt_images){.ops = engine->ops};
    if (!n_media) return KAKEYA_OK;
    kakeya_status status = need_vision(engine, error);
    if (status != KAKEYA_OK) return status;
    const gemma4_vision *v = engine->verifier->vision;
    const size_t runs = count_runs(tokens, n, v->image_token);
    if (runs != n_media)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%zu images, but the prompt has room for %zu (token %d)",
                         n_media, runs, v->image_token);
    out->image = calloc(n_media, sizeof *out->image);
    out->given = calloc(n_media, sizeof *out->given);
    if (!out->image || !out->given) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%zu images: out of memory", n_media);
    size_t at = 0;
    for (; out->n < n_media && status == KAKEYA_OK; out->n++) {
        prompt_image *made = &out->image[out->n];
        made->place = next_run(tokens, n, at, v->image_token);
        at = made->place.begin + made->place.n;
        status = fit(v, &media[out->n], out->n, borrow, made, error);
    }
    return status;
}

kakeya_status prompt_images_of_timeline(const kakeya_engine *engine, mem_account *account, const decode_timeline *t,
                                        prompt_images *out, kakeya_error *error) {
    *out = (prompt_images){.ops = engine->ops};
    if (!t->n_images) return KAKEYA_OK;
    kakeya_status status = need_vision(engine, error);
    if (status != KAKEYA_OK) return status;
    out->image = calloc(t->n_images, sizeof *out->image);
    out->given = calloc(t->n_images, sizeof *out->given);
    if (!out->image || !out->given)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%zu images: out of memory", t->n_images);
    for (; out->n < t->n_images; out->n++) {
        prompt_image *made = &out->image[out->n];
        const size_t values = t->images[out->n].n * (size_t)engine->verifier->vision->text_hidden;
        made->place = t->images[out->n];
        made->rows = mem_alloc(account, MEM_WORKSPACE, values * sizeof *made->rows);
        if (!made->rows) return error_set(error, KAKEYA_OUT_OF_MEMORY, "an image's rows: out of memory");
        if (image_rows_find(engine->image_rows, made->place.digest, made->rows, values)) continue;
        mem_free(made->rows);
        made->rows = NULL;
        return error_set(error, KAKEYA_UNSUPPORTED, "the rows of image %zu are not kept (image_rows_bytes)", out->n);
    }
    return KAKEYA_OK;
}

bool prompt_images_give_up(prompt_images *images) {
    bool any = false;
    for (size_t i = 0; i < images->n; i++) {
        prompt_image *picture = &images->image[i];
        if (!picture->reading) continue;
        images->ops->image_end(picture->reading);
        mem_free(picture->rows);
        picture->reading = NULL;
        picture->rows = NULL;
        picture->whole = any = true;
    }
    return any;
}

void prompt_images_free(prompt_images *images) {
    (void)prompt_images_give_up(images);
    for (size_t i = 0; i < images->n; i++) {
        if (!images->image[i].borrowed) image_free(&images->image[i].pixels);
        mem_free(images->image[i].rows);
    }
    free(images->image);
    free(images->given);
    *images = (prompt_images){0};
}

kakeya_status kakeya_prompt_keys(const kakeya_engine *engine, const int32_t *tokens, size_t n,
                                 const kakeya_media *media, size_t n_media, int32_t *keys, kakeya_error *error) {
    prompt_images images;
    kakeya_status status = prompt_images_create(engine, tokens, n, media, n_media, true, &images, error);
    if (n) memcpy(keys, tokens, n * sizeof *keys);
    for (size_t i = 0; status == KAKEYA_OK && i < images.n; i++) {
        const timeline_image *place = &images.image[i].place;
        for (size_t k = 0; k < place->n; k++) keys[place->begin + k] = image_digest_key(place->digest, k);
    }
    prompt_images_free(&images);
    return status;
}

void kakeya_session_keys(const kakeya_session *session, int32_t *keys) {
    const decode_timeline *t = &session->timeline;
    if (t->n) memcpy(keys, t->tokens, t->n * sizeof *keys);
    for (size_t i = 0; i < t->n_images; i++)
        for (size_t k = 0; k < t->images[i].n; k++)
            keys[t->images[i].begin + k] = image_digest_key(t->images[i].digest, k);
}

size_t kakeya_session_images(const kakeya_session *session) { return session->timeline.n_images; }

size_t prompt_images_end(const prompt_images *images, size_t from, size_t end) {
    for (size_t i = 0; i < images->n; i++) {
        const timeline_image *place = &images->image[i].place;
        if (place->begin < end && end < place->begin + place->n)
            return place->begin > from ? place->begin : place->begin + place->n;
    }
    return end;
}

static bool is_made(const prompt_image *picture) { return picture->rows && !picture->reading; }

static void note_made(const prompt_image *picture, kakeya_engine *engine) {
    atomic_fetch_add(&engine->images_computed, 1);
    atomic_fetch_add(&engine->image_rows_computed, picture->place.n);
    image_rows_keep(engine->image_rows, picture->place.digest, picture->rows,
                    picture->place.n * (size_t)engine->verifier->vision->text_hidden);
}

/* Rows that are known, or in the making; of backends that read in one go, made. */
static kakeya_status begin_rows(prompt_image *picture, kakeya_engine *engine, mem_account *account, bool *known,
                                kakeya_error *error) {
    const gemma4_vision *v = engine->verifier->vision;
    const size_t values = 3 * (size_t)picture->pixels.width * (size_t)picture->pixels.height;
    const size_t row_values = picture->place.n * (size_t)v->text_hidden;
    picture->rows = mem_alloc(account, MEM_WORKSPACE, row_values * sizeof(float));
    *known = picture->rows && image_rows_find(engine->image_rows, picture->place.digest, picture->rows, row_values);
    if (*known) return KAKEYA_OK;
    float *patches = mem_alloc(account, MEM_WORKSPACE, values * sizeof *patches);
    kakeya_status status = KAKEYA_OK;
    if (!patches || !picture->rows) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "an image of %zu tokens: out of memory", picture->place.n);
    } else {
        const backend_image given = {.vision = v,
                                     .across = picture->pixels.width / v->patch,
                                     .down = picture->pixels.height / v->patch,
                                     .patches = patches};
        image_patches(&picture->pixels, v->patch, patches);
        status = engine->ops->image_begin
                     ? engine->ops->image_begin(engine->model, &given, picture->rows, &picture->reading, error)
                     : engine->ops->embed_image(engine->model, &given, picture->rows, error);
    }
    mem_free(patches);
    if (status != KAKEYA_OK) {
        mem_free(picture->rows);
        picture->rows = NULL;
    } else if (!picture->reading) {
        note_made(picture, engine);
    }
    return status;
}

/* Whether the rows can be made, or gone on with, in what is left of the step. */
static bool has_time(const prompt_image *picture, const backend_ops *ops, const image_time *time) {
    if (!time) return true;
    if (time->seconds <= 0) return false;
    const bool pieces = ops->image_begin && !picture->whole;
    return pieces || !time->rows || time->spent / (double)time->rows * (double)picture->place.n <= time->seconds;
}

static kakeya_status make_rows(prompt_image *picture, kakeya_engine *engine, mem_account *account, image_time *time,
                               kakeya_error *error) {
    const backend_ops *ops = engine->ops;
    const double begin = clock_seconds();
    bool known = false;
    kakeya_status status = picture->rows ? KAKEYA_OK : begin_rows(picture, engine, account, &known, error);
    if (picture->reading) {
        bool made = false;
        const double left = time && !picture->whole ? time->seconds - (clock_seconds() - begin) : INFINITY;
        status = ops->image_step(picture->reading, left, &made, error);
        if (made || status != KAKEYA_OK) {
            ops->image_end(picture->reading);
            picture->reading = NULL;
        }
        if (status == KAKEYA_OK && made) note_made(picture, engine);
        if (status != KAKEYA_OK) {
            mem_free(picture->rows);
            picture->rows = NULL;
        }
    }
    if (!time || known) return status;
    const double seconds = clock_seconds() - begin;
    time->seconds -= seconds;
    time->spent += seconds;
    if (is_made(picture)) time->rows += picture->place.n;
    return status;
}

kakeya_status prompt_images_give(prompt_images *images, kakeya_engine *engine, mem_account *account, size_t from,
                                 size_t end, image_time *time, bool *ready, const backend_given **given, int *n_given,
                                 kakeya_error *error) {
    int n = 0;
    *ready = true;
    *given = NULL;
    *n_given = 0;
    for (size_t i = 0; i < images->n; i++) {
        prompt_image *picture = &images->image[i];
        if (picture->place.begin < from || picture->place.begin >= end) {
            if (picture->place.begin < from) { /* has been computed */
                mem_free(picture->rows);
                picture->rows = NULL;
            }
            continue;
        }
        if (!is_made(picture)) {
            const double spent = time ? time->spent : 0;
            const bool now = has_time(picture, engine->ops, time);
            kakeya_status status = now ? make_rows(picture, engine, account, time, error) : KAKEYA_OK;
            if (status != KAKEYA_OK) return status;
            if (time && time->apart && time->spent > spent) *ready = false;
            if (!is_made(picture)) {
                *ready = false;
                return KAKEYA_OK;
            }
        }
        images->given[n++] = (backend_given){.first = (int)(picture->place.begin - from),
                                             .n = (int)picture->place.n,
                                             .rows = picture->rows,
                                             .both_ways = engine->verifier->vision->both_ways};
    }
    if (!*ready) return KAKEYA_OK;
    *given = n ? images->given : NULL;
    *n_given = n;
    return KAKEYA_OK;
}

static bool same(const timeline_image *a, const timeline_image *b) {
    return a->begin == b->begin && a->n == b->n && memcmp(a->digest, b->digest, sizeof a->digest) == 0;
}

size_t prompt_images_common(const prompt_images *images, const decode_timeline *t, size_t common) {
    size_t i = 0;
    for (;; i++) {
        const timeline_image *a = i < images->n ? &images->image[i].place : NULL;
        const timeline_image *b = i < t->n_images ? &t->images[i] : NULL;
        if (a && b && same(a, b) && a->begin + a->n <= common) continue;
        if (a && a->begin < common) common = a->begin;
        if (b && b->begin < common) common = b->begin;
        return common;
    }
}
