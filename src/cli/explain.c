/* kakeya explain: the list of operations of a step. */
#include "measure/explain.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/terminal.h"

static const cli_command command = {
    .name = "explain",
    .summary = "Prints the operations of one step as a backend would run them, each with a bound on its time.",
    .operands = "",
    .details = "A step decodes or verifies --rows tokens of one session after --position earlier ones. It also\n"
               "computes --prompt tokens of another session's prompt, as many as one forward takes. Nothing is\n"
               "computed and no weight is read. Bytes are the weights and K/V that an operation must read. The bound\n"
               "is the time that reading them, or the arithmetic, takes at this machine's rates, which are measured\n"
               "first unless given (--backend cuda: they must be given, no GPU is needed, and decoding and a prompt\n"
               "are explained apart). Rows marked + run in the same kernel as the row before.\n",
    .examples = "  kakeya explain\n"
                "  kakeya explain --synthetic 26b-a4b --rows 8 --position 16000\n"
                "  kakeya explain --model gemma-4-e2b --prompt 512 --read-gb 40 --gflops 1500 --json\n"
                "  kakeya explain --synthetic 26b-a4b --backend cuda --read-gb 4600 --gflops 700000\n",
};

typedef struct explain_arguments {
    int rows, prompt, position;
    float read_gb, gflops;
} explain_arguments;

/* Names of a list of items or of weights, with a comma in between. */
static void join(char *text, size_t n, const char *name) {
    size_t at = strlen(text);
    snprintf(text + at, n - at, "%s%s", at ? ", " : "", name);
}

static void items_text(const uint8_t *items, int most, char *text, size_t n) {
    text[0] = '\0';
    for (int i = 0; i < most && items[i]; i++) join(text, n, program_item_name((program_item)items[i]));
}

/* Every weight that an operation names, once. */
static int weights_of(const program_op *o, const char *names[ROW_MAX_STEPS + 6]) {
    int n = 0;
    for (int i = 0; i < PROGRAM_MATRICES; i++) {
        if (o->slot[i]) names[n++] = program_role_name(program_slot_role(o->slot[i]));
    }
    for (int i = 0; i < 3; i++) {
        if (o->head[i].item && o->head[i].slot) names[n++] = program_role_name(program_slot_role(o->head[i].slot));
    }
    for (int i = 0; i < o->steps; i++) {
        if (o->step[i].slot) names[n++] = program_role_name(program_slot_role(o->step[i].slot));
    }
    return n;
}

static void print_row(const explain_row *r, int index, const explain_row *before) {
    char in[96], out[96], both[200], layer[12] = "", a[32], b[32] = "";
    bool joined = before && before->launch == r->launch;
    items_text(r->op->in, PROGRAM_INPUTS, in, sizeof in);
    items_text(r->op->out, PROGRAM_OUTPUTS, out, sizeof out);
    snprintf(both, sizeof both, "%s -> %s", in, out);
    if (r->op->layer >= 0) snprintf(layer, sizeof layer, "%d", r->op->layer);
    if (r->operations > 0) snprintf(b, sizeof b, "%.3g", r->operations);
    printf("%5d %-16s %5s %5d  %s%-22s %-44s %10s %10s %10.2f\n", index, op_kind_name((op_kind)r->op->kind), layer,
           r->rows, joined ? "+" : " ", r->kernel, both, r->bytes > 0 ? format_bytes(a, r->bytes) : "", b,
           r->bound_seconds * 1e6);
}

static void print_text(const explanation *e, const char *name, const explain_arguments *arguments) {
    char a[32], b[32];
    printf("%s on backend %s, precision %s: %d operations in %d launches\n", name, e->backend,
           kakeya_precision_name(e->precision), e->n, e->launches);
    if (e->decode_rows)
        printf("%d decode row%s after %d tokens", e->decode_rows, e->decode_rows == 1 ? "" : "s", arguments->position);
    if (e->prompt_rows) printf("%s%d rows of a prompt", e->decode_rows ? ", " : "", e->prompt_rows);
    if (e->prompt_rows < arguments->prompt)
        printf(" (of %d; a forward takes %d rows)", arguments->prompt, e->most_rows);
    printf("\nbounds at %s/s and %.0f GFLOP/s, which %s\n\n", format_bytes(a, e->read_bytes_per_second),
           e->flops_per_second / 1e9, e->measured ? "were measured on this machine" : "were given");
    printf("%5s %-16s %5s %5s   %-22s %-44s %10s %10s %10s\n", "", "operation", "layer", "rows", "kernel",
           "reads -> writes", "bytes", "operations", "bound, us");
    for (int i = 0; i < e->n; i++) print_row(&e->row[i], i, i ? &e->row[i - 1] : NULL);
    printf("%5s %-16s %5s %5s   %-22s %-44s %10s %10.3g %10.2f\n", "", "sum", "", "", "", "",
           format_bytes(b, e->total.bytes), e->total.operations, e->total.bound_seconds * 1e6);
}

static void add_items(cJSON *json, const char *key, const uint8_t *items, int most) {
    cJSON *list = cJSON_AddArrayToObject(json, key);
    for (int i = 0; i < most && items[i]; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(program_item_name((program_item)items[i])));
}

