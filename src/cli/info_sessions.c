/* How many sessions fit, before anything is loaded. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/measure.h"
#include "base/error.h"
#include "cli/info_room.h"
#include "cli/terminal.h"

/* The lengths of the table that the model has, the one that was asked for and the model's longest, in order. */
static void list_lengths(info_room *room, const info_subject *s, bool asked_is_last) {
    static const int usual[] = {1000, 4000, 16000, 62000};
    int asked = s->context ? (int)s->context : 1, n = 0, all[INFO_MOST_LENGTHS];
    int longest = asked_is_last ? asked : s->facts.max_context;
    for (int i = 0; i < 4; i++) {
        if (usual[i] < longest) all[n++] = usual[i];
    }
    all[n++] = asked;
    all[n++] = longest;
    for (int i = 0; i < n; i++) {
        int next = 0; /* the smallest that is larger than the last one listed */
        for (int k = 0; k < n; k++) {
            if ((room->n == 0 || all[k] > room->tokens[room->n - 1]) && (next == 0 || all[k] < next)) next = all[k];
        }
        if (next) room->tokens[room->n++] = next;
    }
}

/* With a memory that is given, the device need not be here: a GPU where the backend is not said to be the CPU. */
static kakeya_status find_device(info_room *room, const char *backend, size_t memory_bytes, kakeya_error *error) {
    room->given = memory_bytes > 0;
    room->memory = memory_bytes;
    if (room->given) {
        bool machine = backend && (strcmp(backend, "cpu") == 0 || strcmp(backend, "mlx") == 0);
        room->device = machine ? ROOM_CPU : ROOM_GPU;
        return KAKEYA_OK;
    }
    const backend_ops *ops = backend_find(backend, error);
    if (!ops) return KAKEYA_UNSUPPORTED;
    const backend_measure_ops *measure = backend_measure_find(ops);
    room->device = ops->bf16_only ? ROOM_GPU : ROOM_CPU;
    if (measure && measure->free_bytes) room->memory = measure->free_bytes(NULL);
    if (room->memory) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED,
                     "the system does not report how much memory is free (give it with info --sessions --memory)");
}

static int threads_of(const info_room_options *options) {
    return options->threads ? options->threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
}

size_t info_picture_bytes(const info_subject *s, bool gpu, int threads, int budget) {
    const info_room_options options = {.threads = threads};
    return room_of_picture(s->model, gpu ? ROOM_GPU : ROOM_CPU, threads_of(&options), budget);
}

size_t info_sound_bytes(const info_subject *s) { return room_of_sound(s->model, ROOM_CPU); }

static room_engine engine_of(const info_subject *s, const info_room *room, int threads, int tokens) {
    const int rows = room_rows(s->model, room->device, room->memory, threads, room->weights_limit);
    room_engine engine = room_of_engine(s->model, room->device, rows, threads, tokens);
    if (room->weights_limit && engine.weights > room->weights_limit) engine.weights = room->weights_limit;
    if (room->image_budget) engine.picture = room_of_picture(s->model, room->device, threads, room->image_budget);
    return engine;
}

/* A limit counts what is allocated: on a CPU that is all but the weights, which are mapped. Those of GGUF files
 * are repacked where half of the limit holds them. */
static void apply_limit(const info_subject *s, kakeya_precision precision, info_room *room, size_t limit_bytes) {
    size_t mapped = room->device == ROOM_CPU && !room->weights_limit ? room->engine[0].weights : 0;
    bool int8 = precision == KAKEYA_PRECISION_AUTO || precision == KAKEYA_PRECISION_INT8;
    weight_format format = s->model->verifier->checkpoint_format;
    if (int8 && format >= WEIGHT_Q4_0 && format <= WEIGHT_NVFP4 && mapped <= limit_bytes / 2) mapped = 0;
    if (limit_bytes == 0 || limit_bytes > SIZE_MAX - mapped || limit_bytes + mapped >= room->memory) return;
    room->memory = limit_bytes + mapped;
    room->limited = true;
}

static kakeya_session_options policy_options(const info_subject *s, const info_room *room, const info_policy *policy) {
    kakeya_session_options options = s->session;
    options.attention = policy->attention;
    options.restore_layers = policy->restore_layers;
    options.kv_format = room->format;
    return options;
}

kakeya_status info_room_compute(const info_subject *s, const info_room_options *options, info_room **out,
                                kakeya_error *error) {
    *out = NULL;
    info_room *room = calloc(1, sizeof *room);
    if (!room) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    kakeya_status status = find_device(room, options->backend, options->memory_bytes, error);
    if (status) {
        free(room);
        return status;
    }
    room->threads = threads_of(options);
    room->image_budget = options->image_budget;
    room->weights_limit = options->weights_limit == KAKEYA_WEIGHTS_AUTO ? room->memory / 4 * 3 : options->weights_limit;
    list_lengths(room, s, options->asked_is_last);
    for (int i = 0; i < room->n; i++) room->engine[i] = engine_of(s, room, room->threads, room->tokens[i]);
    apply_limit(s, options->precision, room, options->limit_bytes);
    room->format = s->session.kv_format;
    if (room->format == KAKEYA_KV_AUTO) { /* as an engine chooses */
        kakeya_precision precision = options->precision;
        bool wide = strcmp(s->facts.weight_type, "F32") == 0 || strcmp(s->facts.weight_type, "F16") == 0;
        bool bf16 = room->device == ROOM_GPU || (precision == KAKEYA_PRECISION_AUTO && !wide) ||
                    precision == KAKEYA_PRECISION_BF16 || precision == KAKEYA_PRECISION_INT8 ||
                    precision == KAKEYA_PRECISION_FP8;
        room->format = bf16 ? KAKEYA_KV_BF16 : KAKEYA_KV_F32;
    }
    if (room->device == ROOM_GPU && room->format == KAKEYA_KV_F32) {
        const char *format = kakeya_kv_format_name(room->format);
        free(room);
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "--kv-format %s: GPUs support bf16, q8 and q4; for a CPU, add --backend cpu", format);
    }
    for (int p = 0; p < INFO_POLICIES; p++) {
        if (!info_possible(s, &info_policies[p])) continue;
        kakeya_session_options session = policy_options(s, room, &info_policies[p]);
        for (int i = 0; i < room->n; i++) {
            info_room_cell *cell = &room->cell[i][p];
            cell->possible = true;
            cell->session = room_of_session(s->model, room->device, &session, room->tokens[i]);
            cell->sessions = room_sessions(room->memory, &room->engine[i], &cell->session);
        }
    }
    *out = room;
    return KAKEYA_OK;
}

