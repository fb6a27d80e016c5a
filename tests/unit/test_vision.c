/* Models that read pictures, against values made with transformers (tests/data/vision/README.md): rows of pictures,
 * logits and answers; and that neither chunks, nor earlier prompts, nor copies of a session change a bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "vision_support.h"

#include <sys/mman.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/measure.h"
#include "formats/checkpoint.h"
#include "kakeya_study.h"
#include "model/vision_model.h"
#include "session/engine.h"
#include "session/session.h"
#include "sweep.h"

/* Other backends keep their workspace in other ways. */
static bool on_cpu(void) { return strcmp(TINY_BACKEND, "cpu") == 0; }

/* Of what takes long there. */
static bool few(void) { return !on_cpu() && sweep_short(); }

/* Embeddings of the picture's tokens are the rows that were made of it. */
static void check_rows(const fixture *f, const prompt *p, const float *hidden) {
    size_t n, begin = 0;
    const float *wanted = golden(f, "one", "soft_tokens", &n);
    while (p->ids[begin] != kakeya_engine_image_token(f->engine)) begin++;
    near("rows of the picture", hidden + begin * (size_t)f->hidden, wanted, n, 1e-3f);
}

static void check_hidden(const fixture *f, const prompt *p, const float *hidden) {
    size_t n_rows, n;
    const int32_t *rows = golden(f, "one", "rows", &n_rows);
    const float *wanted = golden(f, "one", "hidden", &n);
    char what[64];
    for (int layer = 0; layer <= f->layers; layer++) {
        for (size_t i = 0; i < n_rows; i++, wanted += f->hidden) {
            snprintf(what, sizeof what, "hidden states behind layer %d, row %d", layer, (int)rows[i]);
            near(what, hidden + ((size_t)layer * p->n + (size_t)rows[i]) * (size_t)f->hidden, wanted, (size_t)f->hidden,
                 2e-3f);
        }
    }
}

static void check_prompt(const fixture *f, const char *model, int which) {
    prompt p = open_prompt(f, which);
    float *hidden, *logits = score(f, &p, 0, &hidden);
    if (which == 0) {
        check_rows(f, &p, hidden);
        check_hidden(f, &p, hidden);
    }
    size_t n_rows, n;
    const int32_t *rows = golden(f, prompt_names[which], "rows", &n_rows);
    const float *wanted = golden(f, prompt_names[which], "logits", &n);
    for (size_t i = 0; i < n_rows; i++)
        near(model, logits + (size_t)rows[i] * (size_t)f->vocab, wanted + i * (size_t)f->vocab, (size_t)f->vocab,
             1e-3f);
    free(hidden);
    free(logits);
    close_prompt(&p);
}

static void test_values_are_those_of_the_reference(void **state) {
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        fixture f = open_model(model_names[m]);
        for (int which = 0; which < PROMPTS; which++) check_prompt(&f, model_names[m], which);
        close_model(&f);
    }
}

static void sync_prompt(kakeya_session *session, const prompt *p, size_t *reused) {
    ok(kakeya_session_sync_media(session, p->ids, p->n, p->media, p->n_media, reused, NULL, NULL, &failure));
}

/* The answer's tokens behind n. */
static void answer(kakeya_session *session, size_t n, kakeya_mode mode, int32_t out[GREEDY]) {
    kakeya_generate_options options;
    KAKEYA_INIT(&options);
    options.max_tokens = GREEDY;
    options.ignore_stop_tokens = true;
    options.mode = mode;
    ok(kakeya_session_generate(session, &options, NULL, &failure));
    size_t all;
    const int32_t *tokens = kakeya_session_tokens(session, &all);
    assert_int_equal(all, n + GREEDY);
    memcpy(out, tokens + n, GREEDY * sizeof *out);
}

static void check_answer(const fixture *f, int which, const int32_t got[GREEDY]) {
    size_t n;
    const int32_t *wanted = golden(f, prompt_names[which], "greedy", &n);
    for (size_t i = 0; i < GREEDY; i++)
        if (got[i] != wanted[i])
            fail_msg("prompt %s, answer's token %zu: %d, not %d", prompt_names[which], i, (int)got[i], (int)wanted[i]);
}

