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
#include "measure/mac.h"

static const char all_policies[] = "native, sink-window and, with an f_theta, restored";

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

static const cli_command code_command = {
    .name = "eval code",
    .summary = "Speed of speculative decoding of source files, by draft length.",
    .operands = "[FILE]...",
    .details = "The start of every file is the prompt; the answer ends at a stop token or at --max-tokens. Arms take\n"
               "turns, and speeds are medians over repetitions. Without files, the bundled sources are used.\n",
    .examples = "  kakeya eval code --report c.json\n"
                "  kakeya eval code src/base/alloc.c --draft-lengths 1,3,5,7 --repetitions 9\n",
};

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

/* -------------------------------------------------------------------------------------- evaluations with a report */

typedef enum inputs {
    NO_FILES,
    SEQUENCES, /* operands and --text; the bundled sources, unless there are ids */
    SOURCES,   /* operands, or the bundled ones, which must be there */
    PROMPTS,   /* --jsonl, or one operand */
} inputs;

#define KIND(name) (1u << (EVAL_##name))

static const struct evaluation {
    const cli_command *command;
    unsigned kinds;
    eval_function *run;
    inputs inputs;
    const char *const dropped[5]; /* shared options that it has in another form, or decides by itself */
} reported[] = {
    {&niah_command, KIND(NIAH), eval_niah, NO_FILES, {"draft-window"}},
    {&fidelity_command, KIND(FIDELITY), eval_fidelity, SEQUENCES, {"window"}},
    {&code_command, KIND(CODE), eval_code, SOURCES, {NULL}},
    {&acceptance_command, KIND(ACCEPTANCE), eval_acceptance, PROMPTS, {NULL}},
    {&lossless_command, KIND(LOSSLESS) | KIND(BATCH), eval_lossless_run, SOURCES, {"threads"}},
    {&kv_format_command, KIND(KV_FORMAT), eval_kv_format, SOURCES, {"kv-format", "sink", "window", "draft-window"}},
};
enum { REPORTED = sizeof reported / sizeof reported[0] };

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

/* What the files on the command line are; NULL, or what is wrong with them. */
static const char *take_files(eval_command *c, const struct evaluation *e, eval_options *o, cli_texts *texts, int argc,
                              char **argv, int first, eval_corpus *corpus) {
    if (e->inputs == SOURCES) o->files = files_or_corpus(c, argc, argv, first, corpus, &o->n_files);
    if (e->inputs == PROMPTS) {
        if (first < argc && !o->jsonl) o->jsonl = argv[first++];
        if (first < argc) return "more than one file";
        if (!o->jsonl) return "--jsonl is missing";
        o->jsonl = eval_input(c, o->jsonl);
    }
    if (e->inputs != SEQUENCES) return NULL;
    for (; first < argc && texts->n < CLI_MAX_VALUES; first++) texts->text[texts->n++] = argv[first];
    if (first < argc) return "more than 64 text files";
    for (size_t i = 0; i < texts->n; i++) texts->text[i] = eval_input(c, texts->text[i]);
    if (o->ids_json) o->ids_json = eval_input(c, o->ids_json);
    o->files = texts->text;
    o->n_files = texts->n;
    if (!texts->n && !o->ids_json) o->files = files_or_corpus(c, 0, argv, 0, corpus, &o->n_files);
    return NULL;
}

