/* Places: how many answers are under way, who begins next, how many prompts stand in a forward beside how many answers,
 * and how a forward's rows are shared among prompts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/random.h"
#include "scratch.h"
#include "session/prompt_shares.h"
#include "session/session.h"
#include "sweep.h"

static kakeya_error error;

/* In place of the C library's: looking at the clock is all that moves it, so that forwards take no time to speak of,
 * and prompts beside answers have whole chunks. */
int clock_gettime(clockid_t clock, struct timespec *out) {
    static _Atomic long looks;
    if (clock != CLOCK_MONOTONIC) return (int)syscall(SYS_clock_gettime, clock, out);
    const long at = ++looks;
    out->tv_sec = 1 + at / 1000000;
    out->tv_nsec = at % 1000000 * 1000;
    return 0;
}

static kakeya_engine *open_engine(int max_batch) {
    kakeya_engine *engine = NULL;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = KAKEYA_TEST_DATA "/golden/gemma4-tiny-moe";
    options.drafter = "none";
    options.backend = "cpu";
    options.threads = 1;
    options.max_batch = max_batch;
    assert_ok(kakeya_engine_open(&options, &engine, &error));
    return engine;
}

/* What the speakers of a test say, told by the thread that computes. Everything else stands still while the first one
 * holds its first token back, until all have been submitted. */
typedef struct room {
    sem_t submitted;
    int begun, ended, most; /* answers; most: under way together */
    int order[64];          /* in which their prompts began */
    int reader_at;          /* answers that had ended when the prompt without one began */
    int speaking;           /* answers that have said their first token, and not their last */
    int first_at;           /* tokens of the first answer when the second one was done */
} room;

typedef struct speaker {
    room *room;
    int number, wanted, tokens; /* wanted 0: no answer */
    bool begun;
    kakeya_session *session;
    kakeya_request *request;
} speaker;

static bool listen(void *user, const kakeya_event *event) {
    speaker *s = user;
    if (event->type == KAKEYA_EVENT_FINISH) s->room->ended++;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    s->tokens++;
    while (s->number == 0 && s->tokens == 1 && sem_wait(&s->room->submitted) != 0) continue;
    s->room->speaking += (s->tokens == 1) - (s->tokens == s->wanted);
    return true;
}

static bool on_prompt(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done, (void)total;
    speaker *s = user;
    room *r = s->room;
    if (s->begun) return true;
    s->begun = true;
    if (!s->wanted) {
        r->reader_at = r->ended;
        return true;
    }
    r->order[r->begun++ % 64] = s->number;
    if (r->begun - r->ended > r->most) r->most = r->begun - r->ended;
    return true;
}

static void on_done(void *user) {
    speaker *s = user;
    if (s->number == 1) s->room->first_at = s[-1].tokens;
}

static int32_t text[64];

static void begin(kakeya_engine *engine, room *r, speaker *s, int number, int prompt, int wanted) {
    *s = (speaker){.room = r, .number = number, .wanted = wanted};
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.mode = KAKEYA_MODE_AR;
    generate.ignore_stop_tokens = true;
    generate.max_tokens = wanted;
    generate.on_event = listen;
    generate.user = s;
    kakeya_request_options options;
    KAKEYA_INIT(&options);
    options.tokens = text;
    options.n_tokens = (size_t)prompt;
    options.generate = wanted ? &generate : NULL;
    options.progress = on_prompt;
    options.progress_user = s;
    options.on_done = on_done;
    options.done_user = s;
    kakeya_session_options session;
    KAKEYA_INIT(&session);
    session.context_tokens = 128;
    assert_ok(kakeya_session_open(engine, &session, &s->session, &error));
    assert_ok(kakeya_session_submit(s->session, &options, &s->request, &error));
}

static void end_all(kakeya_engine *engine, room *r, speaker *s, int n) {
    for (int i = 0; i < n; i++) kakeya_session_close(s[i].session);
    kakeya_engine_close(engine);
    sem_destroy(&r->submitted);
}

/* More requests for answers than there are places: those that find none do not begin their prompts, and begin in the
 * order in which they were submitted. A prompt alone takes no place, and waits for none of them. */
static void a_crowd_waits_for_places(void **state) {
    (void)state;
    enum { CROWD = 20, PLACES = 4 };
    static speaker s[CROWD + 1];
    room r = {0};
    kakeya_engine *engine = open_engine(PLACES);
    assert_int_equal(sem_init(&r.submitted, 0, 0), 0);
    for (int i = 0; i <= CROWD; i++) begin(engine, &r, &s[i], i, 40, i < CROWD ? 6 : 0);
    assert_int_equal(sem_post(&r.submitted), 0);
    for (int i = 0; i <= CROWD; i++) {
        assert_ok(kakeya_request_wait(s[i].request, NULL, &error));
        assert_int_equal(s[i].tokens, s[i].wanted);
    }
    assert_int_equal(r.begun, CROWD);
    assert_int_equal(r.most, PLACES);
    for (int i = 0; i < CROWD; i++) assert_int_equal(r.order[i], i);
    assert_true(r.reader_at <= PLACES);
    end_all(engine, &r, s, CROWD + 1);
}

/* One that waits for a place and is cancelled ends now, and has said nothing. */
static void a_waiting_one_is_cancelled(void **state) {
    (void)state;
    speaker s[3];
    room r = {0};
    kakeya_engine *engine = open_engine(1);
    assert_int_equal(sem_init(&r.submitted, 0, 0), 0);
    for (int i = 0; i < 3; i++) begin(engine, &r, &s[i], i, 3, 50);
    kakeya_request_cancel(s[1].request);
    assert_int_equal(sem_post(&r.submitted), 0);
    assert_int_equal(kakeya_request_wait(s[1].request, NULL, &error), KAKEYA_CANCELLED);
    assert_int_equal(s[1].tokens, 0);
    assert_ok(kakeya_request_wait(s[0].request, NULL, &error));
    assert_ok(kakeya_request_wait(s[2].request, NULL, &error));
    assert_true(r.first_at <= 2);
    assert_int_equal(s[2].tokens, 50);
    end_all(engine, &r, s, 3);
}

