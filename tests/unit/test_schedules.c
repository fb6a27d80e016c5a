/* Protects what a session says from how it came there. Random schedules of prompts, answers, cuts, cancels, forks,
 * snapshots and parking go through the public API on a real backend. Each leaves a history: prompts and answers that
 * stand behind each other, as if what was cut off had never been. A new session that lives through the history alone,
 * one row at a time, must say the same tokens. */
#include "tiny.h"

#include "session/engine.h"
#include "session/session.h"
#include "sweep.h"

enum { CONTEXT = 300, MAX_OPS = 64, LAST_ANSWER = 6, FAILURES_SHOWN = 12, NOTE_BYTES = 2048 };

typedef struct schedule_policy {
    const char *name;
    kakeya_attention attention;
    kakeya_restore_layers layers;
    int sink, window;
    restoration_input input;
    int cost; /* schedules of it are so many times rarer */
} schedule_policy;

static const schedule_policy policies[] = {
    {"native", KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, 4, 16, RESTORATION_DRAFTER_CONTEXT_KV, 2},
    {"sink-window 16", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, 4, 16, RESTORATION_DRAFTER_CONTEXT_KV, 1},
    {"sink-window 5", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, 0, 5, RESTORATION_DRAFTER_CONTEXT_KV, 1},
    {"restored 16", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, 2, 16, RESTORATION_DRAFTER_CONTEXT_KV, 1},
    {"restored all 9", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, 7, 9, RESTORATION_DRAFTER_CONTEXT_KV, 1},
    {"restored 16 from tokens", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, 3, 16, RESTORATION_DRAFTER_TOKEN_KV,
     1},
    {"restored all 20 from tokens", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, 0, 20, RESTORATION_DRAFTER_TOKEN_KV,
     1},
};
enum { POLICIES = sizeof policies / sizeof *policies };

