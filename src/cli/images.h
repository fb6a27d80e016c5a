/* Pictures that a user names on the command line: FILE, or FILE,budget=N. */
#ifndef KAKEYA_CLI_IMAGES_H
#define KAKEYA_CLI_IMAGES_H

#include "cli/options.h"
#include "kakeya.h"

typedef struct cli_images {
    kakeya_media media[CLI_MAX_VALUES];
    size_t n;
} cli_images;

#define CLI_IMAGE_OPTIONS(names, limit)                                                                                \
    CLI_OPTION(.name = "image", .argument = "FILE", .kind = CLI_TEXTS, .target = (names),                              \
               .help =                                                                                                 \
                   "picture to read, PNG, JPEG, WebP or GIF; FILE,budget=N limits it to N tokens; may be repeated"),   \
        CLI_OPTION(.name = "image-budget", .argument = "N", .kind = CLI_INT, .target = (limit), .min = 0, .max = 1120, \
                   .help = "maximum tokens per picture: 70, 140, 280, 560 or 1120 (as the model says, usually 280)")

/* A picture and its file. */
typedef struct cli_image {
    kakeya_media media;
    char *data; /* malloc'ed */
    size_t bytes;
} cli_image;

/* FILE or FILE,budget=N that `option` names, which begins messages. budget: where none is named; 0: the model's. *out
 * is freed by cli_image_free, and zeroed on failure. */
kakeya_status cli_image_read(const char *option, const char *given, int budget, cli_image *out, kakeya_error *error);
void cli_image_free(cli_image *image); /* a zeroed one is fine */

/* FILE of FILE,budget=N; malloc'ed, NULL when out of memory. */
char *cli_image_path(const char *given);
/* Reads and decodes them all. budget: of those that name none; 0: the model's. *out is freed by cli_images_free, also
 * on failure. */
kakeya_status cli_images_read(const cli_texts *names, int budget, cli_images *out, kakeya_error *error);
void cli_images_free(cli_images *images);

#endif
