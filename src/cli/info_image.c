#include "cli/info_image.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/input.h"

static void print_fit(int budget, const kakeya_image_fit *fit) {
    char size[32];
    snprintf(size, sizeof size, "%d x %d", fit->width, fit->height);
    printf("  %6d %13s %8d %7d   %s\n", budget, size, fit->patches, fit->tokens, fit->digest);
}

static void add_fit(cJSON *list, int budget, const kakeya_image_fit *fit) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddNumberToObject(item, "budget", budget);
    cJSON_AddNumberToObject(item, "width", fit->width);
    cJSON_AddNumberToObject(item, "height", fit->height);
    cJSON_AddNumberToObject(item, "patches", fit->patches);
    cJSON_AddNumberToObject(item, "tokens", fit->tokens);
    cJSON_AddStringToObject(item, "digest", fit->digest);
    cJSON_AddItemToArray(list, item);
}

/* json NULL: as text */
static kakeya_status print_fits(const char *name, const kakeya_image *image, cJSON *json, kakeya_error *error) {
    cJSON *list = json ? cJSON_AddArrayToObject(json, "budgets") : NULL;
    if (!json) printf("  %6s %13s %8s %7s   %s\n", "budget", "resized to", "patches", "tokens", "digest");
    for (size_t i = 0; kakeya_image_budget(i); i++) {
        const int budget = kakeya_image_budget(i);
        kakeya_image_fit fit;
        KAKEYA_INIT(&fit);
        kakeya_status status = kakeya_image_fit_budget(image, budget, &fit, error);
        if (status) return error_prefix(error, status, "%s", name);
        if (json)
            add_fit(list, budget, &fit);
        else
            print_fit(budget, &fit);
    }
    return KAKEYA_OK;
}

kakeya_status info_image_print(const char *path, bool as_json, kakeya_error *error) {
    char *data;
    size_t bytes;
    const char *name = input_name(path);
    kakeya_image *image = NULL;
    kakeya_status status = input_read(path, &data, &bytes, error);
    if (status) return status;
    status = kakeya_image_open(name, data, bytes, &image, error);
    free(data);
    if (status) return status;
    const kakeya_image_facts facts = kakeya_image_describe(image);
    if (as_json) {
        cJSON *json = cJSON_CreateObject();
        cJSON_AddStringToObject(json, "image", name);
        cJSON_AddStringToObject(json, "format", facts.format);
        cJSON_AddNumberToObject(json, "width", facts.width);
        cJSON_AddNumberToObject(json, "height", facts.height);
        cJSON_AddNumberToObject(json, "orientation", facts.orientation);
        status = print_fits(name, image, json, error);
        if (!status) status = cli_print_json(json, error);
        cJSON_Delete(json);
    } else {
        printf("%s: %s, %d x %d pixels", name, facts.format, facts.width, facts.height);
        if (facts.orientation > 1) printf(", turned as EXIF says (%d)", facts.orientation);
        printf("\n");
        status = print_fits(name, image, NULL, error);
    }
    kakeya_image_close(image);
    return status;
}
