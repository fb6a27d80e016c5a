/* GET /metrics: what the parts of the server have counted, as Prometheus reads it. */
#include <math.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/platform.h"
#include "kakeya_study.h"
#include "serve/answer.h"
#include "serve/kv_events.h"
#include "serve/lifecycle.h"
#include "serve/pressure.h"
#include "serve/routes.h"

enum { CACHE_BLOCK_TOKENS = 16 }; /* in which routers count */

static double value_of(const _Atomic uint64_t *counter) {
    return (double)atomic_load_explicit(counter, memory_order_relaxed);
}

/* A sample with one label. */
static void labelled(metrics_page *p, const char *label, const char *value, double number) {
    char labels[96];
    snprintf(labels, sizeof labels, "%s=\"%s\",", label, value);
    metrics_sample(p, "", labels, number);
}

/* ---------------------------------------------------------------------------------------------------------- answers */

static void write_requests(const server_context *s, metrics_page *p) {
    const metrics *m = &s->metrics;
    metrics_family(p, "request_total", NULL, "counter", "Requests by route and status.");
    for (size_t i = 0; i < METRICS_ROUTES; i++) {
        bool routed = i < s->n_routes;
        if (!routed && i + 1 < METRICS_ROUTES) continue;
        for (size_t k = 0; k < METRICS_STATUSES; k++) {
            double n = value_of(&m->requests[i][k]);
            if (n == 0) continue;
            char labels[160];
            snprintf(labels, sizeof labels, "route=\"%s\",status=\"%d\",", routed ? s->routes[i].path : "other",
                     metrics_status(k));
            metrics_sample(p, "", labels, n);
        }
    }
}

static void write_finished(const metrics *m, metrics_page *p) {
    static const char *const reasons[FINISHED_REASONS] = {"stop",      "length", "tool_calls", "cache_threshold",
                                                          "cancelled", "error"};
    metrics_family(p, "requests_finished_total", NULL, "counter", "Answers by how they ended.");
    for (size_t i = 0; i < FINISHED_REASONS; i++) labelled(p, "reason", reasons[i], value_of(&m->finished[i]));
    static const char help[] = "Answers by how they ended.";
    double stopped = value_of(&m->finished[FINISHED_STOP]) + value_of(&m->finished[FINISHED_TOOL_CALLS]);
    metrics_family(p, NULL, "request_success_total", "counter", help);
    labelled(p, "finished_reason", "stop", stopped);
    labelled(p, "finished_reason", "length", value_of(&m->finished[FINISHED_LENGTH]));
    labelled(p, "finished_reason", "abort", value_of(&m->finished[FINISHED_CANCELLED]));
    labelled(p, "finished_reason", "error", value_of(&m->finished[FINISHED_ERROR]));
}

static void write_cached(const metrics *m, metrics_page *p) {
    static const char *const sources[] = {"none", "live", "ram", "disk"};
    double all = 0;
    metrics_family(p, "prompt_tokens_cached_total", NULL, "counter", "Prompt tokens that were not computed again.");
    for (size_t i = 1; i <= STORE_HIT_DISK; i++) {
        double n = value_of(&m->cached_tokens[i]);
        labelled(p, "source", sources[i], n);
        all += n;
    }
    metrics_one(p, NULL, "prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
                value_of(&m->prompt_tokens));
    metrics_one(p, NULL, "prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.", all);
}

static void write_positions(const char *name, const char *vllm, const char *help, const _Atomic uint64_t *values,
                            metrics_page *p) {
    metrics_family(p, name, vllm, "counter", help);
    for (size_t i = 0; i < METRICS_POSITIONS; i++) {
        char position[8];
        snprintf(position, sizeof position, "%zu", i);
        labelled(p, "position", position, value_of(&values[i]));
    }
}

