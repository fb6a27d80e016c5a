/* kakeya eval: policies and decode modes side by side, with a report that `kakeya gate` can check. */
#include "cli/eval.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/eval_output.h"
#include "cli/images.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "measure/draft_study.h"
#include "measure/lossless_batch_plan.h"
#include "measure/mac.h"

static const char all_policies[] = "native, sink-window and, with an f_theta, restored";

/* -------------------------------------------------------------------------------------------------------- niah */

static const cli_command niah_command = {
    .name = "eval niah",
    .summary = "Needle in a haystack: recall, resident K/V and speed of attention policies.",
    .operands = "",
    .details = "Every policy answers the same prompts, once one token at a time and once in --mode. --mix-alpha and\n"
               "--identity-restore add diagnostic rows in which evicted K/V are alpha * own + (1 - alpha) * f_theta\n"
               "in all layers.\n"
               "\n"
               "With --images, the codes are four digits in pictures, which the bundled model reads.\n",
    .examples = "  kakeya eval niah --lines 12,40,60,150,280 --samples 5 --report r.json --plot r.svg\n"
                "  kakeya eval niah --lines 60,280 --draft-window 64,256,1024\n"
                "  kakeya eval niah --images --lines 12,60,150\n"
                "  kakeya eval niah --lines 12,40 --mix-alpha 0,0.25,0.5,0.75,1\n",
};

/* "0,0.25,1": fractions in [0, 1]. */
static bool parse_fractions(const char *text, double out[CLI_MAX_VALUES], size_t *n) {
    for (const char *at = text;; at++) {
        char *end;
        double value = strtod(at, &end);
        if (end == at || *n + 1 >= CLI_MAX_VALUES || !(value >= 0 && value <= 1)) return false;
        out[(*n)++] = value;
        at = end;
        if (!*at) return true;
        if (*at != ',') return false;
    }
}

static int run_niah(int argc, char **argv, const eval_again *again) {
    eval_command c;
    eval_command_init(&c, argc, argv, again);
    eval_drop_option(c.shared_table, "draft-window");
    cli_ints lines = {{12, 40, 60, 150, 280}, 5}, draft_windows = {{c.shared.draft_window}, 1};
    const char *mix_alpha = NULL;
    bool identity = false;
    int mode = KAKEYA_MODE_AUTO;
    double alphas[CLI_MAX_VALUES];
    eval_niah_options o = {.samples = 5, .seed = 42, .max_tokens = 48, .mix_alpha = alphas};
    const cli_option own[] = {
        CLI_INTS("lines", "LIST", &lines, 10, 100000, "numbers of haystack lines (12,40,60,150,280)"),
        CLI_INT("samples", "N", &o.samples, 1, 10000, "prompts per number of lines (5)"),
        CLI_FLAG("facts", &o.facts, "ask for one of a list of facts, as text to continue: for base models"),
        CLI_FLAG("images", &o.pictures, "show each code in a picture between the lines, instead of writing it"),
        POLICIES_OPTION(c, "native,sink-window,restored"),
        CLI_CHOICE("mode", "MODE", &mode, cli_mode_names,
                   "mode to compare with ar: auto, ar, speculative or ngram (auto)"),
        CLI_INT("draft-length", "N", &o.draft_length, 0, 16,
                "drafts per block; 0: the drafter's block size - 1, in auto up to 16 (0)"),
        CLI_INTS("draft-window", "LIST", &draft_windows, 1, 1 << 24,
                 "numbers of positions that the drafter keeps, one arm each (1024)"),
        SEED_OPTION(o),
        MAX_TOKENS_OPTION(o, "48"),
        CLI_FLAG("identity-restore", &identity,
                 "diagnostic: restore the exact K/V at evicted positions; must equal native"),
        CLI_TEXT("mix-alpha", "LIST", &mix_alpha,
                 "diagnostic: shares of exact K/V at evicted positions, e.g. 0,0.25,0.5,0.75,1"),
        REPORT_OPTION(c),
        CLI_TEXT("plot", "FILE", &c.plot, "draw recall, memory and speed against context as SVG"),
        {.name = NULL},
    };
    int status;
    if (!cli_parse(&niah_command, own, c.shared_table, argc, argv, NULL, &status)) return status;
    if (mix_alpha && !parse_fractions(mix_alpha, alphas, &o.n_mix_alpha))
        return cli_usage_error(&niah_command, "--mix-alpha: '%s' is not a list of numbers from 0 to 1", mix_alpha);
    if (o.facts && o.pictures) return cli_usage_error(&niah_command, "--images and --facts exclude each other");
    for (size_t i = 0; i < o.n_mix_alpha; i++) identity &= alphas[i] < 1;
    if (identity) alphas[o.n_mix_alpha++] = 1;
    o.lines = lines.value;
    o.n_lines = lines.n;
    o.mode = (kakeya_mode)mode;
    o.draft_windows = draft_windows.value;
    o.n_draft_windows = draft_windows.n;

    terminal_meter progress = {0};
    c.setup.user = &progress;
    kakeya_error error = {0};
    eval_report *report = NULL;
    kakeya_status result = eval_prepare(&c, &o.policies, NULL, 0, &error);
    if (result == KAKEYA_OK) result = eval_niah(&c.setup, &o, &report, &error);
    return eval_finish(&c, niah_command.name, result, report, &error);
}

