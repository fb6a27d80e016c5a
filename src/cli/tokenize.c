/* kakeya tokenize: text to ids and back; reads the tokenizer alone. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/terminal.h"

typedef struct tokenize_options {
    cli_shared shared;
    const char *text_file, *ids_file;
    bool decode, no_special_tokens;
} tokenize_options;

static const cli_command command = {
    .name = "tokenize",
    .summary = "Turns text into token ids, or ids into text.",
    .operands = "",
    .examples = "  kakeya tokenize --text-file README.md --json | jq '.ids | length'\n"
                "  kakeya tokenize --decode --ids-file ids.json\n",
};

static kakeya_status open_tokenizer(tokenize_options *options, kakeya_tokenizer **out, kakeya_error *error) {
    const char *model;
    kakeya_status status = cli_shared_model(&options->shared, &model, error);
    if (status) return status;
    if (!model) return error_set(error, KAKEYA_INVALID_ARGUMENT, "--synthetic: synthetic models have no tokenizer");
    return kakeya_tokenizer_open(model, out, error);
}

static kakeya_status encode(const tokenize_options *options, const kakeya_tokenizer *t, kakeya_error *error) {
    char *text = NULL;
    size_t bytes, n = 0;
    int32_t *ids = NULL;
    kakeya_status status = input_read_text(options->text_file ? options->text_file : "-", &text, &bytes, error);
    if (status) return status;
    int how = KAKEYA_TEXT_PARSE_SPECIAL | (options->no_special_tokens ? 0 : KAKEYA_TEXT_ADD_SPECIAL);
    status = kakeya_tokenize(t, text, bytes, how, &ids, &n, error);
    if (status) goto done;
    if (options->shared.json) {
        cJSON *json = cJSON_CreateObject();
        cJSON_AddItemToObject(json, "ids", cJSON_CreateIntArray(ids, (int)n));
        cJSON *tokens = cJSON_AddArrayToObject(json, "tokens");
        for (size_t i = 0; i < n; i++) {
            cJSON_AddItemToArray(tokens, cJSON_CreateString(kakeya_tokenizer_piece(t, ids[i])));
        }
        status = cli_print_json(json, error);
        cJSON_Delete(json);
    } else {
        for (size_t i = 0; i < n; i++) printf("%d\t%s\n", (int)ids[i], kakeya_tokenizer_piece(t, ids[i]));
    }
done:
    free(ids);
    free(text);
    return status;
}

static kakeya_status decode(const tokenize_options *options, const kakeya_tokenizer *t, kakeya_error *error) {
    int32_t *ids = NULL;
    size_t n = 0, bytes = 0;
    char *text = NULL;
    const char *path = options->ids_file ? options->ids_file : "-";
    kakeya_status status = input_read_ids(path, kakeya_tokenizer_vocab_size(t), &ids, &n, error);
    if (status) return status;
    status = kakeya_detokenize(t, ids, n, !options->no_special_tokens, &text, &bytes, error);
    if (status) goto done;
    if (options->shared.json) {
        cJSON *json = cJSON_CreateObject();
        cli_json_add_text(json, "text", text, bytes);
        status = cli_print_json(json, error);
        cJSON_Delete(json);
    } else if (terminal_write(text, bytes) && (bytes == 0 || text[bytes - 1] != '\n')) {
        terminal_write("\n", 1);
    }
done:
    free(text);
    free(ids);
    return status;
}

int cli_tokenize(int argc, char **argv) {
    tokenize_options options = {0};
    cli_option shared[CLI_SHARED_OPTIONS];
    cli_shared_init(&options.shared, shared);
    const cli_option own[] = {
        CLI_TEXT("text-file", "FILE", &options.text_file, "the text ('-' or nothing: standard input)"),
        CLI_FLAG("no-special-tokens", &options.no_special_tokens,
                 "add no <bos>; with --decode, leave special tokens out"),
        CLI_FLAG("decode", &options.decode, "ids to text"),
        CLI_TEXT("ids-file", "FILE", &options.ids_file,
                 "the ids for --decode, a JSON array ('-' or nothing: standard input)"),
        {.name = NULL},
    };
    int status;
    if (!cli_parse(&command, own, shared, argc, argv, NULL, &status)) return status;
    if (options.decode && options.text_file)
        return cli_usage_error(&command, "--decode takes --ids-file, not --text-file");
    if (!options.decode && options.ids_file) return cli_usage_error(&command, "--ids-file needs --decode");

    kakeya_error error = {0};
    kakeya_tokenizer *t = NULL;
    kakeya_status failed = open_tokenizer(&options, &t, &error);
    if (!failed) failed = options.decode ? decode(&options, t, &error) : encode(&options, t, &error);
    kakeya_tokenizer_close(t);
    int result = failed ? cli_fail(command.name, &error) : CLI_DONE;
    cli_shared_free(&options.shared);
    return result;
}
