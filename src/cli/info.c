/* kakeya info: what a model is and what it will cost, from its configuration files alone. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/about.h"
#include "cli/info.h"
#include "cli/info_image.h"
#include "cli/info_weights.h"
#include "cli/terminal.h"
#include "kakeya_study.h"

static const cli_command command = {
    .name = "info",
    .summary = "Describes a model without loading it: architecture, parameters, bytes per token and session.",
    .operands = "[MODEL]",
    .details = "--sessions adds how many sessions fit at once beside weights and workspace into this machine's\n"
               "free memory, or into --memory: that of a GPU, which need not be here, or with --backend cpu of a\n"
               "machine.\n"
               "--weights-limit adds what it costs: how many experts fit, what a token reads, and how many tokens\n"
               "a second that allows, from a second's reading of the disk.\n"
               "--image describes a picture instead: how a model resizes it, and the tokens that it takes, at each\n"
               "budget.\n"
               "--backends lists the backends instead, what each would compute on, and why one is not used.\n",
    .examples = "  kakeya info --context 7300\n"
                "  kakeya info --synthetic 26b-a4b --context 62000 --json\n"
                "  kakeya info gemma-4-26b-q4_k_m.gguf --stored\n"
                "  kakeya info --synthetic 26b-a4b --sessions --memory 141G\n"
                "  kakeya info --image photo.jpg\n"
                "  kakeya info --backends\n",
};

typedef struct info_arguments {
    bool sessions, stored, check, backends;
    size_t memory_bytes;
    const char *image, *text_file;
} info_arguments;

static const kakeya_kv_format kv_formats[] = {KAKEYA_KV_BF16, KAKEYA_KV_F32, KAKEYA_KV_Q8, KAKEYA_KV_Q4};
enum { INFO_KV_FORMATS = sizeof kv_formats / sizeof kv_formats[0] };

static kakeya_status kv_of(const info_subject *s, const info_policy *row, kakeya_kv_format format, kakeya_kv_bytes *kv,
                           kakeya_error *error) {
    kakeya_session_options options = s->session;
    options.attention = row->attention;
    options.restore_layers = row->restore_layers;
    options.kv_format = format;
    KAKEYA_INIT(kv);
    return kakeya_description_kv_bytes(s->model, &options, s->context, kv, error);
}

static size_t reference_bytes(const info_subject *s, bool rings) {
    return kakeya_description_reference_bytes(s->model, KAKEYA_KV_BF16, s->context, rings);
}

static void print_architecture(const info_subject *s) {
    const kakeya_facts *f = &s->facts;
    char a[32], b[32];
    printf("%s\n", s->name);
    printf(
        "  architecture    Gemma %c, %s: %d layers (%d sliding with a window of %d, %d full attention), hidden %d, %d "
        "heads\n",
        strncmp(f->variant, "gemma3", 6) == 0 ? '3' : '4', f->variant, f->layers, f->sliding_layers, f->sliding_window,
        f->full_attention_layers, f->hidden, f->heads);
    if (f->experts)
        printf("  experts         %d, %d per token, width %d\n", f->experts, f->experts_per_token, f->expert_width);
    if (f->per_layer_embedding_width) printf("  per-layer embeddings of width %d\n", f->per_layer_embedding_width);
    if (f->shared_kv_layers) printf("  shared K/V      the last %d layers\n", f->shared_kv_layers);
    printf("  vocabulary      %s tokens, context up to %s, stored as %s\n", format_count(a, (uint64_t)f->vocab),
           format_count(b, (uint64_t)f->max_context), f->weight_type);
    if (f->assistant_draft_parameters)
        printf("  drafter         an MTP assistant, %d layers, %s parameters, of which a draft reads %s\n",
               f->assistant_layers, format_count(a, f->assistant_parameters),
               format_count(b, f->assistant_draft_parameters));
    if (f->has_dflash)
        printf("  drafter         %d layers, block of %d, %s parameters\n", f->drafter_layers, f->drafter_block_size,
               format_count(a, f->drafter_parameters));
    if (f->f_theta_rank) {
        printf("  f_theta         ");
        if (f->f_theta_shared)
            printf("one latent of rank %d", f->f_theta_rank);
        else if (f->f_theta_rank == f->f_theta_rank_v)
            printf("rank %d", f->f_theta_rank);
        else
            printf("rank %d for keys and %d for values", f->f_theta_rank, f->f_theta_rank_v);
        printf(", %s parameters; reads %s, latents as %s\n", format_count(a, f->f_theta_parameters),
               f->restoration_input, f->restoration_latents);
    }
}

static void print_audio(const info_subject *s) {
    const kakeya_facts *f = &s->facts;
    char a[32], b[32];
    if (!f->audio_width) return;
    if (f->audio_layers)
        printf("  audio           %d layers, hidden %d, ", f->audio_layers, f->audio_width);
    else
        printf("  audio           no layers, %d samples a token, ", f->audio_width);
    printf("%s parameters, %s\n", format_count(a, f->audio_parameters), format_bytes(b, (double)f->audio_bytes));
    printf("                  while a sound of 30 seconds is read on the CPU: %s\n",
           format_bytes(a, (double)info_sound_bytes(s)));
}

static void print_vision(const info_subject *s, int threads) {
    const kakeya_facts *f = &s->facts;
    char a[32], b[32], layers[32] = "no layers";
    if (!f->vision_hidden) return;
    if (f->vision_layers) snprintf(layers, sizeof layers, "%d layers", f->vision_layers);
    printf("  vision          %s, hidden %d, %s parameters, %s\n", layers, f->vision_hidden,
           format_count(a, f->vision_parameters), format_bytes(b, (double)f->vision_bytes));
    for (int gpu = 0; gpu < 2; gpu++) {
        if (!info_picture_bytes(s, gpu, threads, f->vision_budget)) continue;
        printf("                  while a picture is read%s:", gpu ? " on the GPU" : " on the CPU");
        for (size_t i = 0; kakeya_image_budget(i); i++) {
            const int budget = kakeya_image_budget(i);
            printf("%s %s of %d tokens", i ? "," : "",
                   format_bytes(a, (double)info_picture_bytes(s, gpu, threads, budget)), budget);
        }
        printf("\n");
    }
}

static void print_parameters(const info_subject *s) {
    char a[32], b[32];
    printf("\nparameters        %s, of which one token uses %s\n", format_count(a, s->facts.parameters),
           format_count(b, s->facts.active_parameters));
    for (int i = 0; kakeya_parameter_group_name((kakeya_parameter_group)i); i++) {
        uint64_t n = kakeya_description_parameters(s->model, (kakeya_parameter_group)i);
        if (n) printf("  %-15s %16s\n", kakeya_parameter_group_name((kakeya_parameter_group)i), format_count(a, n));
    }
    printf("bytes read per token, K/V aside: %s in bf16, %s in f32\n",
           format_bytes(a, (double)kakeya_description_bytes_per_token(s->model, KAKEYA_PRECISION_BF16)),
           format_bytes(b, (double)kakeya_description_bytes_per_token(s->model, KAKEYA_PRECISION_F32)));
    const char *type = s->facts.weight_type;
    if (strcmp(type, "BF16") != 0 && strcmp(type, "F16") != 0 && strcmp(type, "F32") != 0)
        printf("  as they are stored: kakeya info MODEL --stored\n");
}

static kakeya_status print_text(const info_subject *s, const info_room *room, int threads, kakeya_error *error) {
    char a[32], b[32], full[32], sliding[32], latent[32], draft[32];
    print_architecture(s);
    print_vision(s, threads);
    print_audio(s);
    print_parameters(s);
    printf("\nK/V memory of a session of %s tokens (sink %d, window %d, draft window %d)\n",
           format_count(a, s->context), kakeya_options_sink(&s->session), s->session.window, s->session.draft_window);
    printf("  %-22s %-6s %10s %10s %10s %10s %10s %14s\n", "policy", "type", "full", "sliding", "latent", "draft",
           "total", "each token");
    for (int i = 0; i < INFO_POLICIES; i++) {
        for (int t = 0; t < INFO_KV_FORMATS && info_possible(s, &info_policies[i]); t++) {
            kakeya_kv_bytes kv;
            kakeya_status status = kv_of(s, &info_policies[i], kv_formats[t], &kv, error);
            if (status) return status;
            printf("  %-22s %-6s %10s %10s %10s %10s %10s %14s\n", info_policies[i].name,
                   kakeya_kv_format_name(kv_formats[t]), format_bytes(full, (double)kv.full),
                   format_bytes(sliding, (double)kv.sliding), format_bytes(latent, (double)kv.latent),
                   format_bytes(draft, (double)kv.draft), format_bytes(a, (double)kv.total),
                   format_bytes(b, (double)kv.each_token));
        }
    }
    printf("for comparison, separate K and V in bf16: %s with a ring per sliding layer, %s with every position "
           "everywhere\n",
           format_bytes(a, (double)reference_bytes(s, true)), format_bytes(b, (double)reference_bytes(s, false)));
    if (room) info_room_print(room);
    return KAKEYA_OK;
}

static void add_number(cJSON *object, const char *key, double value) { cJSON_AddNumberToObject(object, key, value); }

static void add_parameters(cJSON *json, const info_subject *s) {
    cJSON *parameters = cJSON_AddObjectToObject(json, "parameters");
    add_number(parameters, "total", (double)s->facts.parameters);
    add_number(parameters, "active", (double)s->facts.active_parameters);
    cJSON *groups = cJSON_AddObjectToObject(parameters, "groups");
    for (int i = 0; kakeya_parameter_group_name((kakeya_parameter_group)i); i++) {
        uint64_t n = kakeya_description_parameters(s->model, (kakeya_parameter_group)i);
        if (n) add_number(groups, kakeya_parameter_group_name((kakeya_parameter_group)i), (double)n);
    }
    cJSON *bytes = cJSON_AddObjectToObject(json, "bytes_per_token");
    static const kakeya_precision types[] = {KAKEYA_PRECISION_BF16, KAKEYA_PRECISION_F32};
    for (int t = 0; t < 2; t++)
        add_number(bytes, kakeya_precision_name(types[t]),
                   (double)kakeya_description_bytes_per_token(s->model, types[t]));
}

static kakeya_status add_sessions(cJSON *json, const info_subject *s, kakeya_error *error) {
    add_number(json, "context", (double)s->context);
    cJSON *sessions = cJSON_AddArrayToObject(json, "sessions");
    for (int i = 0; i < INFO_POLICIES; i++) {
        for (int t = 0; t < INFO_KV_FORMATS && info_possible(s, &info_policies[i]); t++) {
            kakeya_kv_bytes kv;
            kakeya_status status = kv_of(s, &info_policies[i], kv_formats[t], &kv, error);
            if (status) return status;
            cJSON *session = cJSON_CreateObject();
            cJSON_AddStringToObject(session, "attention", kakeya_attention_name(info_policies[i].attention));
            cJSON_AddStringToObject(session, "restore_layers",
                                    kakeya_restore_layers_name(info_policies[i].restore_layers));
            cJSON_AddStringToObject(session, "kv_format", kakeya_kv_format_name(kv_formats[t]));
            cJSON *bytes = cJSON_AddObjectToObject(session, "kv_bytes");
            add_number(bytes, "full", (double)kv.full);
            add_number(bytes, "sliding", (double)kv.sliding);
            add_number(bytes, "latent", (double)kv.latent);
            add_number(bytes, "draft", (double)kv.draft);
            add_number(bytes, "total", (double)kv.total);
            add_number(session, "kv_bytes_per_token", (double)kv.each_token);
            cJSON_AddItemToArray(sessions, session);
        }
    }
    cJSON *references = cJSON_AddObjectToObject(json, "reference_kv_bytes");
    add_number(references, "hybrid_bf16", (double)reference_bytes(s, true));
    add_number(references, "all_positions_bf16", (double)reference_bytes(s, false));
    return KAKEYA_OK;
}

static void add_architecture(cJSON *json, const kakeya_facts *f) {
    cJSON *architecture = cJSON_AddObjectToObject(json, "architecture");
    cJSON_AddStringToObject(architecture, "family", "gemma4");
    cJSON_AddStringToObject(architecture, "variant", f->variant);
    add_number(architecture, "layers", f->layers);
    add_number(architecture, "sliding_layers", f->sliding_layers);
    add_number(architecture, "full_attention_layers", f->full_attention_layers);
    add_number(architecture, "sliding_window", f->sliding_window);
    add_number(architecture, "hidden", f->hidden);
    add_number(architecture, "heads", f->heads);
    add_number(architecture, "vocab", f->vocab);
    add_number(architecture, "max_context", f->max_context);
    add_number(architecture, "experts", f->experts);
    add_number(architecture, "experts_per_token", f->experts_per_token);
    add_number(architecture, "per_layer_embedding_width", f->per_layer_embedding_width);
    add_number(architecture, "shared_kv_layers", f->shared_kv_layers);
    cJSON_AddBoolToObject(architecture, "tied_head", f->tied_head);
    cJSON_AddStringToObject(architecture, "dtype", f->weight_type);
}

static void add_auxiliary_models(cJSON *json, const kakeya_facts *f) {
    if (f->has_dflash && f->assistant_layers) {
        cJSON *assistant = cJSON_AddObjectToObject(json, "assistant");
        add_number(assistant, "layers", f->assistant_layers);
        add_number(assistant, "parameters", (double)f->assistant_parameters);
        add_number(assistant, "draft_parameters", (double)f->assistant_draft_parameters);
    }
    if (f->drafter_layers) {
        cJSON *drafter = cJSON_AddObjectToObject(json, "drafter");
        add_number(drafter, "layers", f->drafter_layers);
        add_number(drafter, "block_size", f->drafter_block_size);
        add_number(drafter, "parameters", (double)f->drafter_parameters);
        cJSON_AddStringToObject(drafter, "kind", f->has_dflash ? "dflash" : "mtp");
        if (!f->has_dflash) add_number(drafter, "draft_parameters", (double)f->assistant_draft_parameters);
    } else {
        cJSON_AddNullToObject(json, "drafter");
    }
    if (f->f_theta_rank) {
        cJSON *f_theta = cJSON_AddObjectToObject(json, "f_theta");
        add_number(f_theta, "rank", f->f_theta_rank);
        add_number(f_theta, "rank_v", f->f_theta_rank_v);
        cJSON_AddBoolToObject(f_theta, "shared_latent", f->f_theta_shared);
        cJSON_AddStringToObject(f_theta, "input", f->restoration_input);
        cJSON_AddStringToObject(f_theta, "latent_format", f->restoration_latents);
        add_number(f_theta, "parameters", (double)f->f_theta_parameters);
    } else {
        cJSON_AddNullToObject(json, "f_theta");
    }
}

static void add_audio(cJSON *json, const info_subject *s) {
    const kakeya_facts *f = &s->facts;
    if (!f->audio_width) {
        cJSON_AddNullToObject(json, "audio");
        return;
    }
    cJSON *audio = cJSON_AddObjectToObject(json, "audio");
    add_number(audio, "layers", f->audio_layers);
    add_number(audio, "width", f->audio_width);
    add_number(audio, "parameters", (double)f->audio_parameters);
    add_number(audio, "weights_bytes", (double)f->audio_bytes);
    add_number(audio, "workspace_bytes", (double)info_sound_bytes(s));
}

static void add_vision(cJSON *json, const info_subject *s, int threads) {
    const kakeya_facts *f = &s->facts;
    if (!f->vision_hidden) {
        cJSON_AddNullToObject(json, "vision");
        return;
    }
    cJSON *vision = cJSON_AddObjectToObject(json, "vision");
    add_number(vision, "layers", f->vision_layers);
    add_number(vision, "hidden", f->vision_hidden);
    add_number(vision, "parameters", (double)f->vision_parameters);
    add_number(vision, "weights_bytes", (double)f->vision_bytes);
    add_number(vision, "budget", f->vision_budget);
    cJSON *pictures = cJSON_AddArrayToObject(vision, "pictures");
    for (size_t i = 0; kakeya_image_budget(i); i++) {
        cJSON *picture = cJSON_CreateObject();
        const int budget = kakeya_image_budget(i);
        const size_t of_gpu = info_picture_bytes(s, true, threads, budget);
        add_number(picture, "budget", budget);
        add_number(picture, "workspace_bytes", (double)info_picture_bytes(s, false, threads, budget));
        if (of_gpu) add_number(picture, "gpu_workspace_bytes", (double)of_gpu);
        cJSON_AddItemToArray(pictures, picture);
    }
}

/* What the files hold, which are looked into for this. */
typedef struct stored_list {
    cJSON *json; /* NULL: lines of text */
    uint64_t bytes, per_token;
} stored_list;

