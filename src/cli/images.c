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

kakeya_status cli_image_read(const char *option, const char *given, int budget, cli_image *out, kakeya_error *error) {
    *out = (cli_image){.media.budget = budget};
    char *path = split(given, &out->media.budget);
    kakeya_image *image = NULL;
    kakeya_status status = KAKEYA_OK;
    if (!path) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", option);
    if (!status && out->media.budget && !known(out->media.budget))
        status = error_set(error, KAKEYA_INVALID_ARGUMENT,
                           "%s %s: the budget is %d tokens, must be 70, 140, 280, 560 or 1120", option, path,
                           out->media.budget);
    if (!status) status = input_read(path, &out->data, &out->bytes, error);
    if (!status) status = kakeya_image_open(input_name(path), out->data, out->bytes, &image, error);
    out->media.image = image;
    free(path);
    if (status) cli_image_free(out);
    return status;
}

void cli_image_free(cli_image *image) {
    kakeya_image_close((kakeya_image *)(uintptr_t)image->media.image);
    free(image->data);
    *image = (cli_image){0};
}

static kakeya_status read_sound(const char *path, kakeya_media *out, kakeya_error *error) {
    char *data;
    size_t bytes;
    kakeya_sound *heard;
    *out = (kakeya_media){0};
    kakeya_status status = input_read(path, &data, &bytes, error);
    if (status) return status;
    status = kakeya_sound_open(input_name(path), data, bytes, &heard, error);
    free(data);
    out->sound = heard;
    return status;
}

kakeya_status cli_images_read(const cli_texts *names, int budget, const cli_texts *sounds, cli_images *out,
                              kakeya_error *error) {
    *out = (cli_images){0};
    for (size_t i = 0; i < names->n; i++) {
        cli_image image;
        kakeya_status status = cli_image_read("--image", names->text[i], budget, &image, error);
        if (status) return status;
        free(image.data);
        out->media[out->n++] = image.media;
    }
    for (; sounds && out->sounds < sounds->n; out->sounds++) {
        kakeya_status status = read_sound(sounds->text[out->sounds], &out->media[out->n], error);
        if (status) return status;
        out->n++;
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
