/* kakeya serve: the options of the server, its first line, its signals. */
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/error.h"
#include "base/platform.h"
#include "cli/cli.h"
#include "cli/notify.h"
#include "cli/terminal.h"

#ifdef KAKEYA_SERVE

#include "cli/serve_capacity.h"
#include "serve/media_child.h"
#include "serve/serve.h"

enum { INTERRUPTED_TWICE = 130 };

#define DEFAULT_GRPC "127.0.0.1:50051"

typedef struct serve_options {
    cli_shared shared;
    const char *host;
    int port;
    cli_texts names, keys, origins, hosts;
    const char *key_file, *tls_certificate, *tls_key;
    int max_batch, max_queue, max_stall_ms, max_tokens, max_tool_calls, max_connections, max_per_address;
    int thinking;     /* index of switch_names */
    const char *grpc; /* NULL: the default */
    int session_ttl;
    float drain, ping, save, max_wait, keep_alive, request_timeout, idle_unload, wake_wait;
    const char *session_directory, *spill_directory;
    const char *kv_events, *kv_events_topic, *kv_events_replay;
    size_t cache_ram, cache_disk, max_bodies, image_bytes, image_cache, audio_bytes;
    int image_budget, image_megapixels, image_count, audio_seconds, audio_count;
    int memory_warn, memory_refuse; /* percent */
    int reuse;                      /* index of reuse_names */
    int metrics_names;              /* index of metrics_choices */
    int exact_replay;               /* index of switch_names */
    bool no_key, strict, metrics_key, no_page, log_json, log_prompts, dry_run;
} serve_options;

static volatile int bytes_lost; /* of mapped files, as a handler of signals has seen */

static const char *const switch_names[] = {"off", "on", NULL};
static const char *const reuse_names[] = {"exact", "any", NULL};
static const char *const metrics_choices[] = {"kakeya", "vllm", "both", NULL}; /* as enum metrics_names */

static const cli_command command = {
    .name = "serve",
    .summary = "Answers the APIs of OpenAI's clients over HTTP, and kakeya.v1.RuntimeService over gRPC.",
    .operands = "",
    .details = "Once the port is open, one JSON object with the addresses is printed on stdout. The model loads in\n"
               "the background; /health reports when it is ready. SIGTERM and SIGINT let running answers finish\n"
               "(--drain); a second signal ends the server at once. SIGHUP reads the key file again. Logs go to\n"
               "stderr.\n",
    .examples = "  kakeya serve --port 8080 --api-key \"$KEY\"\n"
                "  curl http://127.0.0.1:8080/health\n",
};

/* "HOST" from $KAKEYA_HOST and so on, where the option is not given. */
static const char *environment(const char *name, const char *fallback) {
    const char *value = getenv(name);
    return value && *value ? value : fallback;
}

static int environment_int(const char *name, int fallback, int max) {
    const char *value = getenv(name);
    char *end;
    long number = value ? strtol(value, &end, 10) : 0;
    return value && *value && !*end && number >= 0 && number <= max ? (int)number : fallback;
}

/* The last part of the model's path. */
static const char *model_name(const char *model) {
    if (!model) return "synthetic";
    const char *slash = strrchr(model, '/');
    return slash && slash[1] ? slash + 1 : model;
}

static void tell_ready(void) { notify_service("READY=1"); }

/* Answers computed together where the command line says nothing. */
static int usual_batch(const char *backend) {
    const backend_ops *ops = backend_find(backend, NULL);
    return ops ? ops->batch : 1; /* 1: opening the engine says why */
}

