/* What `kakeya top` knows of a server at one moment, and how it looks. Text in, text out. */
#ifndef KAKEYA_CLI_TOP_SAMPLE_H
#define KAKEYA_CLI_TOP_SAMPLE_H

#include "kakeya.h"
#include "serve/text.h"

struct cJSON;

enum { TOP_NAME = 96 };

typedef struct top_sample {
    double seconds;                                /* when it was taken, monotonic */
    char state[16], model[TOP_NAME];               /* "ok", "sleeping", "loading", "draining" */
    double progress;                               /* of loading, 0..1 */
    int room;                                      /* answers at a time; 0: not known */
    double running, waiting;                       /* requests */
    double stop, length, calls, cancelled, failed; /* answers so far, by how they ended */
    double generated, prompt, cached, forwards, drafted, accepted, preempted; /* so far */
    double full, sliding, latent, draft;                                      /* bytes of K/V */
    double live, copies, prefix_bytes;
    double kv_room; /* bytes; 0: not known */
    double resident, processor, connections;
    struct cJSON *slots; /* a list, or NULL */
} top_sample;

/* Texts as the server sent them; props and slots may be NULL (a server that is loading has none). KAKEYA_FORMAT: they
 * are not those of a kakeya server. The sample is freed with top_sample_free also then. */
kakeya_status top_sample_read(top_sample *s, const char *health, const char *props, const char *slots,
                              const char *metrics, kakeya_error *error);
void top_sample_free(top_sample *s);

/* Lines of at most `width` characters, `height` of them (0: as many as there are). before: an earlier sample, for what
 * is told per second; NULL: none. */
void top_sample_draw(const top_sample *now, const top_sample *before, const char *url, int width, int height,
                     text_buffer *out);

#endif
