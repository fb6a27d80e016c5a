#include "serve/lifecycle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/platform.h"
#include "kakeya_study.h"
#include "serve/kv_events.h"
#include "serve/rpc.h"

enum { MAX_NAMED_SESSIONS = 256 };

struct lifecycle {
    server_context *server;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool awake;        /* calls may hold the model */
    bool unload, wake; /* what the thread is to do next */
    bool broken;       /* likewise: a forward has failed as a whole */
    bool stopping;     /* nobody waits any more */
    bool told;         /* why the model stays, since it last left */
    size_t holders;
    double used; /* when it was held last */
    uint64_t wakes, failures;
    kakeya_error failure;        /* the last one */
    bool load_failed;            /* for good */
    pthread_mutex_t engine_lock; /* whoever reads the engine's counters while it may be closed */
    uint64_t fingerprint;
};

static void log_line(void *user, const char *line) {
    (void)user;
    fprintf(stderr, "kakeya serve: %s\n", line);
}

/* ------------------------------------------------------------------------------------------------- the first load */

static bool on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what;
    server_context *s = user;
    if (total) atomic_store(&s->progress, (unsigned)(1000 * done / total));
    return atomic_load(&s->state) != SERVER_DRAINING;
}

static char *notes(void *user, const int32_t *ids, size_t n) {
    const server_context *s = user;
    return turn_memory_export(s->turns, ids, n);
}

static void take_notes(void *user, const char *json) {
    const server_context *s = user;
    turn_memory_import(s->turns, json);
}

