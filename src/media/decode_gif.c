#include <stdlib.h>
#include <string.h>

#include <gif_lib.h>

#include "media/decoders.h"

typedef struct gif_reader {
    const image_source *source;
    size_t at;
} gif_reader;

static int read_bytes(GifFileType *gif, GifByteType *to, int n) {
    gif_reader *r = gif->UserData;
    size_t left = r->source->bytes - r->at, bytes = (size_t)n < left ? (size_t)n : left;
    memcpy(to, r->source->data + r->at, bytes);
    r->at += bytes;
    return (int)bytes;
}

static kakeya_status broken(const image_source *source, int code, kakeya_error *error) {
    const char *reason = GifErrorString(code);
    return error_set(error, KAKEYA_FORMAT, "%s: broken GIF: %s", source->name, reason ? reason : "no frame in it");
}

/* Rows of an interlaced frame come in four passes. */
static int row_at(int i, int height, bool interlaced) {
    static const int first[] = {0, 4, 2, 1}, step[] = {8, 8, 4, 2};
    for (int pass = 0; interlaced && pass < 4; pass++) {
        int rows = height > first[pass] ? (height - first[pass] + step[pass] - 1) / step[pass] : 0;
        if (i < rows) return first[pass] + i * step[pass];
        i -= rows;
    }
    return i;
}

/* A colour of the palette with its alpha; what lies behind the palette's end is black. */
static void colour(const ColorMapObject *palette, int index, int transparent, unsigned char *rgba) {
    bool there = palette && index < palette->ColorCount;
    const GifColorType c = there ? palette->Colors[index] : (GifColorType){0, 0, 0};
    rgba[0] = c.Red;
    rgba[1] = c.Green;
    rgba[2] = c.Blue;
    rgba[3] = index == transparent ? 0 : 255;
}

/* The frame whose description has just been read, onto `canvas` [height][width][4]. */
static kakeya_status read_frame(GifFileType *gif, const image_source *source, int transparent, unsigned char *canvas,
                                GifPixelType *row, kakeya_error *error) {
    const GifImageDesc *frame = &gif->Image;
    const ColorMapObject *palette = frame->ColorMap ? frame->ColorMap : gif->SColorMap;
    const size_t width = (size_t)gif->SWidth, all = width * (size_t)gif->SHeight;
    if (frame->Left < 0 || frame->Top < 0 || frame->Width < 1 || frame->Height < 1 ||
        frame->Width > gif->SWidth - frame->Left || frame->Height > gif->SHeight - frame->Top)
        return error_set(error, KAKEYA_FORMAT, "%s: broken GIF: its frame lies outside of the screen", source->name);
    /* what the frame leaves free: transparent, or the first colour */
    for (size_t i = 0; i < all; i++) colour(palette, transparent < 0 ? 0 : transparent, transparent, canvas + 4 * i);
    for (int i = 0; i < frame->Height; i++) {
        if (DGifGetLine(gif, row, frame->Width) == GIF_ERROR) return broken(source, gif->Error, error);
        size_t y = (size_t)(frame->Top + row_at(i, frame->Height, frame->Interlace));
        unsigned char *to = canvas + 4 * (y * width + (size_t)frame->Left);
        for (int x = 0; x < frame->Width; x++) colour(palette, row[x], transparent, to + 4 * x);
    }
    return KAKEYA_OK;
}

/* Goes to the first frame. *transparent: the index that stands for nothing, -1: none. */
static kakeya_status find_frame(GifFileType *gif, const image_source *source, int *transparent, kakeya_error *error) {
    *transparent = NO_TRANSPARENT_COLOR;
    for (;;) {
        GifRecordType type;
        if (DGifGetRecordType(gif, &type) == GIF_ERROR) return broken(source, gif->Error, error);
        if (type == IMAGE_DESC_RECORD_TYPE) {
            if (DGifGetImageDesc(gif) == GIF_ERROR) return broken(source, gif->Error, error);
            return KAKEYA_OK;
        }
        if (type == TERMINATE_RECORD_TYPE) return broken(source, 0, error);
        int code;
        GifByteType *block = NULL;
        if (type == EXTENSION_RECORD_TYPE && DGifGetExtension(gif, &code, &block) == GIF_ERROR)
            return broken(source, gif->Error, error);
        GraphicsControlBlock control;
        if (block && code == GRAPHICS_EXT_FUNC_CODE && DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK)
            *transparent = control.TransparentColor;
        while (block) {
            if (DGifGetExtensionNext(gif, &block) == GIF_ERROR) return broken(source, gif->Error, error);
        }
    }
}

kakeya_status image_decode_gif(const image_source *source, const image_check *check, unsigned char **rgb,
                               kakeya_error *error) {
    *rgb = NULL;
    gif_reader reader = {source, 0};
    int code = 0, transparent;
    GifFileType *gif = DGifOpen(&reader, read_bytes, &code);
    if (!gif) return broken(source, code, error);
    *check->info = (image_info){.format = IMAGE_GIF, .width = gif->SWidth, .height = gif->SHeight, .orientation = 1};
    unsigned char *canvas = NULL;
    GifPixelType *row = NULL;
    kakeya_status status = image_check_size(source, check, error);
    if (!status && !check->header_alone) status = find_frame(gif, source, &transparent, error);
    if (!status && !check->header_alone) {
        size_t n = (size_t)gif->SWidth * (size_t)gif->SHeight;
        canvas = malloc(4 * n);
        row = malloc((size_t)gif->SWidth);
        if (!canvas || !row)
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
        else
            status = read_frame(gif, source, transparent, canvas, row, error);
        if (!status) image_on_white(canvas, n);
    }
    DGifCloseFile(gif, &code);
    free(row);
    if (status) {
        free(canvas);
        canvas = NULL;
    }
    *rgb = canvas;
    return status;
}