static void write_tokens(const metrics *m, metrics_page *p) {
    double generated = value_of(&m->generation_tokens), forwards = value_of(&m->forwards);
    metrics_one(p, "prompt_tokens_total", "prompt_tokens_total", "counter", "Tokens of prompts, cached ones included.",
                value_of(&m->prompt_tokens));
    write_cached(m, p);
    metrics_one(p, "generation_tokens_total", "generation_tokens_total", "counter",
                "Generated tokens, without stop tokens.", generated);
    metrics_one(p, "forwards_total", NULL, "counter", "Decode forwards, counted for every answer in them.", forwards);
    metrics_one(p, "tokens_per_forward", NULL, "gauge", "Generated tokens by decode forwards, since the start.",
                forwards > 0 ? generated / forwards : 0);
    metrics_one(p, "drafts_total", "spec_decode_num_drafts_total", "counter", "Decode forwards that tried drafts.",
                value_of(&m->drafted_at[0]));
    metrics_one(p, "draft_tokens_total", "spec_decode_num_draft_tokens_total", "counter", "Drafted tokens.",
                value_of(&m->draft_tokens));
    metrics_one(p, "draft_tokens_accepted_total", "spec_decode_num_accepted_tokens_total", "counter",
                "Drafted tokens that were kept.", value_of(&m->draft_accepted));
    write_positions("draft_tokens_at_total", NULL, "Drafted tokens by position.", m->drafted_at, p);
    write_positions("draft_tokens_accepted_at_total", "spec_decode_num_accepted_tokens_per_pos_total",
                    "Accepted drafts by position.", m->accepted_at, p);
}

static void write_oddities(const metrics *m, metrics_page *p) {
    metrics_one(p, "preemptions_total", "num_preemptions_total", "counter",
                "Preempted answers: their memory was moved to files for others.", value_of(&m->preemptions));
    metrics_family(p, "fields_ignored_total", NULL, "counter", "Fields of requests that had no effect.");
    for (size_t i = 0; i < METRICS_FIELDS; i++) labelled(p, "field", metrics_field(i), value_of(&m->fields_ignored[i]));
    metrics_family(p, "parser_repairs_total", NULL, "counter",
                   "Dropped tokens of answers, and repaired pieces of calls.");
    labelled(p, "kind", "token", value_of(&m->token_repairs));
    labelled(p, "kind", "call", value_of(&m->call_repairs));
    metrics_one(p, "grammar_redraws_total", NULL, "counter", "Tokens that were drawn, but not allowed by a grammar.",
                value_of(&m->grammar_redraws));
    metrics_one(p, "grammar_masks_total", NULL, "counter", "Positions at which a grammar checked the whole vocabulary.",
                value_of(&m->grammar_masks));
}

static void write_images(server_context *s, metrics_page *p) {
    const kakeya_image_counts c = lifecycle_image_counts(s->lifecycle);
    metrics_one(p, "images_computed_total", NULL, "counter", "Pictures of prompts that the tower computed.",
                (double)c.computed);
    metrics_one(p, "image_rows_computed_total", NULL, "counter", "Rows that they became.", (double)c.computed_rows);
    metrics_one(p, "image_cache_hits_total", NULL, "counter", "Pictures whose rows were kept.", (double)c.found);
    metrics_one(p, "image_cache_images", NULL, "gauge", "Pictures whose rows are kept.", (double)c.kept);
    metrics_one(p, "image_weights_bytes", NULL, "gauge",
                "Weights of the vision tower, as in its files; 0: there is none.",
                (double)(s->model.vision ? s->model.facts.vision_bytes : 0));
    metrics_one(p, "image_cache_bytes", NULL, "gauge", "Bytes of these rows.", (double)c.kept_bytes);
}

static void write_sounds(server_context *s, metrics_page *p) {
    const kakeya_sound_counts c = lifecycle_sound_counts(s->lifecycle);
    metrics_one(p, "sounds_computed_total", NULL, "counter", "Sounds of prompts that the encoder computed.",
                (double)c.computed);
    metrics_one(p, "sound_rows_computed_total", NULL, "counter", "Rows that they became.", (double)c.computed_rows);
    metrics_one(p, "sound_weights_bytes", NULL, "gauge",
                "Weights of the audio encoder, as in its files; 0: there is none.",
                (double)(s->model.sound ? s->model.facts.audio_bytes : 0));
}

