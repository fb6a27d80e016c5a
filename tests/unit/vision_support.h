/* Tiny models that read pictures, with values made by transformers (tests/data/vision/README.md). Include after cmocka.
 */
#ifndef KAKEYA_TESTS_VISION_SUPPORT_H
#define KAKEYA_TESTS_VISION_SUPPORT_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "formats/safetensors.h"
#include "kakeya_study.h"
#include "session/image.h"

#ifndef TINY_BACKEND
#define TINY_BACKEND "cpu"
#endif
#define VISION KAKEYA_TEST_DATA "/vision"
#define IMAGES KAKEYA_TEST_DATA "/images"

enum { MODELS = 3, PROMPTS = 2, MOST_IMAGES = 3, BUDGET = 70, GREEDY = 12 };
static const char *const model_names[MODELS] = {"tiny-tower", "tiny-e", "tiny-unified"};
static const char *const prompt_names[PROMPTS] = {"one", "two"};
static const char *const pictures[PROMPTS][MOST_IMAGES] = {{"photo.jpg"}, {"gradient.png", "text.png", "photo.jpg"}};

static kakeya_error failure;
#define ok(call)                                                                                                       \
    do {                                                                                                               \
        if (call) fail_msg("%s", failure.message);                                                                     \
    } while (0)

typedef struct fixture {
    kakeya_engine *engine;
    safetensors *golden;
    int vocab, hidden, layers;
} fixture;

typedef struct prompt {
    const int32_t *ids;
    size_t n, n_media;
    kakeya_media media[MOST_IMAGES];
} prompt;

/* The model is `path`, the values are those of `name`. */
static inline fixture open_model_at(const char *name, const char *given, const char *mmproj) {
    fixture f = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/%s/golden.safetensors", VISION, name);
    ok(safetensors_open(path, &f.golden, &failure));
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = given;
    options.mmproj = mmproj;
    options.backend = TINY_BACKEND;
    options.precision = KAKEYA_PRECISION_F32;
    options.threads = 2;
    ok(kakeya_engine_open(&options, &f.engine, &failure));
    f.vocab = kakeya_engine_vocab_size(f.engine);
    f.hidden = kakeya_engine_hidden_size(f.engine);
    f.layers = kakeya_engine_layers(f.engine);
    return f;
}

static inline fixture open_model(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", VISION, name);
    return open_model_at(name, path, NULL);
}

static inline void close_model(fixture *f) {
    kakeya_engine_close(f->engine);
    safetensors_close(f->golden);
}

static const void *golden(const fixture *f, const char *prompt_name, const char *what, size_t *n) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s", prompt_name, what);
    const tensor *t = safetensors_find(f->golden, name);
    if (!t) fail_msg("%s is not there", name);
    *n = t->bytes / 4;
    return t->data;
}

static inline kakeya_image *open_image(const char *name) {
    char path[512], *data;
    size_t bytes;
    kakeya_image *opened;
    snprintf(path, sizeof path, "%s/%s", IMAGES, name);
    ok(file_read(path, 1 << 20, &data, &bytes, &failure));
    ok(kakeya_image_open(name, data, bytes, &opened, &failure));
    free(data);
    return opened;
}

static inline prompt open_prompt(const fixture *f, int which) {
    prompt p = {0};
    p.ids = golden(f, prompt_names[which], "input_ids", &p.n);
    for (; p.n_media < MOST_IMAGES && pictures[which][p.n_media]; p.n_media++)
        p.media[p.n_media] = (kakeya_media){.image = open_image(pictures[which][p.n_media]), .budget = BUDGET};
    return p;
}

static inline void close_prompt(prompt *p) {
    for (size_t i = 0; i < p->n_media; i++) kakeya_image_close((kakeya_image *)(uintptr_t)p->media[i].image);
}

static inline kakeya_session *open_session(const fixture *f, int chunk) {
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    options.prompt_chunk_tokens = chunk;
    kakeya_session *session;
    ok(kakeya_session_open(f->engine, &options, &session, &failure));
    return session;
}

static inline void near(const char *what, const float *got, const float *wanted, size_t n, float most) {
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - wanted[i]) <= most))
            fail_msg("%s, value %zu: %g, not %g", what, i, (double)got[i], (double)wanted[i]);
}

/* logits: [n][vocab]; hidden (may be NULL): [layers + 1][n][hidden]. malloc'ed. */
static inline float *score(const fixture *f, const prompt *p, int chunk, float **hidden) {
    kakeya_session *session = open_session(f, chunk);
    kakeya_score_options options;
    KAKEYA_INIT(&options);
    options.media = p->media;
    options.n_media = p->n_media;
    options.logits = malloc(p->n * (size_t)f->vocab * sizeof(float));
    options.hidden_states = hidden ? malloc((size_t)(f->layers + 1) * p->n * (size_t)f->hidden * sizeof(float)) : NULL;
    ok(kakeya_session_score(session, p->ids, p->n, &options, &failure));
    kakeya_session_close(session);
    if (hidden) *hidden = options.hidden_states;
    return options.logits;
}

#endif