/* What the steps of an engine held. */
typedef struct steps {
    room *room;
    int short_of, beside; /* steps in which not every answer had a row; in which prompts stood beside all answers */
    size_t most_prompts;  /* in one forward */
} steps;

static void watch(void *user, const kakeya_step *step) {
    steps *w = user;
    const size_t prompts = step->requests - step->answer_positions; /* an answer has one row here */
    if (prompts > w->most_prompts) w->most_prompts = prompts;
    w->short_of += step->answer_positions < (size_t)w->room->speaking;
    w->beside += step->prompt_positions > 0 && w->room->speaking == BACKEND_MAX_SEGMENTS;
}

/* As many answers as there are places, and as many prompts: every answer has a token in every step all the same, and
 * all prompts stand in one forward. */
static void answers_and_prompts_have_their_own_places(void **state) {
    (void)state;
    enum { ANSWERS = BACKEND_MAX_SEGMENTS, ALL = ANSWERS + BACKEND_MAX_PROMPTS };
    static speaker s[ALL];
    room r = {0};
    steps w = {.room = &r};
    kakeya_engine *engine = open_engine(BACKEND_MAX_SEGMENTS);
    assert_int_equal(sem_init(&r.submitted, 0, 0), 0);
    engine->on_step = watch;
    engine->step_user = &w;
    for (int i = 0; i < ALL; i++) begin(engine, &r, &s[i], i, i < ANSWERS ? 1 : 4, i < ANSWERS ? 40 : 0);
    assert_int_equal(sem_post(&r.submitted), 0);
    for (int i = 0; i < ALL; i++) assert_ok(kakeya_request_wait(s[i].request, NULL, &error));
    assert_int_equal(w.short_of, 0);
    assert_true(w.beside > 0);
    assert_int_equal(w.most_prompts, BACKEND_MAX_PROMPTS);
    end_all(engine, &r, s, ALL);
}

/* --------------------------------------------------------------------------------------------------------- shares */

static void check_shares(const prompt_shares *p, const size_t *left, const int *most, int n, int places, int budget) {
    int given = 0, wanted = 0, taking = 0;
    bool seen[200] = {false};
    for (int i = 0; i < n; i++) wanted += most[i];
    for (int i = 0; i < p->n; i++) {
        const int who = (int)((const char *)p->share[i].prompt - (const char *)left) / (int)sizeof *left;
        assert_false(seen[who]);
        seen[who] = true;
        assert_in_range(p->share[i].tokens, 0, most[who]);
        given += p->share[i].tokens;
        taking += p->share[i].tokens > 0;
        if (i == 0) assert_int_equal(who, 0);
        if (i > 1) assert_true(p->share[i - 1].left <= p->share[i].left);
        /* who has more left gets something only when those before it have all that they can take */
        if (i > 1 && p->share[i].tokens) assert_int_equal(p->share[i - 1].tokens, p->share[i - 1].most);
    }
    if (given > budget || taking > places || (n <= places && given != (budget < wanted ? budget : wanted)))
        fail_msg("%d prompts that want %d, %d places, budget %d: %d get %d", n, wanted, places, budget, taking, given);
    const int half = budget / 2 < most[0] ? budget / 2 : most[0];
    if (p->share[0].tokens < half) fail_msg("budget %d: the oldest gets %d of %d", budget, p->share[0].tokens, most[0]);
}

/* Half for the oldest, the rest for the least left; nothing is lost, and nobody gets more than there is. */
static void shares_of_rows(void **state) {
    (void)state;
    const int cases = sweep_short() ? 300 : 3000;
    for (uint64_t seed = 1; seed <= (uint64_t)cases; seed++) {
        size_t left[200];
        int most[200];
        const int n = 1 + (int)(random_uniform_at(seed, 0) * 150), places = 1 + (int)(random_uniform_at(seed, 1) * 64);
        const int budget = 1 + (int)(random_uniform_at(seed, 2) * 4096), chunk = seed % 3 ? 512 : 16;
        const double longest = seed % 2 ? 60 : 60000;
        prompt_shares p = {.places = places};
        for (int i = 0; i < n; i++) {
            left[i] = 1 + (size_t)(random_uniform_at(seed, (uint64_t)(10 + i)) * longest);
            most[i] = left[i] < (size_t)chunk ? (int)left[i] : chunk;
            prompt_shares_add(&p, &left[i], left[i], chunk);
        }
        prompt_shares_divide(&p, budget);
        assert_int_equal(p.n, n < places ? n : places);
        check_shares(&p, left, most, n, places, budget);
    }
    prompt_shares two = {.places = 2};
    prompt_shares_add(&two, NULL, 60000, 512);
    prompt_shares_add(&two, NULL, 400, 512);
    prompt_shares_add(&two, NULL, 50, 512);
    prompt_shares_divide(&two, 512);
    assert_int_equal(two.share[0].tokens, 462); /* what the short one leaves is the oldest's */
    assert_int_equal(two.share[1].tokens, 50);
}

int main(void) {
    for (int i = 0; i < 64; i++) text[i] = 110 + i;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crowd_waits_for_places),
        cmocka_unit_test(a_waiting_one_is_cancelled),
        cmocka_unit_test(answers_and_prompts_have_their_own_places),
        cmocka_unit_test(shares_of_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
