/* Protects: the bounds that `kakeya bench` compares with, how steps of many sessions are cut into forwards, that
 * measured sessions hold texts of their own, that a measurement of many sessions ends with its memory given back under
 * every policy, that sessions which cannot fit are refused before anything is filled, what is counted of many requests
 * and the ideal beside it, and the probe of the machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/measure.h"
#include "base/machine_memory.h"
#include "kakeya_study.h"
#include "measure/bench_requests.h"
#include "measure/bench_sessions.h"
#include "scratch.h"
#include "session/session.h"
#include "sweep.h"

static kakeya_engine *demo(size_t memory_limit_bytes) {
    kakeya_engine *engine = NULL;
    kakeya_error error = {0};
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = KAKEYA_MODELS "/demo";
    options.backend = "cpu";
    options.threads = 2;
    options.memory_limit_bytes = memory_limit_bytes;
    assert_ok(kakeya_engine_open(&options, &engine, &error));
    return engine;
}

/* Measurements here are compared with a machine of known rates: the probe of the real one reads half a gigabyte before
 * every case, and finds other rates each time. The linker puts this function before the one that it calls. */
static const double read_rate = 2e9, flops_rate = 5e10;
static int probes;

static kakeya_status fixed_probe(backend_model *model, backend_probe *out, kakeya_error *error) {
    (void)model;
    (void)error;
    probes++;
    *out = (backend_probe){.read_bytes_per_second = read_rate, .flops_per_second = flops_rate, .threads = 2};
    return KAKEYA_OK;
}

/* As of a backend with kernels of its own: counts go on from model to model. */
static bool tells_forwards, watched;

static void watch(backend_model *model, bool on) {
    (void)model;
    watched = on;
}

static void fixed_forwards(backend_model *model, backend_forwards *out) {
    (void)model;
    *out = watched ? (backend_forwards){.graphs = 5, .graph_seconds = 1, .gaps = 10, .gap_seconds = 2}
                   : (backend_forwards){
                         .graphs = 8, .graph_seconds = 3, .gaps = 14, .gap_seconds = 3, .longest_gap_seconds = 0.5};
}

const backend_measure_ops *__real_backend_measure_find(const backend_ops *ops);
const backend_measure_ops *__wrap_backend_measure_find(const backend_ops *ops);
const backend_measure_ops *__wrap_backend_measure_find(const backend_ops *ops) {
    static backend_measure_ops table;
    table = *__real_backend_measure_find(ops);
    table.probe = fixed_probe;
    if (tells_forwards) table.forwards = fixed_forwards, table.watch_forwards = watch;
    return &table;
}

static void test_probe_of_the_machine(void **state) {
    const kakeya_engine *engine = *state;
    size_t held = mem_total(&engine->account);
    backend_probe probe = {0};
    kakeya_error error = {0};
    assert_ok(__real_backend_measure_find(engine->ops)->probe(engine->model, &probe, &error));
    /* from the slowest machine that could run this to the fastest there will be */
    assert_true(probe.read_bytes_per_second > 1e7 && probe.read_bytes_per_second < 1e14);
    assert_true(probe.flops_per_second > 1e7 && probe.flops_per_second < 1e16);
    assert_int_equal(probe.threads, 2);
    assert_int_equal(mem_total(&engine->account), held);
}