static int run_evaluation(const struct evaluation *e, int argc, char **argv, const eval_again *again) {
    eval_command c;
    eval_options o = {0};
    cli_texts texts = {{NULL}, 0}, image_names = {{NULL}, 0};
    int image_budget = 0, first = argc, status;
    eval_command_init(&c, argc, argv, again);
    for (size_t i = 0; e->dropped[i]; i++) eval_drop_option(c.shared_table, e->dropped[i]);
    if (e->inputs == SEQUENCES)
        eval_option_add(
            &c, (cli_option)CLI_TEXTS("text", "FILE", &texts, "text file; may be repeated (the bundled sources)"));
    eval_options_add(&c, e->kinds, &o);
    const cli_option pictures[] = {CLI_IMAGE_OPTIONS(&image_names, &image_budget)};
    for (size_t i = 0; i < 2 && e->kinds & KIND(LOSSLESS); i++) eval_option_add(&c, pictures[i]);
    eval_option_add(&c, (cli_option)REPORT_OPTION(c));
    if (e->kinds & KIND(NIAH))
        eval_option_add(
            &c, (cli_option)CLI_TEXT("plot", "FILE", &c.plot, "draw recall, memory and speed against context as SVG"));
    if (!cli_parse(e->command, c.own, c.shared_table, argc, argv, e->inputs == NO_FILES ? NULL : &first, &status))
        return status;

    kakeya_error error = {0};
    eval_corpus corpus = {0};
    kakeya_status result = eval_options_take(&c, &o, &error);
    const char *problem = result == KAKEYA_INVALID_ARGUMENT ? error.message
                          : o.facts && o.pictures           ? "--images and --facts exclude each other"
                          : o.policies.n && !o.batch && e->kinds & KIND(BATCH)
                              ? "--policies needs --batch"
                              : take_files(&c, e, &o, &texts, argc, argv, first, &corpus);
    if (problem) return cli_usage_error(e->command, "%s", problem);

    terminal_meter progress = {0};
    c.setup.user = &progress;
    cli_images images = {0};
    eval_report *report = NULL;
    eval_policies none;
    const char *const others[] = {o.ids_json, o.jsonl};
    if (result == KAKEYA_OK) result = eval_prepare(&c, &none, o.files, o.n_files, &error);
    if (result == KAKEYA_OK && !again) result = eval_check_outputs(&c, others, 2, &error);
    if (result == KAKEYA_OK && e->inputs == SOURCES) result = require_files(o.n_files, &error);
    if (result == KAKEYA_OK) result = read_pictures(&c, &image_names, image_budget, &images, &error);
    o.images = (eval_pictures){images.media, images.n};
    if (images.n) c.setup.engine.image_rows_bytes = kept_rows_bytes;
    if (result == KAKEYA_OK) result = (o.batch ? eval_lossless_batch : e->run)(&c.setup, &o, &report, &error);
    cli_images_free(&images);
    eval_corpus_free(&corpus);
    return eval_finish(&c, e->command->name, result, report, &error);
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

static int run_draft_policy(int argc, char **argv) {
    eval_command c;
    eval_command_init(&c, argc, argv, NULL);
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

static int run_mac(int argc, char **argv) {
    eval_command c;
    eval_command_init(&c, argc, argv, NULL);
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
    int (*run)(int argc, char **argv);
    const cli_command *command;
} others[] = {
    {run_draft_policy, &draft_policy_command},
    {run_mac, &mac_command},
};
enum { EVALUATIONS = REPORTED + sizeof others / sizeof others[0] };

static const cli_command *command_at(size_t i) {
    return i < REPORTED ? reported[i].command : others[i - REPORTED].command;
}

/* "niah" of "eval niah" */
static const char *name_at(size_t i) { return strchr(command_at(i)->name, ' ') + 1; }

static size_t find_evaluation(const char *name) {
    size_t i = 0;
    while (i < EVALUATIONS && strcmp(name, name_at(i)) != 0) i++;
    return i;
}

static const char usage[] =
    "usage: kakeya eval niah|fidelity|code|acceptance|lossless|kv-format|draft-policy|mac-acceptance [OPTION]...\n";

void eval_run_again(int argc, char **argv, const eval_again *again) {
    eval_again_outcome *outcome = again->outcome;
    *outcome = (eval_again_outcome){0};
    outcome->status = error_set(&outcome->error, KAKEYA_INVALID_ARGUMENT, "its command cannot run here");
    cli_take_beginnings(true);
    size_t i = argc > 2 ? find_evaluation(argv[2]) : REPORTED;
    if (i < REPORTED) run_evaluation(&reported[i], argc - 2, argv + 2, again);
    cli_take_beginnings(false);
}

int cli_eval(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "kakeya eval: name an evaluation\n%s", usage);
        return CLI_USAGE;
    }
    size_t found = find_evaluation(argv[1]);
    if (found < REPORTED) return run_evaluation(&reported[found], argc - 1, argv + 1, NULL);
    if (found < EVALUATIONS) return others[found - REPORTED].run(argc - 1, argv + 1);
    if (strcmp(argv[1], "--list-verbs") == 0) {
        for (size_t i = 0; i < EVALUATIONS; i++)
            cli_list_words((cli_word[]){{name_at(i), command_at(i)->summary}, {0}});
        return CLI_DONE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        fputs(usage, stdout);
        putchar('\n');
        for (size_t i = 0; i < EVALUATIONS; i++) printf("  %-14s %s\n", name_at(i), command_at(i)->summary);
        printf("\nkakeya eval NAME --help explains one. Policies are compared with native attention; the default\n"
               "ones are %s.\n\nExample:\n"
               "  kakeya eval niah --lines 12,40,60,150,280 --samples 5 --report r.json && kakeya gate r.json\n",
               all_policies);
        return CLI_DONE;
    }
    fprintf(stderr, "kakeya eval: unknown %s '%s'\n%s", argv[1][0] == '-' ? "option" : "evaluation", argv[1], usage);
    return CLI_USAGE;
}