static void write_grammars(server_context *s, metrics_page *p) {
    grammar_cache_counts c;
    metrics_one(p, "grammar_keywords_ignored_total", NULL, "counter",
                "Keywords of schemas that answers did not have to follow.",
                value_of(&s->metrics.grammar_keywords_ignored));
    grammar_cache_count(s->grammars, &c);
    metrics_one(p, "grammars_compiled_total", NULL, "counter", "Grammars that were compiled.", (double)c.compiled);
    metrics_one(p, "grammars_refused_total", NULL, "counter", "Grammars that could not be compiled.",
                (double)c.refused);
    metrics_one(p, "grammars_reused_total", NULL, "counter", "Grammars and refusals taken from the cache.",
                (double)c.hits);
    metrics_one(p, "grammars", NULL, "gauge", "Compiled grammars and refusals in the cache.", (double)c.entries);
    metrics_one(p, "grammar_bytes", NULL, "gauge", "Memory of these.", (double)c.bytes);
}

static void write_times(const metrics *m, metrics_page *p) {
    const struct {
        const char *name, *help;
        const histogram *values;
    } seconds[] = {
        {"time_to_first_token_seconds", "Time from a request to its first token.", &m->first_token},
        {"inter_token_latency_seconds", "Time between two tokens of an answer.", &m->inter_token},
        {"e2e_request_latency_seconds", "Time from a request to its end.", &m->whole},
        {"request_queue_time_seconds", "Waiting for a turn.", &m->queue},
        {"request_prefill_time_seconds", "Computing the prompt.", &m->prefill},
        {"request_decode_time_seconds", "Generating.", &m->decode},
    };
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
        metrics_family(p, seconds[i].name, seconds[i].name, "histogram", seconds[i].help);
        metrics_histogram(p, "", seconds[i].values, true);
    }
    metrics_family(p, "request_prompt_tokens", "request_prompt_tokens", "histogram", "Tokens of a prompt.");
    metrics_histogram(p, "", &m->prompt_size, false);
    metrics_family(p, "request_generation_tokens", "request_generation_tokens", "histogram", "Tokens of an answer.");
    metrics_histogram(p, "", &m->answer_size, false);
    metrics_family(p, "iteration_tokens", NULL, "histogram", "Positions in a forward, by prompts and answers.");
    metrics_histogram(p, "kind=\"prompt\",", &m->iteration_prompt, false);
    metrics_histogram(p, "kind=\"decode\",", &m->iteration_decode, false);
    metrics_family(p, NULL, "iteration_tokens_total", "histogram", "Positions in a forward.");
    metrics_histogram(p, "", &m->iteration_both, false);
    metrics_family(p, "iteration_seconds", NULL, "histogram", "Time of a forward, for all its answers and prompts.");
    metrics_histogram(p, "", &m->iteration, true);
}

/* ----------------------------------------------------------------------------------------------------------- memory */

static const struct {
    kakeya_memory_kind kind;
    const char *name;
} kinds[] = {{KAKEYA_MEMORY_KV_FULL, "full"},
             {KAKEYA_MEMORY_KV_SLIDING, "sliding"},
             {KAKEYA_MEMORY_KV_LATENT, "latent"},
             {KAKEYA_MEMORY_KV_DRAFT, "draft"}};