static void test_steps_are_cut_into_forwards(void **state) {
    (void)state;
    static const struct {
        int sessions, max_rows;
        bench_step_shape shape;
    } cases[] = {
        {0, 512, {.most = 256, .last = 0, .forwards = 0, .prompt_room = 512}},
        {1, 512, {.most = 256, .last = 1, .forwards = 1, .prompt_room = 511}},
        {255, 512, {.most = 256, .last = 255, .forwards = 1, .prompt_room = 257}},
        {256, 512, {.most = 256, .last = 256, .forwards = 1, .prompt_room = 256}}, /* prompts have their own segments */
        {257, 512, {.most = 256, .last = 1, .forwards = 2, .prompt_room = 511}},
        {512, 512, {.most = 256, .last = 256, .forwards = 2, .prompt_room = 256}},
        {40, 32, {.most = 32, .last = 8, .forwards = 2, .prompt_room = 24}},
        {32, 32, {.most = 32, .last = 32, .forwards = 1, .prompt_room = 0}}, /* no row is left */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench_step_shape found = bench_shape_of(cases[i].sessions, cases[i].max_rows), wanted = cases[i].shape;
        if (memcmp(&found, &wanted, sizeof found) != 0)
            fail_msg("%d sessions, %d rows: most %d, last %d, forwards %d, room %d", cases[i].sessions,
                     cases[i].max_rows, found.most, found.last, found.forwards, found.prompt_room);
    }
    assert_int_equal(bench_prompt_rows(2000, 60, 512), 120);
    assert_int_equal(bench_prompt_rows(100, 60, 512), BENCH_LEAST_PROMPT_ROWS);
    assert_int_equal(bench_prompt_rows(57000, 60, 512), 512);
    assert_int_equal(bench_prompt_rows(100, 60, 8), 8);
}

static void near(const char *what, double found, double wanted) {
    double difference = found > wanted ? found - wanted : wanted - found;
    if (difference > 1e-6 * wanted) fail_msg("%s: %.3f, expected %.3f", what, found, wanted);
}

/* Weights once whatever the number of sessions, experts by all rows, K/V once for each session. */
static void test_bytes_of_a_step(void **state) {
    kakeya_engine *engine = *state;
    kakeya_session_options session;
    KAKEYA_INIT(&session);
    session.kv_format = KAKEYA_KV_BF16;
    for (int policy = KAKEYA_ATTENTION_NATIVE; policy <= KAKEYA_ATTENTION_RESTORED; policy++) {
        session.attention = (kakeya_attention)policy;
        double kv = bench_forward_bytes(engine, &session, 1000, 1) - bench_forward_bytes(engine, &session, 0, 1);
        assert_true(kv > 0);
        static const int sessions[] = {1, 2, 8, 64};
        for (size_t i = 0; i < 4; i++) {
            int n = sessions[i];
            near("decode", bench_together_bytes(engine, &session, 1000, n, 0),
                 bench_forward_bytes(engine, &session, 0, n) + n * kv);
            near("beside a prompt", bench_together_bytes(engine, &session, 1000, n, 100),
                 bench_forward_bytes(engine, &session, 0, n + 100) + n * kv);
        }
        assert_true(bench_together_bytes(engine, &session, 0, 8, 0) <
                    8 * bench_together_bytes(engine, &session, 0, 1, 0));
    }
    /* 10 sliding layers of 2 x 2 x 64 values in a window of 256, 2 full ones of 128 values, K = V */
    session.attention = KAKEYA_ATTENTION_NATIVE;
    near("native", bench_together_bytes(engine, &session, 1000, 3, 0) - bench_together_bytes(engine, &session, 0, 3, 0),
         3 * 2.0 * (10 * 256 * 256 + 2 * 1000 * 128));
}

static int long_context(void) { return sweep_short() ? 100 : 300; }

static kakeya_status measure(kakeya_engine *engine, kakeya_attention attention, const int *sessions, size_t n,
                             bench_sessions_result *out, kakeya_error *error) {
    const int contexts[] = {0, long_context()};
    bench_sessions_options options = {.contexts = contexts,
                                      .n_contexts = 2,
                                      .sessions = sessions,
                                      .n_sessions = n,
                                      .prompt_tokens = 40,
                                      .decode_tokens = BACKEND_MAX_DRAFT + 2, /* the sessions go back once */
                                      .repeats = 1,
                                      .stall_ms = 1};
    KAKEYA_INIT(&options.session);
    options.session.attention = attention;
    options.session.context_tokens = 400;
    return bench_sessions_measure(engine, &options, out, error);
}

static size_t kv_held(const kakeya_engine *engine) {
    size_t held = 0;
    for (mem_tag tag = MEM_KV_FULL; tag <= MEM_KV_DRAFT; tag++) held += mem_bytes(&engine->account, tag);
    return held;
}

