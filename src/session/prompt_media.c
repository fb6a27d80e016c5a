#include "session/prompt_media.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/sized.h"
#include "media/digest.h"
#include "media/resize.h"
#include "model/audio_model.h"
#include "model/vision_model.h"
#include "session/image.h"
#include "session/image_rows.h"
#include "session/session.h"
#include "session/sound.h"

static kakeya_status need_vision(const kakeya_engine *engine, kakeya_error *error) {
    if (engine->vision_off)
        return error_set(error, KAKEYA_UNSUPPORTED, "images are not read here: vision is off (--vision off)");
    if (!engine->verifier->vision)
        return error_set(error, KAKEYA_UNSUPPORTED, "the model reads no images%s%s",
                         *engine->verifier->note ? ": " : "", engine->verifier->note);
    if (engine->ops->embed_image) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED, "backend %s reads no images: choose backend cpu", engine->ops->name);
}

static kakeya_status need_sound(const kakeya_engine *engine, kakeya_error *error) {
    const language_model *verifier = engine->verifier;
    if (!verifier->sound) {
        const char *reason = *verifier->no_sound ? verifier->no_sound : verifier->note;
        return error_set(error, KAKEYA_UNSUPPORTED, "the model reads no sound%s%s", *reason ? ": " : "", reason);
    }
    if (engine->ops->sound_begin) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED, "backend %s reads no sound: choose backend cpu", engine->ops->name);
}

kakeya_status prompt_media_load(const kakeya_engine *engine, kakeya_error *error) {
    kakeya_status status = need_vision(engine, error);
    if (status) return error_prefix(error, status, "--vision on");
    vision_model_read(engine->verifier->vision);
    return engine->ops->load_vision ? engine->ops->load_vision(engine->model, engine->verifier->vision, error)
                                    : KAKEYA_OK;
}

static kakeya_status target_size(const vision_model *v, const kakeya_media *media, int *width, int *height,
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

static int rows_of(const vision_model *v, int width, int height) {
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

int32_t kakeya_engine_sound_token(const kakeya_engine *engine) {
    return need_sound(engine, NULL) == KAKEYA_OK ? engine->verifier->sound->sound_token : -1;
}

kakeya_status kakeya_engine_sound_tokens(const kakeya_engine *engine, const kakeya_sound *heard, int *tokens,
                                         kakeya_error *error) {
    kakeya_status status = need_sound(engine, error);
    if (status != KAKEYA_OK) return status;
    const size_t rows = audio_model_rows(engine->verifier->sound, heard->samples.n);
    *tokens = (int)rows;
    return rows ? KAKEYA_OK
                : error_set(error, KAKEYA_INVALID_ARGUMENT, "a sound of %zu samples is too short", heard->samples.n);
}

void kakeya_engine_sound_counts_sized(const kakeya_engine *engine, kakeya_sound_counts *out) {
    const kakeya_sound_counts counts = {.computed = atomic_load(&engine->sounds_computed),
                                        .computed_rows = atomic_load(&engine->sound_rows_computed)};
    sized_write(out, &counts, sizeof counts);
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

static size_t count_sounds(const kakeya_media *media, size_t n) {
    size_t sounds = 0;
    for (size_t i = 0; i < n; i++) sounds += media[i].sound != NULL;
    return sounds;
}

/* The model and the backend read both, as far as there are any, and there are as many as runs. */
static kakeya_status check_counts(const kakeya_engine *engine, const int32_t *tokens, size_t n,
                                  const kakeya_media *media, size_t n_media, kakeya_error *error) {
    const size_t sounds = count_sounds(media, n_media), pictures = n_media - sounds;
    kakeya_status status = pictures ? need_vision(engine, error) : KAKEYA_OK;
    if (status == KAKEYA_OK && sounds) status = need_sound(engine, error);
    if (status != KAKEYA_OK) return status;
    const int32_t picture = pictures ? engine->verifier->vision->image_token : -1;
    const int32_t heard = sounds ? engine->verifier->sound->sound_token : -1;
    const size_t picture_runs = count_runs(tokens, n, picture), sound_runs = count_runs(tokens, n, heard);
    if (picture_runs != pictures)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%zu images, but the prompt has room for %zu (token %d)",
                         pictures, picture_runs, (int)picture);
    if (sound_runs != sounds)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%zu sounds, but the prompt has room for %zu (token %d)",
                         sounds, sound_runs, (int)heard);
    return KAKEYA_OK;
}

static kakeya_status fit_sound(const kakeya_engine *engine, const kakeya_sound *heard, size_t index, bool borrow,
                               prompt_medium *out, kakeya_error *error) {
    int rows;
    kakeya_status status = kakeya_engine_sound_tokens(engine, heard, &rows, error);
    if (status != KAKEYA_OK) return error_prefix(error, status, "sound %zu", index);
    if ((size_t)rows != out->place.n)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "sound %zu is %d tokens, but the prompt has room for %zu",
                         index, rows, out->place.n);
    memcpy(out->place.digest, heard->digest, sizeof out->place.digest);
    out->is_sound = true;
    out->samples = heard->samples;
    out->borrowed = borrow;
    if (borrow) return KAKEYA_OK;
    out->samples.sample = malloc(heard->samples.n * sizeof *out->samples.sample);
    if (!out->samples.sample) return error_set(error, KAKEYA_OUT_OF_MEMORY, "sound %zu: out of memory", index);
    memcpy(out->samples.sample, heard->samples.sample, heard->samples.n * sizeof *out->samples.sample);
    return KAKEYA_OK;
}

