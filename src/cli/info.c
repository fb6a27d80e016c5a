/* kakeya info: what a model is and what it will cost, from its configuration files alone. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "formats/checkpoint.h"
#include "model/sizes.h"

enum { CONFIG_MAX_BYTES = 16 << 20 };

static const cli_command command = {
    .name = "info",
    .summary = "Describes a model before anything is loaded: architecture, parameters, bytes per token and per session.",
    .operands = "",
    .examples = "  kakeya info --context 7300\n"
                "  kakeya info --synthetic 26b-a4b --context 62000 --json\n",
};

/* What the configuration files say. */
typedef struct description {
    const char *name; /* directory or shape */
    char *directory;
    gemma4_config verifier;
    bool has_drafter, has_f_theta;
    dflash_config drafter;
    f_theta_config f_theta;
    int context;
} description;

/* Reads DIRECTORY/FILE whole; *path is the name for messages. Both are freed by the caller. */
static kakeya_status read_config(const char *directory, const char *file, char **path, char **text, size_t *bytes,
                                 kakeya_error *error) {
    *text = NULL;
    *path = path_join(directory, file);
    if (!*path) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", directory);
    return file_read(*path, CONFIG_MAX_BYTES, text, bytes, error);
}

static kakeya_status read_verifier(description *d, kakeya_error *error) {
    char *path = NULL, *text = NULL, *generation_path = NULL, *generation = NULL;
    size_t bytes = 0, generation_bytes = 0;
    kakeya_status status = read_config(d->directory, "config.json", &path, &text, &bytes, error);
    if (status) goto done;
    generation_path = path_join(d->directory, "generation_config.json");
    if (generation_path && file_exists(generation_path)) {
        status = file_read(generation_path, CONFIG_MAX_BYTES, &generation, &generation_bytes, error);
        if (status) goto done;
    }
    status = gemma4_config_parse(path, text, bytes, generation, generation_bytes, &d->verifier, error);
done:
    free(generation);
    free(generation_path);
    free(text);
    free(path);
    return status;
}

/* The companion's directory: the option, or the sibling DIRECTORY + suffix; NULL where there is none. malloc'ed. */
static kakeya_status companion(const description *d, const char *option, const char *suffix, char **out,
                               kakeya_error *error) {
    *out = NULL;
    if (option && strcmp(option, "none") == 0) return KAKEYA_OK;
    if (option) return checkpoint_resolve(option, out, error);
    if (!d->directory) return KAKEYA_OK;
    size_t length = strlen(d->directory);
    while (length > 1 && d->directory[length - 1] == '/') length--;
    char *sibling = malloc(length + strlen(suffix) + 1);
    if (!sibling) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", d->directory);
    memcpy(sibling, d->directory, length);
    strcpy(sibling + length, suffix);
    if (directory_exists(sibling)) {
        *out = sibling;
    } else {
        free(sibling);
    }
    return KAKEYA_OK;
}

static kakeya_status read_companions(const cli_shared *shared, description *d, kakeya_error *error) {
    char *directory = NULL, *path = NULL, *text = NULL;
    size_t bytes = 0;
    kakeya_status status = companion(d, shared->drafter, "-dflash", &directory, error);
    if (status || !directory) return status;
    status = read_config(directory, "config.json", &path, &text, &bytes, error);
    if (!status) status = dflash_config_parse(path, text, bytes, &d->drafter, error);
    d->has_drafter = !status;
    free(text);
    free(path);
    free(directory);
    if (status) return status;

    status = companion(d, shared->f_theta, "-f-theta", &directory, error);
    if (status || !directory) return status;
    status = read_config(directory, "f_theta_config.json", &path, &text, &bytes, error);
    if (!status) status = f_theta_config_parse(path, text, bytes, &d->f_theta, error);
    d->has_f_theta = !status;
    free(text);
    free(path);
    free(directory);
    return status;
}