static void test_measuring(void **state) {
    kakeya_engine *engine = *state;
    static const int sessions[] = {1, 3};
    /* a short run leaves out sink-window */
    for (int policy = KAKEYA_ATTENTION_NATIVE; policy <= KAKEYA_ATTENTION_RESTORED; policy += sweep_short() ? 2 : 1) {
        bench_sessions_result result;
        kakeya_error error = {0};
        probes = 0;
        assert_ok(measure(engine, (kakeya_attention)policy, sessions, 2, &result, &error));
        assert_int_equal(result.n, 10);
        assert_int_equal(probes, 1 + 10); /* before every case, and one to see that there is memory for it */
        near("read rate", result.read_bytes_per_second.median, read_rate);
        near("operations", result.flops_per_second.median, flops_rate);
        for (size_t i = 0; i < result.n; i++) {
            const bench_together_row *row = &result.row[i];
            static const bench_together what[] = {BENCH_TOGETHER_ALONE, BENCH_TOGETHER_DECODE, BENCH_TOGETHER_PROMPT,
                                                  BENCH_TOGETHER_DECODE, BENCH_TOGETHER_PROMPT};
            static const int decoding[] = {0, 1, 1, 3, 3};
            assert_int_equal(row->what, what[i % 5]);
            assert_int_equal(row->sessions, decoding[i % 5]);
            assert_int_equal(row->context, i < 5 ? 0 : long_context());
            double by_bytes = row->bytes / read_rate, by_operations = row->operations / flops_rate;
            assert_true(row->bound_by_bytes == (by_bytes >= by_operations));
            near("bound", row->bound_seconds.median, row->bound_by_bytes ? by_bytes : by_operations);
            assert_true(row->bytes > 0 && row->operations > 0 && row->seconds.median > 0);
            near("share of the bound", row->share.median, row->bound_seconds.median / row->seconds.median);
            assert_true(row->longest_seconds >= row->seconds.median * 0.999);
            int rows = row->what == BENCH_TOGETHER_ALONE ? 40 : row->what == BENCH_TOGETHER_PROMPT ? 32 : 0;
            assert_int_equal(row->prompt_rows, rows);
            assert_int_equal(row->steps, rows == 40 ? 1 : rows == 32 ? 2 : BACKEND_MAX_DRAFT + 2);
            assert_int_equal(row->forwards, row->steps);
            assert_true((row->prompt_tokens_per_second > 0) == (rows > 0));
            assert_true((row->prompt_share > 0) == (row->what == BENCH_TOGETHER_PROMPT));
            assert_true((row->tokens_per_second > 0) == (row->sessions > 0));
            if (row->what == BENCH_TOGETHER_DECODE && row->sessions == 1) near("against itself", row->against_one, 1);
        }
        bench_sessions_result_free(&result);
        assert_int_equal(kv_held(engine), 0);
    }
}

/* Every session is filled with a prompt that no other one has. */
enum { MOST_SEEN = 64 };
static const backend_ops *real_ops;
static uint64_t seen[MOST_SEEN];
static int n_seen;

static kakeya_status watched_forward(backend_model *model, backend_segment *segments, int n, kakeya_error *error) {
    for (int i = 0; i < n; i++) {
        const backend_segment *s = &segments[i];
        if (s->kind != SEGMENT_PROMPT || real_ops->cache_length(s->cache) || n_seen == MOST_SEEN) continue;
        uint64_t hash = 1;
        for (int k = 0; k < s->n; k++) hash = hash * 0x100000001b3u + (uint64_t)s->tokens[k];
        seen[n_seen++] = hash;
    }
    return real_ops->forward(model, segments, n, error);
}

