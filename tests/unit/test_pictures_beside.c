/* Pictures are read in pieces, so that answers go on meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "vision_support.h"

#include "backend/backend.h"
#include "base/random.h"
#include "model/vision_model.h"
#include "session/prompt_media.h"
#include "session/session.h"

/* -------------------------------------------------------------------------------------------------------- pieces */

enum { ACROSS = 48, DOWN = 36 };

typedef struct reading {
    float *patches, *wanted, *got;
    size_t bytes; /* of rows */
    backend_image image;
    backend_reading *handle;
} reading;

static reading begin_reading(const fixture *f, uint64_t seed) {
    const vision_model *v = f->engine->verifier->vision;
    const int side = v->tower ? 1 : 3; /* the embedder's patches are larger */
    const size_t values = (size_t)(ACROSS / side * DOWN / side * vision_model_patch_values(v));
    reading r = {.patches = malloc(values * sizeof(float))};
    for (size_t i = 0; i < values; i++) r.patches[i] = (float)random_uniform_at(seed, i);
    r.image = (backend_image){.vision = v, .across = ACROSS / side, .down = DOWN / side, .patches = r.patches};
    r.bytes = (size_t)(r.image.across / v->pooling * (r.image.down / v->pooling) * v->text_hidden) * sizeof(float);
    r.wanted = malloc(r.bytes);
    r.got = calloc(1, r.bytes);
    const backend_ops *ops = f->engine->ops;
    ok(ops->embed_image(f->engine->model, &r.image, r.wanted, &failure));
    ok(ops->image_begin(f->engine->model, &r.image, r.got, &r.handle, &failure));
    free(r.patches);
    return r;
}

static void end_reading(reading *r) {
    free(r->wanted);
    free(r->got);
}

static bool step(const backend_ops *ops, reading *r) {
    bool made;
    ok(ops->image_step(r->handle, 0, &made, &failure));
    return made;
}

/* Two pictures, a piece of one after a piece of the other, and one that is given up. */
static void test_pieces_change_no_bit(void **state) {
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        fixture f = open_model(model_names[m]);
        const backend_ops *ops = f.engine->ops;
        const size_t before = mem_total(&f.engine->account);
        reading a = begin_reading(&f, 1), b = begin_reading(&f, 2), c = begin_reading(&f, 3);
        bool ended[2] = {false, false};
        int pieces = 0;
        (void)step(ops, &c);
        while (!ended[0] || !ended[1]) {
            if (!ended[0]) ended[0] = step(ops, &a);
            if (!ended[1]) ended[1] = step(ops, &b);
            if (pieces++ == 1) ops->image_end(c.handle);
        }
        if (pieces <= 1) ops->image_end(c.handle);
        assert_true(pieces > f.engine->verifier->vision->layers);
        assert_memory_equal(a.got, a.wanted, a.bytes);
        assert_memory_equal(b.got, b.wanted, b.bytes);
        ops->image_end(a.handle);
        ops->image_end(b.handle);
        assert_int_equal(mem_total(&f.engine->account), before);
        end_reading(&a);
        end_reading(&b);
        end_reading(&c);
        close_model(&f);
    }
}

/* What has no memory to wait in is read in one go, whatever the time. */
static void test_given_up(void **state) {
    (void)state;
    fixture f = open_model("tiny-tower");
    prompt p = open_prompt(&f, 1);
    prompt_media media;
    const backend_given *given;
    int n_given;
    bool ready;
    kakeya_engine *engine = f.engine;
    const size_t before = mem_total(&engine->account);
    ok(prompt_media_create(engine, p.ids, p.n, p.media, p.n_media, true, &media, &failure));
    assert_false(prompt_media_give_up(&media));
    media_time none = {0}, little = {.seconds = 1e-9}, apart = {.seconds = 1e-9, .apart = true},
               more = {.seconds = 1e-9};
    ok(prompt_media_give(&media, engine, &engine->account, 0, p.n, &none, &ready, &given, &n_given, &failure));
    assert_true(!ready && !n_given && mem_total(&engine->account) == before);
    ok(prompt_media_give(&media, engine, &engine->account, 0, p.n, &little, &ready, &given, &n_given, &failure));
    assert_true(!ready && media.medium[0].reading && !media.medium[1].rows && little.seconds < 0 && little.spent > 0);
    assert_true(prompt_media_give_up(&media));
    assert_int_equal(mem_total(&engine->account), before);
    /* the first is whole now; its rows wait for another step, and so do the others */
    ok(prompt_media_give(&media, engine, &engine->account, 0, p.n, &apart, &ready, &given, &n_given, &failure));
    assert_true(!ready && media.medium[0].rows && !media.medium[0].reading && !media.medium[1].rows);
    assert_int_equal(apart.rows, media.medium[0].place.n);
    const size_t first = media.medium[0].place.begin + media.medium[0].place.n;
    ok(prompt_media_give(&media, engine, &engine->account, 0, first, &none, &ready, &given, &n_given, &failure));
    assert_true(ready && n_given == 1 && given->rows == media.medium[0].rows);
    int steps = 0;
    do {
        more.seconds = 1e-9;
        ok(prompt_media_give(&media, engine, &engine->account, 0, p.n, &more, &ready, &given, &n_given, &failure));
    } while (!ready && steps++ < 1000000);
    assert_true(steps > 2 && n_given == (int)p.n_media);
    prompt_media_free(&media);
    assert_int_equal(mem_total(&engine->account), before);
    close_prompt(&p);
    close_model(&f);
}