static void test_answers_are_those_of_the_reference(void **state) {
    (void)state;
    static const kakeya_mode modes[] = {KAKEYA_MODE_AR, KAKEYA_MODE_NGRAM};
    for (int m = 0; m < MODELS; m++) {
        fixture f = open_model(model_names[m]);
        for (int which = 0; which < PROMPTS; which++) {
            prompt p = open_prompt(&f, which);
            int32_t got[GREEDY];
            for (size_t mode = 0; mode < 2; mode++) {
                kakeya_session *session = open_session(&f, mode ? 5 : 0);
                sync_prompt(session, &p, NULL);
                answer(session, p.n, modes[mode], got);
                check_answer(&f, which, got);
                kakeya_session_close(session);
            }
            close_prompt(&p);
        }
        close_model(&f);
    }
}

/* Pictures are never cut, however small the chunks, so that every row is what it is in one go. */
static void test_chunks_change_no_bit(void **state) {
    (void)state;
    static const int chunks[] = {1, 13, 64, 200};
    for (int m = 0; m < MODELS; m++) {
        fixture f = open_model(model_names[m]);
        prompt p = open_prompt(&f, 1);
        float *wanted = score(&f, &p, 0, NULL);
        for (size_t c = few() ? 1 : 0; c < sizeof chunks / sizeof *chunks; c++) {
            float *got = score(&f, &p, chunks[c], NULL);
            if (memcmp(got, wanted, p.n * (size_t)f.vocab * sizeof *got) != 0)
                fail_msg("%s: other logits in chunks of %d", model_names[m], chunks[c]);
            free(got);
        }
        free(wanted);
        close_prompt(&p);
        close_model(&f);
    }
}

/* Without a picture the token is one like others, so what differs comes from the picture. */
static void test_what_is_reused(void **state) {
    (void)state;
    fixture f = open_model("tiny-tower");
    prompt p = open_prompt(&f, 1), other = p;
    kakeya_session *session = open_session(&f, 0);
    size_t reused, second = 0;
    int32_t got[GREEDY];
    sync_prompt(session, &p, &reused);
    assert_int_equal(reused, 0);
    answer(session, p.n, KAKEYA_MODE_AR, got);
    sync_prompt(session, &p, &reused);
    assert_int_equal(reused, p.n - 1);
    answer(session, p.n, KAKEYA_MODE_AR, got);
    check_answer(&f, 1, got);

    /* another picture in the place of the second one, of the same size but for a pixel's worth of colour */
    while (p.ids[second] != kakeya_engine_image_token(f.engine)) second++;
    while (p.ids[second] == kakeya_engine_image_token(f.engine)) second++;
    while (p.ids[second] != kakeya_engine_image_token(f.engine)) second++;
    char path[512], *data;
    size_t bytes;
    snprintf(path, sizeof path, "%s/text.png", IMAGES);
    ok(file_read(path, 1 << 20, &data, &bytes, &failure));
    kakeya_image *changed;
    ok(kakeya_image_open("one-pixel.png", data, bytes, &changed, &failure));
    free(data);
    changed->pixels.rgb[0] ^= 255;
    other.media[1].image = changed;
    kakeya_session *fresh = open_session(&f, 0);
    int32_t wanted[GREEDY];
    sync_prompt(fresh, &other, NULL);
    answer(fresh, p.n, KAKEYA_MODE_AR, wanted);
    kakeya_session_close(fresh);
    sync_prompt(session, &other, &reused);
    assert_true(reused <= second);
    answer(session, p.n, KAKEYA_MODE_AR, got);
    assert_memory_equal(got, wanted, sizeof wanted);
    sync_prompt(session, &p, &reused);
    assert_true(reused <= second);
    answer(session, p.n, KAKEYA_MODE_AR, got);
    check_answer(&f, 1, got);

    /* no pictures at all: nothing behind the first one's beginning is the same */
    ok(kakeya_session_sync(session, p.ids, p.n, &reused, NULL, NULL, &failure));
    assert_true(reused < second);
    kakeya_image_close(changed);
    kakeya_session_close(session);
    close_prompt(&p);
    close_model(&f);
}