static void test_texts_of_their_own(void **state) {
    kakeya_engine *engine = *state;
    static const int sessions[] = {7};
    bench_sessions_result result;
    kakeya_error error = {0};
    backend_ops ops = *engine->ops;
    real_ops = engine->ops;
    ops.forward = watched_forward;
    engine->ops = &ops;
    n_seen = 0;
    assert_ok(measure(engine, KAKEYA_ATTENTION_NATIVE, sessions, 1, &result, &error));
    engine->ops = real_ops;
    bench_sessions_result_free(&result);
    int different = 0;
    for (int i = 0; i < n_seen; i++) {
        bool first = true;
        for (int k = 0; k < i; k++) first &= seen[k] != seen[i];
        different += first;
    }
    assert_int_equal(different, 7 + 2); /* and the measured prompt, whole and its first piece beside sessions */
}

static void test_percentiles(void **state) {
    (void)state;
    double values[200];
    for (int i = 0; i < 200; i++) values[i] = 200 - i;
    bench_percentiles p = bench_percentiles_of(values, 200);
    near("p50", p.p50, 101);
    near("p99", p.p99, 199);
    near("longest", p.most, 200);
    p = bench_percentiles_of(values, 0);
    assert_true(p.p50 == 0 && p.p99 == 0 && p.most == 0);
}

static void test_ideal(void **state) {
    (void)state;
    const bench_figures run = {.prompt_tokens = 6000, .answer_tokens = 330};
    bench_ideal ideal = {.measured = {1000, 100}};
    bench_ideal_times(&ideal, &run, 30);
    near("prompts", ideal.prompt_seconds, 6);
    near("answers", ideal.answer_seconds, 3); /* the first token of each is its prompt's */
    /* a machine that has become slower does not make the ideal longer, a faster one makes it shorter */
    ideal.recorded = (bench_speeds){2000, 50};
    bench_ideal_times(&ideal, &run, 30);
    near("prompts as recorded", ideal.prompt_seconds, 3);
    near("answers as measured", ideal.answer_seconds, 3);
}

static void test_requests(void **state) {
    kakeya_engine *engine = *state;
    const int n = sweep_short() ? 4 : 20;
    bench_requests_options options = {
        .load = {.requests = n, .prompt_tokens = 24, .answer_tokens = 5}, .repeats = 2, .mode = KAKEYA_MODE_AR};
    KAKEYA_INIT(&options.session);
    options.session.without_drafter = true;
    for (int device = 0; device < 2; device++) {
        bench_requests_result r;
        kakeya_error error = {0};
        tells_forwards = device;
        options.load.outstanding = device ? 2 : 0;
        assert_ok(bench_requests_measure(engine, &options, &r, &error));
        bench_traffic t;
        assert_ok(bench_traffic_open(&options.load, engine->verifier->config.vocab, &t, &error));
        uint64_t prompts = 0;
        for (int i = 0; i < n; i++) prompts += (uint64_t)t.stream[i].n_prompt;
        bench_traffic_free(&t);
        assert_int_equal(r.run.prompt_tokens, prompts);
        assert_int_equal(r.run.answer_tokens, n * 5);
        assert_true(r.seconds.low <= r.seconds.median && r.seconds.median <= r.seconds.high && r.seconds.low > 0);
        assert_true(r.run.first_token.p50 > 0 && r.run.first_token.most <= r.run.seconds && r.run.gap.p50 > 0);
        assert_int_equal(r.ideal.prompt_tokens, prompts);
        assert_int_equal(r.ideal.sessions, n);
        near("ideal prompts", r.ideal.prompt_seconds, (double)prompts / r.ideal.measured.prompt_tokens_per_second);
        near("ideal answers", r.ideal.answer_seconds, n * 4 / r.ideal.measured.answer_tokens_per_second);
        /* every row of the run, but that each answer's last token enters no forward */
        near("rows", r.between.answer_rows * (double)r.between.steps, n * 4);
        near("prompt rows", r.between.prompt_rows * (double)r.between.steps, (double)prompts);
        assert_true(r.between.host.most > 0 && r.between.host_seconds >= r.between.host.most);
        assert_int_equal(r.between.on_device, device);
        if (device) near("kernel gap", r.between.kernel_gap, 0.25);
        assert_int_equal(r.between.graphs, device ? 3 : 0);
        assert_int_equal(kv_held(engine), 0);
        assert_null(engine->on_step);
    }
    tells_forwards = false;
}