/* A backend that reads in one go begins with what will fit into the time, by what rows have taken. */
static void test_in_one_go(void **state) {
    (void)state;
    fixture f = open_model("tiny-tower");
    prompt p = open_prompt(&f, 1);
    prompt_media media;
    const backend_given *given;
    int n_given;
    bool ready;
    kakeya_engine *engine = f.engine;
    backend_ops whole = *engine->ops;
    const backend_ops *own = engine->ops;
    whole.image_begin = NULL;
    whole.image_step = NULL;
    whole.image_end = NULL;
    engine->ops = &whole;
    ok(prompt_media_create(engine, p.ids, p.n, p.media, p.n_media, true, &media, &failure));
    media_time slow = {.seconds = 5, .spent = 10, .rows = 1}, one = {.seconds = 1e-9}, most = {.seconds = 1e9};
    ok(prompt_media_give(&media, engine, &engine->account, 0, p.n, &slow, &ready, &given, &n_given, &failure));
    assert_true(!ready && !media.medium[0].rows && slow.seconds == 5);
    ok(prompt_media_give(&media, engine, &engine->account, 0, p.n, &one, &ready, &given, &n_given, &failure));
    assert_true(!ready && media.medium[0].rows && !media.medium[1].rows && one.rows == media.medium[0].place.n);
    assert_false(prompt_media_give_up(&media));
    ok(prompt_media_give(&media, engine, &engine->account, 0, p.n, &most, &ready, &given, &n_given, &failure));
    assert_true(ready && n_given == (int)p.n_media && most.rows == media.medium[1].place.n + media.medium[2].place.n);
    prompt_media_free(&media);
    engine->ops = own;
    close_prompt(&p);
    close_model(&f);
}

/* ------------------------------------------------------------------------------------------------ beside answers */

enum { LARGE = 560, TEXT = 6, SPEAKS = 3000, SUBMITS = 5, CANCELS = 8, LEAST_BESIDE = 5 };

typedef struct scene {
    kakeya_engine *engine;
    kakeya_session *speaker, *reader;
    kakeya_request *request; /* the reader's */
    kakeya_request_options ask;
    kakeya_media media;
    int32_t *ids;
    size_t n, rows;
    bool cancels;
    int32_t said[SPEAKS];
    size_t n_said;
    int beside; /* steps with answers alone, until the picture's rows are computed */
    bool asked, computed;
} scene;

static void see_step(void *user, const kakeya_step *step) {
    scene *s = user;
    if (!s->asked || s->computed) return;
    if (step->prompt_positions >= s->rows)
        s->computed = true;
    else if (step->answer_positions && !step->prompt_positions)
        s->beside++;
}

/* On the thread that computes: the picture comes between two steps. The answer ends when it has been computed. */
static bool hear(void *user, const kakeya_event *event) {
    scene *s = user;
    if (event->type == KAKEYA_EVENT_FINISH) return true;
    s->said[s->n_said++] = event->token;
    if (s->n_said == SUBMITS && s->ask.tokens) {
        ok(kakeya_session_submit(s->reader, &s->ask, &s->request, &failure));
        s->asked = true;
    }
    if (s->n_said == CANCELS && s->cancels) kakeya_session_cancel(s->reader);
    const bool over = s->computed || (s->cancels && s->n_said == CANCELS + 4);
    return s->n_said < SPEAKS && !over;
}