/* Forks and saved sessions know their pictures. */
static void test_copies_know_their_pictures(void **state) {
    (void)state;
    fixture f = open_model("tiny-unified");
    prompt p = open_prompt(&f, 1), one = p;
    one.n_media = 0;
    kakeya_session *session = open_session(&f, 0), *fork, *loaded = open_session(&f, 0);
    size_t reused, bytes;
    void *data;
    sync_prompt(session, &p, NULL);
    ok(kakeya_session_fork(session, &fork, &failure));
    ok(session_to_memory(session, &data, &bytes, &failure));
    ok(session_from_memory(loaded, data, bytes, &failure));
    kakeya_session *const copies[] = {fork, loaded};
    for (size_t i = 0; i < 2; i++) {
        int32_t got[GREEDY];
        sync_prompt(copies[i], &p, &reused);
        assert_int_equal(reused, p.n);
        answer(copies[i], p.n, KAKEYA_MODE_AR, got);
        check_answer(&f, 1, got);
        ok(kakeya_session_sync(copies[i], one.ids, one.n, &reused, NULL, NULL, &failure));
        assert_true(reused < 20);
    }
    for (size_t cut = 0; cut < bytes; cut += 1 + bytes / 61)
        assert_int_not_equal(session_from_memory(loaded, data, cut, &failure), KAKEYA_OK);
    kakeya_free(data);
    kakeya_session_close(session);
    kakeya_session_close(fork);
    kakeya_session_close(loaded);
    close_prompt(&p);
    close_model(&f);
}

/* What `info` says of a picture's workspace is what the tower then takes, and of its weights what the engine has. */
static void test_its_memory_is_told(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        enum { ACROSS = 21, DOWN = 27, THREADS = 2 };
        mem_account account;
        mem_account_init(&account, NULL, 0);
        language_model *verifier;
        backend_model *model;
        char path[512];
        snprintf(path, sizeof path, "%s/%s", VISION, model_names[i]);
        ok(language_model_open(path, &account, &verifier, &failure));
        const backend_ops *ops = backend_find(TINY_BACKEND, NULL);
        const backend_model_options options = {
            .verifier = verifier, .precision = KAKEYA_PRECISION_F32, .threads = THREADS, .account = &account};
        ok(ops->model_create(&options, &model, &failure));
        const vision_model *v = verifier->vision;
        const int across = ACROSS / (v->tower ? 1 : 3), down = DOWN / (v->tower ? 1 : 3), patches = across * down;
        float *values = calloc((size_t)(patches * vision_model_patch_values(v)), sizeof *values);
        float *rows = calloc((size_t)(patches / (v->pooling * v->pooling) * v->text_hidden), sizeof *rows);
        const backend_image picture = {.vision = v, .across = across, .down = down, .patches = values};
        if (ops->load_vision) ok(ops->load_vision(model, v, &failure));
        const size_t before = mem_total(&account);
        atomic_store(&account.peak_bytes, before);
        ok(ops->embed_image(model, &picture, rows, &failure));
        assert_int_equal(
            backend_measure_find(ops)->image_bytes(v, verifier->config.checkpoint_format, patches, down, THREADS),
            atomic_load(&account.peak_bytes) - before);
        kakeya_engine_options described;
        kakeya_description *description;
        KAKEYA_INIT(&described);
        described.model = path;
        ok(kakeya_describe(&described, &description, &failure));
        const kakeya_facts facts = kakeya_description_facts(description);
        const vision_sizes sizes = vision_model_sizes(v, WEIGHT_Q4_0 /* it has weights, which say their own */);
        assert_int_equal(facts.vision_parameters, sizes.parameters);
        assert_int_equal(facts.vision_bytes, sizes.bytes);
        assert_int_equal(facts.vision_layers, v->layers);
        assert_int_equal(facts.vision_budget, v->budget);
        kakeya_description_close(description);
        free(values);
        free(rows);
        ops->model_destroy(model);
        language_model_close(verifier);
        assert_int_equal(mem_total(&account), 0);
    }
}

/* Those of the 26B: the tower's parameters as transformers counts them, which takes std_bias and std_scale for buffers,
 * these, and the projection. */
static void test_sizes_of_a_published_tower(void **state) {
    (void)state;
    const vision_model v = {.tower = true,
                            .patch = 16,
                            .pooling = 3,
                            .layers = 27,
                            .hidden = 1152,
                            .heads = 16,
                            .head_dim = 72,
                            .intermediate = 4304,
                            .positions = 10240,
                            .text_hidden = 2816,
                            .standardize = true};
    const vision_sizes sizes = vision_model_sizes(&v, WEIGHT_BF16);
    assert_int_equal(sizes.parameters, 569548080 + 2304 + 2816 * 1152);
    assert_in_range(sizes.bytes, 2 * sizes.parameters, 2 * sizes.parameters + (1 << 20));
}

