#include "cli/serve_capacity.h"

#ifdef KAKEYA_SERVE

#include <cjson/cJSON.h>
#include <stdio.h>

#include "base/error.h"
#include "cli/info_room.h"
#include "cli/info_weights.h"
#include "cli/terminal.h"
#include "kakeya_study.h"
#include "serve/serve.h"

typedef struct capacity {
    const serve_settings *settings;
    info_subject subject;
    info_devices *devices; /* NULL: one */
    info_room *room;       /* of one device, which has its part of every session */
    int policy;            /* the server's, in info_policies */
    kakeya_kv_bytes kv;    /* of a session of the whole context */
    size_t cache_ram;
    info_weights weights; /* with --weights-limit, where the server does not start */
    size_t picture;       /* what a picture of the server's budget takes while it is read; 0: none are */
} capacity;

static int find_policy(const kakeya_session_options *session) {
    for (int p = 0; p < INFO_POLICIES; p++) {
        bool restored = session->attention == KAKEYA_ATTENTION_RESTORED;
        if (info_policies[p].attention == session->attention &&
            (!restored || info_policies[p].restore_layers == session->restore_layers))
            return p;
    }
    return 0;
}

static kakeya_status measure(capacity *c, const cli_shared *shared, kakeya_error *error) {
    const serve_settings *s = c->settings;
    const kakeya_engine_options *engine = &s->engine;
    c->subject.name = engine->model ? engine->model : engine->study->synthetic;
    c->subject.facts = kakeya_description_facts(c->subject.model);
    c->subject.session = s->session;
    int asked = s->session.context_tokens, longest = c->subject.facts.max_context;
    c->subject.context = (size_t)(asked && asked < longest ? asked : longest);
    c->policy = find_policy(&s->session);
    c->cache_ram = s->cache_ram_bytes == SIZE_MAX ? serve_default_cache_bytes() : s->cache_ram_bytes;
    const info_room_options options = {.backend = engine->backend,
                                       .precision = engine->precision,
                                       .threads = shared->threads,
                                       .limit_bytes = engine->memory_limit_bytes,
                                       .weights_limit = engine->weights_limit_bytes,
                                       .image_budget = s->image_budget,
                                       .asked_is_last = true};
    kakeya_status status = info_devices_compute(&c->subject, engine->devices, &c->devices, error);
    if (status != KAKEYA_OK) return status;
    c->subject = info_devices_subject(&c->subject, c->devices);
    status = info_room_compute(&c->subject, &options, &c->room, error);
    kakeya_session_options session = s->session;
    if (status != KAKEYA_OK) return status;
    c->picture = c->room->engine[0].picture;
    session.kv_format = c->room->format;
    KAKEYA_INIT(&c->kv);
    return kakeya_description_kv_bytes(c->subject.model, &session, c->subject.context, &c->kv, error);
}

static const info_room_cell *cell_of(const capacity *c, int length) { return &c->room->cell[length][c->policy]; }

/* Whether weights are not counted, as a limit on a CPU does not. */
static bool is_mapped_aside(const info_room *room) {
    return room->limited && room->device == ROOM_CPU && !room->weights_limit;
}

static size_t offered(const info_room *room) {
    return is_mapped_aside(room) ? room->memory - room->engine[0].weights : room->memory;
}

/* A policy that the model cannot have is the engine's to refuse. */
static kakeya_status check(const capacity *c, kakeya_error *error) {
    int last = c->room->n - 1;
    const info_room_cell *cell = cell_of(c, last);
    if (!cell->possible || cell->sessions > 0) return KAKEYA_OK;
    int longest = info_room_longest(&c->subject, c->room, &info_policies[c->policy]);
    if (longest > 0 && c->settings->session.context_tokens == 0) return KAKEYA_OK;
    char a[32], b[32], d[32], e[32], beside[64] = "", hint[64] = "";
    if (!is_mapped_aside(c->room))
        snprintf(beside, sizeof beside, "%s of weights and ", format_bytes(a, (double)c->room->engine[last].weights));
    if (longest > 0) snprintf(hint, sizeof hint, "; --context %d does", longest);
    return error_set(error, KAKEYA_OUT_OF_MEMORY,
                     "no session of %s tokens fits: it takes %s beside %sabout %s of workspace, of %s %s%s",
                     format_count(a, c->subject.context),
                     format_bytes(b, (double)(cell->session.kv + cell->session.own + cell->session.shared +
                                              cell->session.beginning)),
                     beside, format_bytes(d, (double)c->room->engine[last].workspace),
                     format_bytes(e, (double)offered(c->room)),
                     c->room->limited ? "that --memory-limit allows" : "that are free", hint);
}

