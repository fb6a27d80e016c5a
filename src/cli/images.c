#include "cli/images.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/input.h"

/* FILE of "FILE,budget=N", malloc'ed. A comma that nothing of the kind follows is part of the name. */
static char *split(const char *name, int *budget) {
    static const char key[] = ",budget=";
    const char *at = strrchr(name, ',');
    size_t bytes = strlen(name);
    if (at && strncmp(at, key, sizeof key - 1) == 0) {
        char *end;
        long value = strtol(at + sizeof key - 1, &end, 10);
        if (end != at + sizeof key - 1 && !*end && value > 0 && value <= 1 << 20) {
            *budget = (int)value;
            bytes = (size_t)(at - name);
        }
    }
    return strndup(name, bytes);
}

char *cli_image_path(const char *given) { return split(given, &(int){0}); }

static bool known(int budget) {
    for (size_t i = 0; kakeya_image_budget(i); i++)
        if (kakeya_image_budget(i) == budget) return true;
    return false;
}

kakeya_status cli_image_read(const char *option, const char *given, int budget, cli_medium *out, kakeya_error *error) {
    *out = (cli_medium){.media.budget = budget};
    char *path = split(given, &out->media.budget);
    kakeya_status status = KAKEYA_OK;
    if (!path) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", option);
    if (!status && out->media.budget && !known(out->media.budget))
        status = error_set(error, KAKEYA_INVALID_ARGUMENT,
                           "%s %s: the budget is %d tokens, must be 70, 140, 280, 560 or 1120", option, path,
                           out->media.budget);
    if (!status) status = input_read(path, &out->data, &out->bytes, error);
    if (!status) status = cli_medium_decode(input_name(path), out, error);
    free(path);
    if (status) cli_medium_free(out);
    return status;
}

kakeya_status cli_sound_read(const char *path, cli_medium *out, kakeya_error *error) {
    *out = (cli_medium){.is_sound = true};
    kakeya_status status = input_read(path, &out->data, &out->bytes, error);
    if (!status) status = cli_medium_decode(input_name(path), out, error);
    if (status) cli_medium_free(out);
    return status;
}

kakeya_status cli_medium_decode(const char *name, cli_medium *medium, kakeya_error *error) {
    kakeya_image *image = NULL;
    kakeya_sound *heard = NULL;
    kakeya_status status = medium->is_sound ? kakeya_sound_open(name, medium->data, medium->bytes, &heard, error)
                                            : kakeya_image_open(name, medium->data, medium->bytes, &image, error);
    medium->media.image = image;
    medium->media.sound = heard;
    return status;
}

void cli_medium_free(cli_medium *medium) {
    kakeya_image_close((kakeya_image *)(uintptr_t)medium->media.image);
    kakeya_sound_close((kakeya_sound *)(uintptr_t)medium->media.sound);
    free(medium->data);
    *medium = (cli_medium){0};
}

/* Keeps what was decoded, without the file. */
static void take(cli_images *all, const cli_medium *medium) {
    free(medium->data);
    all->media[all->n++] = medium->media;
}

kakeya_status cli_images_read(const cli_texts *names, int budget, const cli_texts *sounds, cli_images *out,
                              kakeya_error *error) {
    *out = (cli_images){0};
    for (size_t i = 0; i < names->n; i++) {
        cli_medium image;
        kakeya_status status = cli_image_read("--image", names->text[i], budget, &image, error);
        if (status) return status;
        take(out, &image);
    }
    for (; sounds && out->sounds < sounds->n; out->sounds++) {
        cli_medium heard;
        kakeya_status status = cli_sound_read(sounds->text[out->sounds], &heard, error);
        if (status) return status;
        take(out, &heard);
    }
    return KAKEYA_OK;
}

void cli_images_free(cli_images *images) {
    for (size_t i = 0; i < images->n; i++) {
        kakeya_image_close((kakeya_image *)(uintptr_t)images->media[i].image);
        kakeya_sound_close((kakeya_sound *)(uintptr_t)images->media[i].sound);
    }
    *images = (cli_images){0};
}