/* The ledger: what --dry-run says beforehand. */
static void write_layers(server_context *s, metrics_page *p) {
    const kakeya_facts *facts = &s->model.facts;
    metrics_family(p, "kv_layer_bytes", NULL, "gauge", "K/V memory by layer; not on GPUs.");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const int layers = kinds[i].kind == KAKEYA_MEMORY_KV_DRAFT ? facts->drafter_layers : facts->layers;
        for (int layer = 0; layer < layers; layer++) {
            char labels[64];
            size_t bytes = lifecycle_layer_memory(s->lifecycle, kinds[i].kind, layer);
            snprintf(labels, sizeof labels, "kind=\"%s\",layer=\"%d\",", kinds[i].name, layer);
            if (bytes) metrics_sample(p, "", labels, (double)bytes);
        }
    }
    metrics_family(p, "memory_bytes", NULL, "gauge", "Memory other than K/V, as the allocator counts it.");
    labelled(p, "kind", "weights", (double)lifecycle_memory(s->lifecycle, KAKEYA_MEMORY_WEIGHTS));
    labelled(p, "kind", "workspace", (double)lifecycle_memory(s->lifecycle, KAKEYA_MEMORY_WORKSPACE));
}

static void write_pressure(server_context *s, metrics_page *p) {
    const pressure taken = pressure_now(s);
    metrics_one(p, "memory_pressure", NULL, "gauge",
                "0: well; 1: K/V that cannot give way take --memory-warn of their room; 2: --memory-refuse.",
                (double)taken.state);
    metrics_one(p, "memory_pressure_ratio", NULL, "gauge",
                "K/V memory that cannot be freed on demand as a share of the limit, 0 to 1.", taken.used_ratio);
    metrics_one(p, "memory_refusals_total", NULL, "counter", "Answers refused because of --memory-refuse.",
                value_of(&s->metrics.memory_refusals));
}

static void write_kv(server_context *s, metrics_page *p) {
    double used = 0, room = (double)lifecycle_kv_room(s->lifecycle);
    metrics_family(p, "kv_bytes", NULL, "gauge", "K/V memory of all sessions.");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        double bytes = (double)lifecycle_memory(s->lifecycle, kinds[i].kind);
        labelled(p, "kind", kinds[i].name, bytes);
        used += bytes;
    }
    char geometry[96];
    size_t block = s->model.kv_of_one.each_token * CACHE_BLOCK_TOKENS;
    snprintf(geometry, sizeof geometry, "block_size=\"%d\",num_gpu_blocks=\"%.0f\",", CACHE_BLOCK_TOKENS,
             block ? floor(room / (double)block) : 0);
    metrics_family(p, "cache_config_info", "cache_config_info", "gauge",
                   "1; its labels: tokens of a block, and blocks that the K/V memory has room for.");
    metrics_sample(p, "", geometry, 1);
    metrics_one(p, "kv_room_bytes", NULL, "gauge", "Limit of the K/V memory; 0 while the model sleeps.", room);
    metrics_one(p, "spill_bytes", NULL, "gauge", "K/V memory in files, of answers and sessions that wait for memory.",
                (double)lifecycle_spilled(s->lifecycle));
    metrics_one(p, "kv_used_ratio", "kv_cache_usage_perc", "gauge",
                "K/V memory in use as a share of its limit, 0 to 1.", room > 0 ? used / room : 0);
    write_layers(s, p);
    write_pressure(s, p);
}

/* Of a server with --weights-limit. */
static void write_weights(server_context *s, metrics_page *p) {
    const kakeya_weights w = lifecycle_weights(s->lifecycle);
    if (!w.limit) return;
    metrics_one(p, "weights_limit_bytes", NULL, "gauge", "--weights-limit.", (double)w.limit);
    metrics_one(p, "weights_resident_bytes", NULL, "gauge", "The part of it for weights that every token needs.",
                (double)w.resident);
    metrics_one(p, "weights_host_bytes", NULL, "gauge", "Page-locked memory of the host for a GPU's experts.",
                (double)w.host_bytes);
    metrics_one(p, "experts", NULL, "gauge", "Routed experts of the model.", (double)w.experts);
    metrics_one(p, "expert_slots", NULL, "gauge", "Routed experts that the limit has memory for.", (double)w.slots);
    metrics_one(p, "experts_wanted_total", NULL, "counter", "Experts that forwards needed, each counted once a layer.",
                (double)w.wanted);
    metrics_one(p, "experts_found_total", NULL, "counter", "Needed experts that were in memory.", (double)w.found);
    metrics_one(p, "expert_read_bytes_total", NULL, "counter", "Read for the others.", (double)w.bytes_read);
    metrics_one(p, "expert_read_seconds_total", NULL, "counter", "Time that forwards waited for these reads.",
                w.read_seconds);
    metrics_one(p, "expert_read_failures_total", NULL, "counter", "Forwards that failed because a read failed.",
                (double)w.failures);
}

