/* Any bytes as an mmproj file: what is refused says why in one line, of what is taken every value can be read, and
 * nothing is left behind. */
#include <stdlib.h>
#include <string.h>

#include "model/gemma4_audio_gguf.h"
#include "model/gemma4_mmproj.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A language model as far as it is asked: its vocabulary. */
static gguf *vocabulary(void) {
    static const char *const pieces[] = {"a", "<|image|>", "<|image>", "<image|>", "<|audio|>", "<|audio>", "<audio|>"};
    static unsigned char bytes[512];
    size_t n = 0;
    const uint32_t version = 3, array = 9, text = 8;
    const uint64_t none = 0, one = 1, count = sizeof pieces / sizeof *pieces;
    static const char key[] = "tokenizer.ggml.tokens";
    const uint64_t key_bytes = sizeof key - 1;
#define PUT(data, size)                                                                                                \
    do {                                                                                                               \
        memcpy(bytes + n, data, size);                                                                                 \
        n += (size);                                                                                                   \
    } while (0)
    PUT("GGUF", 4);
    PUT(&version, sizeof version);
    PUT(&none, sizeof none);
    PUT(&one, sizeof one);
    PUT(&key_bytes, sizeof key_bytes);
    PUT(key, sizeof key - 1);
    PUT(&array, sizeof array);
    PUT(&text, sizeof text);
    PUT(&count, sizeof count);
    for (size_t i = 0; i < count; i++) {
        const uint64_t length = strlen(pieces[i]);
        PUT(&length, sizeof length);
        PUT(pieces[i], length);
    }
#undef PUT
    gguf *file = NULL;
    kakeya_error error;
    if (gguf_parse("vocabulary", bytes, sizeof bytes, &file, &error)) abort();
    return file;
}

typedef struct sum {
    const vision_model *v;
    double all;
} sum;

static kakeya_status add(void *context, const vision_slot *slot, kakeya_error *error) {
    (void)error;
    sum *s = context;
    const vision_weights *w = &s->v->weights[1 + slot->layer];
    if (slot->matrix) {
        const unsigned char *bytes = w->matrix[slot->role].stream[0];
        for (size_t i = 0; i < weight_bytes(&w->matrix[slot->role]); i++) s->all += bytes[i];
    } else {
        for (int64_t i = 0; i < slot->rows; i++) s->all += w->vector[slot->role][i] > 0;
    }
    return KAKEYA_OK;
}

typedef struct audio_sum {
    const audio_model *a;
    double all;
} audio_sum;

static kakeya_status add_audio(void *context, const audio_slot *slot, kakeya_error *error) {
    (void)error;
    audio_sum *s = context;
    const audio_weights *w = &s->a->weights[1 + slot->layer];
    if (slot->mapped || slot->role == AUDIO_CONV_1) {
        const unsigned char *bytes = w->matrix[slot->role].stream[0];
        for (size_t i = 0; i < weight_bytes(&w->matrix[slot->role]); i++) s->all += bytes[i];
    } else {
        for (int64_t i = 0; i < slot->rows * slot->columns; i++) s->all += w->vector[slot->role][i] > 0;
    }
    return KAKEYA_OK;
}

static void read_audio(const gguf *file, const gguf *model, const model_config *text, mem_account *account) {
    kakeya_error error = {0}, reason = {0};
    audio_model *a = NULL;
    bool there;
    kakeya_status status = audio_model_gguf_read(file, model, text, account, &a, &there, &reason, &error);
    if (!a && !status && (!reason.status || !*reason.message || strchr(reason.message, '\n'))) abort();
    if (a && (status || reason.status || !there)) abort();
    if (a) {
        audio_sum s = {.a = a};
        if (audio_model_walk(a, add_audio, &s, &error) || !(s.all >= 0)) abort();
    }
    audio_model_close(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static gguf *model;
    static const model_config text = {.hidden = 48, .vocab = 7};
    if (!model) model = vocabulary();
    gguf *file = NULL;
    kakeya_error error = {0}, reason = {0};
    if (gguf_parse("fuzz", data, size, &file, &error)) return 0;
    mem_account account;
    mem_account_init(&account, NULL, 1 << 28);
    vision_model *v = NULL;
    kakeya_status status = gemma4_mmproj_read(file, model, &text, &account, &v, &reason, &error);
    if (!v && !status && (!reason.status || !*reason.message || strchr(reason.message, '\n'))) abort();
    if (v && (status || reason.status)) abort();
    if (v) {
        sum s = {.v = v};
        if (vision_model_walk(v, add, &s, &error) || !(s.all >= 0)) abort();
    }
    vision_model_close(v);
    read_audio(file, model, &text, &account);
    gguf_close(file);
    if (mem_total(&account)) abort();
    return 0;
}