static void print_lines(const capacity *c, FILE *out) {
    char a[32], b[32], d[32];
    const info_room *room = c->room;
    const serve_settings *s = c->settings;
    int last = room->n - 1;
    fprintf(out, "kakeya %s  %s  %s  weights %s, workspace about %s\n", kakeya_version(), s->names[0],
            room->device == ROOM_GPU ? "gpu" : "cpu", format_bytes(a, (double)room->engine[last].weights),
            format_bytes(b, (double)room->engine[last].workspace));
    if (room->engine[last].picture)
        fprintf(out, "pictures: %s of these weights, read %s; %s while one of %d tokens is read\n",
                format_bytes(a, (double)c->subject.facts.vision_bytes),
                s->engine.vision == KAKEYA_VISION_ON ? "at the start" : "with the first one",
                format_bytes(b, (double)c->picture), s->image_budget);
    if (room->engine[last].sound)
        fprintf(out, "sound: %s of these weights; %s while one of 30 seconds is read\n",
                format_bytes(a, (double)c->subject.facts.audio_bytes),
                format_bytes(b, (double)room->engine[last].sound));
    if (!cell_of(c, last)->possible) return;
    fprintf(out, "K/V %s, %s%s: %s per token, %s for a session of %s tokens\n", info_policies[c->policy].name,
            kakeya_kv_format_name(room->format), room->format == KAKEYA_KV_Q4 ? " (experimental)" : "",
            format_bytes(a, (double)c->kv.each_token), format_bytes(b, (double)c->kv.total),
            format_count(d, c->subject.context));
    fprintf(out, "room in %s %s:", format_bytes(a, (double)offered(room)),
            !room->limited          ? "that are free"
            : is_mapped_aside(room) ? "of --memory-limit, which does not count mapped weights"
                                    : "of --memory-limit");
    for (int i = 0; i < room->n; i++)
        fprintf(out, i ? ", %s of %s" : " %s sessions of %s tokens", format_count(a, cell_of(c, i)->sessions),
                format_count(b, (uint64_t)room->tokens[i]));
    fputc('\n', out);
    if (cell_of(c, last)->sessions == 0)
        fprintf(out, "the longest session that fits has %s tokens (--context)\n",
                format_count(a, (uint64_t)info_room_longest(&c->subject, room, &info_policies[c->policy])));
    fprintf(out, "prefixes may take %s of it, and give way to answers; ", format_bytes(a, (double)c->cache_ram));
    if (s->session_directory && s->cache_disk_bytes) {
        fprintf(out, "files %s in %s; ", format_bytes(a, (double)s->cache_disk_bytes), s->session_directory);
    } else {
        fputs(s->session_directory ? "files without limit; " : "no files; ", out);
    }
    fprintf(out, "%d answers at a time\n", s->engine.max_batch);
}

/* ------------------------------------------------------------------------------------------------------- ledger */

static const struct {
    kakeya_memory_kind kind;
    const char *name; /* as /metrics calls it */
} kv_kinds[] = {
    {KAKEYA_MEMORY_KV_FULL, "full"}, {KAKEYA_MEMORY_KV_SLIDING, "sliding"}, {KAKEYA_MEMORY_KV_DRAFT, "draft"}};
enum { KV_KINDS = sizeof kv_kinds / sizeof kv_kinds[0] };

/* As the engine chooses where nothing is said. */
static kakeya_session_options session_of(const capacity *c) {
    kakeya_session_options session = c->settings->session;
    session.kv_format = c->room->format;
    return session;
}

static int layers_of(const capacity *c, kakeya_memory_kind kind) {
    return kind == KAKEYA_MEMORY_KV_DRAFT ? c->subject.facts.drafter_layers : c->subject.facts.layers;
}

static size_t layer_bytes(const capacity *c, kakeya_memory_kind kind, int layer) {
    const kakeya_session_options session = session_of(c);
    return kakeya_description_layer_bytes(c->subject.model, &session, c->subject.context, kind, layer);
}