static void print_stored(void *user, const char *group, const char *format, const char *kernels, uint64_t matrices,
                         uint64_t bytes, uint64_t per_token) {
    stored_list *list = user;
    char a[32], b[32], c[32];
    list->bytes += bytes;
    list->per_token += per_token;
    if (!list->json) {
        printf("  %-25s %-12s %8s %12s %12s   %s\n", group, format, format_count(a, matrices),
               format_bytes(b, (double)bytes), format_bytes(c, (double)per_token), kernels);
        return;
    }
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "class", group);
    cJSON_AddStringToObject(item, "format", format);
    cJSON_AddStringToObject(item, "cpu_kernels", kernels);
    add_number(item, "tensors", (double)matrices);
    add_number(item, "bytes", (double)bytes);
    add_number(item, "bytes_per_token", (double)per_token);
    cJSON_AddItemToArray(list->json, item);
}

/* json NULL: as text */
static kakeya_status print_files(const char *model, bool check, cJSON *json, kakeya_error *error) {
    char a[32], b[32];
    stored_list list = {.json = json ? cJSON_AddArrayToObject(json, "stored") : NULL};
    if (!model) return error_set(error, KAKEYA_INVALID_ARGUMENT, "--stored: synthetic models have no files");
    if (!json)
        printf("\nstored\n  %-25s %-12s %8s %12s %12s   %s\n", "class", "format", "tensors", "bytes", "per token",
               "products on this CPU");
    kakeya_status status = kakeya_inspect(model, check, print_stored, &list, error);
    if (status || json) return status;
    printf("  %-25s %-12s %8s %12s %12s\n", "total", "", "", format_bytes(a, (double)list.bytes),
           format_bytes(b, (double)list.per_token));
    if (check) printf("all scales and values are finite numbers\n");
    return KAKEYA_OK;
}