static void test_truncation(void **state) {
    (void)state;
    fixture f = open_model("tiny-tower");
    prompt p = open_prompt(&f, 0);
    kakeya_session *session = open_session(&f, 0);
    sync_prompt(session, &p, NULL);
    size_t begin = 0;
    while (p.ids[begin] != kakeya_engine_image_token(f.engine)) begin++;
    assert_int_not_equal(kakeya_session_truncate(session, begin + 5, &failure), KAKEYA_OK);
    ok(kakeya_session_truncate(session, p.n - 2, &failure));
    kakeya_session_close(session);
    close_prompt(&p);
    close_model(&f);
}

/* Pictures of more rows than a forward of text has make the workspace grow, text and shorter ones do not; nothing is
 * different then. */
static void test_the_workspace_grows_for_a_long_picture(void **state) {
    (void)state;
    enum { LONG = 560, TEXT_ROWS = 512, MOST = 700 };
    fixture f = open_model("tiny-tower");
    prompt p = open_prompt(&f, 0), longer = {0};
    kakeya_session *session = open_session(&f, 0);
    kakeya_media media = {.image = p.media[0].image, .budget = LONG};
    int rows;
    int32_t ids[MOST], got[GREEDY], wanted[GREEDY];
    ok(kakeya_session_sync(session, p.ids, p.n, NULL, NULL, NULL, &failure));
    answer(session, p.n, KAKEYA_MODE_AR, got);
    const size_t before = kakeya_engine_memory(f.engine, KAKEYA_MEMORY_WORKSPACE);
    sync_prompt(session, &p, NULL);
    answer(session, p.n, KAKEYA_MODE_AR, wanted);
    check_answer(&f, 0, wanted);
    const size_t with_short = kakeya_engine_memory(f.engine, KAKEYA_MEMORY_WORKSPACE);
    if (on_cpu()) assert_true(with_short < before + (1 << 20));

    ok(kakeya_engine_image_tokens(f.engine, &media, &rows, &failure));
    assert_in_range(rows, TEXT_ROWS + 1, LONG);
    size_t n = 0, begin = 0;
    while (p.ids[begin] != kakeya_engine_image_token(f.engine)) begin++;
    for (; n < begin; n++) ids[n] = p.ids[n];
    for (int i = 0; i < rows; i++) ids[n++] = kakeya_engine_image_token(f.engine);
    for (size_t i = begin; i < p.n; i++)
        if (p.ids[i] != kakeya_engine_image_token(f.engine)) ids[n++] = p.ids[i];
    longer = (prompt){.ids = ids, .n = n, .n_media = 1, .media = {media}};
    sync_prompt(session, &longer, NULL);
    answer(session, n, KAKEYA_MODE_AR, got);
    const size_t with_long = kakeya_engine_memory(f.engine, KAKEYA_MEMORY_WORKSPACE);
    if (on_cpu()) assert_true(with_long > with_short + with_short / 10);
    sync_prompt(session, &longer, NULL);
    answer(session, n, KAKEYA_MODE_NGRAM, wanted);
    assert_memory_equal(got, wanted, sizeof got);
    if (on_cpu()) /* it grows once */
        assert_true(kakeya_engine_memory(f.engine, KAKEYA_MEMORY_WORKSPACE) < with_long + (1 << 16));

    sync_prompt(session, &p, NULL);
    answer(session, p.n, KAKEYA_MODE_AR, got);
    check_answer(&f, 0, got);
    kakeya_session_close(session);
    close_prompt(&p);
    close_model(&f);
}

typedef struct machine {
    mem_account account;
    language_model *verifier;
    const backend_ops *ops;
    backend_model *model;
    backend_cache *cache;
} machine;

static machine *open_machine(void) {
    machine *m = calloc(1, sizeof *m);
    mem_account_init(&m->account, NULL, 0);
    m->ops = backend_find(TINY_BACKEND, NULL);
    ok(language_model_open(VISION "/tiny-tower", &m->account, &m->verifier, &failure));
    const backend_model_options options = {
        .verifier = m->verifier, .precision = KAKEYA_PRECISION_F32, .threads = 1, .account = &m->account};
    ok(m->ops->model_create(&options, &m->model, &failure));
    const backend_cache_options cache = {
        .context_tokens = 1000, .window = 64, .sink = 4, .draft_window = 64, .account = &m->account};
    ok(m->ops->cache_create(m->model, &cache, &m->cache, &failure));
    return m;
}

