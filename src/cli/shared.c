#include "cli/cli.h"

#include <cjson/cJSON.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "base/platform.h"
#include "cli/terminal.h"

/* Choices in the order of the public enums, spelt by the library. */
enum { MAX_CHOICES = 16 };
static const char *precision_names[MAX_CHOICES], *kv_format_names[MAX_CHOICES], *restore_layers_names[MAX_CHOICES],
    *attention_names[MAX_CHOICES], *mode_names[MAX_CHOICES], *vision_names[MAX_CHOICES];
const char *const *const cli_attention_names = attention_names;
const char *const *const cli_mode_names = mode_names;

/* What shells propose for names that the library takes as text. */
static const char *const backend_names[] = {"auto", "cpu", "cuda", "mlx", NULL};
static const char *const isa_names[] = {"scalar", "avx2",         "avx512",    "avx512bf16",
                                        "neon",   "neon-dotprod", "neon-i8mm", NULL};
static const char *const shape_names[] = {"26b-a4b",   "31b",       "12b",        "e2b",        "e4b", "gemma3-270m",
                                          "gemma3-1b", "gemma3-4b", "gemma3-12b", "gemma3-27b", NULL};

#define FILL(names, name, type)                                                                                        \
    for (int i = 0; i + 1 < MAX_CHOICES && name((type)i); i++) (names)[i] = name((type)i)

static void fill_choices(void) {
    FILL(precision_names, kakeya_precision_name, kakeya_precision);
    FILL(kv_format_names, kakeya_kv_format_name, kakeya_kv_format);
    FILL(restore_layers_names, kakeya_restore_layers_name, kakeya_restore_layers);
    FILL(attention_names, kakeya_attention_name, kakeya_attention);
    FILL(mode_names, kakeya_mode_name, kakeya_mode);
    FILL(vision_names, kakeya_vision_name, kakeya_vision);
}

