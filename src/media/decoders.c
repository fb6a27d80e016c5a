#include "media/decoders.h"

#include <string.h>

enum { TAG_ORIENTATION = 0x0112, TYPE_SHORT = 3, TYPE_LONG = 4, ENTRY_BYTES = 12 };

typedef struct exif_reader {
    const unsigned char *data;
    size_t bytes;
    bool big_endian;
} exif_reader;

/* A number of 2 or 4 bytes; 0 where it lies outside. */
static uint32_t number_at(const exif_reader *r, size_t at, size_t bytes) {
    if (at > r->bytes || r->bytes - at < bytes) return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint32_t)r->data[at + i] << 8 * (r->big_endian ? bytes - 1 - i : i);
    return value;
}

int exif_orientation(const unsigned char *data, size_t bytes) {
    static const unsigned char prefix[6] = {'E', 'x', 'i', 'f', 0, 0};
    if (bytes >= sizeof prefix && memcmp(data, prefix, sizeof prefix) == 0) {
        data += sizeof prefix;
        bytes -= sizeof prefix;
    }
    if (bytes < 8 || (memcmp(data, "II*\0", 4) != 0 && memcmp(data, "MM\0*", 4) != 0)) return 1;
    const exif_reader r = {data, bytes, data[0] == 'M'};
    const size_t directory = number_at(&r, 4, 4);
    const size_t entries = number_at(&r, directory, 2);
    for (size_t i = 0; i < entries; i++) {
        const size_t entry = directory + 2 + i * ENTRY_BYTES;
        if (entry > bytes || bytes - entry < ENTRY_BYTES) break;
        if (number_at(&r, entry, 2) != TAG_ORIENTATION) continue;
        const uint32_t type = number_at(&r, entry + 2, 2);
        const uint32_t value = number_at(&r, entry + 8, type == TYPE_LONG ? 4 : 2);
        return (type == TYPE_SHORT || type == TYPE_LONG) && value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

kakeya_status image_check_size(const image_source *source, const image_check *check, kakeya_error *error) {
    const int width = check->info->width, height = check->info->height;
    const image_limits *l = check->limits;
    if (width < 1 || height < 1)
        return error_set(error, KAKEYA_FORMAT, "%s: an image of %d x %d pixels", source->name, width, height);
    if (width > l->side || height > l->side)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "%s: an image of %d x %d pixels, but a side may have at "
                         "most %d",
                         source->name, width, height, l->side);
    if ((uint64_t)width * (uint64_t)height > l->pixels)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "%s: an image of %d x %d pixels, but at most %llu are allowed",
                         source->name, width, height, (unsigned long long)l->pixels);
    return KAKEYA_OK;
}

void image_on_white(unsigned char *pixels, size_t n) {
    const unsigned char *from = pixels;
    for (size_t i = 0; i < n; i++, from += 4) {
        int a = from[3];
        for (int c = 0; c < 3; c++) *pixels++ = (unsigned char)((from[c] * a + 255 * (255 - a) + 127) / 255);
    }
}