/* The next one of its kind behind the first `taken` of them. */
static const kakeya_media *next_media(const kakeya_media *media, bool is_sound, size_t taken) {
    while ((media->sound != NULL) != is_sound || taken--) media++;
    return media;
}

static kakeya_status fit(const vision_model *v, const kakeya_media *media, size_t index, bool borrow,
                         prompt_medium *out, kakeya_error *error) {
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

kakeya_status prompt_media_create(const kakeya_engine *engine, const int32_t *tokens, size_t n,
                                  const kakeya_media *media, size_t n_media, bool borrow, prompt_media *out,
                                  kakeya_error *error) {
    *out = (prompt_media){.ops = engine->ops};
    if (!n_media) return KAKEYA_OK;
    kakeya_status status = check_counts(engine, tokens, n, media, n_media, error);
    if (status != KAKEYA_OK) return status;
    const size_t all_sounds = count_sounds(media, n_media);
    const int32_t picture_token = all_sounds < n_media ? engine->verifier->vision->image_token : -1;
    const int32_t sound_token = all_sounds ? engine->verifier->sound->sound_token : -1;
    out->medium = calloc(n_media, sizeof *out->medium);
    out->given = calloc(n_media, sizeof *out->given);
    if (!out->medium || !out->given)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%zu images and sounds: out of memory", n_media);
    size_t at = 0, sounds = 0;
    for (; out->n < n_media && status == KAKEYA_OK; out->n++) {
        prompt_medium *made = &out->medium[out->n];
        const timeline_image picture = next_run(tokens, n, at, picture_token);
        const timeline_image heard = next_run(tokens, n, at, sound_token);
        const bool is_sound = heard.begin < picture.begin;
        const size_t taken = is_sound ? sounds : out->n - sounds;
        const kakeya_media *given = next_media(media, is_sound, taken);
        made->place = is_sound ? heard : picture;
        at = made->place.begin + made->place.n;
        status = is_sound ? fit_sound(engine, given->sound, taken, borrow, made, error)
                          : fit(engine->verifier->vision, given, taken, borrow, made, error);
        sounds += is_sound;
    }
    return status;
}

static bool is_sound_token(const kakeya_engine *engine, int32_t token) {
    return engine->verifier->sound && token == engine->verifier->sound->sound_token;
}

kakeya_status prompt_media_of_timeline(const kakeya_engine *engine, mem_account *account, const decode_timeline *t,
                                       prompt_media *out, kakeya_error *error) {
    *out = (prompt_media){.ops = engine->ops};
    if (!t->n_images) return KAKEYA_OK;
    out->medium = calloc(t->n_images, sizeof *out->medium);
    out->given = calloc(t->n_images, sizeof *out->given);
    if (!out->medium || !out->given)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%zu images and sounds: out of memory", t->n_images);
    for (; out->n < t->n_images; out->n++) {
        prompt_medium *made = &out->medium[out->n];
        const size_t values = t->images[out->n].n * (size_t)engine->verifier->config.hidden;
        made->place = t->images[out->n];
        made->rows = mem_alloc(account, MEM_WORKSPACE, values * sizeof *made->rows);
        made->is_sound = is_sound_token(engine, t->tokens[made->place.begin]);
        if (!made->rows) return error_set(error, KAKEYA_OUT_OF_MEMORY, "an image's or a sound's rows: out of memory");
        if (image_rows_find(engine->image_rows, made->place.digest, made->rows, values)) continue;
        mem_free(made->rows);
        made->rows = NULL;
        return error_set(error, KAKEYA_UNSUPPORTED, "the rows of %s %zu are not kept (image_rows_bytes)",
                         made->is_sound ? "sound" : "image", out->n);
    }
    return KAKEYA_OK;
}

static void end_reading(prompt_medium *medium, const backend_ops *ops) {
    if (medium->reading) ops->image_end(medium->reading);
    if (medium->hearing) ops->sound_end(medium->hearing);
    medium->reading = NULL;
    medium->hearing = NULL;
}

bool prompt_media_give_up(prompt_media *media) {
    bool any = false;
    for (size_t i = 0; i < media->n; i++) {
        prompt_medium *medium = &media->medium[i];
        if (!medium->reading && !medium->hearing) continue;
        end_reading(medium, media->ops);
        mem_free(medium->rows);
        medium->rows = NULL;
        medium->whole = any = true;
    }
    return any;
}

void prompt_media_free(prompt_media *media) {
    (void)prompt_media_give_up(media);
    for (size_t i = 0; i < media->n; i++) {
        if (!media->medium[i].borrowed) {
            image_free(&media->medium[i].pixels);
            sound_free(&media->medium[i].samples);
        }
        mem_free(media->medium[i].rows);
    }
    free(media->medium);
    free(media->given);
    *media = (prompt_media){0};
}

kakeya_status kakeya_prompt_keys(const kakeya_engine *engine, const int32_t *tokens, size_t n,
                                 const kakeya_media *media, size_t n_media, int32_t *keys, kakeya_error *error) {
    prompt_media placed;
    kakeya_status status = prompt_media_create(engine, tokens, n, media, n_media, true, &placed, error);
    if (n) memcpy(keys, tokens, n * sizeof *keys);
    for (size_t i = 0; status == KAKEYA_OK && i < placed.n; i++) {
        const timeline_image *place = &placed.medium[i].place;
        for (size_t k = 0; k < place->n; k++) keys[place->begin + k] = image_digest_key(place->digest, k);
    }
    prompt_media_free(&placed);
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

size_t prompt_media_end(const prompt_media *media, size_t from, size_t end) {
    for (size_t i = 0; i < media->n; i++) {
        const timeline_image *place = &media->medium[i].place;
        if (place->begin < end && end < place->begin + place->n)
            return place->begin > from ? place->begin : place->begin + place->n;
    }
    return end;
}

static bool is_made(const prompt_medium *medium) { return medium->rows && !medium->reading && !medium->hearing; }

static void note_made(const prompt_medium *medium, kakeya_engine *engine) {
    atomic_fetch_add(medium->is_sound ? &engine->sounds_computed : &engine->images_computed, 1);
    atomic_fetch_add(medium->is_sound ? &engine->sound_rows_computed : &engine->image_rows_computed, medium->place.n);
    image_rows_keep(engine->image_rows, medium->place.digest, medium->rows,
                    medium->place.n * (size_t)engine->verifier->config.hidden);
}

static kakeya_status begin_picture(prompt_medium *medium, kakeya_engine *engine, mem_account *account,
                                   kakeya_error *error) {
    const vision_model *v = engine->verifier->vision;
    const size_t values = 3 * (size_t)medium->pixels.width * (size_t)medium->pixels.height;
    float *patches = mem_alloc(account, MEM_WORKSPACE, values * sizeof *patches);
    if (!patches)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "an image of %zu tokens: out of memory", medium->place.n);
    const backend_image given = {.vision = v,
                                 .across = medium->pixels.width / v->patch,
                                 .down = medium->pixels.height / v->patch,
                                 .patches = patches};
    image_patches(&medium->pixels, v->patch, patches);
    kakeya_status status = engine->ops->image_begin
                               ? engine->ops->image_begin(engine->model, &given, medium->rows, &medium->reading, error)
                               : engine->ops->embed_image(engine->model, &given, medium->rows, error);
    mem_free(patches);
    return status;
}

static kakeya_status begin_sound(prompt_medium *medium, kakeya_engine *engine, kakeya_error *error) {
    const backend_sound given = {
        .audio = engine->verifier->sound, .samples = medium->samples.sample, .n = medium->samples.n};
    return engine->ops->sound_begin(engine->model, &given, medium->rows, &medium->hearing, error);
}

/* Rows that are known, or in the making; of backends that read in one go, made. */
static kakeya_status begin_rows(prompt_medium *medium, kakeya_engine *engine, mem_account *account, bool *known,
                                kakeya_error *error) {
    const size_t values = medium->place.n * (size_t)engine->verifier->config.hidden;
    medium->rows = mem_alloc(account, MEM_WORKSPACE, values * sizeof(float));
    if (!medium->rows)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s of %zu tokens: out of memory",
                         medium->is_sound ? "a sound" : "an image", medium->place.n);
    *known = image_rows_find(engine->image_rows, medium->place.digest, medium->rows, values);
    if (*known) return KAKEYA_OK;
    kakeya_status status =
        medium->is_sound ? begin_sound(medium, engine, error) : begin_picture(medium, engine, account, error);
    if (status != KAKEYA_OK) {
        mem_free(medium->rows);
        medium->rows = NULL;
    } else if (is_made(medium)) {
        note_made(medium, engine);
    }
    return status;
}

