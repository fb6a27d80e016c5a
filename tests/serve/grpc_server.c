/* The gRPC service alone, told what to do line by line, so that tests decide when the model is there and when the
 * server drains. Prints {"grpc": "HOST:PORT"} once it listens and one JSON object for every call that has ended.
 *
 *   grpc_server MODEL [NAME=VALUE...]     address, attention, sink, window, context, ttl, reader, sessions, ring, key,
 *                                         memory (bytes), directory, drafter, f_theta, threads, certificate, tls_key
 *   load, drain, stop                     lines on stdin; its end is stop
 *   fail, reload                          a forward has failed as a whole; another engine takes over
 *
 * In between the first call that waits prints {"waits": true}. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/grpc.h"

static const char *key; /* NULL: nobody needs one */
static _Atomic bool failed, told;

static bool allows(void *user, const char *authorization) {
    (void)user;
    return !key || (authorization && strncmp(authorization, "Bearer ", 7) == 0 && strcmp(authorization + 7, key) == 0);
}

static void print_finished(void *user, const grpc_finished *f) {
    (void)user;
    printf("{\"method\": \"%s\", \"session\": \"%s\", \"code\": %d, \"prompt\": %zu, \"generated\": %zu}\n", f->method,
           f->session, f->code, f->prompt_tokens, f->generated_tokens);
    fflush(stdout);
}

static void print_waits(void *user) {
    (void)user;
    if (!atomic_load(&failed) || atomic_exchange(&told, true)) return;
    printf("{\"waits\": true}\n");
    fflush(stdout);
}

/* As the server does it where a device is lost. */
static kakeya_status reload(grpc_service *service, prefix_store *store, const kakeya_engine_options *options,
                            kakeya_engine **engine, kakeya_error *error) {
    while (!grpc_service_unload(service, true)) sched_yield();
    (void)store_give_up(store);
    kakeya_engine_close(*engine);
    *engine = NULL;
    kakeya_status status = kakeya_engine_open(options, engine, error);
    if (status != KAKEYA_OK) return status;
    store_resume(store, *engine);
    atomic_store(&failed, false);
    grpc_service_serve(service, *engine, store);
    return KAKEYA_OK;
}

static size_t relieve(void *user, size_t bytes) { return store_relieve(*(prefix_store **)user, bytes); }

static int fail(const kakeya_error *error) {
    fprintf(stderr, "grpc_server: %s\n", error->message);
    return 1;
}

static int refuse(const char *argument) {
    fprintf(stderr, "grpc_server: what is '%s'?\n", argument);
    return 2;
}

static store_options store_wanted = {.session_ttl = 1800, .max_named = 256};

static bool read_number(const char *name, double number, grpc_service_options *o, kakeya_engine_options *e) {
    if (strcmp(name, "sink") == 0) return o->session.sink = (int)number, true;
    if (strcmp(name, "window") == 0) return o->session.window = (int)number, true;
    if (strcmp(name, "context") == 0) return o->session.context_tokens = (int)number, true;
    if (strcmp(name, "ttl") == 0) return store_wanted.session_ttl = number, true;
    if (strcmp(name, "reader") == 0) return o->reader_seconds = number, true;
    if (strcmp(name, "sessions") == 0) return store_wanted.max_named = (size_t)number, true;
    if (strcmp(name, "ring") == 0) return o->ring_tokens = (size_t)number, true;
    if (strcmp(name, "memory") == 0) return e->memory_limit_bytes = (size_t)number, true;
    if (strcmp(name, "threads") == 0) return e->threads = (int)number, true;
    return false;
}

static bool read_option(char *argument, grpc_service_options *o, kakeya_engine_options *e) {
    char *value = strchr(argument, '=');
    if (!value) return false;
    *value++ = '\0';
    if (strcmp(argument, "address") == 0) return o->address = value, true;
    if (strcmp(argument, "certificate") == 0) return o->tls_certificate = value, true;
    if (strcmp(argument, "tls_key") == 0) return o->tls_key = value, true;
    if (strcmp(argument, "directory") == 0) return store_wanted.directory = value, true;
    if (strcmp(argument, "key") == 0) return key = value, true;
    if (strcmp(argument, "drafter") == 0) return e->drafter = value, true;
    if (strcmp(argument, "f_theta") == 0) return e->f_theta = value, true;
    if (strcmp(argument, "attention") == 0) {
        for (int i = 0; kakeya_attention_name((kakeya_attention)i); i++)
            if (strcmp(kakeya_attention_name((kakeya_attention)i), value) == 0)
                return o->session.attention = (kakeya_attention)i, true;
        return false;
    }
    return read_number(argument, atof(value), o, e);
}

int main(int argc, char **argv) {
    grpc_service_options options;
    grpc_service_options_init(&options);
    options.address = "127.0.0.1:0";
    options.allows = allows;
    options.on_finished = print_finished;
    options.on_wanted = print_waits;
    options.failed = &failed;
    options.wake_seconds = 600;
    prefix_store *store = NULL;
    kakeya_engine_options engine_options;
    KAKEYA_INIT(&engine_options);
    engine_options.backend = "cpu";
    engine_options.relieve = relieve;
    engine_options.relieve_user = &store;
    if (argc < 2) return refuse("nothing");
    engine_options.model = argv[1];
    for (int i = 2; i < argc; i++)
        if (!read_option(argv[i], &options, &engine_options)) return refuse(argv[i]);
    kakeya_error error = {0};
    grpc_service *service = NULL;
    kakeya_engine *engine = NULL;
    if (grpc_service_start(&options, &service, &error) != KAKEYA_OK) return fail(&error);
    printf("{\"grpc\": \"%s\"}\n", grpc_service_address(service));
    fflush(stdout);
    char line[64];
    kakeya_status status = KAKEYA_OK;
    while (status == KAKEYA_OK && fgets(line, sizeof line, stdin) && strcmp(line, "stop\n") != 0) {
        if (strcmp(line, "load\n") == 0) {
            status = kakeya_engine_open(&engine_options, &engine, &error);
            if (status == KAKEYA_OK) status = store_open(engine, &options.session, &store_wanted, &store, &error);
            if (status == KAKEYA_OK) grpc_service_serve(service, engine, store);
        } else if (strcmp(line, "fail\n") == 0) {
            atomic_store(&failed, true);
            printf("{\"failed\": true}\n");
            fflush(stdout);
        } else if (strcmp(line, "reload\n") == 0) {
            status = reload(service, store, &engine_options, &engine, &error);
        } else if (strcmp(line, "drain\n") == 0) {
            grpc_service_drain(service);
        } else {
            return refuse(line);
        }
    }
    grpc_service_stop(service);
    store_close(store, 60);
    if (engine) kakeya_engine_close(engine);
    return status == KAKEYA_OK ? 0 : fail(&error);
}