/* How often, and how long all together. */
static void write_summary(metrics_page *p, const char *name, const char *help, uint64_t count, double seconds) {
    metrics_family(p, name, NULL, "summary", help);
    metrics_sample(p, "_sum", "", seconds);
    metrics_sample(p, "_count", "", (double)count);
}

static void write_kv_events(const server_context *s, metrics_page *p) {
    kv_events_counts c;
    if (!s->kv_events) return;
    kv_events_count(s->kv_events, &c);
    metrics_family(p, "kv_events_total", NULL, "counter", "K/V events that were published.");
    labelled(p, "type", "stored", (double)c.blocks.events[KV_BLOCKS_STORED]);
    labelled(p, "type", "removed", (double)c.blocks.events[KV_BLOCKS_REMOVED]);
    labelled(p, "type", "cleared", (double)c.blocks.events[KV_BLOCKS_CLEARED]);
    metrics_one(p, "kv_events_bytes_total", NULL, "counter", "Bytes of these.", (double)c.bytes);
    metrics_one(p, "kv_events_replayed_total", NULL, "counter", "Events sent again on request.", (double)c.replayed);
    metrics_one(p, "kv_events_seconds_total", NULL, "counter", "Processor time of finding and publishing events.",
                c.blocks.seconds);
    metrics_family(p, "kv_event_blocks", NULL, "gauge", "Blocks of 16 tokens that are published at present.");
    labelled(p, "medium", "gpu", (double)c.blocks.blocks[KV_MEDIUM_GPU]);
    labelled(p, "medium", "cpu", (double)c.blocks.blocks[KV_MEDIUM_CPU]);
    labelled(p, "medium", "disk", (double)c.blocks.blocks[KV_MEDIUM_DISK]);
}

static void write_store(server_context *s, metrics_page *p) {
    store_counts c;
    store_counts_get(s->store, &c);
    const store_disk_counts *disk = &c.disk;
    metrics_family(p, "store_entries", NULL, "gauge", "Prefixes that later prompts may continue.");
    labelled(p, "kind", "live", (double)c.live);
    labelled(p, "kind", "checkpoint", (double)c.ram);
    metrics_family(p, "store_bytes", NULL, "gauge", "K/V memory of the prefixes, and of the files in the directory.");
    labelled(p, "tier", "ram", (double)c.ram_bytes);
    labelled(p, "tier", "disk", (double)disk->bytes);
    metrics_one(p, "store_files", NULL, "gauge", "Files of this model and attention policy.", (double)disk->files);
    metrics_family(p, "store_errors_total", NULL, "counter", "Files that could not be written, or not be used.");
    labelled(p, "kind", "full", (double)disk->errors_full);
    labelled(p, "kind", "corrupt", (double)disk->errors_corrupt);
    labelled(p, "kind", "io", (double)disk->errors_io);
    write_summary(p, "store_save_seconds", "Writing files.", disk->saves, disk->save_seconds);
    write_summary(p, "store_load_seconds", "Reading files.", disk->loads, disk->load_seconds);
    metrics_family(p, "sessions_evicted_total", NULL, "counter",
                   "Dropped prefixes and sessions, by cause: expired, for room, closed by a client, after a failure.");
    labelled(p, "reason", "ttl", (double)c.named.dropped_ttl);
    labelled(p, "reason", "lru", (double)(c.evictions + c.named.dropped_lru));
    labelled(p, "reason", "close", (double)c.named.dropped_closed);
    labelled(p, "reason", "failure", (double)c.named.dropped_lost);
    answer_counts answers = answers_count(s);
    metrics_family(p, "sessions", NULL, "gauge", "Sessions by state; rpc: of running gRPC calls.");
    labelled(p, "state", "prompt", (double)answers.prompt);
    labelled(p, "state", "decode", (double)answers.decode);
    labelled(p, "state", "stalled", (double)answers.stalled);
    labelled(p, "state", "rpc", (double)c.named.taken);
    labelled(p, "state", "idle", (double)(c.live + c.named.memory - c.named.taken));
    labelled(p, "state", "disk", (double)c.named.disk);
}

