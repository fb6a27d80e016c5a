/* kakeya score: teacher-forced likelihood of given tokens, and the logits and hidden states behind it. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/files.h"
#include "cli/cli.h"
#include "cli/images.h"
#include "cli/input.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "kakeya_study.h"

typedef struct score_options {
    cli_shared shared;
    const char *ids_file, *text_file, *out, *against;
    bool hidden_states;
    int prompt_length, image_budget;
    cli_texts images, sounds;
} score_options;

static const cli_command command = {
    .name = "score",
    .summary = "Scores given tokens: row t predicts token t + 1.",
    .operands = "",
    .details = "JSON: tokens (how many were scored), nll (their summed negative log-likelihood, natural\n"
               "logarithm), perplexity (exp(nll / tokens)) and token_nll (one by one). With --prompt-length C the\n"
               "first C tokens are a prompt: only the tokens after them are scored, and rows t >= C are decode\n"
               "rows under --attention.\n"
               "--out holds logits (F32 [tokens, vocabulary], after soft-capping) and, with --hidden-states,\n"
               "hidden_states (F32 [layers + 1, tokens, hidden]: embeddings, each layer's output, the last one\n"
               "after the final norm).\n"
               "--against compares every row with the logits of such a file, made from the same tokens with other\n"
               "weights, another precision or another attention: kl (mean KL divergence of this model from the\n"
               "file's), top1 (share of rows in which both hold the same token likeliest), against_perplexity,\n"
               "token_kl.\n"
               "--image gives pictures to the runs of the model's image token in --ids-file, one to each, in this\n"
               "order; --audio gives sounds to the runs of its audio token.\n",
    .examples = "  kakeya score --text-file README.md\n"
                "  kakeya score --ids-file ids.json --prompt-length 600 --attention restored --json\n"
                "  kakeya score --ids-file ids.json --out logits.safetensors --hidden-states\n"
                "  kakeya score --text-file a.txt --precision f32 --out exact.safetensors\n"
                "  kakeya score --text-file a.txt --model q4_0.gguf --against exact.safetensors\n",
};

/* What is scored, and its results. */
typedef struct scoring {
    int32_t *ids;
    size_t n;
    size_t vocab;
    float *nll;                /* [n - 1] */
    float *against_nll;        /* [n - 1], and so the others; NULL without a reference */
    float *against_kl;         /* [n] */
    uint8_t *against_top_same; /* [n] */
} scoring;

/* Means over the rows that predict scored tokens. */
typedef struct comparison {
    double kl, top1, perplexity;
} comparison;

static comparison compare(const scoring *s, size_t first, size_t tokens) {
    comparison c = {0};
    for (size_t t = first; t < first + tokens; t++) {
        c.kl += (double)s->against_kl[t];
        c.top1 += s->against_top_same[t];
        c.perplexity += (double)s->against_nll[t];
    }
    c.kl /= (double)tokens;
    c.top1 /= (double)tokens;
    c.perplexity = exp(c.perplexity / (double)tokens);
    return c;
}

static kakeya_status print_result(const score_options *options, const scoring *s, kakeya_error *error) {
    size_t first =
        options->prompt_length > 0 ? (size_t)options->prompt_length - 1 : 0; /* row of the first scored token */
    size_t end = s->n - 1;
    double sum = 0;
    for (size_t t = first; t < end; t++) sum += (double)s->nll[t];
    size_t tokens = end > first ? end - first : 0;
    if (!options->shared.json) {
        if (tokens) {
            printf("%zu tokens, negative log-likelihood %.6f, perplexity %.6f\n", tokens, sum,
                   exp(sum / (double)tokens));
            if (s->against_kl) {
                const comparison c = compare(s, first, tokens);
                printf("against %s of perplexity %.6f: mean KL %.6f, the same likeliest token in %.2f %%\n",
                       options->against, c.perplexity, c.kl, 100 * c.top1);
            }
        } else {
            printf("0 tokens\n");
        }
        return KAKEYA_OK;
    }
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "tokens", (double)tokens);
    cJSON_AddNumberToObject(json, "nll", sum);
    if (tokens) {
        cJSON_AddNumberToObject(json, "perplexity", exp(sum / (double)tokens));
    } else {
        cJSON_AddNullToObject(json, "perplexity");
    }
    cJSON_AddItemToObject(json, "token_nll", cJSON_CreateFloatArray(s->nll + first, (int)tokens));
    if (s->against_kl && tokens) {
        const comparison c = compare(s, first, tokens);
        cJSON_AddNumberToObject(json, "kl", c.kl);
        cJSON_AddNumberToObject(json, "top1", c.top1);
        cJSON_AddNumberToObject(json, "against_perplexity", c.perplexity);
        cJSON_AddItemToObject(json, "token_kl", cJSON_CreateFloatArray(s->against_kl + first, (int)tokens));
    }
    kakeya_status status = cli_print_json(json, error);
    cJSON_Delete(json);
    return status;
}

static kakeya_status read_tokens(const score_options *options, const kakeya_engine *engine, scoring *s,
                                 kakeya_error *error) {
    if (options->ids_file) return input_read_ids(options->ids_file, (int)s->vocab, &s->ids, &s->n, error);
    char *text;
    size_t bytes;
    kakeya_status status = input_read_text(options->text_file, &text, &bytes, error);
    if (status) return status;
    status = kakeya_tokenize(kakeya_engine_tokenizer(engine), text, bytes, KAKEYA_TEXT_PROMPT, &s->ids, &s->n, error);
    free(text);
    return status;
}