static void open_scene(scene *s) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = VISION "/tiny-tower";
    options.backend = "cpu";
    options.threads = 2;
    options.max_stall_ms = 1;
    options.on_step = see_step;
    options.step_user = s;
    ok(kakeya_engine_open(&options, &s->engine, &failure));
    s->media = (kakeya_media){.image = open_image("photo.jpg"), .budget = LARGE};
    int rows;
    ok(kakeya_engine_image_tokens(s->engine, &s->media, &rows, &failure));
    s->rows = (size_t)rows;
    s->n = s->rows + 2 * TEXT;
    s->ids = malloc(s->n * sizeof *s->ids);
    for (size_t i = 0; i < s->n; i++)
        s->ids[i] = i < TEXT || i >= TEXT + s->rows ? 50 + (int32_t)i % 30 : kakeya_engine_image_token(s->engine);
}

static void close_scene(scene *s) {
    kakeya_image_close((kakeya_image *)(uintptr_t)s->media.image);
    free(s->ids);
    kakeya_engine_close(s->engine);
}

static void speak(scene *s) {
    const int32_t begin[] = {2, 60, 61, 62, 63, 64};
    kakeya_generate_options options;
    KAKEYA_INIT(&options);
    options.max_tokens = SPEAKS;
    options.ignore_stop_tokens = true;
    options.mode = KAKEYA_MODE_AR;
    options.on_event = hear;
    options.user = s;
    ok(kakeya_session_open(s->engine, NULL, &s->speaker, &failure));
    ok(kakeya_session_sync(s->speaker, begin, TEXT, NULL, NULL, NULL, &failure));
    (void)kakeya_session_generate(s->speaker, &options, NULL, &failure);
    kakeya_session_close(s->speaker);
}

/* The picture comes while somebody speaks. */
static kakeya_status read_beside(scene *s, kakeya_generate_options *answer) {
    ok(kakeya_session_open(s->engine, NULL, &s->reader, &failure));
    KAKEYA_INIT(&s->ask);
    s->ask.tokens = s->ids;
    s->ask.n_tokens = s->n;
    s->ask.media = &s->media;
    s->ask.n_media = 1;
    s->ask.generate = answer;
    speak(s);
    assert_true(s->asked);
    return kakeya_request_wait(s->request, NULL, &failure);
}

static void test_answers_go_on(void **state) {
    (void)state;
    static scene alone, beside;
    int32_t wanted[GREEDY], said[SPEAKS];
    kakeya_generate_options answer;
    KAKEYA_INIT(&answer);
    answer.max_tokens = GREEDY;
    answer.ignore_stop_tokens = true;

    open_scene(&alone);
    ok(kakeya_session_open(alone.engine, NULL, &alone.reader, &failure));
    ok(kakeya_session_sync_media(alone.reader, alone.ids, alone.n, &alone.media, 1, NULL, NULL, NULL, &failure));
    ok(kakeya_session_generate(alone.reader, &answer, NULL, &failure));
    size_t n;
    memcpy(wanted, kakeya_session_tokens(alone.reader, &n) + alone.n, sizeof wanted);
    kakeya_session_close(alone.reader);
    speak(&alone);
    memcpy(said, alone.said, sizeof said);
    close_scene(&alone);

    open_scene(&beside);
    ok(read_beside(&beside, &answer));
    assert_true(beside.computed);
    if (beside.beside < LEAST_BESIDE) fail_msg("%d steps while the picture was read", beside.beside);
    assert_memory_equal(beside.said, said, beside.n_said * sizeof *said);
    assert_memory_equal(kakeya_session_tokens(beside.reader, &n) + beside.n, wanted, sizeof wanted);
    assert_int_equal(n, beside.n + GREEDY);
    kakeya_session_close(beside.reader);
    close_scene(&beside);
}

/* In the middle of a picture: what it held is given back, and the session reads the same one later. */
static void test_cancelled_in_the_middle(void **state) {
    (void)state;
    static scene s;
    kakeya_generate_options answer;
    KAKEYA_INIT(&answer);
    answer.max_tokens = 2;
    s.cancels = true;
    open_scene(&s);
    assert_int_equal(read_beside(&s, &answer), KAKEYA_CANCELLED);
    assert_false(s.computed);
    kakeya_image_counts counts;
    counts.size = sizeof counts;
    kakeya_engine_image_counts_sized(s.engine, &counts);
    assert_int_equal(counts.computed, 0);
    ok(kakeya_session_sync_media(s.reader, s.ids, s.n, &s.media, 1, NULL, NULL, NULL, &failure));
    assert_true(s.computed);
    kakeya_session_close(s.reader);
    close_scene(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_change_no_bit),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_in_one_go),
        cmocka_unit_test(test_answers_go_on),
        cmocka_unit_test(test_cancelled_in_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