void cli_shared_init(cli_shared *shared, cli_option table[CLI_SHARED_OPTIONS]) {
    fill_choices();
    *shared = (cli_shared){.sink = KAKEYA_DEFAULT_SINK,
                           .window = KAKEYA_DEFAULT_WINDOW,
                           .draft_window = KAKEYA_DEFAULT_DRAFT_WINDOW,
                           .study = {.size = sizeof shared->study}};
    const cli_option entries[] = {
        CLI_TEXT("model", "DIR", &shared->model,
                 "directory, GGUF file, or name in the Hugging Face cache ($KAKEYA_MODEL, else the bundled demo)"),
        CLI_TEXT_OF("synthetic", "SHAPE", &shared->study.synthetic, shape_names,
                    "use weights made in memory, in the shape of 26b-a4b, 31b, 12b, e2b, e4b, gemma3-270m, gemma3-1b, "
                    "gemma3-4b, gemma3-12b, gemma3-27b; ':layers=6' reduces the number of layers, ':q4_0', ':q8_0', "
                    "':q4_k_m', ':affine4', ':affine8', ':int4', ':fp8', ':mxfp4' or ':nvfp4' quantises it"),
        CLI_TEXTS("drafter", "PATH", &shared->drafter,
                  "DFlash drafter or MTP assistant, a directory or a GGUF file; given twice, one of each "
                  "(MODEL-dflash and MODEL-assistant beside the model, if they exist); 'none' disables drafters, "
                  "'synthetic' and 'synthetic:mtp' make one for a synthetic model"),
        CLI_TEXT("f-theta", "DIR", &shared->f_theta,
                 "f_theta for restored attention (MODEL-f-theta beside the model); 'none' disables it, 'synthetic' "
                 "makes one for a synthetic model, 'synthetic:128,256' with these ranks of keys and values"),
        CLI_TEXT("mmproj", "FILE", &shared->mmproj,
                 "vision and audio encoder of a GGUF file (mmproj-*.gguf beside it, or in the file itself)"),
        CLI_CHOICE("vision", "WHEN", &shared->vision, vision_names,
                   "when the vision encoder is loaded: auto (with the first picture), on (at the start; fails if "
                   "there is none) or off (never; pictures are refused) (auto)"),
        CLI_FLAG("drafter-scaled-embedding", &shared->study.drafter_scaled_embedding,
                 "multiply the drafter's block embeddings by sqrt(hidden size)"),
        CLI_FLAG("drafter-block-bidirectional", &shared->study.drafter_block_bidirectional,
                 "use no causal mask within a block in the drafter's sliding layers"),
        CLI_TEXT_OF("backend", "NAME", &shared->backend, backend_names,
                    "auto, cpu, cuda or mlx, if this build has it (auto)"),
        CLI_TEXT_OF("isa", "NAME", &shared->study.cpu_isa, isa_names,
                    "CPU kernels: scalar, avx2, avx512, avx512bf16, neon, neon-dotprod, neon-i8mm (best available)"),
        CLI_TEXT("devices", "LIST", &shared->devices, "numbers of the GPUs to use together, such as 0,1 (0)"),
        CLI_CHOICE("attention", "POLICY", &shared->attention, cli_attention_names,
                   "native, sink-window or restored (native)"),
        CLI_INT("sink", "N", &shared->sink, 0, 1 << 20, "first positions that always stay exact (4)"),
        CLI_INT("window", "N", &shared->window, 1, 1 << 20, "last positions that stay exact (64)"),
        CLI_INT("draft-window", "N", &shared->draft_window, 1, 1 << 24,
                "positions of context that the drafter keeps (1024)"),
        CLI_CHOICE("restore-layers", "WHICH", &shared->restore_layers, restore_layers_names,
                   "sliding (full-attention layers stay exact) or all (sliding)"),
        CLI_CHOICE("precision", "TYPE", &shared->precision, precision_names,
                   "type of the inputs of matrix products: auto, f32, bf16, int8 or fp8 "
                   "(auto: as the checkpoint, never fp8)"),
        CLI_CHOICE("kv-format", "TYPE", &shared->kv_format, kv_format_names,
                   "resident K/V: auto, f32, bf16, q8 or q4 (auto: f32 at precision f32, else bf16)"),
        CLI_INT("threads", "N", &shared->threads, 0, 1024, "compute threads, at most 1024 (0: one per physical core)"),
        CLI_INT("context", "N", &shared->context, 0, INT_MAX,
                "tokens that a session can hold (0: the model's maximum)"),
        CLI_BYTES("memory-limit", "BYTES", &shared->memory_limit_bytes,
                  "limit on allocated memory, not counting mapped weights; K, M, G may follow"),
        CLI_TEXT("weights-limit", "BYTES", &shared->weights_limit,
                 "mixtures of experts: memory that weights may take; experts are read from the model's files "
                 "(of one GPU: copied from the host) when a token chooses them, and tokens are the same; K, "
                 "M, G may follow, or auto"),
        CLI_FLAG("json", &shared->json, "print one JSON object on stdout"),
        {.name = NULL},
    };
    _Static_assert(sizeof entries <= sizeof(cli_option) * CLI_SHARED_OPTIONS,
                   "the callers' table must hold all entries");
    memcpy(table, entries, sizeof entries);
}

void cli_shared_free(cli_shared *shared) {
    free(shared->model_path);
    shared->model_path = NULL;
}

/* The demo lies in models/ of the source tree (the executable in a build directory inside it) or in share/kakeya/ of
 * the installation prefix. malloc'ed, or NULL. */
static char *find_bundled_demo(void) {
    char executable[PATH_MAX];
    if (!platform_program(executable, sizeof executable)) return NULL;
    char *slash = strrchr(executable, '/');
    if (!slash) return NULL;
    *slash = '\0';
    static const char *const places[] = {"../models/demo", "../share/kakeya/models/demo"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char *path = path_join(executable, places[i]);
        if (!path) return NULL;
        if (directory_exists(path)) {
            char *resolved = realpath(path, NULL);
            free(path);
            return resolved;
        }
        free(path);
    }
    return NULL;
}

kakeya_status cli_shared_model(cli_shared *shared, const char **model, kakeya_error *error) {
    *model = NULL;
    if (shared->study.synthetic) {
        if (shared->model) {
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "--model and --synthetic exclude each other");
        }
        return KAKEYA_OK;
    }
    const char *environment = getenv("KAKEYA_MODEL");
    if (shared->model) {
        *model = shared->model;
    } else if (environment && *environment) {
        *model = environment;
    } else {
        if (!shared->model_path) shared->model_path = find_bundled_demo();
        if (!shared->model_path) {
            return error_set(error, KAKEYA_IO,
                             "no model: the bundled demo is not beside the executable; give --model "
                             "DIR or set KAKEYA_MODEL");
        }
        *model = shared->model_path;
    }
    return KAKEYA_OK;
}

bool cli_weights_limit(const char *text, size_t *out) {
    if (strcmp(text, "auto") == 0)
        *out = KAKEYA_WEIGHTS_AUTO;
    else if (!cli_parse_bytes(text, out) || *out == 0)
        return false;
    return true;
}