static bool stop_soon(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user, (void)what, (void)total;
    return done < 2;
}

/* Who interrupts gets the memory back, too. */
static void test_requests_are_interrupted(void **state) {
    kakeya_engine *engine = *state;
    bench_requests_options options = {.load = {.requests = 12, .prompt_tokens = 24, .answer_tokens = 5, .rate = 1e6},
                                      .repeats = 1,
                                      .mode = KAKEYA_MODE_AR,
                                      .progress = stop_soon};
    KAKEYA_INIT(&options.session);
    bench_requests_result r;
    kakeya_error error = {0};
    assert_int_equal(bench_requests_measure(engine, &options, &r, &error), KAKEYA_CANCELLED);
    assert_string_equal(error.message, "interrupted after 2 of 12 requests");
    assert_int_equal(kv_held(engine), 0);
    /* what does not fit is refused before anything is computed */
    options.load.prompt_tokens = engine->verifier->config.max_context;
    assert_int_equal(bench_requests_measure(engine, &options, &r, &error), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "do not fit a context of"));
}

static void test_sessions_that_cannot_fit(void **state) {
    kakeya_engine *open = *state;
    kakeya_session *session = NULL;
    kakeya_error error = {0};
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    options.context_tokens = 400;
    options.without_drafter = true;
    assert_ok(kakeya_session_open(open, &options, &session, &error));
    backend_cache_options cache = session->cache_options;
    kakeya_session_close(session);
    size_t needed = bench_sessions_bytes(open, &cache, 0, 500, long_context(), 40);

    /* one session more is the K/V memory of one session more */
    kakeya_kv_bytes kv;
    KAKEYA_INIT(&kv);
    options.kv_format = KAKEYA_KV_BF16;
    assert_ok(kakeya_description_kv_bytes(kakeya_engine_description(open), &options,
                                          (size_t)long_context() + BENCH_WARM_STEPS + BACKEND_MAX_DRAFT, &kv, &error));
    assert_int_equal(bench_sessions_bytes(open, &cache, 0, 501, long_context(), 40) - needed, kv.total);

    kakeya_engine *engine = demo(0); /* a new one: tables grow with the positions that an engine has seen */
    size_t held = mem_total(&engine->account);
    kakeya_engine_close(engine);
    engine = demo(held + needed - 1);
    static const int sessions[] = {1, 500};
    bench_sessions_result result;
    assert_int_equal(measure(engine, KAKEYA_ATTENTION_NATIVE, sessions, 2, &result, &error), KAKEYA_OUT_OF_MEMORY);
    char expected[200];
    snprintf(expected, sizeof expected,
             "--sessions: 500 sessions of %d tokens and a prompt of 40 need %zu bytes of K/V memory, but only %zu are "
             "available",
             long_context(), needed, needed - 1);
    assert_string_equal(error.message, expected);
    assert_int_equal(mem_total(&engine->account), held);
    bench_sessions_result_free(&result);
    kakeya_engine_close(engine);
}