static void fill(serve_options *o, const kakeya_engine_options *engine, serve_settings *s, const char **name) {
    *name = model_name(engine->model);
    *s = (serve_settings){
        .host = o->host,
        .port = o->port,
        .tls_certificate = o->tls_certificate,
        .tls_key = o->tls_key,
        .auth = {.keys = o->keys.text,
                 .n_keys = o->keys.n,
                 .environment = getenv("KAKEYA_API_KEYS"),
                 .file = o->key_file,
                 .hosts = o->hosts.text,
                 .n_hosts = o->hosts.n,
                 .origins = o->origins.text,
                 .n_origins = o->origins.n},
        .names = o->names.n ? o->names.text : name,
        .n_names = o->names.n ? o->names.n : 1,
        .grpc = !o->grpc                      ? DEFAULT_GRPC
                : strcmp(o->grpc, "off") == 0 ? NULL
                                              : o->grpc,
        .grpc_by_default = !o->grpc,
        .session_ttl = o->session_ttl,
        .no_key = o->no_key,
        .max_connections = o->max_connections,
        .max_per_address = o->max_per_address,
        .max_bodies_bytes = o->max_bodies,
        .max_queue = o->max_queue,
        .max_tokens = o->max_tokens,
        .max_tool_calls = o->max_tool_calls,
        .image_budget = o->image_budget,
        .image_bytes = o->image_bytes,
        .image_pixels = (uint64_t)o->image_megapixels * 1000000,
        .image_count = o->image_count,
        .audio_bytes = o->audio_bytes,
        .audio_seconds = o->audio_seconds,
        .audio_count = o->audio_count,
        .thinking = o->thinking == 1,
        .drain_seconds = (double)o->drain,
        .ping_seconds = (double)o->ping,
        .max_wait = (double)o->max_wait,
        .keep_alive_seconds = (double)o->keep_alive,
        .request_timeout = (double)o->request_timeout,
        .idle_unload_seconds = (double)o->idle_unload,
        .wake_wait_seconds = (double)o->wake_wait,
        .strict = o->strict,
        .metrics_key = o->metrics_key,
        .metrics_names = (metrics_names)o->metrics_names,
        .no_page = o->no_page,
        .log_json = o->log_json,
        .log_prompts = o->log_prompts,
        .session_directory = o->session_directory,
        .spill_directory = o->spill_directory,
        .kv_events = o->kv_events,
        .kv_events_topic = o->kv_events_topic ? o->kv_events_topic : "",
        .kv_events_replay = o->kv_events_replay,
        .cache_disk_bytes = o->cache_disk,
        .save_seconds = (double)o->save,
        .memory_warn_percent = o->memory_warn,
        .memory_refuse_percent = o->memory_refuse,
        .cache_ram_bytes = o->cache_ram,
        .reuse_any = o->reuse == 1,
        .exact_replay = o->exact_replay == 1,
        .on_ready = tell_ready,
        .engine = *engine,
        .bytes_lost = &bytes_lost,
    };
    s->engine.image_rows_bytes = o->image_cache;
    s->engine.max_batch = o->max_batch ? o->max_batch : usual_batch(engine->backend);
    s->engine.max_stall_ms = o->max_stall_ms;
    cli_shared_session_options(&o->shared, &s->session);
}

/* A second signal while answers are being waited for. */
static void *second_signal(void *user) {
    int number;
    const sigset_t *wanted = user;
    do sigwait(wanted, &number);
    while (number == SIGHUP);
    _exit(INTERRUPTED_TWICE);
}

/* What is not asked for is null, K/V events are then not named. */
static void say_addresses(const server_context *running) {
    const char *grpc = serve_grpc(running), *quote = grpc ? "\"" : "";
    const char *events = serve_kv_events(running), *replay = serve_kv_events_replay(running);
    char line[1200];
    size_t room = sizeof line;
    int n = snprintf(line, room, "{\"http\": \"%s\", \"grpc\": %s%s%s", serve_url(running), quote, grpc ? grpc : "null",
                     quote);
    if (events) n += snprintf(line + n, room - (size_t)n, ", \"kv_events\": \"%s\"", events);
    if (replay) n += snprintf(line + n, room - (size_t)n, ", \"kv_events_replay\": \"%s\"", replay);
    n += snprintf(line + n, room - (size_t)n, "}\n");
    terminal_write(line, (size_t)n);
}

static int serve(const serve_settings *settings) {
    terminal_survive_lost_bytes(&bytes_lost); /* answers end with 500, and the model is loaded again */
    static sigset_t wanted;                   /* a thread that nobody waits for looks at it */
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGHUP);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of its write, as a full disk is */
    pthread_sigmask(SIG_BLOCK, &wanted, NULL); /* in every thread that starts from here on */
    kakeya_error error = {0};
    server_context *running = NULL;
    if (serve_start(settings, &running, &error) != KAKEYA_OK) return cli_fail(command.name, &error);
    say_addresses(running);
    int number;
    while ((number = serve_wait(running, &wanted, &error)) == SIGHUP) {
        kakeya_error why = {0};
        if (serve_reload_keys(running, &why) != KAKEYA_OK) fprintf(stderr, "kakeya serve: %s\n", why.message);
    }
    if (number > 0) {
        pthread_t watcher;
        if (platform_thread_create(&watcher, second_signal, &wanted) == 0) pthread_detach(watcher);
        notify_service("STOPPING=1");
    }
    serve_drain(running); /* also those who waited for a model that does not come */
    serve_stop(running);
    return number > 0 ? CLI_DONE : cli_fail(command.name, &error);
}

