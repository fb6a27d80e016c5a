/* kakeya convert: weights in floating point to a quantised file or directory, and quantised ones to tiles, or back. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/terminal.h"
#include "convert/convert.h"
#include "convert/vision.h"

static const cli_command command = {
    .name = "convert",
    .summary = "Writes a model in another format: quantised, or in floating point.",
    .operands = "MODEL OUT",
    .details = "MODEL is a directory or a GGUF file with weights in F32, F16 or BF16. OUT must not exist; it appears\n"
               "when it is complete. The vision and the audio encoder keep their formats; for a GGUF file they are\n"
               "written beside it, to mmproj-OUT.\n"
               "\n"
               "With 'f32', 'f16' and 'bf16', MODEL may be quantised, and OUT is a directory. 'tiles' is for a model\n"
               "that is already quantised: the layout that a CPU otherwise prepares in memory whenever it loads the\n"
               "model is written to a file that is then mapped: FILE.gguf.tiles, or model.tiles in the model's\n"
               "directory.\n",
    .examples =
        "  kakeya convert google/gemma-4-26B-A4B-it gemma-4-26b-q4_k_m.gguf --to q4_k_m\n"
        "  kakeya convert ~/models/gemma-4-E4B-it gemma-4-e4b-4bit --to affine4\n"
        "  kakeya convert ~/models/gemma-4-26B-A4B-it out.gguf --to q4_0 --head q8_0 --importance imatrix.gguf\n"
        "  kakeya convert gemma-3-270m-q4_k_m.gguf gemma-3-270m --to bf16\n"
        "  kakeya convert gemma-4-26b-q4_0.gguf gemma-4-26b-q4_0.gguf.tiles --to tiles\n",
};

static double percent(uint64_t part, uint64_t whole) { return whole ? 100 * (double)part / (double)whole : 0; }

/* What reads pictures and sound. out: the GGUF file that they are beside; NULL: the directory that they are in. */
static void print_parts(const convert_report *report, const char *out) {
    const uint64_t vision = report->vision_bytes, audio = report->audio_bytes;
    char a[32], b[32];
    if (!vision && !audio) return;
    char *path = out ? vision_path(out) : NULL;
    printf("  %s%s: ", path ? "and " : "with it", path ? path : "");
    if (vision) printf("the vision encoder, %s", format_bytes(a, (double)vision));
    if (audio) printf("%sthe audio encoder, %s", vision ? ", and " : "", format_bytes(b, (double)audio));
    printf(", unchanged\n");
    free(path);
}

int cli_convert(int argc, char **argv) {
    int to = -1, threads = 0;
    bool grid = false;
    const char *head = NULL, *attention = NULL;
    cli_texts keep = {.n = 0}, importance = {.n = 0};
    const cli_option own[] = {
        CLI_CHOICE("to", "FORMAT", &to, convert_target_names,
                   "q4_0, q8_0, q4_k, q5_k, q6_k, q4_k_m: a GGUF file; affine4, affine8, f32, f16, bf16: a directory; "
                   "tiles"),
        CLI_FLAG("grid", &grid,
                 "with q4_0: put weights of quantisation-aware training exactly on the grid they were trained for"),
        CLI_TEXTS("importance", "FILE", &importance,
                  "weight errors by the importance of their inputs, from a GGUF file of llama-imatrix; repeatable"),
        CLI_TEXT("head", "FORMAT", &head,
                 "format of the embedding and the head: f32, f16, bf16, q4_0, q8_0, q6_k, ..."),
        CLI_TEXT("attn", "FORMAT", &attention, "format of the attention matrices"),
        CLI_TEXTS("keep", "REGEX=FORMAT", &keep,
                  "format of tensors whose names match, such as 'blk.0.=bf16'; may be repeated"),
        CLI_INT("threads", "N", &threads, 0, 1024,
                "number of threads, which does not change the output (0: one per core)"),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&command, own, NULL, argc, argv, &first, &status)) return status;
    if (argc - first != 2) return cli_usage_error(&command, "name the model and the output");
    if (to < 0) return cli_usage_error(&command, "--to is missing");

    kakeya_error error = {0};
    convert_report report;
    const convert_options options = {
        .to = (convert_target)to,
        .grid = grid,
        .threads = threads,
        .importance = importance.text,
        .n_importance = importance.n,
        .head = head,
        .attention = attention,
        .keep = keep.text,
        .n_keep = keep.n,
        .progress = terminal_progress,
    };
    kakeya_status failed = convert_model(argv[first], argv[first + 1], &options, &report, &error);
    terminal_clear_progress();
    if (failed) return cli_fail(command.name, &error);
    char tensors[32], bytes[32];
    if (to == CONVERT_TILES) {
        printf("%s: %s; a CPU maps it when it loads %s\n", argv[first + 1], format_bytes(bytes, (double)report.bytes),
               argv[first]);
        if (!report.in_place) printf("  once it is called FILE.gguf.tiles, or model.tiles in the model's directory\n");
        return CLI_DONE;
    }
    printf("%s: %s tensors, %s, %.2f bits per weight\n", argv[first + 1], format_count(tensors, report.tensors),
           format_bytes(bytes, (double)report.bytes), 8 * (double)report.bytes / (double)report.parameters);
    print_parts(&report, convert_is_directory((convert_target)to) ? NULL : argv[first + 1]);
    if (importance.n) printf("  used the importances of %zu matrices\n", report.important);
    if (grid)
        printf("  %.2f %% of the Q4_0 blocks lie on a grid, %.2f %% on one that the plain rule also finds\n",
               percent(report.on_grid, report.blocks), percent(report.on_plain_grid, report.blocks));
    return CLI_DONE;
}