static kakeya_status describe(cli_shared *shared, description *d, kakeya_error *error) {
    const char *model;
    kakeya_status status = cli_shared_model(shared, &model, error);
    if (status) return status;
    d->name = model ? model : shared->synthetic;
    if (model) {
        status = checkpoint_resolve(model, &d->directory, error);
        if (!status) status = read_verifier(d, error);
    } else {
        status = gemma4_config_variant(shared->synthetic, &d->verifier, error);
    }
    if (!status) status = read_companions(shared, d, error);
    d->context = shared->context ? shared->context : d->verifier.max_context;
    return status;
}

/* One row of the memory table. */
typedef struct policy_row {
    const char *name;
    kakeya_attention attention;
    kakeya_restore_layers restore_layers;
} policy_row;

static const policy_row policies[] = {
    {"native", KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING},
    {"sink-window", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING},
    {"restored", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING},
    {"restored, all layers", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL},
};
enum { POLICY_COUNT = sizeof policies / sizeof policies[0] };

static const dtype kv_types[] = {DTYPE_BF16, DTYPE_F32};
enum { KV_TYPE_COUNT = sizeof kv_types / sizeof kv_types[0] };

static const char *type_option(dtype type) { return type == DTYPE_F32 ? "f32" : "bf16"; }

static bool possible(const description *d, const policy_row *row) {
    return row->attention != KAKEYA_ATTENTION_RESTORED || (d->has_drafter && d->has_f_theta);
}

static kv_policy policy_of(const description *d, const cli_shared *shared, const policy_row *row, dtype type) {
    return (kv_policy){.attention = row->attention,
                       .restore_layers = row->restore_layers,
                       .sink = shared->sink,
                       .window = shared->window,
                       .draft_window = shared->draft_window,
                       .type = type,
                       .f_theta_rank = d->has_f_theta ? d->f_theta.rank : 0};
}

static int full_layers(const gemma4_config *c) {
    int n = 0;
    for (int i = 0; i < c->layers; i++) n += c->layer[i].type == GEMMA4_FULL;
    return n;
}

static void print_text(const description *d, const cli_shared *shared) {
    const gemma4_config *c = &d->verifier;
    char a[32], b[32], e[32];
    printf("%s\n", d->name);
    printf("  architecture    Gemma 4, %s: %d layers (%d sliding with a window of %d, %d full attention), hidden %d, %d heads\n",
           c->variant, c->layers, c->layers - full_layers(c), c->sliding_window, full_layers(c), c->hidden, c->heads);
    if (c->moe) {
        printf("  experts         %d, %d per token, width %d\n", c->experts, c->experts_per_token, c->expert_intermediate);
    }
    if (c->ple_width) printf("  per-layer embeddings of width %d\n", c->ple_width);
    if (c->shared_kv_layers) printf("  shared K/V      the last %d layers\n", c->shared_kv_layers);
    printf("  vocabulary      %s tokens, context up to %s, stored as %s\n", format_count(a, (uint64_t)c->vocab),
           format_count(b, (uint64_t)c->max_context), weight_format_name(c->checkpoint_format));
    if (d->has_drafter) {
        printf("  drafter         %d layers, block of %d, %s parameters\n", d->drafter.layers, d->drafter.block_size,
               format_count(a, (uint64_t)dflash_parameters(&d->drafter)));
    }
    if (d->has_f_theta) {
        printf("  f_theta         rank %d, %s parameters\n", d->f_theta.rank,
               format_count(a, (uint64_t)f_theta_parameters(&d->f_theta)));
    }

    parameter_counts parameters = gemma4_parameters(c);
    printf("\nparameters        %s, of which one token uses %s\n", format_count(a, (uint64_t)parameters.total),
           format_count(b, (uint64_t)parameters.active));
    for (int i = 0; i < PARAMETERS_GROUPS; i++) {
        if (parameters.group[i]) {
            printf("  %-15s %16s\n", parameter_group_name((parameter_group)i), format_count(a, (uint64_t)parameters.group[i]));
        }
    }
    printf("bytes read per token, K/V aside: %s in bf16, %s in f32\n",
           format_bytes(a, (double)gemma4_bytes_per_token(c, WEIGHT_BF16)),
           format_bytes(b, (double)gemma4_bytes_per_token(c, WEIGHT_F32)));

    printf("\nK/V memory of a session of %s tokens (sink %d, window %d, draft window %d)\n",
           format_count(a, (uint64_t)d->context), shared->sink, shared->window, shared->draft_window);
    printf("  %-22s %-6s %10s %10s %10s %10s %10s %14s\n", "policy", "type", "full", "sliding", "latent", "draft", "total",
           "each token");
    for (int i = 0; i < POLICY_COUNT; i++) {
        for (int t = 0; t < KV_TYPE_COUNT && possible(d, &policies[i]); t++) {
            kv_policy policy = policy_of(d, shared, &policies[i], kv_types[t]);
            kv_bytes kv = kv_session_bytes(c, d->has_drafter ? &d->drafter : NULL, &policy, d->context);
            char full[32], sliding[32], latent[32], draft[32];
            printf("  %-22s %-6s %10s %10s %10s %10s %10s %14s\n", policies[i].name, type_option(kv_types[t]),
                   format_bytes(full, (double)kv.full), format_bytes(sliding, (double)kv.sliding),
                   format_bytes(latent, (double)kv.latent), format_bytes(draft, (double)kv.draft),
                   format_bytes(a, (double)kv.total), format_bytes(b, (double)kv_bytes_per_token(c, &policy)));
        }
    }
    printf("for comparison, separate K and V in bf16: %s with a ring per sliding layer, %s with every position everywhere\n",
           format_bytes(a, (double)kv_reference_bytes(c, DTYPE_BF16, d->context, true)),
           format_bytes(e, (double)kv_reference_bytes(c, DTYPE_BF16, d->context, false)));
}