/* ---------------------------------------------------------------------------------------------------- fidelity */

static const cli_command fidelity_command = {
    .name = "eval fidelity",
    .summary = "Perplexity, top-1 agreement and KL divergence against native attention.",
    .operands = "[FILE]...",
    .details =
        "Text files are cut into sequences of --prompt-length + --score-tokens tokens. A file of ids is a\n"
        "JSON object with \"sequences\", an array of id arrays or of objects with \"input_ids\", and optionally\n"
        "\"prompt_length\". With --turns 3, the same tokens are scored as the third answer of a conversation:\n"
        "the prompt then ends with two answers and two prompts, each as long as the scored part.\n",
    .examples = "  kakeya eval fidelity README.md --windows 32,64,128\n"
                "  kakeya eval fidelity --ids-json sequences.json --precision f32 --report f.json\n",
};

static int run_fidelity(int argc, char **argv, const eval_again *again) {
    eval_command c;
    eval_command_init(&c, argc, argv, again);
    eval_drop_option(c.shared_table, "window");
    cli_ints windows = {{c.shared.window}, 1};
    cli_texts texts = {{NULL}, 0};
    eval_corpus corpus = {0};
    eval_fidelity_options o = {.score_tokens = 64, .turns = 1};
    const cli_option own[] = {
        CLI_TEXTS("text", "FILE", &texts, "text file; may be repeated (the bundled sources)"),
        CLI_TEXT("ids-json", "FILE", &o.ids_json, "file with sequences of token ids"),
        CLI_INT("prompt-length", "N", &o.prompt_length, 0, 1 << 24,
                "prompt tokens before the scored ones (from the ids file, else 600)"),
        CLI_INT("score-tokens", "N", &o.score_tokens, 1, 1 << 24, "scored tokens per sequence of a text (64)"),
        CLI_INT("max-sequences", "N", &o.max_sequences, 0, 1 << 24, "take only the first N sequences (0: all)"),
        CLI_INT("turns", "N", &o.turns, 1, 1 << 16, "score the answer of the N-th turn (1)"),
        POLICIES_OPTION(c, "native,sink-window,restored"),
        CLI_INTS("windows", "LIST", &windows, 1, 1 << 20,
                 "numbers of last positions that stay exact, one arm each (64)"),
        CLI_INTS("window", "N", &windows, 1, 1 << 20, "the same with a single value"),
        REPORT_OPTION(c),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&fidelity_command, own, c.shared_table, argc, argv, &first, &status)) return status;
    for (; first < argc && texts.n < CLI_MAX_VALUES; first++) texts.text[texts.n++] = argv[first];
    if (first < argc) return cli_usage_error(&fidelity_command, "more than %d text files", CLI_MAX_VALUES);
    for (size_t i = 0; i < texts.n; i++) texts.text[i] = eval_input(&c, texts.text[i]);
    if (o.ids_json) o.ids_json = eval_input(&c, o.ids_json);
    o.texts = texts.text;
    o.n_texts = texts.n;
    o.windows = windows.value;
    o.n_windows = windows.n;
    if (!texts.n && !o.ids_json) {
        eval_corpus_find(&corpus);
        o.texts = (const char *const *)corpus.paths;
        o.n_texts = corpus.n;
    }

    terminal_meter progress = {0};
    c.setup.user = &progress;
    kakeya_error error = {0};
    eval_report *report = NULL;
    kakeya_status result = eval_prepare(&c, &o.policies, o.texts, o.n_texts, &error);
    if (result == KAKEYA_OK) result = eval_check_outputs(&c, &o.ids_json, 1, &error);
    if (result == KAKEYA_OK) result = eval_fidelity(&c.setup, &o, &report, &error);
    eval_corpus_free(&corpus);
    return eval_finish(&c, fidelity_command.name, result, report, &error);
}