static void test_memory_of_the_machine(void **state) {
    (void)state;
    assert_true(machine_memory_available() > 0);
    assert_int_equal(machine_memory_available_in(scratch_path("nothing")), 0);

    scratch_folder("machine/proc");
    scratch_text("machine/proc/meminfo", "MemTotal:       24000000 kB\nMemFree:  10 kB\nMemAvailable:    1000 kB\n");
    assert_int_equal(machine_memory_available_in(scratch_path("machine")), 1000 * 1024);
    /* a control group without a limit, then with one that leaves less, then with one that is used up */
    scratch_folder("machine/sys/fs/cgroup");
    scratch_text("machine/sys/fs/cgroup/memory.max", "max\n");
    scratch_text("machine/sys/fs/cgroup/memory.current", "5000\n");
    assert_int_equal(machine_memory_available_in(scratch_path("machine")), 1000 * 1024);
    scratch_text("machine/sys/fs/cgroup/memory.max", "9000\n");
    assert_int_equal(machine_memory_available_in(scratch_path("machine")), 4000);
    scratch_text("machine/sys/fs/cgroup/memory.stat", "anon 4\nactive_file 7\ninactive_file 1500\n");
    assert_int_equal(machine_memory_available_in(scratch_path("machine")), 5500);
    scratch_text("machine/sys/fs/cgroup/memory.max", "3000\n");
    assert_int_equal(machine_memory_available_in(scratch_path("machine")), 0);

    /* a group below, as of a service or of systemd-run: its own limit counts, and those of the groups above it */
    scratch_text("machine/sys/fs/cgroup/memory.max", "max\n");
    scratch_folder("machine/proc/self");
    scratch_folder("machine/sys/fs/cgroup/user.slice/run.scope");
    scratch_text("machine/proc/self/cgroup", "1:name=systemd:/other\n0::/user.slice/run.scope\n");
    assert_int_equal(machine_memory_available_in(scratch_path("machine")), 1000 * 1024);
    scratch_text("machine/sys/fs/cgroup/user.slice/run.scope/memory.max", "7000\n");
    scratch_text("machine/sys/fs/cgroup/user.slice/run.scope/memory.current", "2000\n");
    assert_int_equal(machine_memory_available_in(scratch_path("machine")), 5000);
    scratch_text("machine/sys/fs/cgroup/user.slice/memory.max", "8000\n");
    scratch_text("machine/sys/fs/cgroup/user.slice/memory.current", "4400\n");
    scratch_text("machine/sys/fs/cgroup/user.slice/memory.stat", "inactive_file 400\n");
    assert_int_equal(machine_memory_available_in(scratch_path("machine")), 4000);
    scratch_text("machine/proc/self/cgroup", "0::/../../elsewhere\n"); /* of which nothing is seen from here */
    assert_int_equal(machine_memory_available_in(scratch_path("machine")), 1000 * 1024);

    scratch_folder("old/proc");
    scratch_folder("old/sys/fs/cgroup/memory");
    scratch_text("old/proc/meminfo", "MemAvailable:    1000 kB\n");
    scratch_text("old/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    scratch_text("old/sys/fs/cgroup/memory/memory.usage_in_bytes", "5000\n");
    assert_int_equal(machine_memory_available_in(scratch_path("old")), 1000 * 1024);
    scratch_text("old/sys/fs/cgroup/memory/memory.limit_in_bytes", "8000\n");
    scratch_text("old/sys/fs/cgroup/memory/memory.stat", "inactive_file 9\ntotal_inactive_file 100\n");
    assert_int_equal(machine_memory_available_in(scratch_path("old")), 3100);
    scratch_folder("old/proc/self");
    scratch_folder("old/sys/fs/cgroup/memory/one");
    scratch_text("old/proc/self/cgroup", "4:memory:/one\n3:cpuset:/two\n0::/\n");
    scratch_text("old/sys/fs/cgroup/memory/one/memory.limit_in_bytes", "6000\n");
    scratch_text("old/sys/fs/cgroup/memory/one/memory.usage_in_bytes", "4500\n");
    assert_int_equal(machine_memory_available_in(scratch_path("old")), 1500);
    scratch_text("old/sys/fs/cgroup/memory/one/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(machine_memory_available_in(scratch_path("old")), 3100);
}

static int open_demo(void **state) {
    scratch_setup(state);
    *state = demo(0);
    return 0;
}

static int close_demo(void **state) {
    kakeya_engine_close(*state);
    return scratch_teardown(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe_of_the_machine),
        cmocka_unit_test(test_steps_are_cut_into_forwards),
        cmocka_unit_test(test_bytes_of_a_step),
        cmocka_unit_test(test_measuring),
        cmocka_unit_test(test_texts_of_their_own),
        cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_ideal),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_requests_are_interrupted),
        cmocka_unit_test(test_sessions_that_cannot_fit),
        cmocka_unit_test(test_memory_of_the_machine),
    };
    return cmocka_run_group_tests(tests, open_demo, close_demo);
}