static void close_machine(machine *m) {
    m->ops->cache_destroy(m->cache);
    m->ops->model_destroy(m->model);
    language_model_close(m->verifier);
    assert_int_equal(mem_total(&m->account), 0);
    free(m);
}

/* Where memory for more rows is lacking nothing has changed, and what comes later has the bits that it has otherwise.
 */
static void test_no_memory_for_more_rows(void **state) {
    (void)state;
    if (!on_cpu()) skip(); /* others keep what they have reserved */
    enum { FIRST = 20, ROWS = 600 };
    machine *m[2] = {open_machine(), open_machine()};
    const size_t vocab = (size_t)m[0]->verifier->config.vocab, hidden = (size_t)m[0]->verifier->config.hidden;
    float *rows = calloc(ROWS * hidden, sizeof *rows), *logits[2];
    int32_t tokens[ROWS] = {2};
    for (size_t i = 0; i < ROWS * hidden; i++) rows[i] = sinf((float)i);
    for (int i = 0; i < 2; i++) {
        const backend_given given = {.n = ROWS, .rows = rows, .both_ways = true};
        logits[i] = calloc(vocab, sizeof *logits[i]);
        backend_segment first = {.cache = m[i]->cache, .tokens = tokens, .n = FIRST, .first_logit_row = FIRST};
        backend_segment more = {.cache = m[i]->cache,
                                .tokens = tokens,
                                .n = ROWS,
                                .first_logit_row = ROWS - 1,
                                .logits = logits[i],
                                .given = &given,
                                .n_given = 1};
        ok(m[i]->ops->forward(m[i]->model, &first, 1, &failure));
        ok(m[i]->ops->cache_commit(m[i]->cache, FIRST, &failure));
        for (int at = 0; i == 0 && at < 100; at++) { /* allocations one after the other */
            const size_t before = mem_total(&m[0]->account);
            m[0]->account.limit_bytes = before + 64 + (size_t)at * 16384;
            if (m[0]->ops->forward(m[0]->model, &more, 1, &failure) != KAKEYA_OUT_OF_MEMORY)
                fail_msg("no refusal at %d", at);
            assert_int_equal(m[0]->ops->cache_length(m[0]->cache), FIRST);
            assert_int_equal(m[0]->ops->cache_pending(m[0]->cache), 0);
            assert_true(mem_total(&m[0]->account) <= before); /* less: what can be done without */
            m[0]->account.limit_bytes = 0;
        }
        ok(m[i]->ops->forward(m[i]->model, &more, 1, &failure));
    }
    assert_memory_equal(logits[0], logits[1], vocab * sizeof(float));
    for (int i = 0; i < 2; i++) {
        close_machine(m[i]);
        free(logits[i]);
    }
    free(rows);
}

/* Rows of pictures are prompt rows: under sink and window an answer is what it is when every row is computed in other
 * chunks, with drafts, in a copy, and after a second turn; and with a picture that is longer than window and sink. */
static void test_bounded_policies(void **state) {
    (void)state;
    static const int windows[] = {8, 24, 64};
    for (int m = 0; m < MODELS; m++) {
        fixture f = open_model(model_names[m]);
        prompt p = open_prompt(&f, 1);
        for (size_t w = few() ? 2 : 0; w < sizeof windows / sizeof *windows; w++) {
            int32_t wanted[GREEDY], got[GREEDY];
            for (int way = 0; way < 4; way++) {
                kakeya_session_options options;
                KAKEYA_INIT(&options);
                options.attention = KAKEYA_ATTENTION_SINK_WINDOW;
                options.sink = 4;
                options.window = windows[w];
                options.prompt_chunk_tokens = way == 1 ? 13 : 0;
                kakeya_session *session, *fork = NULL;
                size_t reused;
                ok(kakeya_session_open(f.engine, &options, &session, &failure));
                sync_prompt(session, &p, NULL);
                if (way == 3) ok(kakeya_session_fork(session, &fork, &failure));
                answer(fork ? fork : session, p.n, way == 2 ? KAKEYA_MODE_NGRAM : KAKEYA_MODE_AR, way ? got : wanted);
                if (way && memcmp(got, wanted, sizeof got) != 0)
                    fail_msg("%s, window %d: another answer in way %d", model_names[m], windows[w], way);
                sync_prompt(session, &p, &reused);
                if (way != 3) assert_true(reused == 0 || reused >= p.n - 1); /* never a part of a picture */
                answer(session, p.n, KAKEYA_MODE_AR, got);
                if (memcmp(got, wanted, sizeof got) != 0)
                    fail_msg("%s, window %d: another answer the second time, way %d", model_names[m], windows[w], way);
                if (fork) kakeya_session_close(fork);
                kakeya_session_close(session);
            }
        }
        close_prompt(&p);
        close_model(&f);
    }
}