static size_t checkpoint_bytes(const capacity *c) {
    const kakeya_session_options session = session_of(c);
    return kakeya_description_checkpoint_bytes(c->subject.model, &session, c->subject.context);
}

/* Layers that hold as much as each other stand in one line. */
static void print_layers(const capacity *c, int k) {
    const int layers = layers_of(c, kv_kinds[k].kind);
    for (int first = 0; first < layers; first++) {
        size_t bytes = layer_bytes(c, kv_kinds[k].kind, first);
        bool said = !bytes;
        for (int i = 0; i < first && !said; i++) said = layer_bytes(c, kv_kinds[k].kind, i) == bytes;
        if (said) continue;
        char each[32];
        printf("  %-10s  %10s for each of the layers", kv_kinds[k].name, format_bytes(each, (double)bytes));
        for (int i = first; i < layers; i++)
            if (layer_bytes(c, kv_kinds[k].kind, i) == bytes) printf(" %d", i);
        putchar('\n');
    }
}

static void print_ledger(const capacity *c) {
    char a[32];
    const info_room_cell *cell = cell_of(c, c->room->n - 1);
    if (!cell->possible) return;
    printf("\nledger of a session of %s tokens\n", format_count(a, c->subject.context));
    for (int k = 0; k < KV_KINDS; k++) print_layers(c, k);
    if (c->kv.latent) printf("  %-10s  %10s for all layers\n", "latent", format_bytes(a, (double)c->kv.latent));
    printf("  %-10s  %10s for each copy that prompts begin with, beside the pages that it shares\n", "checkpoint",
           format_bytes(a, (double)checkpoint_bytes(c)));
    printf("  %-10s  %10s beside K/V\n", "other", format_bytes(a, (double)cell->session.own));
    if (c->picture) {
        printf("  %-10s  %10s of weights, once\n", "vision", format_bytes(a, (double)c->subject.facts.vision_bytes));
        printf("  %-10s  %10s while a picture of %d tokens is read, once\n", "picture",
               format_bytes(a, (double)c->picture), c->settings->image_budget);
    }
    const size_t sound = c->room->engine[0].sound;
    if (!sound) return;
    printf("  %-10s  %10s of weights, once\n", "audio", format_bytes(a, (double)c->subject.facts.audio_bytes));
    printf("  %-10s  %10s while a sound of 30 seconds is read, once\n", "sound", format_bytes(a, (double)sound));
}

static void add_ledger(cJSON *json, const capacity *c) {
    const info_room_cell *cell = cell_of(c, c->room->n - 1);
    if (!cell->possible) return;
    cJSON *ledger = cJSON_AddObjectToObject(json, "ledger"), *layers = cJSON_AddArrayToObject(ledger, "kv_layers");
    for (int k = 0; k < KV_KINDS; k++) {
        for (int i = 0; i < layers_of(c, kv_kinds[k].kind); i++) {
            size_t bytes = layer_bytes(c, kv_kinds[k].kind, i);
            if (!bytes) continue;
            cJSON *line = cJSON_CreateObject();
            cJSON_AddStringToObject(line, "kind", kv_kinds[k].name);
            cJSON_AddNumberToObject(line, "layer", i);
            cJSON_AddNumberToObject(line, "bytes", (double)bytes);
            cJSON_AddItemToArray(layers, line);
        }
    }
    cJSON *kinds = cJSON_AddObjectToObject(ledger, "kv_bytes");
    cJSON_AddNumberToObject(kinds, "full", (double)c->kv.full);
    cJSON_AddNumberToObject(kinds, "sliding", (double)c->kv.sliding);
    cJSON_AddNumberToObject(kinds, "latent", (double)c->kv.latent);
    cJSON_AddNumberToObject(kinds, "draft", (double)c->kv.draft);
    cJSON_AddNumberToObject(ledger, "checkpoint_bytes", (double)checkpoint_bytes(c));
    cJSON_AddNumberToObject(ledger, "other_bytes", (double)cell->session.own);
    cJSON_AddNumberToObject(ledger, "workspace_bytes", (double)c->room->engine[c->room->n - 1].workspace);
    cJSON_AddNumberToObject(ledger, "weights_bytes", (double)c->room->engine[c->room->n - 1].weights);
    cJSON_AddNumberToObject(ledger, "vision_bytes", c->picture ? (double)c->subject.facts.vision_bytes : 0);
    cJSON_AddNumberToObject(ledger, "picture_bytes", (double)c->picture);
    const size_t sound = c->room->engine[0].sound;
    cJSON_AddNumberToObject(ledger, "audio_bytes", sound ? (double)c->subject.facts.audio_bytes : 0);
    cJSON_AddNumberToObject(ledger, "sound_bytes", (double)sound);
}