/* -------------------------------------------------------------------------------------------------------- code */

static const cli_command code_command = {
    .name = "eval code",
    .summary = "Speed of speculative decoding of source files, by draft length.",
    .operands = "[FILE]...",
    .details = "The start of every file is the prompt; the answer ends at a stop token or at --max-tokens. Arms take\n"
               "turns, and speeds are medians over repetitions. Without files, the bundled sources are used.\n",
    .examples = "  kakeya eval code --report c.json\n"
                "  kakeya eval code src/base/alloc.c --draft-lengths 1,3,5,7 --repetitions 9\n",
};

static const char *const *files_or_corpus(eval_command *c, int argc, char **argv, int first, eval_corpus *corpus,
                                          size_t *n) {
    if (first < argc) {
        for (int i = first; c->again && i < argc; i++) argv[i] = (char *)eval_input(c, argv[i]);
        *n = (size_t)(argc - first);
        return (const char *const *)(argv + first);
    }
    eval_corpus_find(corpus);
    *n = corpus->n;
    return (const char *const *)corpus->paths;
}

static kakeya_status require_files(size_t n, kakeya_error *error) {
    return n ? KAKEYA_OK
             : error_set(error, KAKEYA_IO,
                         "no source files: the bundled ones are not beside the executable; name some");
}

static int run_code(int argc, char **argv, const eval_again *again) {
    eval_command c;
    eval_command_init(&c, argc, argv, again);
    cli_ints lengths = {{2, 4, 8, 16}, 4};
    eval_corpus corpus = {0};
    eval_code_options o = {.prompt_tokens = 512, .max_tokens = 96, .repetitions = 5};
    const cli_option own[] = {
        CLI_INTS("draft-lengths", "LIST", &lengths, 1, 16, "tokens drafted per block, one arm each (2,4,8,16)"),
        CLI_INT("repetitions", "N", &o.repetitions, 1, 1000, "runs of every arm on every file (5)"),
        CLI_INT("prompt-tokens", "N", &o.prompt_tokens, 16, 1 << 24,
                "prompt tokens, from the start of each file (512)"),
        MAX_TOKENS_OPTION(o, "96"),
        POLICIES_OPTION(c, "native"),
        REPORT_OPTION(c),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&code_command, own, c.shared_table, argc, argv, &first, &status)) return status;
    o.files = files_or_corpus(&c, argc, argv, first, &corpus, &o.n_files);
    o.draft_lengths = lengths.value;
    o.n_draft_lengths = lengths.n;

    terminal_meter progress = {0};
    c.setup.user = &progress;
    kakeya_error error = {0};
    eval_report *report = NULL;
    kakeya_status result = eval_prepare(&c, &o.policies, o.files, o.n_files, &error);
    if (result == KAKEYA_OK) result = require_files(o.n_files, &error);
    if (result == KAKEYA_OK) result = eval_code(&c.setup, &o, &report, &error);
    eval_corpus_free(&corpus);
    return eval_finish(&c, code_command.name, result, report, &error);
}

/* -------------------------------------------------------------------------------------------------- acceptance */