/* ---------------------------------------------------------------------------------------------------------- process */

static void write_process(server_context *s, metrics_page *p) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                 (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
    const http_counts http = http_count(s->http);
    const int state = atomic_load(&s->state);
    uint64_t wakes, failures;
    lifecycle_counts(s->lifecycle, &wakes, &failures);
    metrics_one(p, "sleeping", NULL, "gauge", "1 while the model is not in memory (--idle-unload).",
                state == SERVER_SLEEPING || state == SERVER_WAKING);
    metrics_family(p, "wakes_total", NULL, "counter", "Loads after sleep, by whether they succeeded.");
    labelled(p, "result", "ok", (double)wakes);
    labelled(p, "result", "failed", (double)failures);
    metrics_one(p, "http_connections", NULL, "gauge", "Open connections.", (double)http.connections);
    metrics_one(p, "http_body_bytes", NULL, "gauge", "Memory of request bodies and their parsed forms.",
                (double)http.held_bytes);
    metrics_one(p, "http_disconnects_total", NULL, "counter", "Clients that left before their reply ended.",
                (double)http.disconnects);
    metrics_one(p, "process_resident_memory_bytes", NULL, "gauge", "Resident memory.", platform_resident_bytes());
    metrics_one(p, "process_cpu_seconds_total", NULL, "counter", "Processor time.", cpu);
    metrics_one(p, "process_open_fds", NULL, "gauge", "Open file descriptors.", platform_open_files());
    metrics_one(p, "process_start_time_seconds", NULL, "gauge", "Start of the server, Unix time.", (double)s->created);
}

void metrics_call(call *c) {
    server_context *s = c->server;
    api_error error = {0};
    const http_head *head = http_request(c->exchange);
    unsigned long long identity;
    if (s->settings->metrics_key &&
        !auth_allows(s->auth, http_head_find(head, "authorization"), http_head_find(head, "x-api-key"), &identity)) {
        http_add_header(c->exchange, "www-authenticate", "Bearer realm=\"kakeya\"");
        api_fail(&error, 401, "invalid_api_key", NULL, "there is no API key, or it is not one of this server's");
        call_fail(c, &error);
        return;
    }
    const metrics *m = &s->metrics;
    metrics_page page = {.model = s->settings->names[0], .names = s->settings->metrics_names};
    size_t running, waiting;
    admission_counts(s->admission, &running, &waiting);
    metrics_one(&page, "requests_running", "num_requests_running", "gauge", "Answers that are being computed.",
                (double)running);
    metrics_one(&page, "requests_waiting", "num_requests_waiting", "gauge", "Requests that wait for their turn.",
                (double)waiting);
    write_finished(m, &page);
    write_tokens(m, &page);
    write_oddities(m, &page);
    write_images(s, &page);
    write_sounds(s, &page);
    write_grammars(s, &page);
    write_times(m, &page);
    write_requests(s, &page);
    if (atomic_load(&s->loaded)) {
        write_kv(s, &page);
        write_weights(s, &page);
        write_store(s, &page);
        write_kv_events(s, &page);
    }
    write_process(s, &page);
    text_buffer out = {0};
    metrics_page_end(&page, &out);
    call_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}