/* Every second engine has an MTP assistant beside the DFlash drafter. */
static kakeya_engine *open_engine(const schedule_policy *p) {
    kakeya_engine *engine = NULL;
    REQUIRE_OK(engine_create(0, &engine, error));
    mem_account *account = &engine->account;
    engine_parts parts = {.ops = backend_find("cpu", NULL), .precision = KAKEYA_PRECISION_F32, .threads = 1};
    REQUIRE_OK(language_model_open(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense", account, &parts.verifier, error));
    model_config *verifier = &parts.verifier->config;
    if ((p - policies) % 2 == 0)
        REQUIRE_OK(assistant_model_open(unpacked_folder(KAKEYA_TEST_DATA "/golden/mtp/dense"), verifier, account,
                                        &parts.assistant, error));
    verifier->sliding_window = 40;
    REQUIRE_OK(block_drafter_model_open(unpacked_folder(KAKEYA_TEST_DATA "/golden/dflash-tiny"), verifier, account,
                                        &parts.drafter, error));
    REQUIRE_OK(
        restoration_model_synthesize(verifier, &parts.drafter->config, 24, 24, false, account, &parts.f_theta, error));
    parts.f_theta->config.input = p->input;
    REQUIRE_OK(engine_complete(engine, &parts, error));
    return engine;
}

/* Tokens [begin, end) of the timeline: a prompt, which may add nothing, or an answer. */
typedef struct op {
    bool answers;
    size_t begin, end;
} op;

typedef struct life {
    kakeya_engine *engine;
    const schedule_policy *policy;
    kakeya_session_options options;
    kakeya_sampling sampling;
    uint64_t random;
    kakeya_session *session;
    op ops[MAX_OPS];
    size_t n_ops;
    int32_t tokens[CONTEXT];
    size_t n;
    char note[NOTE_BYTES]; /* what was done */
    size_t noted;
    int truncations, refused;
} life;

static uint32_t draw(life *l, uint32_t n) { return tiny_draw(&l->random, n); }

__attribute__((format(printf, 2, 3))) static void note(life *l, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(l->note + l->noted, NOTE_BYTES - l->noted, format, arguments);
    va_end(arguments);
    if (n > 0) l->noted += (size_t)n < NOTE_BYTES - l->noted ? (size_t)n : NOTE_BYTES - l->noted - 1;
}

static kakeya_session *open_session(life *l) {
    kakeya_session *session = NULL;
    REQUIRE_OK(kakeya_session_open(l->engine, &l->options, &session, error));
    return session;
}

/* --------------------------------------------------------------------------------------------------- the history */

static void cut(life *l, size_t n) {
    if (n >= l->n) return;
    while (l->n_ops && l->ops[l->n_ops - 1].begin >= n) l->n_ops--;
    if (l->n_ops) l->ops[l->n_ops - 1].end = n;
    l->n = n;
}

static void add(life *l, bool answers, size_t end) {
    assert_true(l->n_ops < MAX_OPS);
    l->ops[l->n_ops++] = (op){.answers = answers, .begin = l->n, .end = end};
    l->n = end;
}

/* The session holds what the history says. */
static void take_tokens(life *l, const char *what) {
    size_t n;
    const int32_t *tokens = kakeya_session_tokens(l->session, &n);
    if (n != l->n) fail_msg("%s: %zu tokens are held, not %zu:%s", what, n, l->n, l->note);
    if (n) memcpy(l->tokens, tokens, n * sizeof *tokens);
}

/* ------------------------------------------------------------------------------------------------- the schedule */

static bool never(void *user, const char *stage, size_t done, size_t total) {
    (void)user, (void)stage, (void)done, (void)total;
    return false;
}

/* A prompt of the first `common` tokens and `more` new ones; some are cancelled, before they begin or behind a chunk.
 */
static void sync_session(life *l, size_t common, size_t more) {
    int32_t wanted[CONTEXT];
    size_t reused = 0, n = common + more, held, before = l->n;
    kakeya_error e = {0};
    bool cancelled = draw(l, 8) == 0, at_once = draw(l, 2) == 0;
    if (common) memcpy(wanted, l->tokens, common * sizeof *wanted);
    for (size_t i = common; i < n; i++) wanted[i] = 3 + (int32_t)draw(l, 250);
    if (more && common < l->n && wanted[common] == l->tokens[common]) wanted[common]++;
    if (cancelled && at_once) kakeya_session_cancel(l->session);
    kakeya_status status = kakeya_session_sync(l->session, wanted, n, &reused, cancelled ? never : NULL, NULL, &e);
    const int32_t *tokens = kakeya_session_tokens(l->session, &held);
    note(l, " %ssync %zu+%zu=%zu(%zu)", cancelled ? "cancelled " : "", common, more, held, reused);
    if (status != KAKEYA_OK && status != KAKEYA_CANCELLED) fail_msg("%s:%s", e.message, l->note);
    if (cancelled && at_once) { /* before it has begun */
        assert_int_equal(held, before);
        return;
    }
    if (held) assert_memory_equal(tokens, wanted, held * sizeof *tokens);
    bool rebuilt = common > 1 && reused + 2 < (common < before ? common : before);
    memcpy(l->tokens, wanted, n * sizeof *wanted);
    if (rebuilt) l->n_ops = l->n = 0;
    cut(l, common < held ? common : held);
    add(l, false, held);
    take_tokens(l, "sync");
}

typedef struct stop_after {
    kakeya_session *session;
    int tokens;
    bool cancels;
} stop_after;

static bool count_tokens(void *user, const kakeya_event *event) {
    stop_after *stop = user;
    if (event->type != KAKEYA_EVENT_TOKEN || --stop->tokens > 0) return true;
    if (!stop->cancels) return false;
    kakeya_session_cancel(stop->session);
    return true;
}

static void generate(life *l, int max_tokens) {
    static const kakeya_mode modes[] = {KAKEYA_MODE_AR, KAKEYA_MODE_SPECULATIVE, KAKEYA_MODE_NGRAM, KAKEYA_MODE_AUTO};
    kakeya_generate_options o;
    KAKEYA_INIT(&o);
    stop_after stop = {
        .session = l->session, .tokens = 1 + (int)draw(l, (uint32_t)max_tokens), .cancels = draw(l, 2) == 0};
    o.mode = modes[draw(l, 4)];
    o.draft_length = (int)draw(l, 8);
    o.max_tokens = max_tokens;
    o.sampling = l->sampling;
    o.ignore_stop_tokens = true;
    if (draw(l, 3) == 0) {
        o.on_event = count_tokens;
        o.user = &stop;
    }
    size_t held;
    if (draw(l, 16) == 0) kakeya_session_cancel(l->session);
    REQUIRE_OK(kakeya_session_generate(l->session, &o, NULL, error));
    (void)kakeya_session_tokens(l->session, &held);
    note(l, " answer %zu=%zu", held - l->n, held);
    if (held > l->n) add(l, true, held);
    take_tokens(l, "answer");
}

static void truncate_session(life *l) {
    size_t back = draw(l, 2) ? draw(l, 12) : draw(l, (uint32_t)l->n), n = l->n - (back < l->n ? back : l->n - 1);
    bool reachable = kakeya_session_reachable(l->session, l->tokens, n) == n || n == l->n;
    kakeya_status status = kakeya_session_truncate(l->session, n, NULL);
    if (status != (reachable ? KAKEYA_OK : KAKEYA_INVALID_ARGUMENT))
        fail_msg("truncation to %zu, which is %s reachable: %s:%s", n, reachable ? "" : "not",
                 kakeya_status_name(status), l->note);
    note(l, " %scut %zu", reachable ? "" : "(no) ", n);
    l->truncations += reachable && n < l->n;
    l->refused += !reachable;
    if (reachable) cut(l, n);
    take_tokens(l, "cut");
}

static void fork_session(life *l) {
    kakeya_session *fork = NULL;
    REQUIRE_OK(kakeya_session_fork(l->session, &fork, error));
    bool stays = draw(l, 2) == 0;
    kakeya_session *leaves = stays ? fork : l->session;
    if (stays && l->n + 10 < CONTEXT) { /* what the other one does must not be seen */
        kakeya_generate_options o;
        KAKEYA_INIT(&o);
        o.max_tokens = 5;
        REQUIRE_OK(kakeya_session_generate(fork, &o, NULL, error));
    }
    if (!stays) l->session = fork;
    kakeya_session_close(leaves);
    note(l, " fork");
}

static void snapshot_session(life *l) {
    void *data = NULL;
    size_t bytes = 0;
    REQUIRE_OK(session_to_memory(l->session, &data, &bytes, error));
    if (draw(l, 2)) {
        kakeya_session_close(l->session);
        l->session = open_session(l);
    }
    REQUIRE_OK(session_from_memory(l->session, data, bytes, error));
    kakeya_free(data);
    note(l, " snapshot");
}

static void act(life *l) {
    uint32_t what = l->n ? draw(l, 16) : 0;
    size_t room = CONTEXT - LAST_ANSWER - l->n;
    uint32_t more = 1 + draw(l, draw(l, 2) ? 50 : 3);
    if (what < 3) {
        if (more < room) sync_session(l, l->n, more);
    } else if (what == 3) {
        sync_session(l, 1 + draw(l, (uint32_t)l->n), more < room ? more : 0);
    } else if (what == 4) {
        sync_session(l, 1 + draw(l, (uint32_t)l->n), 0);
    } else if (what < 9) {
        if (24 < room) generate(l, 1 + (int)draw(l, 24));
    } else if (what < 13) {
        truncate_session(l);
    } else if (what == 13) {
        fork_session(l);
    } else if (what == 14) {
        snapshot_session(l);
    } else {
        REQUIRE_OK(kakeya_session_park(l->session, error));
        note(l, " park");
        if (24 < room) generate(l, 1 + (int)draw(l, 4));
    }
}

/* A session that has seen nothing but the history, row by row; true where it says the same. */
static bool says_the_same(life *l) {
    kakeya_session *session = open_session(l);
    bool same = true;
    for (size_t i = 0; same && i < l->n_ops; i++) {
        const op *o = &l->ops[i];
        if (!o->answers) {
            size_t reused;
            REQUIRE_OK(kakeya_session_sync(session, l->tokens, o->end, &reused, NULL, NULL, error));
            continue;
        }
        kakeya_generate_options g;
        KAKEYA_INIT(&g);
        g.mode = KAKEYA_MODE_AR;
        g.max_tokens = (int)(o->end - o->begin);
        g.sampling = l->sampling;
        g.ignore_stop_tokens = true;
        REQUIRE_OK(kakeya_session_generate(session, &g, NULL, error));
        size_t n;
        const int32_t *tokens = kakeya_session_tokens(session, &n);
        assert_int_equal(n, o->end);
        for (size_t at = o->begin; same && at < o->end; at++) {
            same = tokens[at] == l->tokens[at];
            if (!same)
                note(l, "; token %zu of answer [%zu, %zu) is %d, a session of its own says %d", at, o->begin, o->end,
                     (int)l->tokens[at], (int)tokens[at]);
        }
    }
    kakeya_session_close(session);
    return same;
}

static bool live(life *l) {
    int steps = 6 + (int)draw(l, 14);
    l->session = open_session(l);
    for (int i = 0; i < steps && l->n_ops + 4 < MAX_OPS && l->n + LAST_ANSWER + 4 < CONTEXT; i++) act(l);
    if (!l->n) sync_session(l, 0, 9);
    if (l->n) {
        kakeya_session_clear_cancel(l->session);
        generate(l, LAST_ANSWER);
    }
    bool same = says_the_same(l);
    kakeya_session_close(l->session);
    return same;
}

static void histories_alone_decide(void **state) {
    (void)state;
    static life l;
    int schedules = sweep_whole() ? 10000 : sweep_short() ? 60 : 500, different = 0, truncations = 0, refused = 0;
    for (int p = 0; p < POLICIES; p++) {
        kakeya_engine *engine = open_engine(&policies[p]);
        for (int i = p; i < schedules; i += POLICIES) {
            memset(&l, 0, sizeof l);
            l.engine = engine;
            l.policy = &policies[p];
            l.random = (uint64_t)i * 7919 + 5;
            KAKEYA_INIT(&l.options);
            l.options.context_tokens = CONTEXT;
            l.options.attention = policies[p].attention;
            l.options.restore_layers = policies[p].layers;
            l.options.sink = policies[p].sink ? policies[p].sink : KAKEYA_NO_SINK;
            l.options.window = policies[p].window;
            l.options.draft_window = 24;
            l.options.prompt_chunk_tokens = draw(&l, 3) ? 0 : 1 + (int)draw(&l, 20);
            l.sampling = (kakeya_sampling){
                .temperature = draw(&l, 3) ? 1.0f : 0.0f, .top_p = 1, .repetition_penalty = 1, .seed = (uint64_t)i};
            bool same = live(&l);
            truncations += l.truncations;
            refused += l.refused;
            if (!same && ++different <= FAILURES_SHOWN)
                print_error("schedule %d, %s:%s\n", i, policies[p].name, l.note);
        }
        kakeya_engine_close(engine);
    }
    assert_true(truncations > schedules / 2 && refused > 0);
    if (different) fail_msg("%d of %d schedules differ (%d truncations)", different, schedules, truncations);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(histories_alone_decide)};
    return cmocka_run_group_tests_name("schedules", tests, NULL, NULL);
}