static kakeya_status print_json(const info_subject *s, const info_devices *devices, const info_room *room,
                                const info_arguments *arguments, const char *model, int threads,
                                const info_weights *weights, kakeya_error *error) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "model", s->name);
    add_architecture(json, &s->facts);
    add_parameters(json, s);
    add_auxiliary_models(json, &s->facts);
    add_vision(json, s, threads);
    add_audio(json, s);
    kakeya_status status = add_sessions(json, s, error);
    info_devices_add_json(json, devices);
    if (!status && arguments->stored) status = print_files(model, arguments->check, json, error);
    if (room) info_room_add_json(json, room);
    if (weights) info_weights_add_json(json, weights);
    if (!status) status = cli_print_json(json, error);
    cJSON_Delete(json);
    return status;
}

static kakeya_status describe(const info_arguments *arguments, cli_shared *shared, kakeya_error *error) {
    kakeya_engine_options options;
    kakeya_description *model = NULL;
    kakeya_status status = cli_shared_engine_options(shared, &options, error);
    if (!status) status = kakeya_describe(&options, &model, error);
    if (status) return status;
    info_subject s = {.name = options.model ? options.model : options.study->synthetic,
                      .model = model,
                      .facts = kakeya_description_facts(model)};
    cli_shared_session_options(shared, &s.session);
    s.context = (size_t)(shared->context ? shared->context : s.facts.max_context);
    info_room *room = NULL;
    info_devices *devices = NULL;
    const size_t limit = options.weights_limit_bytes;
    info_weights weights;
    if (limit) status = info_weights_measure(&options, arguments->text_file, &weights, error);
    const info_room_options wanted = {.backend = shared->backend,
                                      .precision = (kakeya_precision)shared->precision,
                                      .threads = shared->threads,
                                      .weights_limit = options.weights_limit_bytes,
                                      .memory_bytes = arguments->memory_bytes};
    if (!status) status = info_devices_compute(&s, shared->devices, &devices, error);
    const info_subject of_one = info_devices_subject(&s, devices);
    if (!status && arguments->sessions) status = info_room_compute(&of_one, &wanted, &room, error);
    if (!status)
        status = shared->json ? print_json(&s, devices, room, arguments, options.model, shared->threads,
                                           limit ? &weights : NULL, error)
                              : print_text(&s, room, shared->threads, error);
    if (!status && !shared->json) info_devices_print(&s, devices);
    if (!status && !shared->json && limit) info_weights_print(&weights);
    if (!status && arguments->stored && !shared->json)
        status = print_files(options.model, arguments->check, NULL, error);
    info_room_free(room);
    info_devices_free(devices);
    kakeya_description_close(model);
    return status;
}