static void add_number(cJSON *object, const char *key, double value) { cJSON_AddNumberToObject(object, key, value); }

static void add_parameters(cJSON *json, const gemma4_config *c) {
    parameter_counts counts = gemma4_parameters(c);
    cJSON *parameters = cJSON_AddObjectToObject(json, "parameters");
    add_number(parameters, "total", (double)counts.total);
    add_number(parameters, "active", (double)counts.active);
    cJSON *groups = cJSON_AddObjectToObject(parameters, "groups");
    for (int i = 0; i < PARAMETERS_GROUPS; i++) {
        if (counts.group[i]) add_number(groups, parameter_group_name((parameter_group)i), (double)counts.group[i]);
    }
    cJSON *bytes = cJSON_AddObjectToObject(json, "bytes_per_token");
    for (int t = 0; t < KV_TYPE_COUNT; t++) {
        add_number(bytes, type_option(kv_types[t]), (double)gemma4_bytes_per_token(c, kv_types[t] == DTYPE_F32 ? WEIGHT_F32 : WEIGHT_BF16));
    }
}

static void add_sessions(cJSON *json, const description *d, const cli_shared *shared) {
    const gemma4_config *c = &d->verifier;
    add_number(json, "context", d->context);
    cJSON *sessions = cJSON_AddArrayToObject(json, "sessions");
    for (int i = 0; i < POLICY_COUNT; i++) {
        for (int t = 0; t < KV_TYPE_COUNT && possible(d, &policies[i]); t++) {
            kv_policy policy = policy_of(d, shared, &policies[i], kv_types[t]);
            kv_bytes kv = kv_session_bytes(c, d->has_drafter ? &d->drafter : NULL, &policy, d->context);
            cJSON *session = cJSON_CreateObject();
            cJSON_AddStringToObject(session, "attention", cli_attention_names[policy.attention]);
            cJSON_AddStringToObject(session, "restore_layers", policy.restore_layers == KAKEYA_RESTORE_ALL ? "all" : "sliding");
            cJSON_AddStringToObject(session, "kv_format", type_option(kv_types[t]));
            cJSON *bytes = cJSON_AddObjectToObject(session, "kv_bytes");
            add_number(bytes, "full", (double)kv.full);
            add_number(bytes, "sliding", (double)kv.sliding);
            add_number(bytes, "latent", (double)kv.latent);
            add_number(bytes, "draft", (double)kv.draft);
            add_number(bytes, "total", (double)kv.total);
            add_number(session, "kv_bytes_per_token", (double)kv_bytes_per_token(c, &policy));
            cJSON_AddItemToArray(sessions, session);
        }
    }
    cJSON *references = cJSON_AddObjectToObject(json, "reference_kv_bytes");
    add_number(references, "hybrid_bf16", (double)kv_reference_bytes(c, DTYPE_BF16, d->context, true));
    add_number(references, "all_positions_bf16", (double)kv_reference_bytes(c, DTYPE_BF16, d->context, false));
}