/* Whether the rows can be made, or gone on with, in what is left of the step. */
static bool has_time(const prompt_medium *medium, const backend_ops *ops, const media_time *time) {
    if (!time) return true;
    if (time->seconds <= 0) return false;
    const bool pieces = (medium->is_sound ? ops->sound_begin != NULL : ops->image_begin != NULL) && !medium->whole;
    return pieces || !time->rows || time->spent / (double)time->rows * (double)medium->place.n <= time->seconds;
}

static kakeya_status make_rows(prompt_medium *medium, kakeya_engine *engine, mem_account *account, media_time *time,
                               kakeya_error *error) {
    const backend_ops *ops = engine->ops;
    const double begin = clock_seconds();
    bool known = false;
    kakeya_status status = medium->rows ? KAKEYA_OK : begin_rows(medium, engine, account, &known, error);
    if (medium->reading || medium->hearing) {
        bool made = false;
        const double left = time && !medium->whole ? time->seconds - (clock_seconds() - begin) : INFINITY;
        status = medium->reading ? ops->image_step(medium->reading, left, &made, error)
                                 : ops->sound_step(medium->hearing, left, &made, error);
        if (made || status != KAKEYA_OK) end_reading(medium, ops);
        if (status == KAKEYA_OK && made) note_made(medium, engine);
        if (status != KAKEYA_OK) {
            mem_free(medium->rows);
            medium->rows = NULL;
        }
    }
    if (!time || known) return status;
    const double seconds = clock_seconds() - begin;
    time->seconds -= seconds;
    time->spent += seconds;
    if (is_made(medium)) time->rows += medium->place.n;
    return status;
}