static const cli_command acceptance_command = {
    .name = "eval acceptance",
    .summary = "Accepted drafts by position, for each drafter, both DFlash forms, and n-grams.",
    .operands = "[FILE]",
    .details =
        "The file has JSON lines with \"prompt\" (as in HumanEval) or \"turns\", plain or compressed with gzip.\n"
        "Prompts with a \"category\" are also counted by category. Public engines disagree on whether a DFlash\n"
        "drafter's block embeddings are scaled by sqrt(hidden size); the form with more tokens per forward is\n"
        "the right one.\n",
    .examples = "  kakeya eval acceptance --jsonl HumanEval.jsonl.gz --report a.json\n",
};

static int run_acceptance(int argc, char **argv, const eval_again *again) {
    eval_command c;
    eval_command_init(&c, argc, argv, again);
    eval_acceptance_options o = {.max_tokens = 96};
    const cli_option own[] = {
        CLI_TEXT("jsonl", "FILE", &o.jsonl, "prompts, one JSON object per line"),
        CLI_INT("prompts", "N", &o.prompts, 0, 1 << 24, "take only the first N prompts (0: all)"),
        CLI_INT("draft-length", "N", &o.draft_length, 0, 16,
                "drafts per block; 0: the drafter's block size - 1, in auto up to 16 (0)"),
        MAX_TOKENS_OPTION(o, "96"),
        CLI_FLAG("chat", &o.chat, "use prompts as user messages instead of as texts to continue"),
        REPORT_OPTION(c),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&acceptance_command, own, c.shared_table, argc, argv, &first, &status)) return status;
    if (first < argc && !o.jsonl) o.jsonl = argv[first++];
    if (first < argc) return cli_usage_error(&acceptance_command, "unexpected '%s'", argv[first]);
    if (!o.jsonl) return cli_usage_error(&acceptance_command, "--jsonl is missing");
    o.jsonl = eval_input(&c, o.jsonl);

    terminal_meter progress = {0};
    c.setup.user = &progress;
    kakeya_error error = {0};
    eval_report *report = NULL;
    eval_policies none;
    kakeya_status result = eval_prepare(&c, &none, &o.jsonl, 1, &error);
    if (result == KAKEYA_OK) result = eval_acceptance(&c.setup, &o, &report, &error);
    return eval_finish(&c, acceptance_command.name, result, report, &error);
}

/* ---------------------------------------------------------------------------------------------------- lossless */

static const cli_command lossless_command = {
    .name = "eval lossless",
    .summary = "Checks that every decode mode gives the tokens of plain autoregression.",
    .operands = "[FILE]...",
    .details = "Prompts are needles, parts of the source files (without files: the bundled ones) and random ids.\n"
               "They run at temperatures 0, 0.7 and 1, draft lengths 1 to 16, several prompt chunk sizes, 1 and 2\n"
               "threads, with native and restored attention. Under every policy an answer is also truncated and\n"
               "generated again. The first few prompts also run the slow references: every token from a whole new\n"
               "forward, every block from a new drafter context.\n"
               "\n"
               "With --batch, sessions that are computed together are compared with the same sessions alone, and so\n"
               "are their log-probabilities, bit for bit. The seed determines compositions of up to --sessions\n"
               "sessions, with prompts beside answers, forks, cancelled answers, every mode and policy, and\n"
               "temperatures 0 and 1.\n"
               "\n"
               "With --image, every prompt has one or two of the pictures, at places that the seed determines.\n",
    .examples = "  kakeya eval lossless --prompts 200 --report l.json\n"
                "  kakeya eval lossless --model google/gemma-4-E4B-it --image a.png --image b.jpg,budget=1120\n"
                "  kakeya eval lossless --batch --compositions 100 --report b.json\n",
};

/* FILE or FILE,budget=N with the file where a replay has it. Malloc'ed; NULL when out of memory. */
static char *find_picture(eval_command *c, const char *given) {
    char *path = cli_image_path(given), *out = NULL;
    if (!path) return NULL;
    const bool kept = c->n_found < EVAL_MAX_WORDS; /* a file that is not there is told by its name */
    if (kept) c->found[c->n_found++] = path;
    if (asprintf(&out, "%s%s", eval_input(c, path), given + strlen(path)) < 0) out = NULL;
    if (!kept) free(path);
    return out;
}