void info_room_free(info_room *room) { free(room); }

int info_room_longest(const info_subject *s, const info_room *room, const info_policy *policy) {
    kakeya_session_options options = policy_options(s, room, policy);
    int fits = 0, beyond = s->facts.max_context + 1;
    while (beyond - fits > 1) {
        int tokens = fits + (beyond - fits) / 2;
        room_engine engine = engine_of(s, room, room->threads, tokens);
        room_session session = room_of_session(s->model, room->device, &options, tokens);
        if (room_sessions(room->memory, &engine, &session) > 0) {
            fits = tokens;
        } else {
            beyond = tokens;
        }
    }
    return fits;
}

void info_room_print(const info_room *room) {
    char a[32], b[32], c[32], d[32];
    printf("\nsessions that fit at once into %s %s, beside %s of weights and about %s of workspace (%s with "
           "the longest); K/V in %s\n",
           format_bytes(a, (double)room->memory),
           room->limited ? (room->weights_limit ? "of --memory-limit" : "of --memory-limit and mapped weights")
           : room->device == ROOM_GPU ? (room->given ? "of a GPU" : "that this GPU has free")
                                      : (room->given ? "of a machine" : "that this machine has free"),
           format_bytes(b, (double)room->engine[0].weights), format_bytes(c, (double)room->engine[0].workspace),
           format_bytes(d, (double)room->engine[room->n - 1].workspace), kakeya_kv_format_name(room->format));
    if (room->engine[0].picture)
        printf("  and beside %s while a picture is read\n", format_bytes(a, (double)room->engine[0].picture));
    if (room->engine[0].sound)
        printf("  and beside %s while a sound is read\n", format_bytes(a, (double)room->engine[0].sound));
    printf("  %10s", "tokens");
    for (int p = 0; p < INFO_POLICIES; p++) {
        if (room->cell[0][p].possible) printf("  %24s", info_policies[p].name);
    }
    putchar('\n');
    for (int i = 0; i < room->n; i++) {
        printf("  %10s", format_count(a, (uint64_t)room->tokens[i]));
        for (int p = 0; p < INFO_POLICIES; p++) {
            const info_room_cell *cell = &room->cell[i][p];
            char text[80];
            if (!cell->possible) continue;
            snprintf(text, sizeof text, "%s of %s", format_count(b, cell->sessions),
                     format_bytes(c, (double)(cell->session.kv + cell->session.own)));
            printf("  %24s", text);
        }
        putchar('\n');
    }
}

void info_room_add_json(cJSON *object, const info_room *room) {
    cJSON *json = cJSON_AddObjectToObject(object, "room");
    cJSON_AddStringToObject(json, "device", room->device == ROOM_GPU ? "gpu" : "cpu");
    cJSON_AddNumberToObject(json, "memory_bytes", (double)room->memory);
    cJSON_AddNumberToObject(json, "weights_bytes", (double)room->engine[0].weights);
    if (room->engine[0].picture) cJSON_AddNumberToObject(json, "picture_bytes", (double)room->engine[0].picture);
    if (room->engine[0].sound) cJSON_AddNumberToObject(json, "sound_bytes", (double)room->engine[0].sound);
    cJSON_AddStringToObject(json, "kv_format", kakeya_kv_format_name(room->format));
    cJSON *rows = cJSON_AddArrayToObject(json, "rows");
    for (int i = 0; i < room->n; i++) {
        for (int p = 0; p < INFO_POLICIES; p++) {
            const info_room_cell *cell = &room->cell[i][p];
            if (!cell->possible) continue;
            cJSON *row = cJSON_CreateObject();
            cJSON_AddNumberToObject(row, "tokens", room->tokens[i]);
            cJSON_AddStringToObject(row, "attention", kakeya_attention_name(info_policies[p].attention));
            cJSON_AddStringToObject(row, "restore_layers", kakeya_restore_layers_name(info_policies[p].restore_layers));
            cJSON_AddNumberToObject(row, "workspace_bytes", (double)room->engine[i].workspace);
            cJSON_AddNumberToObject(row, "kv_bytes", (double)cell->session.kv);
            cJSON_AddNumberToObject(row, "other_bytes", (double)cell->session.own);
            cJSON_AddNumberToObject(row, "sessions", (double)cell->sessions);
            cJSON_AddItemToArray(rows, row);
        }
    }
}