static bool is_image_budget(int budget) {
    size_t i = 0;
    while (kakeya_image_budget(i) && kakeya_image_budget(i) != budget) i++;
    return kakeya_image_budget(i) != 0;
}

int cli_serve(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], MEDIA_CHILD_ARGUMENT) == 0) return media_child_run();
    serve_options o = {.host = environment("KAKEYA_HOST", "127.0.0.1"),
                       .port = environment_int("KAKEYA_PORT", 8080, 65535),
                       .max_tokens = environment_int("KAKEYA_MAX_NEW_TOKENS", 0, 1 << 24),
                       .max_tool_calls = 32,
                       .max_connections = 16384,
                       .max_bodies = (size_t)256 << 20,
                       .image_cache = (size_t)256 << 20,
                       .exact_replay = 1,
                       .memory_warn = 90,
                       .cache_ram = SIZE_MAX,
                       .cache_disk = (size_t)64 << 30,
                       .session_ttl = 1800,
                       .drain = 30,
                       .save = 20,
                       .wake_wait = 120,
                       .keep_alive = 60,
                       .ping = 10};
    cli_option shared[CLI_SHARED_OPTIONS];
    cli_shared_init(&o.shared, shared);
    const cli_option own[] = {
        CLI_TEXT("host", "ADDRESS", &o.host, "address to listen on ($KAKEYA_HOST, else 127.0.0.1)"),
        CLI_INT("port", "N", &o.port, 0, 65535, "port to listen on; 0 chooses a free one ($KAKEYA_PORT, else 8080)"),
        CLI_TEXT("grpc", "ADDRESS", &o.grpc,
                 "HOST:PORT of the gRPC service; port 0 chooses a free one, 'off' disables it (" DEFAULT_GRPC ")"),
        CLI_INT("session-ttl", "SECONDS", &o.session_ttl, 0, 1 << 30,
                "seconds until an unused session of the gRPC service is closed; 0: never (1800)"),
        CLI_TEXTS("name", "NAME", &o.names,
                  "model name that clients see; further ones are aliases (the last part of the model's path)"),
        CLI_TEXTS("api-key", "KEY", &o.keys,
                  "require this key; several are possible ($KAKEYA_API_KEYS adds more, separated by commas)"),
        CLI_TEXT("api-key-file", "FILE", &o.key_file,
                 "require one of the keys in FILE, one per line, # starts a comment; read again on SIGHUP"),
        CLI_FLAG("no-key", &o.no_key,
                 "require no key even if --host or --grpc is an address that other machines can reach"),
        CLI_TEXTS("cors-origin", "ORIGIN", &o.origins, "origin whose pages may read answers; '*': all (none)"),
        CLI_TEXTS("allowed-host", "NAME", &o.hosts,
                  "name that a Host header may have, besides localhost and IP addresses"),
        CLI_TEXT("tls-cert", "FILE", &o.tls_certificate, "certificate chain in PEM; enables TLS"),
        CLI_TEXT("tls-key", "FILE", &o.tls_key, "private key of the certificate in PEM"),
        CLI_INT("max-batch", "N", &o.max_batch, 1, BACKEND_MAX_SEGMENTS,
                "maximum number of answers computed at the same time (CUDA 256, else 64)"),
        CLI_INT("max-queue", "N", &o.max_queue, 1, 4096,
                "maximum number of waiting requests; further ones get 429 (4 x max-batch, at least 64)"),
        CLI_INT("max-connections", "N", &o.max_connections, 1, 1 << 20,
                "maximum number of HTTP connections; a new one replaces an idle one or gets 503 (16384)"),
        CLI_INT("max-per-address", "N", &o.max_per_address, 1, 1 << 20,
                "maximum number of connections from one address (1024; no limit for clients on this machine)"),
        CLI_BYTES("max-bodies", "BYTES", &o.max_bodies,
                  "memory for the parsed bodies of all requests together; further requests get 503 (256M)"),
        CLI_FLOAT("max-wait", "SECONDS", &o.max_wait, 0, 86400,
                  "longest expected wait in the queue; a request that would wait longer "
                  "gets 429 at once (0: no limit)"),
        CLI_FLOAT("request-timeout", "SECONDS", &o.request_timeout, 0, 86400,
                  "time limit for a whole answer, counted from its request (0: no limit)"),
        CLI_INT("max-stall-ms", "N", &o.max_stall_ms, 1, 60000,
                "time that a prompt may add to one step of running answers (200, on a GPU 60)"),
        CLI_INT("max-tokens", "N", &o.max_tokens, 0, 1 << 24,
                "length limit of an answer whose request sets none (0: to the end of the context)"),
        CLI_INT("max-tool-calls", "N", &o.max_tool_calls, 1, 1024, "maximum number of tool calls in one answer (32)"),
        CLI_INT("image-budget", "TOKENS", &o.image_budget, 70, 1120,
                "maximum tokens per picture if a request names none: 70, 140, 280, 560 or 1120 (the model's, "
                "usually 280)"),
        CLI_BYTES("image-bytes", "BYTES", &o.image_bytes,
                  "maximum size of a picture's file; larger ones get 400 (20M)"),
        CLI_INT("image-pixels", "MILLIONS", &o.image_megapixels, 1, 64,
                "maximum size of a picture in millions of pixels; larger ones get 400 (64)"),
        CLI_INT("image-count", "N", &o.image_count, 1, 1024,
                "maximum number of pictures in one request; more get 400 (64)"),
        CLI_BYTES("image-cache", "BYTES", &o.image_cache,
                  "memory for encoded pictures, in addition to --memory-limit; 0: none (256M)"),
        CLI_BYTES("audio-bytes", "BYTES", &o.audio_bytes, "maximum size of a sound's file; larger ones get 400 (20M)"),
        CLI_INT("audio-seconds", "N", &o.audio_seconds, 1, 30, "maximum length of a sound; longer ones get 400 (30)"),
        CLI_INT("audio-count", "N", &o.audio_count, 1, 1024,
                "maximum number of sounds in one request; more get 400 (16)"),
        CLI_CHOICE("thinking", "off|on", &o.thinking, switch_names,
                   "whether the model reasons if a request does not say (off)"),
        CLI_TEXT("session-dir", "DIR", &o.session_directory,
                 "directory in which prompts, sessions and responses are kept; its files contain users' texts"),
        CLI_TEXT("spill-dir", "DIR", &o.spill_directory,
                 "directory for unnamed temporary files of answers that wait for memory "
                 "(--session-dir, else $TMPDIR, else /var/tmp)"),
        CLI_BYTES("cache-disk", "BYTES", &o.cache_disk, "maximum size of all files in --session-dir (64G)"),
        CLI_BYTES("cache-ram", "BYTES", &o.cache_ram,
                  "memory for the prefix cache and for idle gRPC sessions (a tenth of the memory, at most 8G)"),
        CLI_INT("memory-warn", "PERCENT", &o.memory_warn, 0, 100,
                "percentage of K/V memory in use by answers at which /health begins to warn (90)"),
        CLI_INT("memory-refuse", "PERCENT", &o.memory_refuse, 0, 100,
                "percentage at which further answers and /health get 503 (0: never; answers wait for memory)"),
        CLI_CHOICE("reuse", "exact|any", &o.reuse, reuse_names,
                   "any: bounded policies also continue from what an answer left in the "
                   "cache, at the price of reproducibility"),
        CLI_CHOICE("exact-replay", "on|off", &o.exact_replay, switch_names,
                   "off: render answers that clients send back anew instead of reusing their original tokens (on)"),
        CLI_TEXT("kv-events", "ADDRESS", &o.kv_events,
                 "publish K/V events for routers, as vLLM does, at this ZeroMQ address, "
                 "such as tcp://127.0.0.1:5557 or tcp://*:5557; the events contain the tokens of prompts"),
        CLI_TEXT("kv-events-topic", "TOPIC", &o.kv_events_topic, "first frame of every event message ('')"),
        CLI_TEXT("kv-events-replay", "ADDRESS", &o.kv_events_replay,
                 "address that sends the last 10,000 events again, from the number that a client asks for"),
        CLI_FLOAT("drain", "SECONDS", &o.drain, 0, 3600, "time for running answers to finish after SIGTERM (30)"),
        CLI_FLOAT("save-seconds", "SECONDS", &o.save, 0, 3600,
                  "time for writing sessions to --session-dir at shutdown (20)"),
        CLI_FLOAT("idle-unload", "SECONDS", &o.idle_unload, 0, 1 << 24,
                  "time without a request after which the model is unloaded; the next "
                  "request loads it again (0: never)"),
        CLI_FLOAT("wake-wait", "SECONDS", &o.wake_wait, 1, 86400,
                  "how long a request waits while the model reloads; then it gets 503 (120)"),
        CLI_FLOAT("sse-ping", "SECONDS", &o.ping, 0.5, 3600,
                  "interval between keep-alive messages in a silent stream (10)"),
        CLI_FLOAT("keep-alive", "SECONDS", &o.keep_alive, 0.1, 86400,
                  "time after which an idle connection is closed (60)"),
        CLI_FLAG("strict", &o.strict, "refuse unknown fields instead of listing them in x-kakeya-ignored"),
        CLI_FLAG("metrics-key", &o.metrics_key, "require the key at /metrics too"),
        CLI_CHOICE("metrics-names", "kakeya|vllm|both", &o.metrics_names, metrics_choices,
                   "vllm: use vLLM's names for the metrics that it has too, so that its dashboards work (kakeya)"),
        CLI_FLAG("no-page", &o.no_page, "do not serve the chat page at /"),
        CLI_FLAG("log-json", &o.log_json, "write log lines as JSON objects"),
        CLI_FLAG("log-prompts", &o.log_prompts, "log prompts and answers, which otherwise are never logged"),
        CLI_FLAG("dry-run", &o.dry_run, "report how many sessions fit, and exit without loading the model"),
        {.name = NULL},
    };
    int status;
    if (!cli_parse(&command, own, shared, argc, argv, NULL, &status)) return status;
    if (!o.kv_events && (o.kv_events_topic || o.kv_events_replay))
        return cli_usage_error(&command, "--kv-events-topic and --kv-events-replay need --kv-events");
    if (o.image_budget && !is_image_budget(o.image_budget))
        return cli_usage_error(&command, "--image-budget %d is not 70, 140, 280, 560 or 1120", o.image_budget);
    if (!o.tls_certificate != !o.tls_key) return cli_usage_error(&command, "--tls-cert and --tls-key need each other");
    if (o.memory_refuse && o.memory_refuse < o.memory_warn)
        return cli_usage_error(&command, "--memory-refuse %d is less than --memory-warn %d", o.memory_refuse,
                               o.memory_warn);
    kakeya_error error = {0};
    kakeya_engine_options engine;
    serve_settings settings;
    const char *name;
    if (cli_shared_engine_options(&o.shared, &engine, &error) != KAKEYA_OK) {
        status = cli_fail(command.name, &error);
    } else {
        fill(&o, &engine, &settings, &name);
        char program[PATH_MAX];
        if (platform_program(program, sizeof program)) settings.media_program = program;
        const bool json = o.dry_run ? o.shared.json : o.log_json;
        const serve_capacity_form forms[2][2] = {{SERVE_CAPACITY_LINES, SERVE_CAPACITY_LOG},
                                                 {SERVE_CAPACITY_TABLE, SERVE_CAPACITY_JSON}};
        if (serve_capacity_say(&o.shared, &settings, forms[o.dry_run][json], &error) != KAKEYA_OK) {
            status = cli_fail(command.name, &error);
        } else {
            status = o.dry_run ? CLI_DONE : serve(&settings);
        }
    }
    cli_shared_free(&o.shared);
    return status;
}

#else

int cli_serve(int argc, char **argv) {
    (void)argc;
    (void)argv;
    fputs("kakeya serve: this build has no server (KAKEYA_SERVE was OFF when it was made)\n", stderr);
    return CLI_FAILED;
}

#endif