static kakeya_status read_pictures(eval_command *c, const cli_texts *names, int budget, cli_images *out,
                                   kakeya_error *error) {
    cli_texts here = {0};
    char *found[CLI_MAX_VALUES];
    kakeya_status status = KAKEYA_OK;
    for (; here.n < names->n && !status; here.n++) {
        here.text[here.n] = found[here.n] = find_picture(c, names->text[here.n]);
        if (!found[here.n]) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "--image: out of memory");
    }
    if (!status) status = cli_images_read(&here, budget, NULL, out, error);
    for (size_t i = 0; i < here.n; i++) free(found[i]);
    return status;
}

static const size_t kept_rows_bytes = (size_t)1 << 30; /* of pictures: the slow references ask for them again */

static int run_lossless(int argc, char **argv, const eval_again *again) {
    eval_command c;
    eval_command_init(&c, argc, argv, again);
    eval_drop_option(c.shared_table, "threads");
    eval_corpus corpus = {0};
    eval_lossless_options o = {.prompts = 200, .max_tokens = 32, .seed = 42, .reference_prompts = 2};
    eval_lossless_batch_options b = {.compositions = 40, .sessions = LOSSLESS_BATCH_SESSIONS};
    bool batch = false;
    cli_texts image_names = {0};
    int image_budget = 0;
    cli_images images = {0};
    const cli_option own[] = {
        CLI_INT("prompts", "N", &o.prompts, 1, 1 << 20, "number of prompts, each of which runs in every mode (200)"),
        MAX_TOKENS_OPTION(o, "32"),
        SEED_OPTION(o),
        CLI_INT("reference-prompts", "N", &o.reference_prompts, 0, 1 << 20,
                "number of prompts that also run the slow references (2)"),
        CLI_FLAG("batch", &batch, "instead compare sessions computed together with the same sessions alone"),
        CLI_INT("compositions", "N", &b.compositions, 1, 1 << 20, "with --batch: number of compositions (40)"),
        CLI_INT("sessions", "N", &b.sessions, 2, LOSSLESS_BATCH_SESSIONS,
                "with --batch: maximum number of sessions in a composition (32)"),
        POLICIES_OPTION(c, "with --batch: all"),
        CLI_IMAGE_OPTIONS(&image_names, &image_budget),
        REPORT_OPTION(c),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&lossless_command, own, c.shared_table, argc, argv, &first, &status)) return status;
    o.files = files_or_corpus(&c, argc, argv, first, &corpus, &o.n_files);

    terminal_meter progress = {0};
    c.setup.user = &progress;
    kakeya_error error = {0};
    eval_report *report = NULL;
    if (c.policies && !batch) return cli_usage_error(&lossless_command, "--policies needs --batch");
    kakeya_status result = eval_prepare(&c, &b.policies, o.files, o.n_files, &error);
    if (result == KAKEYA_OK) result = require_files(o.n_files, &error);
    if (result == KAKEYA_OK) result = read_pictures(&c, &image_names, image_budget, &images, &error);
    o.pictures = b.pictures = (eval_pictures){images.media, images.n};
    if (images.n) c.setup.engine.image_rows_bytes = kept_rows_bytes;
    b.max_tokens = o.max_tokens;
    b.seed = o.seed;
    b.files = o.files;
    b.n_files = o.n_files;
    if (result == KAKEYA_OK)
        result = batch ? eval_lossless_batch(&c.setup, &b, &report, &error)
                       : eval_lossless_run(&c.setup, &o, &report, &error);
    cli_images_free(&images);
    eval_corpus_free(&corpus);
    return eval_finish(&c, lossless_command.name, result, report, &error);
}

/* ------------------------------------------------------------------------------------------------ draft policy */

static const cli_command draft_policy_command = {
    .name = "eval draft-policy",
    .summary = "Benefit of adaptive draft lengths, and the influence of each constant.",
    .operands = "[FILE]...",
    .details = "Texts are recorded once with the drafts and times of their blocks: code (the files, or the bundled\n"
               "ones), needles and random text. The recording is then decoded under other policies, using its\n"
               "recorded times.\n",
    .examples = "  kakeya eval draft-policy --trace t.json\n  kakeya eval draft-policy --replay t.json\n",
};

