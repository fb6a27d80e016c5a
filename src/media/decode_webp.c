#include <stdlib.h>
#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

#include "media/decoders.h"

static int orientation_of(WebPDemuxer *demuxer) {
    WebPChunkIterator chunk;
    int orientation = 1;
    if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk))
        orientation = exif_orientation(chunk.chunk.bytes, chunk.chunk.size);
    WebPDemuxReleaseChunkIterator(&chunk);
    return orientation;
}

static kakeya_status broken(const image_source *source, kakeya_error *error) {
    return error_set(error, KAKEYA_FORMAT, "%s: broken WebP", source->name);
}

/* The first frame onto a transparent canvas, which it may not fill. */
static kakeya_status read_frame(const image_source *source, const image_info *info, const WebPIterator *frame,
                                unsigned char *canvas, kakeya_error *error) {
    size_t stride = 4 * (size_t)info->width;
    if (frame->x_offset < 0 || frame->y_offset < 0 || frame->width < 1 || frame->height < 1 ||
        frame->width > info->width - frame->x_offset || frame->height > info->height - frame->y_offset)
        return broken(source, error);
    size_t first = (size_t)frame->y_offset * stride + 4 * (size_t)frame->x_offset;
    size_t bytes = (size_t)(frame->height - 1) * stride + 4 * (size_t)frame->width;
    WebPBitstreamFeatures features;
    if (WebPGetFeatures(frame->fragment.bytes, frame->fragment.size, &features) != VP8_STATUS_OK ||
        features.width != frame->width || features.height != frame->height)
        return broken(source, error);
    if (!WebPDecodeRGBAInto(frame->fragment.bytes, frame->fragment.size, canvas + first, bytes, (int)stride))
        return broken(source, error);
    return KAKEYA_OK;
}

kakeya_status image_decode_webp(const image_source *source, const image_check *check, unsigned char **rgb,
                                kakeya_error *error) {
    *rgb = NULL;
    const WebPData data = {source->data, source->bytes};
    WebPDemuxer *demuxer = WebPDemux(&data); /* NULL where the file is cut off, too */
    if (!demuxer) return broken(source, error);
    uint32_t width = WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_WIDTH);
    uint32_t height = WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_HEIGHT);
    *check->info = (image_info){.format = IMAGE_WEBP,
                                .width = (int)(width & INT32_MAX),
                                .height = (int)(height & INT32_MAX),
                                .orientation = orientation_of(demuxer)};
    kakeya_status status = image_check_size(source, check, error);
    unsigned char *canvas = NULL;
    if (!status && !check->header_alone) {
        size_t n = (size_t)width * height;
        WebPIterator frame;
        canvas = calloc(n, 4);
        if (!canvas)
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", source->name);
        else if (WebPDemuxGetFrame(demuxer, 1, &frame))
            status = read_frame(source, check->info, &frame, canvas, error);
        else
            status = broken(source, error);
        if (canvas) WebPDemuxReleaseIterator(&frame);
        if (!status) image_on_white(canvas, n);
    }
    WebPDemuxDelete(demuxer);
    if (status) {
        free(canvas);
        canvas = NULL;
    }
    *rgb = canvas;
    return status;
}