kakeya_status prompt_media_give(prompt_media *media, kakeya_engine *engine, mem_account *account, size_t from,
                                size_t end, media_time *time, bool *ready, const backend_given **given, int *n_given,
                                kakeya_error *error) {
    int n = 0;
    *ready = true;
    *given = NULL;
    *n_given = 0;
    for (size_t i = 0; i < media->n; i++) {
        prompt_medium *medium = &media->medium[i];
        if (medium->place.begin < from || medium->place.begin >= end) {
            if (medium->place.begin < from) { /* has been computed */
                mem_free(medium->rows);
                medium->rows = NULL;
            }
            continue;
        }
        if (!is_made(medium)) {
            const double spent = time ? time->spent : 0;
            const bool now = has_time(medium, engine->ops, time);
            kakeya_status status = now ? make_rows(medium, engine, account, time, error) : KAKEYA_OK;
            if (status != KAKEYA_OK) return status;
            if (time && time->apart && time->spent > spent) *ready = false;
            if (!is_made(medium)) {
                *ready = false;
                return KAKEYA_OK;
            }
        }
        media->given[n++] = (backend_given){.first = (int)(medium->place.begin - from),
                                            .n = (int)medium->place.n,
                                            .rows = medium->rows,
                                            .both_ways = !medium->is_sound && engine->verifier->vision->both_ways};
    }
    if (!*ready) return KAKEYA_OK;
    *given = n ? media->given : NULL;
    *n_given = n;
    return KAKEYA_OK;
}

static bool same(const timeline_image *a, const timeline_image *b) {
    return a->begin == b->begin && a->n == b->n && memcmp(a->digest, b->digest, sizeof a->digest) == 0;
}

size_t prompt_media_common(const prompt_media *media, const decode_timeline *t, size_t common) {
    size_t i = 0;
    for (;; i++) {
        const timeline_image *a = i < media->n ? &media->medium[i].place : NULL;
        const timeline_image *b = i < t->n_images ? &t->images[i] : NULL;
        if (a && b && same(a, b) && a->begin + a->n <= common) continue;
        if (a && a->begin < common) common = a->begin;
        if (b && b->begin < common) common = b->begin;
        return common;
    }
}