static int run_draft_policy(int argc, char **argv, const eval_again *again) {
    eval_command c;
    eval_command_init(&c, argc, argv, again);
    eval_corpus corpus = {0};
    const char *trace = NULL, *replay = NULL;
    draft_record_options o = {.needles = 12, .random_texts = 8, .max_tokens = 192, .seed = 42};
    const cli_option own[] = {
        CLI_TEXT("trace", "FILE", &trace, "write the recording to FILE"),
        CLI_TEXT("replay", "FILE", &replay, "read the recording from FILE instead of making one"),
        CLI_INT("needles", "N", &o.needles, 0, 1000, "number of needle prompts (12)"),
        CLI_INT("random-texts", "N", &o.random_texts, 0, 1000, "number of random prompts (8)"),
        MAX_TOKENS_OPTION(o, "192"),
        SEED_OPTION(o),
        POLICIES_OPTION(c, "native"),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&draft_policy_command, own, c.shared_table, argc, argv, &first, &status)) return status;
    if (replay && (trace || first < argc))
        return cli_usage_error(&draft_policy_command, "--replay excludes --trace and files");
    o.files = files_or_corpus(&c, argc, argv, first, &corpus, &o.n_files);

    terminal_meter progress = {0};
    c.setup.user = &progress;
    kakeya_error error = {0};
    draft_traces traces = {0};
    file_writer *writer = NULL;
    kakeya_status result;
    if (replay) {
        result = draft_traces_load(replay, &traces, &error);
    } else {
        result = eval_prepare(&c, &o.policies, o.files, o.n_files, &error);
        if (result == KAKEYA_OK) result = require_files(o.n_files, &error);
        for (size_t i = 0; result == KAKEYA_OK && i < o.n_files; i++)
            result = output_spares("trace", trace, o.files[i], &error);
        if (result == KAKEYA_OK && trace) result = file_writer_open(trace, &writer, &error);
        if (result == KAKEYA_OK) result = draft_record(&c.setup, &o, &traces, &error);
        if (result == KAKEYA_OK && trace) result = draft_traces_write(&traces, writer, &error);
        if (result == KAKEYA_OK && trace) {
            result = file_writer_commit(writer, &error);
            writer = NULL;
        }
    }
    terminal_meter_clear(&progress);
    if (result == KAKEYA_OK) result = eval_print_draft_policies(&traces, c.shared.json, &error);
    draft_traces_free(&traces);
    file_writer_abort(writer);
    eval_corpus_free(&corpus);
    eval_command_free(&c);
    return result == KAKEYA_OK ? CLI_DONE : cli_fail(draft_policy_command.name, &error);
}

/* --------------------------------------------------------------------------------------------------- kv-format */

static const cli_command kv_format_command = {
    .name = "eval kv-format",
    .summary = "K/V formats of full-attention layers: bytes, error, divergence, recall and speed.",
    .operands = "[FILE]...",
    .details = "Sessions keep float32 K/V, and attention reads every vector as the tested format gives it back after\n"
               "packing and unpacking. With --as-stored, and on backends other than cpu, sessions keep the format\n"
               "itself: bf16, which is the reference, q8 and q4. Text files (without any: the bundled sources) are\n"
               "cut into sequences of --prompt-length + --score-tokens tokens; each comes with a needle prompt.\n"
               "\n"
               "Formats: identity, bf16, fp8, q8, affine8, affine4, q4, and the lattices d4-10, d4-38, d4-152, e8-9,\n"
               "e8-38, e8-151.\n",
    .examples = "  kakeya eval kv-format --report k.json && kakeya gate k.json\n"
                "  kakeya eval kv-format --formats q8,affine4,d4-10,e8-9 --sequences 10 --lines 60\n",
};