static cJSON *row_json(const explain_row *r, int index) {
    const char *names[ROW_MAX_STEPS + 6];
    int n = weights_of(r->op, names);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "index", index);
    cJSON_AddNumberToObject(json, "launch", r->launch);
    cJSON_AddStringToObject(json, "operation", op_kind_name((op_kind)r->op->kind));
    if (r->op->layer >= 0)
        cJSON_AddNumberToObject(json, "layer", r->op->layer);
    else
        cJSON_AddNullToObject(json, "layer");
    cJSON_AddNumberToObject(json, "rows", r->rows);
    cJSON_AddStringToObject(json, "kernel", r->kernel);
    cJSON_AddBoolToObject(json, "fused", r->fused);
    add_items(json, "reads", r->op->in, PROGRAM_INPUTS);
    add_items(json, "writes", r->op->out, PROGRAM_OUTPUTS);
    cJSON *weights = cJSON_AddArrayToObject(json, "weights");
    for (int i = 0; i < n; i++) cJSON_AddItemToArray(weights, cJSON_CreateString(names[i]));
    if (r->op->steps) {
        cJSON *steps = cJSON_AddArrayToObject(json, "steps");
        for (int i = 0; i < r->op->steps; i++)
            cJSON_AddItemToArray(steps, cJSON_CreateString(row_verb_name((row_verb)r->op->step[i].verb)));
    }
    cJSON_AddNumberToObject(json, "bytes", r->bytes);
    cJSON_AddNumberToObject(json, "flops", r->operations);
    cJSON_AddNumberToObject(json, "bound_microseconds", r->bound_seconds * 1e6);
    return json;
}

static kakeya_status print_json(const explanation *e, const char *name, const explain_arguments *arguments,
                                kakeya_error *error) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "model", name);
    cJSON_AddStringToObject(json, "variant", e->config->variant);
    cJSON_AddNumberToObject(json, "layers", e->config->layers);
    cJSON_AddStringToObject(json, "backend", e->backend);
    cJSON_AddStringToObject(json, "precision", kakeya_precision_name(e->precision));
    cJSON_AddNumberToObject(json, "rows", e->decode_rows);
    cJSON_AddNumberToObject(json, "position", arguments->position);
    cJSON_AddNumberToObject(json, "prompt", arguments->prompt);
    cJSON_AddNumberToObject(json, "prompt_rows", e->prompt_rows);
    cJSON *rates = cJSON_AddObjectToObject(json, "rates");
    cJSON_AddNumberToObject(rates, "read_bytes_per_second", e->read_bytes_per_second);
    cJSON_AddNumberToObject(rates, "flops_per_second", e->flops_per_second);
    cJSON_AddBoolToObject(rates, "measured", e->measured);
    cJSON_AddNumberToObject(json, "launches", e->launches);
    cJSON *operations = cJSON_AddArrayToObject(json, "operations");
    for (int i = 0; i < e->n; i++) cJSON_AddItemToArray(operations, row_json(&e->row[i], i));
    cJSON *total = cJSON_AddObjectToObject(json, "total");
    cJSON_AddNumberToObject(total, "bytes", e->total.bytes);
    cJSON_AddNumberToObject(total, "flops", e->total.operations);
    cJSON_AddNumberToObject(total, "bound_microseconds", e->total.bound_seconds * 1e6);
    kakeya_status status = cli_print_json(json, error);
    cJSON_Delete(json);
    return status;
}

static kakeya_status explain(const explain_arguments *arguments, cli_shared *shared, kakeya_error *error) {
    kakeya_engine_options engine;
    kakeya_status status = cli_shared_engine_options(shared, &engine, error);
    if (status) return status;
    explain_options options = {.model = engine.model,
                               .synthetic = engine.study->synthetic,
                               .backend = shared->backend,
                               .isa = shared->study.cpu_isa,
                               .threads = shared->threads,
                               .precision = (kakeya_precision)shared->precision,
                               .decode_rows = arguments->rows,
                               .prompt_rows = arguments->prompt,
                               .position = arguments->position,
                               .read_bytes_per_second = (double)arguments->read_gb * 1e9,
                               .flops_per_second = (double)arguments->gflops * 1e9};
    if (options.decode_rows < 0) options.decode_rows = arguments->prompt ? 0 : 1;
    cli_shared_session_options(shared, &options.session);
    explanation *e = NULL;
    status = explain_make(&options, &e, error);
    const char *name = options.synthetic ? options.synthetic : options.model;
    if (!status && shared->json) status = print_json(e, name, arguments, error);
    if (!status && !shared->json) print_text(e, name, arguments);
    explain_free(e);
    return status;
}

int cli_explain(int argc, char **argv) {
    cli_shared shared;
    cli_option table[CLI_SHARED_OPTIONS];
    cli_shared_init(&shared, table);
    explain_arguments arguments = {.rows = -1, .position = 1024};
    const cli_option own[] = {
        CLI_INT("rows", "N", &arguments.rows, 0, BACKEND_MAX_DECODE_ROWS,
                "rows to decode or verify (1; 0 with --prompt)"),
        CLI_INT("prompt", "N", &arguments.prompt, 0, 1 << 24, "tokens of a prompt computed in the same step (0)"),
        CLI_INT("position", "N", &arguments.position, 0, 1 << 24, "tokens before the decoded rows (1024)"),
        CLI_FLOAT("read-gb", "X", &arguments.read_gb, 0.001, 1e6, "memory bandwidth in GB/s (measured)"),
        CLI_FLOAT("gflops", "X", &arguments.gflops, 0.001, 1e9, "rate of matrix products in GFLOP/s (measured)"),
        {.name = NULL},
    };
    int status;
    if (!cli_parse(&command, own, table, argc, argv, NULL, &status)) return status;
    if (shared.devices) return cli_usage_error(&command, "--devices: only a single device can be explained");
    if (arguments.rows == 0 && !arguments.prompt) return cli_usage_error(&command, "--rows 0 needs --prompt");

    kakeya_error error = {0};
    kakeya_status failed = explain(&arguments, &shared, &error);
    cli_shared_free(&shared);
    return failed ? cli_fail(command.name, &error) : CLI_DONE;
}