static kakeya_status score(score_options *options, kakeya_error *error) {
    kakeya_engine *engine = NULL;
    kakeya_session *session = NULL;
    scoring s = {0};
    cli_images images = {0};
    kakeya_session_options session_options;

    const char *source = options->ids_file ? options->ids_file : options->text_file, *model = NULL;
    kakeya_status status = cli_shared_model(&options->shared, &model, error);
    if (!status) status = output_spares("out", options->out, source, error);
    if (!status) status = output_spares("out", options->out, model, error);
    if (!status) status = output_spares("out", options->out, options->against, error);
    for (size_t i = 0; i < options->shared.drafter.n && !status; i++)
        status = output_spares("out", options->out, options->shared.drafter.text[i], error);
    if (!status) status = output_spares("out", options->out, options->shared.f_theta, error);
    if (!status) status = cli_images_read(&options->images, options->image_budget, &options->sounds, &images, error);
    if (!status) status = cli_open_engine(command.name, &options->shared, &engine, error);
    if (status) goto done;
    s.vocab = (size_t)kakeya_engine_vocab_size(engine);
    status = read_tokens(options, engine, &s, error);
    if (status) goto done;
    if (s.n == 0) {
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: no tokens", source);
        goto done;
    }
    if ((size_t)options->prompt_length > s.n) {
        status = error_set(error, KAKEYA_INVALID_ARGUMENT, "--prompt-length %d: %s has only %zu tokens",
                           options->prompt_length, source, s.n);
        goto done;
    }
    cli_shared_session_options(&options->shared, &session_options);
    status = kakeya_session_open(engine, &session_options, &session, error);
    if (status) goto done;
    if (options->out && directory_exists(options->out))
        status = error_set(error, KAKEYA_IO, "--out: %s is a directory", options->out);
    if (status) goto done;
    s.nll = malloc((s.n + 1) * sizeof *s.nll);
    if (options->against) {
        s.against_nll = malloc((s.n + 1) * sizeof *s.against_nll);
        s.against_kl = malloc((s.n + 1) * sizeof *s.against_kl);
        s.against_top_same = malloc(s.n + 1);
    }
    if (!s.nll || (options->against && (!s.against_nll || !s.against_kl || !s.against_top_same))) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: %zu tokens", s.n);
        goto done;
    }
    kakeya_score_options how;
    KAKEYA_INIT(&how);
    how.prompt_length = (size_t)options->prompt_length;
    how.nll = s.nll;
    how.media = images.media;
    how.n_media = images.n;
    how.file = options->out;
    how.against = options->against;
    how.against_nll = s.against_nll;
    how.against_kl = s.against_kl;
    how.against_top_same = s.against_top_same;
    how.file_hidden_states = options->hidden_states;
    how.progress = terminal_progress;
    status = kakeya_session_score(session, s.ids, s.n, &how, error);
    terminal_clear_progress();
    if (status) goto done;
    status = print_result(options, &s, error);
done:
    kakeya_session_close(session);
    kakeya_engine_close(engine);
    cli_images_free(&images);
    free(s.nll);
    free(s.against_nll);
    free(s.against_kl);
    free(s.against_top_same);
    kakeya_free(s.ids);
    return status;
}

int cli_score(int argc, char **argv) {
    score_options options = {0};
    cli_option shared[CLI_SHARED_OPTIONS];
    cli_shared_init(&options.shared, shared);
    const cli_option own[] = {
        CLI_TEXT("ids-file", "FILE", &options.ids_file, "token ids as they are, a JSON array ('-': standard input)"),
        CLI_TEXT("text-file", "FILE", &options.text_file, "text, tokenised with <bos> before it ('-': standard input)"),
        CLI_INT("prompt-length", "C", &options.prompt_length, 0, 1 << 30,
                "the first C tokens are a prompt (0: all rows are prompt rows, all tokens are scored)"),
        CLI_TEXT("out", "FILE", &options.out, "write the logits to a safetensors file"),
        CLI_TEXT("against", "FILE", &options.against, "compare with the logits that --out wrote for the same tokens"),
        CLI_FLAG("hidden-states", &options.hidden_states, "hidden states into --out as well"),
        CLI_IMAGE_OPTIONS(&options.images, &options.image_budget),
        CLI_AUDIO_OPTION(&options.sounds),
        {.name = NULL},
    };
    int status;
    if (!cli_parse(&command, own, shared, argc, argv, NULL, &status)) return status;
    if (!options.ids_file == !options.text_file)
        return cli_usage_error(&command, "give either --ids-file or --text-file");
    if (options.images.n && !options.ids_file) return cli_usage_error(&command, "--image needs --ids-file");
    if (options.sounds.n && !options.ids_file) return cli_usage_error(&command, "--audio needs --ids-file");
    if (options.hidden_states && !options.out) return cli_usage_error(&command, "--hidden-states needs --out");

    kakeya_error error = {0};
    int result = score(&options, &error) ? cli_fail(command.name, &error) : CLI_DONE;
    cli_shared_free(&options.shared);
    return result;
}