static int run_kv_format(int argc, char **argv, const eval_again *again) {
    eval_command c;
    eval_command_init(&c, argc, argv, again);
    static const char *const fixed[] = {"kv-format", "sink", "window", "draft-window"};
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) eval_drop_option(c.shared_table, fixed[i]);
    eval_corpus corpus = {0};
    eval_kv_format_options o = {
        .prompt_length = 256, .score_tokens = 64, .sequences = 5, .lines = 40, .max_tokens = 24, .seed = 42};
    const char *formats = NULL;
    const cli_option own[] = {
        CLI_TEXT("formats", "LIST", &formats, "formats, separated by commas (all); identity is always included"),
        CLI_INT("prompt-length", "N", &o.prompt_length, 1, 1 << 24, "prompt tokens before the scored ones (256)"),
        CLI_INT("score-tokens", "N", &o.score_tokens, 1, 1 << 24, "scored tokens per sequence (64)"),
        CLI_INT("sequences", "N", &o.sequences, 1, 10000, "number of sequences, each with a needle prompt (5)"),
        CLI_INT("lines", "N", &o.lines, 10, 100000, "number of haystack lines of the needle prompts (40)"),
        CLI_FLAG("as-stored", &o.as_stored, "keep K/V in the format itself, in the backend's own cache"),
        SEED_OPTION(o),
        MAX_TOKENS_OPTION(o, "24"),
        REPORT_OPTION(c),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&kv_format_command, own, c.shared_table, argc, argv, &first, &status)) return status;
    o.texts = files_or_corpus(&c, argc, argv, first, &corpus, &o.n_texts);

    terminal_meter progress = {0};
    c.setup.user = &progress;
    kakeya_error error = {0};
    eval_report *report = NULL;
    eval_policies names = {0};
    c.policies = formats;
    kakeya_status result = eval_prepare(&c, &names, o.texts, o.n_texts, &error);
    o.formats = names.names;
    o.n_formats = names.n;
    if (result == KAKEYA_OK) result = require_files(o.n_texts, &error);
    if (result == KAKEYA_OK) result = eval_kv_format(&c.setup, &o, &report, &error);
    eval_corpus_free(&corpus);
    return eval_finish(&c, kv_format_command.name, result, report, &error);
}

/* ---------------------------------------------------------------------------------------------- mac-acceptance */

static const cli_command mac_command = {
    .name = "eval mac-acceptance",
    .summary = "Acceptance test of the MLX backend on this machine, with one report to send back.",
    .operands = "[FILE]...",
    .details = "Compares tokens row by row, greedy answers and moved sessions with the CPU backend; checks every\n"
               "decode mode; measures memory over a session of 7,000 tokens, and speed relative to what the device\n"
               "allows; then runs eval lossless and eval niah. Only one engine is open at a time. The defaults are\n"
               "--backend mlx and --precision bf16.\n",
    .examples = "  kakeya eval mac-acceptance --report mac.json && kakeya gate mac.json\n"
                "  kakeya eval mac-acceptance --quick --precision f32 --report quick.json\n",
};

static kakeya_status write_mac(eval_command *c, file_writer **writer, const cJSON *report, kakeya_error *error) {
    char *text = cJSON_PrintUnformatted(report);
    if (!text) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory while writing JSON");
    kakeya_status status = KAKEYA_OK;
    if (*writer) {
        status = file_writer_write(*writer, text, strlen(text), error);
        if (!status) status = file_writer_write(*writer, "\n", 1, error);
        if (!status) {
            status = file_writer_commit(*writer, error);
            *writer = NULL;
        }
    }
    if (!status && c->shared.json && terminal_write(text, strlen(text))) terminal_write("\n", 1);
    cJSON_free(text);
    return status;
}

