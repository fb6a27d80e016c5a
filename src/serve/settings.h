/* What `kakeya serve` was told. */
#ifndef KAKEYA_SERVE_SETTINGS_H
#define KAKEYA_SERVE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "kakeya.h"
#include "serve/auth.h"
#include "serve/metrics.h"

typedef struct serve_settings {
    const char *host;
    int port;
    const char *tls_certificate, *tls_key;
    auth_options auth;
    const char *const *names; /* n_names >= 1: the id, then aliases */
    size_t n_names;
    const char *grpc;     /* HOST:PORT of the gRPC service; NULL: none */
    bool grpc_by_default; /* nobody asked for it: the server also goes without */
    double session_ttl;   /* seconds without use until a session of the gRPC service is dropped; 0: never */
    bool no_key;          /* everybody who reaches the address may ask, also from other machines */
    int max_queue;        /* requests that may wait; 0: the default */
    int max_connections;
    int max_per_address;     /* connections; 0: the default, which spares clients on this machine */
    size_t max_bodies_bytes; /* of all bodies of requests that are in memory, with the trees made of them */
    int max_tokens;          /* of an answer that names no limit; 0: to the end of the context */
    int max_tool_calls;
    const char *media_program; /* this program, whose children decode pictures and sounds (media_child.h); NULL: it does
                                  so itself */
    int image_budget;          /* tokens of a picture at most, where nothing else is said; 0: the default */
    size_t image_bytes;        /* of a picture's file */
    uint64_t image_pixels;     /* of a picture before it is resized */
    int image_count;           /* pictures of a request */
    size_t audio_bytes;        /* of a sound's file */
    int audio_seconds;         /* of a sound */
    int audio_count;           /* sounds of a request */
    bool thinking;             /* where a request does not say */
    double drain_seconds, ping_seconds;
    double max_wait;            /* seconds; a request that is likely to wait longer is refused; 0: no limit */
    double keep_alive_seconds;  /* of a connection between requests */
    double request_timeout;     /* seconds for a whole answer; 0: no limit */
    double idle_unload_seconds; /* without use, until the model leaves memory; 0: never */
    double wake_wait_seconds;   /* that a request waits for it */
    bool strict, metrics_key, no_page;
    metrics_names metrics_names;
    bool log_json, log_prompts;
    const char *session_directory; /* NULL: nothing goes to disk */
    const char *spill_directory;   /* for sessions that wait for memory; NULL: that of sessions, if it can be used */
    size_t cache_disk_bytes;       /* of all its files; 0: no limit */
    double save_seconds;           /* for saving at the end */
    const char *kv_events;         /* ZeroMQ's address for K/V events (kv_events.h); NULL: none are published */
    const char *kv_events_topic;   /* "" where nothing else is said */
    const char *kv_events_replay;  /* where they are asked for again; NULL: nowhere */
    int memory_warn_percent;       /* of the room for K/V, taken by what cannot give way; 0: never */
    int memory_refuse_percent;     /* the same: more answers are refused; 0: never */
    size_t cache_ram_bytes;        /* of the prefix store; SIZE_MAX: the default */
    bool reuse_any;
    bool exact_replay;            /* answers that come back become the tokens that were sampled */
    void (*on_ready)(void);       /* the model is loaded; may be NULL; called on a thread of the server's */
    kakeya_engine_options engine; /* max_batch is resolved: not 0 */
    volatile int *bytes_lost;     /* as in engine options, or NULL: set to 0 before the model is loaded again */
    kakeya_session_options session;
} serve_settings;

/* The memory that prefixes may take where the settings say nothing: a tenth of the machine's, 8 GiB at most. */
size_t serve_default_cache_bytes(void);

#endif
