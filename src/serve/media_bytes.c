#include "serve/media_bytes.h"

#include <stdlib.h>
#include <string.h>

#include "serve/base64.h"

bool media_read_base64(const char *text, size_t n, const media_limit *limit, const char *place, unsigned char **data,
                       size_t *bytes, api_error *error) {
    const bool sound = strcmp(limit->what, "sound") == 0;
    *data = NULL;
    if (n / 4 * 3 > limit->most)
        return api_fail(error, 400, sound ? "sound_too_large" : "image_too_large", place,
                        "%s: the %s has more than %zu bytes (%s)", place, limit->what, limit->most, limit->option);
    *data = malloc(n / 4 * 3 + 3);
    if (!*data) return api_out_of_memory(error);
    if (base64_read(*data, bytes, text, n)) return true;
    free(*data);
    *data = NULL;
    return api_fail(error, 400, sound ? "invalid_audio" : "invalid_image_url", place, "%s: the %s is not valid base64",
                    place, limit->what);
}
