/* Keys and names: those of llama.cpp's converter and of Ollama's. */
#include "model/gemma4_audio_gguf.h"

#include <stdlib.h>

#include "formats/gguf_keys.h"
#include "media/log_mel.h"
#include "model/gemma4_audio_bind.h"

typedef struct source {
    const gguf *file;
    audio_model *a;
    mem_account *account;
} source;

static const gguf_tensor *tensor_of(const gguf *file, const char *name) {
    const ptrdiff_t at = gguf_find_tensor(file, name);
    return at < 0 ? NULL : file->tensors[at];
}

/* A dimension of a tensor, the fastest one being the first; 0 with a failure where it has none such. */
static int size_in(gguf_keys *k, const char *name, int dims, int at, int most) {
    const gguf_tensor *t = tensor_of(k->file, name);
    if (t && t->dims == dims && t->ne[at] >= 1 && t->ne[at] <= most) return (int)t->ne[at];
    if (!k->status) gguf_keys_fail(k, KAKEYA_FORMAT, "%s is %s", name, t ? "of another shape" : "missing");
    return 0;
}

static void read_conformer(gguf_keys *k, audio_model *a) {
    a->conformer = true;
    a->clipped = true; /* what has no bounds says none */
    a->layers = (int)gguf_keys_required_int(k, "clip.audio.block_count", 1, MODEL_MAX_LAYERS);
    a->hidden = (int)gguf_keys_required_int(k, "clip.audio.embedding_length", 4, 1 << 16);
    a->heads = (int)gguf_keys_required_int(k, "clip.audio.attention.head_count", 1, 1 << 10);
    a->head_dim = a->heads ? a->hidden / a->heads : 0;
    a->intermediate = (int)gguf_keys_int(k, "clip.audio.feed_forward_length", 1, 1 << 18, 4 * (long long)a->hidden);
    a->output = size_in(k, a->one_file ? "mm.a.fc.weight" : "a.pre_encode.out.weight", 2, 1, 1 << 16);
    a->channels[0] = size_in(k, "a.conv1d.0.weight", 4, 3, 1 << 12);
    a->channels[1] = size_in(k, "a.conv1d.1.weight", 4, 3, 1 << 12);
    a->kernel = size_in(k, "a.blk.0.conv_dw.weight", 2, 0, 64);
    a->reach = (int)gguf_keys_int(k, AUDIO_KEY_CONTEXT, 2, 1 << 10, audio_published_reach + 1) - 1;
    a->residual = (float)gguf_keys_number(k, AUDIO_KEY_RESIDUAL, 0, 16, (double)audio_published_residual);
    a->cap = (float)gguf_keys_number(k, AUDIO_KEY_CAP, 1e-3, 1e9, (double)audio_published_cap);
    const long long bands = gguf_keys_int(k, "clip.audio.num_mel_bins", 1, 1 << 16, LOG_MEL_BANDS);
    if (!k->status && bands != LOG_MEL_BANDS)
        gguf_keys_fail(k, KAKEYA_UNSUPPORTED, "clip.audio.num_mel_bins is %lld, not %d", bands, LOG_MEL_BANDS);
    if (!k->status && (a->hidden % a->heads || a->hidden % 2))
        gguf_keys_fail(k, KAKEYA_UNSUPPORTED, "clip.audio.embedding_length %d is not a multiple of %d heads", a->hidden,
                       a->heads);
}

/* False: the file has no audio part, or one of another kind, which has failed. own: it is the model's file. */
static bool read_kind(gguf_keys *k, bool own, bool *conformer) {
    gguf_text kind = {0};
    char shown[GGUF_SHOWN_BYTES];
    *conformer = own;
    if (own) return gguf_keys_find(k, "clip.audio.block_count") != NULL;
    if (!gguf_keys_text(k, "clip.audio.projector_type", &kind) || k->status) return false;
    *conformer = gguf_text_is(kind, "gemma4a");
    if (*conformer || gguf_text_is(kind, "gemma4ua")) return true;
    gguf_keys_fail(k, KAKEYA_UNSUPPORTED, "clip.audio.projector_type is %s, not gemma4a or gemma4ua",
                   gguf_show(kind.data, kind.bytes, shown));
    return false;
}

static void read_keys(gguf_keys *k, const gguf *model, const model_config *text, bool conformer, audio_model *a) {
    if (conformer)
        read_conformer(k, a);
    else
        a->output = a->frame = size_in(k, "mm.a.input_projection.weight", 2, 0, 1 << 16);
    a->rms_eps = (float)gguf_keys_number(k, "clip.audio.attention.layer_norm_epsilon", 0, 1, 1e-6);
    a->text_hidden = text->hidden;
    a->sound_token = gguf_keys_token(model, text->vocab, "<|audio|>");
    a->begin_token = gguf_keys_token(model, text->vocab, "<|audio>");
    a->end_token = gguf_keys_token(model, text->vocab, "<audio|>");
    if (!k->status && (a->sound_token < 0 || a->begin_token < 0 || a->end_token < 0))
        gguf_keys_fail(k, KAKEYA_FORMAT, "the model's vocabulary lacks <|audio|>, <|audio> or <audio|>");
}

static kakeya_status find(void *file, const audio_slot *slot, int bound, vision_stored *out, kakeya_error *error) {
    const source *s = file;
    char name[AUDIO_NAME_BYTES];
    if (bound >= 0) audio_bound_name(slot, bound, true, name);
    const gguf_tensor *t = tensor_of(s->file, bound >= 0 ? name : slot->gguf);
    return t ? vision_stored_gguf(t, s->account, &s->a->owned, &s->a->n_owned, out, error) : KAKEYA_OK;
}

kakeya_status audio_model_gguf_read(const gguf *file, const gguf *model, const model_config *text, mem_account *account,
                                    audio_model **out, bool *there, kakeya_error *reason, kakeya_error *error) {
    gguf_keys k = {.file = file, .error = reason};
    const bool own = file == model;
    bool conformer = false;
    *out = NULL;
    if (own) {
        k.asked = "clip.audio.";
        k.written = "gemma4.audio.";
    }
    const bool kind = read_kind(&k, own, &conformer);
    *there = kind || k.status;
    if (!*there) error_set(reason, KAKEYA_UNSUPPORTED, "no audio encoder in %s", gguf_path(file));
    if (!kind) return KAKEYA_OK;
    audio_model *a = calloc(1, sizeof *a);
    if (!a) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", gguf_path(file));
    source s = {file, a, account};
    kakeya_status status = KAKEYA_OK;
    a->one_file = own;
    read_keys(&k, model, text, conformer, a);
    if (!k.status) status = audio_bind(a, account, find, &s, true, reason, error);
    a->one_file = false;
    if (status == KAKEYA_OK && !reason->status)
        *out = a;
    else
        audio_model_close(a);
    return status;
}