/* What the model's makers recommend, where its directory says so. */
static void read_sampling(server_context *s) {
    s->sampling = (kakeya_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    const char *model = s->settings->engine.model;
    char *path = model ? path_join(model, "generation_config.json") : NULL, *text = NULL;
    size_t bytes = 0;
    cJSON *json = NULL;
    enum { MOST = 1 << 20 };
    if (path && file_read(path, MOST, &text, &bytes, NULL) == KAKEYA_OK &&
        json_parse_object(path, text, bytes, &json, NULL) == KAKEYA_OK) {
        json_reader reader = {.name = path};
        s->sampling.temperature = (float)json_number(&reader, json, "temperature", 0, 2, 1);
        s->sampling.top_p = (float)json_number(&reader, json, "top_p", 0, 1, 1);
        s->sampling.top_k = json_int(&reader, json, "top_k", 0, 1 << 30, 0);
    }
    cJSON_Delete(json);
    free(text);
    free(path);
}

/* What is told about the model also while it sleeps. */
static kakeya_status describe(server_context *s, kakeya_error *error) {
    server_model_facts *facts = &s->model;
    const kakeya_description *description = kakeya_engine_description(s->engine);
    const kakeya_session_options *session = &s->settings->session;
    facts->facts = kakeya_description_facts(description);
    snprintf(facts->backend, sizeof facts->backend, "%s", kakeya_engine_backend(s->engine));
    facts->chat_template = strdup(kakeya_engine_chat_template(s->engine));
    if (!facts->chat_template) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: chat template");
    facts->vision = kakeya_engine_image_token(s->engine) >= 0;
    facts->sound = kakeya_engine_sound_token(s->engine) >= 0;
    facts->weight_bytes = kakeya_engine_memory(s->engine, KAKEYA_MEMORY_WEIGHTS);
    KAKEYA_INIT(&facts->kv_of_one);
    KAKEYA_INIT(&facts->kv_of_context);
    kakeya_status status = kakeya_description_kv_bytes(description, session, 1, &facts->kv_of_one, error);
    if (status != KAKEYA_OK) return status;
    return kakeya_description_kv_bytes(description, session, (size_t)s->context, &facts->kv_of_context, error);
}

/* Where the network thread would take a processor from the threads that compute, which wait for each other. */
static bool computes_everywhere(const server_context *s) {
    int threads = s->settings->engine.threads;
    return strncmp(s->model.backend, "cpu", 3) == 0 && (threads == 0 || threads >= platform_processors());
}

/* What stands on the engine. */
static kakeya_status prepare(server_context *s, kakeya_error *error) {
    const serve_settings *settings = s->settings;
    enum { MAX_STOPS = sizeof s->stop_tokens / sizeof *s->stop_tokens };
    for (int32_t t = 0; t < kakeya_engine_vocab_size(s->engine) && s->n_stop_tokens < MAX_STOPS; t++)
        if (kakeya_engine_is_stop_token(s->engine, t)) s->stop_tokens[s->n_stop_tokens++] = t;
    read_sampling(s);
    int most = kakeya_engine_max_context(s->engine), wanted = settings->session.context_tokens;
    s->context = wanted && wanted < most ? wanted : most;
    kakeya_status status = describe(s, error);
    s->no_core_to_spare = computes_everywhere(s);
    if (settings->exact_replay) s->turns = turn_memory_open(TURN_MEMORY_ENTRIES, TURN_MEMORY_BYTES);
    size_t ram = settings->cache_ram_bytes == SIZE_MAX ? serve_default_cache_bytes() : settings->cache_ram_bytes;
    const store_options store = {.ram_bytes = ram,
                                 .disk_bytes = settings->cache_disk_bytes,
                                 .directory = settings->session_directory,
                                 .reuse_any = settings->reuse_any,
                                 .blocks = kv_events_blocks(s->kv_events),
                                 .session_ttl = settings->session_ttl,
                                 .max_named = MAX_NAMED_SESSIONS,
                                 .notes = s->turns ? notes : NULL,
                                 .take_notes = s->turns ? take_notes : NULL,
                                 .notes_user = s,
                                 .log = log_line};
    const int32_t image_token = kakeya_engine_image_token(s->engine);
    kv_blocks_set_media_token(store.blocks, image_token >= 0 ? image_token : kakeya_engine_sound_token(s->engine));
    kv_blocks_clear(store.blocks, false); /* whoever knows this address from an earlier server forgets that */
    if (status == KAKEYA_OK) status = store_open(s->engine, &settings->session, &store, &s->store, error);
    if (status == KAKEYA_OK) store_read_notes(s->store);
    return status;
}

/* What is kept beside sessions. A directory that cannot be used costs what it would have kept; the store of sessions
 * says so. */
static void open_directory(server_context *s) {
    static const char *const earlier[] = {"responses", "seal.key"};
    const char *directory = s->settings->session_directory;
    kakeya_error error;
    if (!directory) return;
    if (response_store_use(s->responses, directory, log_line, NULL, &s->seal, &error) != KAKEYA_OK)
        fprintf(stderr, "kakeya serve: %s; responses, and the key of sealed reasoning, are kept in memory alone\n",
                error.message);
    for (size_t i = 0; i < sizeof earlier / sizeof *earlier; i++) {
        char *path = path_join(directory, earlier[i]);
        if (path && access(path, F_OK) == 0)
            fprintf(stderr, "kakeya serve: %s is of an earlier version: it is not read, and can be deleted\n", path);
        free(path);
    }
}

/* What failed may fail for good, as a device that is lost does: the model is given up and loaded again. */
static void note_failure(lifecycle *l) {
    int ready = SERVER_READY;
    pthread_mutex_lock(&l->lock);
    if (l->awake && atomic_compare_exchange_strong(&l->server->state, &ready, SERVER_WAKING)) {
        l->awake = false;
        l->broken = true;
        atomic_store(&l->server->engine_failed, true);
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
}

static void on_step(void *user, const kakeya_step *step) {
    server_context *s = user;
    metrics *m = &s->metrics;
    s->single_token = step->requests == 1 && step->answer_positions == 1;
    metrics_add(&m->preemptions, step->preemptions);
    if (step->status != KAKEYA_OK) {
        if (step->status == KAKEYA_BACKEND) note_failure(s->lifecycle);
        return;
    }
    if (step->prompt_positions) metrics_tokens(&m->iteration_prompt, step->prompt_positions);
    if (step->answer_positions) metrics_tokens(&m->iteration_decode, step->answer_positions);
    metrics_tokens(&m->iteration_both, step->prompt_positions + step->answer_positions);
    metrics_seconds(&m->iteration, step->seconds);
}

static size_t relieve(void *user, size_t bytes) {
    const server_context *s = user;
    return s->store ? store_relieve(s->store, bytes) : 0;
}

static const char *spill_directory(const serve_settings *settings) {
    if (settings->spill_directory || !settings->session_directory) return settings->spill_directory;
    FILE *file = file_unnamed(settings->session_directory);
    if (file) fclose(file);
    return file ? settings->session_directory : NULL;
}

static kakeya_status open_engine(server_context *s, kakeya_engine **out, kakeya_error *error) {
    kakeya_engine_options options = s->settings->engine;
    options.progress = on_progress;
    options.user = s;
    options.spill_directory = spill_directory(s->settings);
    options.on_step = on_step;
    options.step_user = s;
    options.relieve = relieve;
    options.relieve_user = s;
    options.bytes_lost = s->settings->bytes_lost;
    atomic_store(&s->progress, 0);
    if (s->settings->bytes_lost) *s->settings->bytes_lost = 0;
    return kakeya_engine_open(&options, out, error);
}

static kakeya_status load(lifecycle *l, kakeya_error *error) {
    server_context *s = l->server;
    open_directory(s);
    kakeya_status status = open_engine(s, &s->engine, error);
    if (status != KAKEYA_OK) return status;
    const char *note;
    for (size_t i = 0; (note = kakeya_engine_note(s->engine, i)) != NULL; i++)
        fprintf(stderr, "kakeya serve: note: %s\n", note);
    status = prepare(s, error);
    if (status != KAKEYA_OK) return status;
    l->fingerprint = kakeya_engine_fingerprint(s->engine);
    atomic_store(&s->loaded, true);
    int loading = SERVER_LOADING;
    rpc_serve(s);
    pthread_mutex_lock(&l->lock);
    l->used = clock_seconds();
    bool ready = l->awake = atomic_compare_exchange_strong(&s->state, &loading, SERVER_READY);
    pthread_mutex_unlock(&l->lock);
    if (ready) {
        fprintf(stderr, "kakeya serve: ready: %s on %s, %.1f MB allocated for weights, %.1f MB for workspace\n",
                s->settings->names[0], s->model.backend, (double)s->model.weight_bytes / 1e6,
                (double)kakeya_engine_memory(s->engine, KAKEYA_MEMORY_WORKSPACE) / 1e6);
        if (s->settings->on_ready) s->settings->on_ready();
    }
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------------------ sleep */

static size_t allocated(const kakeya_engine *engine) {
    size_t bytes = 0;
    for (int kind = KAKEYA_MEMORY_WEIGHTS; kind <= KAKEYA_MEMORY_WORKSPACE; kind++)
        bytes += kakeya_engine_memory(engine, (kakeya_memory_kind)kind);
    return bytes;
}

/* The model stays, or has come. False: the server has ended meanwhile. */
static bool become_ready(lifecycle *l, int from) {
    pthread_mutex_lock(&l->lock);
    l->used = clock_seconds();
    bool ready = l->awake = atomic_compare_exchange_strong(&l->server->state, &from, SERVER_READY);
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return ready;
}

/* No session is open any more. */
static void close_engine(lifecycle *l) {
    server_context *s = l->server;
    pthread_mutex_lock(&l->engine_lock);
    kakeya_engine *engine = s->engine;
    s->engine = NULL;
    pthread_mutex_unlock(&l->engine_lock);
    grammar_cache_clear(s->grammars);
    kakeya_engine_close(engine);
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

static void fall_asleep(lifecycle *l) {
    server_context *s = l->server;
    kakeya_error why = {0};
    if (!rpc_unload(s, false)) { /* a call is under way */
        become_ready(l, SERVER_SLEEPING);
        return;
    }
    size_t bytes = allocated(s->engine);
    if (store_unload(s->store, s->settings->save_seconds, &why) != KAKEYA_OK) {
        if (!l->told) fprintf(stderr, "kakeya serve: the model stays in memory: %s\n", why.message);
        l->told = true;
        rpc_serve(s);
        become_ready(l, SERVER_SLEEPING);
        return;
    }
    close_engine(l);
    l->told = false;
    fprintf(stderr, "kakeya serve: sleeping: no request for %g s, %.1f MB freed\n", s->settings->idle_unload_seconds,
            (double)bytes / 1e6);
}

/* Those who wait hear of it. */
static void tell_failure(lifecycle *l, const kakeya_error *why) {
    rpc_wake_failed(l->server, why->message);
    pthread_mutex_lock(&l->lock);
    l->failures++;
    l->failure = *why;
    l->wake = false; /* it was for those who hear of it now */
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* Who asks next tries again. */
static void stay_asleep(lifecycle *l, const kakeya_error *why) {
    int waking = SERVER_WAKING;
    if (!atomic_compare_exchange_strong(&l->server->state, &waking, SERVER_SLEEPING)) return; /* it drains */
    fprintf(stderr, "kakeya serve: the model cannot be loaded again: %s\n", why->message);
    tell_failure(l, why);
}

/* While the state is WAKING. */
static kakeya_status load_again(lifecycle *l, kakeya_error *why) {
    server_context *s = l->server;
    double since = clock_seconds();
    kakeya_engine *engine = NULL;
    kakeya_status status = open_engine(s, &engine, why);
    if (status == KAKEYA_OK && kakeya_engine_fingerprint(engine) != l->fingerprint) {
        status = error_set(why, KAKEYA_FORMAT, "%s is no longer the model of the start: restart the server to serve it",
                           s->settings->engine.model ? s->settings->engine.model : "synthetic");
        kakeya_engine_close(engine);
    }
    if (status != KAKEYA_OK) return status;
    pthread_mutex_lock(&l->engine_lock);
    s->engine = engine;
    pthread_mutex_unlock(&l->engine_lock);
    store_resume(s->store, engine);
    atomic_store(&s->engine_failed, false);
    rpc_serve(s);
    pthread_mutex_lock(&l->lock);
    l->wakes++;
    pthread_mutex_unlock(&l->lock);
    if (become_ready(l, SERVER_WAKING)) fprintf(stderr, "kakeya serve: awake after %.1f s\n", clock_seconds() - since);
    return KAKEYA_OK;
}

static void wake_up(lifecycle *l) {
    int sleeping = SERVER_SLEEPING;
    kakeya_error why = {0};
    atomic_store(&l->server->progress, 0);
    if (atomic_compare_exchange_strong(&l->server->state, &sleeping, SERVER_WAKING) && load_again(l, &why) != KAKEYA_OK)
        stay_asleep(l, &why);
}

/* ---------------------------------------------------------------------------------------------------------- failure */

/* Whoever uses the model is told that it has failed. False: the server ends meanwhile, which waits for them itself. */
static bool wait_for_holders(lifecycle *l) {
    enum { AGAIN_MS = 20 }; /* who has just come is told then */
    for (;;) {
        l->server->model_failed(l->server);
        bool rpc = rpc_unload(l->server, true);
        pthread_mutex_lock(&l->lock);
        bool stopping = l->stopping, free_of_all = rpc && l->holders == 0;
        pthread_mutex_unlock(&l->lock);
        if (stopping || free_of_all) return !stopping;
        (void)nanosleep(&(struct timespec){.tv_nsec = AGAIN_MS * 1000000L}, NULL);
    }
}

/* A forward has failed as a whole. Nothing that is in memory of the engine is believed any more; files are. Where the
 * model cannot be loaded again, the server ends: whoever started it knows what to do. */
static void mend(lifecycle *l) {
    server_context *s = l->server;
    fprintf(stderr, "kakeya serve: the computation has failed; the model is loaded again\n");
    if (!wait_for_holders(l)) return;
    size_t lost = store_give_up(s->store);
    if (lost) fprintf(stderr, "kakeya serve: %zu sessions of gRPC that were in memory alone are lost\n", lost);
    close_engine(l);
    kakeya_error why = {0}, told = {0};
    if (load_again(l, &why) == KAKEYA_OK) return;
    error_set(&told, why.status, "the computation has failed, and the model cannot be loaded again: %.400s",
              why.message);
    tell_failure(l, &told);
    pthread_mutex_lock(&l->lock);
    l->load_failed = atomic_load(&s->state) != SERVER_DRAINING;
    pthread_mutex_unlock(&l->lock);
}

/* The thread: what to do next is said by calls and by the tick. */
static void *live(void *user) {
    lifecycle *l = user;
    kakeya_error error = {0};
    bool good = load(l, &error) == KAKEYA_OK;
    pthread_mutex_lock(&l->lock);
    l->load_failed = !good;
    l->failure = error;
    while (good && !l->stopping) {
        bool unload = l->unload, wake = l->wake && atomic_load(&l->server->state) == SERVER_SLEEPING,
             broken = l->broken;
        if (!unload && !wake && !broken) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        l->unload = l->broken = false;
        if (!unload) l->wake = false;
        pthread_mutex_unlock(&l->lock);
        if (broken)
            mend(l);
        else if (unload)
            fall_asleep(l);
        else
            wake_up(l);
        pthread_mutex_lock(&l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------------------ calls */

void lifecycle_nudge(void *user) {
    lifecycle *l = user;
    pthread_mutex_lock(&l->lock);
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* With the lock, which it gives up meanwhile: until the model is there, it cannot be loaded, the client has left, or
 * `end` has come. False: *error. */
static bool wait_for_model(lifecycle *l, const _Atomic bool *gone, double end, api_error *error) {
    const uint64_t failures = l->failures;
    l->wake = true;
    pthread_cond_broadcast(&l->changed);
    while (!l->awake && !l->stopping && l->failures == failures && !l->load_failed && !atomic_load(gone) &&
           clock_seconds() < end)
        (void)platform_condition_wait(&l->changed, &l->lock, end);
    if (l->awake) return true;
    error->retry_after = 2;
    if (l->stopping) return api_fail(error, 503, "draining", NULL, "the server is shutting down");
    if (l->failures != failures || l->load_failed)
        return api_fail(error, 503, "waking", NULL, "the model cannot be loaded again: %s", l->failure.message);
    if (atomic_load(gone)) return api_fail(error, 503, "cancelled", NULL, "the client has left");
    return api_fail(error, 503, "waking", NULL, "the model is being loaded again: %u %% after %g s (--wake-wait)",
                    atomic_load(&l->server->progress) / 10, l->server->settings->wake_wait_seconds);
}

bool lifecycle_hold(lifecycle *l, const _Atomic bool *gone, api_error *error) {
    pthread_mutex_lock(&l->lock);
    bool awake = l->awake || wait_for_model(l, gone, clock_seconds() + l->server->settings->wake_wait_seconds, error);
    l->holders += awake;
    pthread_mutex_unlock(&l->lock);
    return awake;
}

void lifecycle_hold_again(lifecycle *l) {
    pthread_mutex_lock(&l->lock);
    l->holders++;
    pthread_mutex_unlock(&l->lock);
}

void lifecycle_release(lifecycle *l) {
    pthread_mutex_lock(&l->lock);
    l->holders--;
    l->used = clock_seconds();
    pthread_mutex_unlock(&l->lock);
}

void lifecycle_wake(lifecycle *l) {
    pthread_mutex_lock(&l->lock);
    l->wake = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

void lifecycle_touch(lifecycle *l) {
    pthread_mutex_lock(&l->lock);
    l->used = clock_seconds();
    pthread_mutex_unlock(&l->lock);
}

void lifecycle_tick(lifecycle *l, double now) {
    double most = l->server->settings->idle_unload_seconds;
    int ready = SERVER_READY;
    if (most <= 0) return;
    pthread_mutex_lock(&l->lock);
    if (l->awake && l->holders == 0 && now >= l->used + most &&
        atomic_compare_exchange_strong(&l->server->state, &ready, SERVER_SLEEPING)) {
        l->awake = false;
        l->wake = false;
        l->unload = true;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
}

size_t lifecycle_layer_memory(lifecycle *l, kakeya_memory_kind kind, int layer) {
    const server_context *s = l->server;
    pthread_mutex_lock(&l->engine_lock);
    size_t bytes = s->engine ? kakeya_engine_layer_memory(s->engine, kind, layer) : 0;
    pthread_mutex_unlock(&l->engine_lock);
    return bytes;
}

size_t lifecycle_memory(lifecycle *l, kakeya_memory_kind kind) {
    const server_context *s = l->server;
    pthread_mutex_lock(&l->engine_lock);
    size_t bytes = s->engine ? kakeya_engine_memory(s->engine, kind) : 0;
    pthread_mutex_unlock(&l->engine_lock);
    return bytes;
}

size_t lifecycle_spilled(lifecycle *l) {
    const server_context *s = l->server;
    pthread_mutex_lock(&l->engine_lock);
    size_t bytes = s->engine ? kakeya_engine_spilled_bytes(s->engine) : 0;
    pthread_mutex_unlock(&l->engine_lock);
    return bytes;
}

kakeya_weights lifecycle_weights(lifecycle *l) {
    const server_context *s = l->server;
    kakeya_weights weights = {.size = sizeof weights};
    pthread_mutex_lock(&l->engine_lock);
    if (s->engine) kakeya_engine_weights_sized(s->engine, &weights);
    pthread_mutex_unlock(&l->engine_lock);
    return weights;
}

size_t lifecycle_kv_room(lifecycle *l) {
    const server_context *s = l->server;
    pthread_mutex_lock(&l->engine_lock);
    size_t bytes = s->engine ? kakeya_engine_kv_room(s->engine) : 0;
    pthread_mutex_unlock(&l->engine_lock);
    return bytes;
}

void lifecycle_counts(lifecycle *l, uint64_t *wakes, uint64_t *failures) {
    pthread_mutex_lock(&l->lock);
    *wakes = l->wakes;
    *failures = l->failures;
    pthread_mutex_unlock(&l->lock);
}

/* ------------------------------------------------------------------------------------------------------ open, close */

bool lifecycle_failed(lifecycle *l, kakeya_error *error) {
    pthread_mutex_lock(&l->lock);
    bool failed = l->load_failed;
    if (failed) *error = l->failure;
    pthread_mutex_unlock(&l->lock);
    return failed;
}

lifecycle *lifecycle_open(server_context *server) {
    lifecycle *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->server = server;
    pthread_mutex_init(&l->lock, NULL);
    pthread_mutex_init(&l->engine_lock, NULL);
    platform_condition_init(&l->changed);
    return l;
}

kakeya_status lifecycle_begin(lifecycle *l, kakeya_error *error) {
    l->running = platform_thread_create(&l->thread, live, l) == 0;
    return l->running ? KAKEYA_OK : error_set(error, KAKEYA_IO, "no thread could be started");
}

void lifecycle_stop(lifecycle *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->stopping = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

void lifecycle_join(lifecycle *l) {
    if (l && l->running) pthread_join(l->thread, NULL);
    if (l) l->running = false;
}

void lifecycle_close(lifecycle *l) {
    if (!l) return;
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->engine_lock);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

kakeya_image_counts lifecycle_image_counts(lifecycle *l) {
    const server_context *s = l->server;
    kakeya_image_counts counts = {.size = sizeof counts};
    pthread_mutex_lock(&l->engine_lock);
    if (s->engine) counts = kakeya_engine_image_counts(s->engine);
    pthread_mutex_unlock(&l->engine_lock);
    return counts;
}

kakeya_sound_counts lifecycle_sound_counts(lifecycle *l) {
    const server_context *s = l->server;
    kakeya_sound_counts counts = {.size = sizeof counts};
    pthread_mutex_lock(&l->engine_lock);
    if (s->engine) counts = kakeya_engine_sound_counts(s->engine);
    pthread_mutex_unlock(&l->engine_lock);
    return counts;
}