static void refuse(kakeya_status status, kakeya_status wanted, const char *words) {
    if (status != wanted || !strstr(failure.message, words))
        fail_msg("status %d, not %d with \"%s\": %s", status, wanted, words, failure.message);
}

static void test_what_does_not_fit_is_refused(void **state) {
    (void)state;
    fixture f = open_model("tiny-tower");
    prompt p = open_prompt(&f, 1);
    kakeya_session *session = open_session(&f, 0);
    refuse(kakeya_session_sync_media(session, p.ids, p.n, p.media, 2, NULL, NULL, NULL, &failure),
           KAKEYA_INVALID_ARGUMENT, "2 images, but the prompt has room for 3");
    p.media[1].budget = 140;
    refuse(kakeya_session_sync_media(session, p.ids, p.n, p.media, 3, NULL, NULL, NULL, &failure),
           KAKEYA_INVALID_ARGUMENT, "but the prompt has room for 60");
    p.media[1].budget = 71;
    refuse(kakeya_session_sync_media(session, p.ids, p.n, p.media, 3, NULL, NULL, NULL, &failure),
           KAKEYA_INVALID_ARGUMENT, "the image budget is 71 tokens");
    p.media[1].budget = BUDGET;
    kakeya_score_options options;
    KAKEYA_INIT(&options);
    options.media = p.media;
    options.n_media = 3;
    options.prompt_length = 30;
    refuse(kakeya_session_score(session, p.ids, p.n, &options, &failure), KAKEYA_INVALID_ARGUMENT,
           "does not lie in the prompt of 30 tokens");
    sync_prompt(session, &p, NULL);
    kakeya_session_close(session);
    close_prompt(&p);
    close_model(&f);
}

/* Visits the whole pages of the matrices that pictures are read with. False where the system does not tell of them. */
typedef bool (*visit_pages)(void *user, uintptr_t first, size_t bytes);
static bool each_matrix(const vision_model *v, visit_pages visit, void *user) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int layer = 0; layer <= v->layers; layer++) {
        for (int role = 0; role < VISION_ROLES; role++) {
            const weight *w = &v->weights[layer].matrix[role];
            if (!weight_present(w)) continue;
            const uintptr_t begin = (uintptr_t)weight_row(w, 0, 0);
            const uintptr_t end = (begin + weight_row_bytes(w, 0) * (size_t)w->out) / page * page;
            const uintptr_t first = (begin + page - 1) / page * page;
            if (first < end && !visit(user, first, end - first)) return false;
        }
    }
    return true;
}

static bool drop_pages(void *user, uintptr_t first, size_t bytes) {
    (void)user;
    return madvise((void *)first, bytes, MADV_DONTNEED) == 0;
}

typedef struct page_counts {
    FILE *map;
    size_t there, missing;
} page_counts;

static bool count_pages(void *user, uintptr_t first, size_t bytes) {
    page_counts *counts = user;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (uintptr_t at = first; at < first + bytes; at += page) {
        uint64_t entry;
        if (fseek(counts->map, (long)(at / page * sizeof entry), SEEK_SET) ||
            !fread(&entry, sizeof entry, 1, counts->map))
            return false;
        *(entry >> 63 ? &counts->there : &counts->missing) += 1;
    }
    return true;
}