static cJSON *make_json(const capacity *c) {
    const info_room *room = c->room;
    const serve_settings *s = c->settings;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "version", kakeya_version());
    cJSON_AddStringToObject(json, "model", s->names[0]);
    cJSON_AddNumberToObject(json, "context", (double)c->subject.context);
    cJSON_AddStringToObject(json, "attention", kakeya_attention_name(s->session.attention));
    cJSON_AddNumberToObject(json, "kv_bytes_per_token", (double)c->kv.each_token);
    cJSON_AddNumberToObject(json, "kv_bytes_per_session", (double)c->kv.total);
    cJSON_AddNumberToObject(json, "workspace_bytes", (double)room->engine[room->n - 1].workspace);
    cJSON_AddNumberToObject(json, "sessions", (double)cell_of(c, room->n - 1)->sessions);
    cJSON_AddBoolToObject(json, "memory_limited", room->limited);
    cJSON_AddNumberToObject(json, "cache_ram_bytes", (double)c->cache_ram);
    cJSON_AddNumberToObject(json, "cache_disk_bytes", s->session_directory ? (double)s->cache_disk_bytes : 0);
    cJSON_AddNumberToObject(json, "max_batch", s->engine.max_batch);
    info_room_add_json(json, room);
    add_ledger(json, c);
    if (c->weights.limit) info_weights_add_json(json, &c->weights);
    return json;
}

static void log_json(const cJSON *json) {
    char *text = cJSON_PrintUnformatted(json);
    if (text) fprintf(stderr, "{\"capacity\":%s}\n", text);
    cJSON_free(text);
}

static kakeya_status say(const capacity *c, serve_capacity_form form, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    cJSON *json = form == SERVE_CAPACITY_LOG || form == SERVE_CAPACITY_JSON ? make_json(c) : NULL;
    switch (form) {
    case SERVE_CAPACITY_LINES:
        print_lines(c, stderr);
        break;
    case SERVE_CAPACITY_LOG:
        log_json(json);
        break;
    case SERVE_CAPACITY_TABLE:
        print_lines(c, stdout);
        info_room_print(c->room);
        print_ledger(c);
        if (c->weights.limit) info_weights_print(&c->weights);
        break;
    case SERVE_CAPACITY_JSON:
        status = cli_print_json(json, error);
        break;
    }
    cJSON_Delete(json);
    return status;
}

kakeya_status serve_capacity_say(const cli_shared *shared, serve_settings *settings, serve_capacity_form form,
                                 kakeya_error *error) {
    capacity c = {.settings = settings};
    kakeya_description *model = NULL;
    kakeya_status status = kakeya_describe(&settings->engine, &model, error);
    if (status != KAKEYA_OK) return status;
    c.subject.model = model;
    if (!settings->image_budget) settings->image_budget = kakeya_description_facts(model).vision_budget;
    kakeya_error why = {0};
    status = measure(&c, shared, &why);
    if (status == KAKEYA_OK) status = check(&c, &why);
    const bool dry = form == SERVE_CAPACITY_TABLE || form == SERVE_CAPACITY_JSON;
    if (status == KAKEYA_OK && dry && settings->engine.weights_limit_bytes)
        status = info_weights_measure(&settings->engine, NULL, &c.weights, &why);
    if (status == KAKEYA_OK) {
        status = say(&c, form, &why);
    } else if (status == KAKEYA_UNSUPPORTED && form <= SERVE_CAPACITY_LOG) {
        status = KAKEYA_OK;
    }
    info_room_free(c.room);
    info_devices_free(c.devices);
    kakeya_description_close(model);
    return status == KAKEYA_OK ? KAKEYA_OK : error_set(error, status, "%s", why.message);
}

#endif