kakeya_status cli_shared_engine_options(cli_shared *shared, kakeya_engine_options *options, kakeya_error *error) {
    KAKEYA_INIT(options);
    kakeya_status status = cli_shared_model(shared, &options->model, error);
    if (status) return status;
    options->study = &shared->study;
    if (shared->drafter.n > 2)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "--drafter: at most one DFlash drafter and one MTP assistant can draft, not %zu drafters",
                         shared->drafter.n);
    if (shared->drafter.n > 0) options->drafter = shared->drafter.text[0];
    if (shared->drafter.n > 1) options->second_drafter = shared->drafter.text[1];
    options->f_theta = shared->f_theta;
    options->mmproj = shared->mmproj;
    options->vision = (kakeya_vision)shared->vision;
    options->backend = shared->backend;
    options->precision = (kakeya_precision)shared->precision;
    options->threads = shared->threads;
    options->devices = shared->devices;
    options->memory_limit_bytes = shared->memory_limit_bytes;
    if (shared->weights_limit && !cli_weights_limit(shared->weights_limit, &options->weights_limit_bytes))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "--weights-limit: '%s' is not a number of bytes (K, M, G and T may follow), nor auto",
                         shared->weights_limit);
    options->max_batch = shared->max_batch;
    options->max_stall_ms = shared->max_stall_ms;
    options->progress = terminal_progress;
    return KAKEYA_OK;
}

kakeya_status cli_open_engine(const char *verb, cli_shared *shared, kakeya_engine **out, kakeya_error *error) {
    kakeya_engine_options options;
    kakeya_status status = cli_shared_engine_options(shared, &options, error);
    if (!status) status = kakeya_engine_open(&options, out, error);
    terminal_clear_progress();
    if (status) return status;
    const char *note;
    for (size_t i = 0; (note = kakeya_engine_note(*out, i)) != NULL; i++)
        fprintf(stderr, "kakeya %s: note: %s\n", verb, note);
    if (shared->kv_format == KAKEYA_KV_Q4)
        fprintf(
            stderr,
            "kakeya %s: note: --kv-format q4 is experimental: what it costs a model, kakeya eval kv-format measures "
            "and kakeya gate judges\n",
            verb);
    return KAKEYA_OK;
}

void cli_shared_session_options(const cli_shared *shared, kakeya_session_options *options) {
    KAKEYA_INIT(options);
    options->context_tokens = shared->context;
    options->attention = (kakeya_attention)shared->attention;
    options->restore_layers = (kakeya_restore_layers)shared->restore_layers;
    options->sink = shared->sink ? shared->sink : KAKEYA_NO_SINK;
    options->window = shared->window;
    options->draft_window = shared->draft_window;
    options->kv_format = (kakeya_kv_format)shared->kv_format;
}

char *cli_server_key(const char *given) {
    const char *keys = getenv("KAKEYA_API_KEYS");
    if (given) return strdup(given);
    return keys && *keys ? strndup(keys, strcspn(keys, ",")) : NULL;
}

int cli_fail(const char *verb, const kakeya_error *error) {
    terminal_clear_progress();
    fprintf(stderr, "kakeya %s: %s\n", verb, error->message);
    return CLI_FAILED;
}

bool cli_json_add_text(struct cJSON *object, const char *key, const char *text, size_t bytes) {
    char *literal = malloc(6 * bytes + 3); /* six characters for a byte at most, quotes, NUL */
    if (!literal) return false;
    char *out = literal;
    *out++ = '"';
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte == '\n') {
            *out++ = '\\';
            *out++ = 'n';
        } else if (byte == '"' || byte == '\\') {
            *out++ = '\\';
            *out++ = (char)byte;
        } else if (byte < 0x20 || byte == 0x7f) {
            out += snprintf(out, 7, "\\u%04x", byte);
        } else {
            *out++ = (char)byte;
        }
    }
    *out++ = '"';
    *out = '\0';
    bool added = cJSON_AddRawToObject(object, key, literal) != NULL;
    free(literal);
    return added;
}

kakeya_status cli_print_json(const struct cJSON *json, kakeya_error *error) {
    char *text = json ? cJSON_PrintUnformatted(json) : NULL;
    if (!text) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory while writing JSON");
    if (terminal_write(text, strlen(text))) terminal_write("\n", 1);
    cJSON_free(text);
    return KAKEYA_OK;
}