int cli_info(int argc, char **argv) {
    cli_shared shared;
    cli_option table[CLI_SHARED_OPTIONS];
    cli_shared_init(&shared, table);
    info_arguments arguments = {0};
    const cli_option own[] = {
        CLI_FLAG("sessions", &arguments.sessions, "also how many sessions fit at once, by length and policy"),
        CLI_FLAG("stored", &arguments.stored,
                 "also the contents of the files, by class of tensors: formats, bytes, bytes per token, kernels"),
        CLI_FLAG("check", &arguments.check, "the same, and that every scale and value in them is a finite number"),
        CLI_BYTES("memory", "BYTES", &arguments.memory_bytes,
                  "with --sessions: memory that they must fit into (this machine's free memory; K, M, G may follow)"),
        CLI_TEXT("image", "FILE", &arguments.image,
                 "a picture ('-': standard input) instead of a model: its size and tokens at each budget"),
        CLI_TEXT("text-file", "FILE", &arguments.text_file,
                 "with --weights-limit: a text whose experts are counted under the limit ('-': standard input)"),
        CLI_FLAG("backends", &arguments.backends,
                 "the backends instead of a model: what each computes on, or why it is not used"),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&command, own, table, argc, argv, &first, &status)) return status;
    if (argc > first && !shared.model && !shared.study.synthetic) shared.model = argv[first++];
    if (argc > first) return cli_usage_error(&command, "unexpected '%s': one model at a time", argv[first]);
    if (arguments.text_file && !shared.weights_limit)
        return cli_usage_error(&command, "--text-file needs --weights-limit");
    if (arguments.memory_bytes && !arguments.sessions) return cli_usage_error(&command, "--memory needs --sessions");
    if (arguments.image &&
        (shared.model || shared.study.synthetic || arguments.sessions || arguments.stored || arguments.check))
        return cli_usage_error(&command,
                               "--image describes a picture: not with a model, --sessions, --stored or --check");

    if (arguments.backends && (shared.model || shared.study.synthetic || arguments.image || arguments.sessions ||
                               arguments.stored || arguments.check))
        return cli_usage_error(&command,
                               "--backends describes this build: not with a model, --image, --sessions, --stored or "
                               "--check");

    arguments.stored |= arguments.check;
    kakeya_error error = {0};
    kakeya_status failed = arguments.backends ? about_backends(shared.json, &error)
                           : arguments.image  ? info_image_print(arguments.image, shared.json, &error)
                                              : describe(&arguments, &shared, &error);
    cli_shared_free(&shared);
    return failed ? cli_fail(command.name, &error) : CLI_DONE;
}
