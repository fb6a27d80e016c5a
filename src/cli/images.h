/* Pictures and sounds that a user names on the command line: FILE, or, of pictures, FILE,budget=N. */
#ifndef KAKEYA_CLI_IMAGES_H
#define KAKEYA_CLI_IMAGES_H

#include "cli/options.h"
#include "kakeya.h"

typedef struct cli_images {
    kakeya_media media[2 * CLI_MAX_VALUES]; /* pictures, then sounds */
    size_t n, sounds;                       /* all of them; how many of them are sounds */
} cli_images;

#define CLI_AUDIO_OPTION(names)                                                                                        \
    CLI_TEXTS("audio", "FILE", (names), "sound to hear, WAV, FLAC or MP3, at most 30 seconds; may be repeated")

#define CLI_IMAGE_OPTIONS(names, limit)                                                                                \
    CLI_TEXTS("image", "FILE", (names),                                                                                \
              "picture to read, PNG, JPEG, WebP or GIF; FILE,budget=N limits it to N tokens; may be repeated"),        \
        CLI_INT("image-budget", "N", (limit), 0, 1120,                                                                 \
                "maximum tokens per picture: 70, 140, 280, 560 or 1120 (as the model says, usually 280)")

/* A picture or a sound, and its file. */
typedef struct cli_medium {
    kakeya_media media;
    bool is_sound; /* also where it is not decoded yet */
    char *data;    /* malloc'ed */
    size_t bytes;
} cli_medium;

/* The picture FILE or FILE,budget=N that `option` names, which begins messages. budget: where none is named; 0: the
 * model's. *out is freed by cli_medium_free, and zeroed on failure. */
kakeya_status cli_image_read(const char *option, const char *given, int budget, cli_medium *out, kakeya_error *error);
/* The sound in a file; *out as above. */
kakeya_status cli_sound_read(const char *path, cli_medium *out, kakeya_error *error);
/* Decodes the file that is in *medium, called `name` in messages. */
kakeya_status cli_medium_decode(const char *name, cli_medium *medium, kakeya_error *error);
void cli_medium_free(cli_medium *medium); /* a zeroed one is fine */

/* FILE of FILE,budget=N; malloc'ed, NULL when out of memory. */
char *cli_image_path(const char *given);
/* Reads and decodes them all. budget: of those that name none; 0: the model's. sounds: NULL: there are none. *out is
 * freed by cli_images_free, also on failure. */
kakeya_status cli_images_read(const cli_texts *names, int budget, const cli_texts *sounds, cli_images *out,
                              kakeya_error *error);
void cli_images_free(cli_images *images);

#endif