/* What is read at the start is in memory then. */
static void test_reading_ahead(void **state) {
    (void)state;
    fixture f = open_model("tiny-tower");
    page_counts before = {.map = fopen("/proc/self/pagemap", "rb")}, after = before;
    const vision_model *v = f.engine->verifier->vision;
    if (before.map) setvbuf(before.map, NULL, _IONBF, 0); /* each entry is read anew */
    bool told = before.map && f.engine->verifier->checkpoint->n_copies == 0;
    told = told && each_matrix(v, drop_pages, NULL) && each_matrix(v, count_pages, &before);
    vision_model_read(v);
    told = told && each_matrix(v, count_pages, &after);
    if (told) {
        assert_true(before.missing > 0);
        assert_int_equal(after.missing, 0);
        assert_int_equal(after.there, before.there + before.missing);
    } else {
        print_message("this system does not tell which pages are in memory\n");
    }
    if (before.map) fclose(before.map);
    close_model(&f);
}

static kakeya_status open_switched(const char *model, kakeya_vision vision, kakeya_engine **out) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = model;
    options.backend = TINY_BACKEND;
    options.precision = KAKEYA_PRECISION_F32;
    options.threads = 2;
    options.vision = vision;
    return kakeya_engine_open(&options, out, &failure);
}

/* What reads pictures is read at the start, or with the first one, or never. Text and the tokens that an answer may
 * have are the same, and so are answers to pictures where they are read. */
static void test_the_switch(void **state) {
    (void)state;
    fixture f = open_model("tiny-tower");
    prompt p = open_prompt(&f, 0);
    int32_t text[GREEDY], got[GREEDY];
    for (kakeya_vision vision = KAKEYA_VISION_AUTO; kakeya_vision_name(vision); vision++) {
        kakeya_engine *engine;
        ok(open_switched(VISION "/tiny-tower", vision, &engine));
        const vision_model *v = engine->verifier->vision;
        assert_int_equal(v == NULL, vision == KAKEYA_VISION_OFF);
        const model_config *c = &engine->verifier->config, *wanted = &f.engine->verifier->config;
        assert_int_equal(c->n_suppress_tokens, wanted->n_suppress_tokens);
        assert_memory_equal(c->suppress_tokens, wanted->suppress_tokens,
                            (size_t)c->n_suppress_tokens * sizeof *c->suppress_tokens);
        kakeya_session *session;
        kakeya_session_options options;
        KAKEYA_INIT(&options);
        ok(kakeya_session_open(engine, &options, &session, &failure));
        ok(kakeya_session_sync(session, p.ids, p.n, NULL, NULL, NULL, &failure));
        answer(session, p.n, KAKEYA_MODE_AR, vision ? got : text);
        if (vision) assert_memory_equal(got, text, sizeof got);
        if (vision == KAKEYA_VISION_OFF) {
            assert_int_equal(kakeya_engine_image_token(engine), -1);
            refuse(kakeya_session_sync_media(session, p.ids, p.n, p.media, p.n_media, NULL, NULL, NULL, &failure),
                   KAKEYA_UNSUPPORTED, "vision is off");
        } else {
            sync_prompt(session, &p, NULL);
            answer(session, p.n, KAKEYA_MODE_AR, got);
            check_answer(&f, 0, got);
        }
        kakeya_session_close(session);
        kakeya_engine_close(engine);
    }
    kakeya_engine *none;
    refuse(open_switched(KAKEYA_TEST_DATA "/golden/gemma4-tiny-moe", KAKEYA_VISION_ON, &none), KAKEYA_UNSUPPORTED,
           "--vision on: the model reads no images");
    refuse(open_switched(VISION "/tiny-tower", (kakeya_vision)3, &none), KAKEYA_INVALID_ARGUMENT,
           "none of auto, on, off");
    close_prompt(&p);
    close_model(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_those_of_the_reference),
        cmocka_unit_test(test_answers_are_those_of_the_reference),
        cmocka_unit_test(test_chunks_change_no_bit),
        cmocka_unit_test(test_what_is_reused),
        cmocka_unit_test(test_copies_know_their_pictures),
        cmocka_unit_test(test_its_memory_is_told),
        cmocka_unit_test(test_sizes_of_a_published_tower),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_the_workspace_grows_for_a_long_picture),
        cmocka_unit_test(test_no_memory_for_more_rows),
        cmocka_unit_test(test_bounded_policies),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
        cmocka_unit_test(test_the_switch),
        cmocka_unit_test(test_reading_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