static int run_mac(int argc, char **argv, const eval_again *again) {
    eval_command c;
    eval_command_init(&c, argc, argv, again);
    eval_corpus corpus = {0};
    eval_mac_options o = {0};
    const cli_option own[] = {
        CLI_FLAG("quick", &o.quick, "skip lossless and niah and use a session of 700 tokens; takes minutes"),
        CLI_INT("memory-tokens", "N", &o.memory_tokens, 70, 1 << 20,
                "length of the session whose memory is measured (7000; with --quick 700)"),
        REPORT_OPTION(c),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&mac_command, own, c.shared_table, argc, argv, &first, &status)) return status;
    o.files = files_or_corpus(&c, argc, argv, first, &corpus, &o.n_files);

    terminal_meter progress = {0};
    c.setup.user = &progress;
    kakeya_error error = {0};
    file_writer *writer = NULL;
    cJSON *report = NULL;
    eval_policies none;
    kakeya_status result = eval_prepare(&c, &none, o.files, o.n_files, &error);
    const char *backend = c.setup.engine.backend;
    if (!backend || strcmp(backend, "auto") == 0) c.setup.engine.backend = "mlx";
    if (result == KAKEYA_OK && !o.quick) result = require_files(o.n_files, &error);
    if (result == KAKEYA_OK && c.report) result = file_writer_open(c.report, &writer, &error);
    if (result == KAKEYA_OK) result = eval_mac_acceptance(&c.setup, &o, &report, &error);
    terminal_meter_clear(&progress);
    if (report) {
        kakeya_error late = {0};
        kakeya_status written = write_mac(&c, &writer, report, &late);
        if (result == KAKEYA_OK && written != KAKEYA_OK) {
            result = written;
            error = late;
        }
        if (!c.shared.json && cJSON_HasObjectItem(report, "environment")) eval_print_mac(report, c.report);
    }
    cJSON_Delete(report);
    file_writer_abort(writer);
    eval_corpus_free(&corpus);
    eval_command_free(&c);
    return result == KAKEYA_OK ? CLI_DONE : cli_fail(mac_command.name, &error);
}

/* -------------------------------------------------------------------------------------------------------- verb */

static const struct {
    const char *name;
    int (*run)(int argc, char **argv, const eval_again *again); /* again: NULL, or of a report that is replayed */
    const cli_command *command;
} evaluations[] = {
    {"niah", run_niah, &niah_command},
    {"fidelity", run_fidelity, &fidelity_command},
    {"code", run_code, &code_command},
    {"acceptance", run_acceptance, &acceptance_command},
    {"lossless", run_lossless, &lossless_command},
    {"kv-format", run_kv_format, &kv_format_command},
    {"draft-policy", run_draft_policy, &draft_policy_command},
    {"mac-acceptance", run_mac, &mac_command},
};
enum { EVALUATIONS = sizeof evaluations / sizeof evaluations[0], REPLAYED = 6 /* the first ones */ };

static const char usage[] =
    "usage: kakeya eval niah|fidelity|code|acceptance|lossless|kv-format|draft-policy|mac-acceptance [OPTION]...\n";

void eval_run_again(int argc, char **argv, const eval_again *again) {
    eval_again_outcome *outcome = again->outcome;
    *outcome = (eval_again_outcome){0};
    outcome->status = error_set(&outcome->error, KAKEYA_INVALID_ARGUMENT, "its command cannot run here");
    cli_take_beginnings(true);
    for (int i = 0; argc > 2 && i < REPLAYED; i++)
        if (strcmp(argv[2], evaluations[i].name) == 0) evaluations[i].run(argc - 2, argv + 2, again);
    cli_take_beginnings(false);
}

int cli_eval(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "kakeya eval: name an evaluation\n%s", usage);
        return CLI_USAGE;
    }
    for (int i = 0; i < EVALUATIONS; i++)
        if (strcmp(argv[1], evaluations[i].name) == 0) return evaluations[i].run(argc - 1, argv + 1, NULL);
    if (strcmp(argv[1], "--list-verbs") == 0) {
        for (int i = 0; i < EVALUATIONS; i++)
            cli_list_words((cli_word[]){{evaluations[i].name, evaluations[i].command->summary}, {0}});
        return CLI_DONE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        fputs(usage, stdout);
        putchar('\n');
        for (int i = 0; i < EVALUATIONS; i++)
            printf("  %-14s %s\n", evaluations[i].name, evaluations[i].command->summary);
        printf("\nkakeya eval NAME --help explains one. Policies are compared with native attention; the default\n"
               "ones are %s.\n\nExample:\n"
               "  kakeya eval niah --lines 12,40,60,150,280 --samples 5 --report r.json && kakeya gate r.json\n",
               all_policies);
        return CLI_DONE;
    }
    fprintf(stderr, "kakeya eval: unknown %s '%s'\n%s", argv[1][0] == '-' ? "option" : "evaluation", argv[1], usage);
    return CLI_USAGE;
}
