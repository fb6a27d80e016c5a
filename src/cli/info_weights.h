/* What a limit on weights costs: the curve of `info` and of `serve --dry-run`. */
#ifndef KAKEYA_CLI_INFO_WEIGHTS_H
#define KAKEYA_CLI_INFO_WEIGHTS_H

#include "cli/cli.h"
#include "kakeya_study.h"

/* What the curve is made of, and what a text has shown. */
typedef struct info_weights {
    kakeya_weights_needs needs;
    size_t limit;    /* as asked for */
    bool copies;     /* experts come from the host's memory to a device, not from a file */
    size_t tokens;   /* of the text that were measured; 0: there is no text */
    double hit_rate; /* of their experts, those in memory */
    double bytes;    /* that each of them read */
} info_weights;

/* The disk is read for a second, or the host's memory copied from. options: model, which may not be synthetic, and the
 * limit. text_file: NULL, or a text that is computed token by token under the limit, its first INFO_TEXT_TOKENS tokens;
 * those of the second half are measured, as memory holds what the first has left there. */
enum { INFO_TEXT_TOKENS = 512 };
kakeya_status info_weights_measure(const kakeya_engine_options *options, const char *text_file, info_weights *out,
                                   kakeya_error *error);
/* The limit has a row of its own, unless it is KAKEYA_WEIGHTS_AUTO. */
void info_weights_print(const info_weights *weights);
void info_weights_add_json(struct cJSON *object, const info_weights *weights);

#endif
