#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

#include "media/decoders.h"

enum { MAX_SCANS = 100, MAX_MEMORY_BYTES = 1 << 30 };

/* libjpeg's own state with the way out of it: its handlers never return. */
typedef struct jpeg_decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr handlers;
    struct jpeg_progress_mgr progress;
    jmp_buf out;
    const image_source *source;
    kakeya_error *error;
    kakeya_status status;
    unsigned char *pixels, *row; /* malloc'ed */
} jpeg_decoder;

static void fail(j_common_ptr common) {
    jpeg_decoder *d = common->client_data;
    char message[JMSG_LENGTH_MAX];
    common->err->format_message(common, message);
    d->status = common->err->msg_code == JERR_OUT_OF_MEMORY ? KAKEYA_OUT_OF_MEMORY : KAKEYA_FORMAT;
    error_set(d->error, d->status, "%s: broken JPEG: %s", d->source->name, message);
    longjmp(d->out, 1);
}

/* Warnings are about data that is missing or wrong, but for those about bytes between markers and odd headers, which
 * many cameras write. */
static void on_message(j_common_ptr common, int level) {
    int code = common->err->msg_code;
    if (level >= 0 || code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR) return;
    fail(common);
}

/* A progressive file of thousands of scans costs hours. */
static void on_progress(j_common_ptr common) {
    jpeg_decoder *d = common->client_data;
    if (!common->is_decompressor || d->jpeg.input_scan_number <= MAX_SCANS) return;
    d->status =
        error_set(d->error, KAKEYA_FORMAT, "%s: broken JPEG: more than %d scans", d->source->name, (int)MAX_SCANS);
    longjmp(d->out, 1);
}

static int orientation_of(const struct jpeg_decompress_struct *jpeg) {
    for (const struct jpeg_marker_struct *m = jpeg->marker_list; m; m = m->next) {
        if (m->marker == JPEG_APP0 + 1 && m->data_length > 6 && memcmp(m->data, "Exif\0", 6) == 0)
            return exif_orientation(m->data, m->data_length);
    }
    return 1;
}

/* What Adobe's programs write: all four samples inverted. d(x) is x / 255, rounded. */
static void from_cmyk(const unsigned char *cmyk, size_t n, unsigned char *rgb) {
    for (size_t i = 0; i < n; i++, cmyk += 4, rgb += 3) {
        int k = cmyk[3];
        for (int c = 0; c < 3; c++) {
            int ink = (255 - cmyk[c]) * k + 128, value = k - ((ink + (ink >> 8)) >> 8);
            rgb[c] = (unsigned char)(value < 0 ? 0 : value);
        }
    }
}

static void read_pixels(jpeg_decoder *d) {
    struct jpeg_decompress_struct *jpeg = &d->jpeg;
    const size_t width = jpeg->image_width;
    const bool cmyk = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
    jpeg->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    d->pixels = malloc(3 * width * jpeg->image_height);
    d->row = malloc(4 * width);
    if (!d->pixels || !d->row) {
        d->status = error_set(d->error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", d->source->name);
        longjmp(d->out, 1);
    }
    jpeg_start_decompress(jpeg);
    while (jpeg->output_scanline < jpeg->output_height) {
        unsigned char *to = d->pixels + 3 * width * jpeg->output_scanline;
        JSAMPROW rows[1] = {cmyk ? d->row : to};
        if (jpeg_read_scanlines(jpeg, rows, 1) == 1 && cmyk) from_cmyk(d->row, width, to);
    }
    jpeg_finish_decompress(jpeg);
}

static void decode(jpeg_decoder *d, const image_check *check) {
    struct jpeg_decompress_struct *jpeg = &d->jpeg;
    if (setjmp(d->out)) return;
    jpeg_create_decompress(jpeg);
    jpeg->mem->max_memory_to_use = MAX_MEMORY_BYTES;
    d->progress.progress_monitor = on_progress;
    jpeg->progress = &d->progress;
    jpeg_save_markers(jpeg, JPEG_APP0 + 1, 0xffff);
    jpeg_mem_src(jpeg, d->source->data, (unsigned long)d->source->bytes);
    jpeg_read_header(jpeg, TRUE);
    *check->info = (image_info){.format = IMAGE_JPEG,
                                .width = (int)jpeg->image_width,
                                .height = (int)jpeg->image_height,
                                .orientation = orientation_of(jpeg)};
    d->status = image_check_size(d->source, check, d->error);
    if (!d->status && !check->header_alone) read_pixels(d);
}

kakeya_status image_decode_jpeg(const image_source *source, const image_check *check, unsigned char **rgb,
                                kakeya_error *error) {
    *rgb = NULL;
    jpeg_decoder *d = calloc(1, sizeof *d);
    if (!d) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
    d->source = source;
    d->error = error;
    d->jpeg.err = jpeg_std_error(&d->handlers);
    d->jpeg.client_data = d;
    d->handlers.error_exit = fail;
    d->handlers.emit_message = on_message;
    decode(d, check);
    jpeg_destroy_decompress(&d->jpeg);
    free(d->row);
    kakeya_status status = d->status;
    if (status)
        free(d->pixels);
    else
        *rgb = d->pixels;
    free(d);
    return status;
}