static cJSON *description_json(const description *d, const cli_shared *shared) {
    const gemma4_config *c = &d->verifier;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "model", d->name);
    cJSON *architecture = cJSON_AddObjectToObject(json, "architecture");
    cJSON_AddStringToObject(architecture, "family", "gemma4");
    cJSON_AddStringToObject(architecture, "variant", c->variant);
    add_number(architecture, "layers", c->layers);
    add_number(architecture, "sliding_layers", c->layers - full_layers(c));
    add_number(architecture, "full_attention_layers", full_layers(c));
    add_number(architecture, "sliding_window", c->sliding_window);
    add_number(architecture, "hidden", c->hidden);
    add_number(architecture, "heads", c->heads);
    add_number(architecture, "vocab", c->vocab);
    add_number(architecture, "max_context", c->max_context);
    add_number(architecture, "experts", c->moe ? c->experts : 0);
    add_number(architecture, "experts_per_token", c->moe ? c->experts_per_token : 0);
    add_number(architecture, "per_layer_embedding_width", c->ple_width);
    add_number(architecture, "shared_kv_layers", c->shared_kv_layers);
    cJSON_AddBoolToObject(architecture, "tied_head", c->tied_head);
    cJSON_AddStringToObject(architecture, "dtype", weight_format_name(c->checkpoint_format));
    add_parameters(json, c);
    if (d->has_drafter) {
        cJSON *drafter = cJSON_AddObjectToObject(json, "drafter");
        add_number(drafter, "layers", d->drafter.layers);
        add_number(drafter, "block_size", d->drafter.block_size);
        add_number(drafter, "parameters", (double)dflash_parameters(&d->drafter));
    } else {
        cJSON_AddNullToObject(json, "drafter");
    }
    if (d->has_f_theta) {
        cJSON *f_theta = cJSON_AddObjectToObject(json, "f_theta");
        add_number(f_theta, "rank", d->f_theta.rank);
        add_number(f_theta, "parameters", (double)f_theta_parameters(&d->f_theta));
    } else {
        cJSON_AddNullToObject(json, "f_theta");
    }
    add_sessions(json, d, shared);
    return json;
}

int cli_info(int argc, char **argv) {
    cli_shared shared;
    cli_option table[CLI_SHARED_OPTIONS];
    cli_shared_init(&shared, table);
    const cli_option own[] = {{.name = NULL}};
    int first, status;
    if (!cli_parse(&command, own, table, argc, argv, &first, &status)) return status;
    if (argc > first) return cli_usage_error(&command, "unexpected '%s' (the model is --model DIR)", argv[first]);

    kakeya_error error = {0};
    kakeya_status failed;
    description *d = calloc(1, sizeof *d);
    failed = d ? describe(&shared, d, &error) : error_set(&error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (!failed && shared.json) {
        cJSON *json = description_json(d, &shared);
        failed = cli_print_json(json, &error);
        cJSON_Delete(json);
    } else if (!failed) {
        print_text(d, &shared);
    }
    if (d) free(d->directory);
    free(d);
    cli_shared_free(&shared);
    return failed ? cli_fail(command.name, &error) : CLI_DONE;
}
