/* Sound: decoding, resampling and log-mel; the conformer and frames against values made with transformers
 * (tests/data/vision/README.md), stage by stage; and prompts with sounds in sessions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "vision_support.h"

#include "backend/backend.h"
#include "backend/measure.h"
#include "formats/checkpoint.h"
#include "kakeya_study.h"
#include "media/log_mel.h"
#include "media/sound_decode.h"
#include "model/audio_model.h"
#include "model/gemma4_vision_bind.h"
#include "session/engine.h"
#include "session/session.h"
#include "session/sound.h"

#define SOUNDS KAKEYA_TEST_DATA "/sounds"

static char *read_sound_file(const char *name, size_t *bytes) {
    char path[512], *data;
    snprintf(path, sizeof path, "%s/%s", SOUNDS, name);
    ok(file_read(path, 1 << 20, &data, bytes, &failure));
    return data;
}

static kakeya_sound *open_sound(const char *name) {
    size_t bytes;
    char *data = read_sound_file(name, &bytes);
    kakeya_sound *opened;
    ok(kakeya_sound_open(name, data, bytes, &opened, &failure));
    free(data);
    return opened;
}

enum { HEARING_MODELS = 2 };
static const char *const hearing_models[HEARING_MODELS] = {"tiny-e", "tiny-unified"};

/* -------------------------------------------------------------------------------------------------------- decoding */

static float sweep_at(double t) {
    const double pi = 3.14159265358979323846, seconds = 0.4;
    return t < 0 || t > seconds ? 0 : (float)(0.5 * sin(pi * t / seconds) * sin(2 * pi * (300 * t + 900 * t * t)));
}

/* Of encoders that lose something, the error's share of the sound. */
static double error_of(const sound_samples *s, int shift) {
    double error = 0, all = 0;
    for (size_t i = 0; i < s->n; i++) {
        const double wanted = (double)sweep_at(((double)i - shift) / SOUND_RATE);
        error += ((double)s->sample[i] - wanted) * ((double)s->sample[i] - wanted);
        all += wanted * wanted;
    }
    return sqrt(error / all);
}

static void test_formats_are_decoded(void **state) {
    (void)state;
    static const struct {
        const char *name, *format;
        int rate, channels;
        double most; /* of the error */
    } files[] = {
        {"sweep.wav", "WAV", 16000, 1, 1e-3},
        {"sweep-u8.wav", "WAV", 16000, 1, 2e-2},
        {"sweep-8000-stereo.wav", "WAV", 8000, 2, 1e-3},
        {"sweep-44100-stereo.flac", "FLAC", 44100, 2, 1e-3},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        kakeya_sound *s = open_sound(files[i].name);
        const kakeya_sound_facts facts = kakeya_sound_describe(s);
        assert_string_equal(facts.format, files[i].format);
        assert_int_equal(facts.rate, files[i].rate);
        assert_int_equal(facts.channels, files[i].channels);
        assert_in_range(facts.samples, 6398, 6401);
        assert_int_equal(strlen(facts.digest), 64);
        const double error = error_of(&s->samples, 0);
        if (!(error < files[i].most)) fail_msg("%s: an error of %g", files[i].name, error);
        kakeya_sound_close(s);
    }
}

/* Encoders of MP3 put a part of a second before the sound, which not all of them say. */
static void test_mp3_is_decoded(void **state) {
    (void)state;
    kakeya_sound *s = open_sound("sweep-24000.mp3");
    const kakeya_sound_facts facts = kakeya_sound_describe(s);
    assert_string_equal(facts.format, "MP3");
    assert_int_equal(facts.rate, 24000);
    assert_in_range(facts.samples, 6000, 9000);
    double least = 1;
    for (int shift = -100; shift < 2000; shift++) {
        const double error = error_of(&s->samples, shift);
        if (error < least) least = error;
    }
    if (!(least < 0.1)) fail_msg("an error of %g", least);
    kakeya_sound_close(s);
}

static kakeya_status decode(const void *data, size_t bytes) {
    sound_info info;
    sound_samples s;
    memset(&failure, 0, sizeof failure);
    kakeya_status status = sound_decode("it", data, bytes, SOUND_MAX_SECONDS, &info, &s, &failure);
    if (status == KAKEYA_OK) assert_true(s.n > 0 && s.n <= SOUND_MAX_SECONDS * SOUND_RATE);
    sound_free(&s);
    return status;
}

static void test_files_that_end_early_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {"sweep.wav", "sweep-8000-stereo.wav", "sweep-44100-stereo.flac"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t bytes;
        char *data = read_sound_file(names[i], &bytes);
        for (size_t cut = 0; cut < bytes; cut += 1 + bytes / 97)
            if (decode(data, cut) == KAKEYA_OK) fail_msg("%s: its first %zu bytes were taken", names[i], cut);
        free(data);
    }
}

static void put_number(unsigned char *at, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; i++) at[i] = (unsigned char)(value >> 8 * i);
}

/* A WAV file's header: PCM of 16 bits; then the samples are zeros. */
static unsigned char *make_wav(int channels, int rate, size_t frames, size_t *bytes) {
    const size_t data = frames * (size_t)channels * 2;
    unsigned char *wav = calloc(44 + data, 1);
    *bytes = 44 + data;
    memcpy(wav, "RIFF    WAVEfmt ", 16);
    put_number(wav + 4, (uint32_t)(36 + data), 4);
    put_number(wav + 16, 16, 4);
    put_number(wav + 20, 1, 2);
    put_number(wav + 22, (uint32_t)channels, 2);
    put_number(wav + 24, (uint32_t)rate, 4);
    put_number(wav + 28, (uint32_t)(rate * channels * 2), 4);
    put_number(wav + 32, (uint32_t)channels * 2, 2);
    put_number(wav + 34, 16, 2);
    memcpy(wav + 36, "data", 4);
    put_number(wav + 40, (uint32_t)data, 4);
    return wav;
}

static void check_wav(int channels, int rate, size_t frames, kakeya_status wanted, const char *says) {
    size_t bytes;
    unsigned char *wav = make_wav(channels, rate, frames, &bytes);
    assert_int_equal(decode(wav, bytes), wanted);
    if (says && !strstr(failure.message, says)) fail_msg("%s", failure.message);
    free(wav);
}

static void test_limits(void **state) {
    (void)state;
    check_wav(1, 16000, 480000, KAKEYA_OK, NULL);
    check_wav(1, 16000, 480001, KAKEYA_INVALID_ARGUMENT, "30 seconds");
    check_wav(2, 44100, 44100 * 30, KAKEYA_OK, NULL);
    check_wav(1, 8000, 240001, KAKEYA_INVALID_ARGUMENT, "30 seconds");
    check_wav(1, 2000, 100, KAKEYA_UNSUPPORTED, "2000 Hz");
    check_wav(33, 16000, 100, KAKEYA_UNSUPPORTED, "33 channels");
    check_wav(1, 16000, 0, KAKEYA_FORMAT, NULL);
    assert_int_equal(decode("\x89PNG\r\n\x1a\n", 8), KAKEYA_UNSUPPORTED);
    assert_int_equal(decode("", 0), KAKEYA_UNSUPPORTED);
    assert_int_equal(decode("OggS\0\2", 6), KAKEYA_UNSUPPORTED);
    assert_int_not_equal(decode("ID3\4\0\0\0\0\0\0", 10), KAKEYA_OK);
    assert_int_not_equal(decode("\xff\xfb\x90\x64", 4), KAKEYA_OK);
}

/* Resampling overshoots steps between the largest and the smallest sample. */
static void test_samples_stay_in_their_range(void **state) {
    (void)state;
    size_t bytes;
    unsigned char *wav = make_wav(1, 44100, 4410, &bytes);
    for (size_t i = 0; i < 4410; i++) put_number(wav + 44 + 2 * i, i / 50 % 2 ? 0x7fff : 0x8000, 2);
    sound_info info;
    sound_samples s;
    ok(sound_decode("steps", wav, bytes, SOUND_MAX_SECONDS, &info, &s, &failure));
    float most = 0;
    for (size_t i = 0; i < s.n; i++) most = fmaxf(most, fabsf(s.sample[i]));
    assert_true(most == 1);
    sound_free(&s);
    free(wav);
}

static void test_samples_from_elsewhere(void **state) {
    (void)state;
    kakeya_sound *s = open_sound("chirp.wav"), *copy;
    kakeya_sound_facts facts = kakeya_sound_describe(s), again;
    ok(kakeya_sound_of_samples(&facts, s->samples.sample, s->samples.n, &copy, &failure));
    again = kakeya_sound_describe(copy);
    assert_string_equal(facts.digest, again.digest);
    assert_int_equal(again.samples, 9700);
    copy->samples.sample[7] = NAN;
    kakeya_sound *none;
    assert_int_equal(kakeya_sound_of_samples(&facts, copy->samples.sample, 9700, &none, &failure),
                     KAKEYA_INVALID_ARGUMENT);
    assert_int_equal(kakeya_sound_of_samples(&facts, copy->samples.sample, 0, &none, &failure),
                     KAKEYA_INVALID_ARGUMENT);
    facts.format = "Ogg";
    assert_int_equal(kakeya_sound_of_samples(&facts, s->samples.sample, 9700, &none, &failure),
                     KAKEYA_INVALID_ARGUMENT);
    kakeya_sound_close(copy);
    kakeya_sound_close(s);
}

/* ---------------------------------------------------------------------------------------------------------- stages */

static void test_log_mel_is_that_of_the_reference(void **state) {
    (void)state;
    fixture f = open_model("tiny-e");
    kakeya_sound *s = open_sound("chirp.wav");
    const size_t frames = log_mel_frames(s->samples.n);
    float *got = malloc(frames * LOG_MEL_BANDS * sizeof *got);
    size_t n, valid = 0;
    const tensor *mask = safetensors_find(f.golden, "audio.features_mask");
    for (size_t i = 0; i < mask->bytes; i++) valid += ((const uint8_t *)mask->data)[i];
    assert_int_equal(frames, valid);
    log_mel(s->samples.sample, s->samples.n, got);
    const float *wanted = golden(&f, "audio", "features_every_third", &n);
    for (size_t row = 0; 3 * row < frames; row++)
        near("log-mel", got + 3 * row * LOG_MEL_BANDS, wanted + row * LOG_MEL_BANDS, LOG_MEL_BANDS, 2e-4f);
    assert_int_equal(log_mel_frames(160), 0);
    assert_int_equal(log_mel_frames(161), 1);
    free(got);
    kakeya_sound_close(s);
    close_model(&f);
}

static float of_matrix(const weight *w, int row, int column) {
    static const dtype types[] = {[WEIGHT_F32] = DTYPE_F32, [WEIGHT_BF16] = DTYPE_BF16};
    return vision_value(weight_row(w, 0, 0), types[w->format], (size_t)row * (size_t)w->in + (size_t)column);
}

/* x [w->in] to w * x + bias, its RMS 1. */
static void project(const weight *w, const float *bias, const float *x, float *out) {
    double squares = 0;
    for (int i = 0; i < w->out; i++) {
        double sum = bias ? (double)bias[i] : 0;
        for (int k = 0; k < w->in; k++) sum += (double)of_matrix(w, i, k) * (double)x[k];
        out[i] = (float)sum;
        squares += sum * sum;
    }
    for (int i = 0; i < w->out; i++) out[i] /= (float)sqrt(squares / w->out + 1e-6);
}

static void compute(const backend_ops *ops, backend_model *model, const audio_model *audio, const kakeya_sound *s,
                    double seconds, float *rows) {
    const backend_sound given = {.audio = audio, .samples = s->samples.sample, .n = s->samples.n};
    backend_hearing *hearing;
    ok(ops->sound_begin(model, &given, rows, &hearing, &failure));
    for (bool done = false; !done;) ok(ops->sound_step(hearing, seconds, &done, &failure));
    ops->sound_end(hearing);
}

/* What the encoder's first layers make, projected, is what the reference's hidden states behind them are, projected. */
static void test_layers_are_those_of_the_reference(void **state) {
    (void)state;
    fixture f = open_model("tiny-e");
    mem_account account;
    mem_account_init(&account, NULL, 0);
    language_model *verifier;
    backend_model *model;
    ok(language_model_open(VISION "/tiny-e", &account, &verifier, &failure));
    const backend_ops *ops = backend_find("cpu", NULL);
    const backend_model_options options = {.verifier = verifier, .threads = 2, .account = &account};
    ok(ops->model_create(&options, &model, &failure));
    kakeya_sound *s = open_sound("chirp.wav");
    audio_model some = *verifier->sound;
    const int layers = some.layers, width = some.text_hidden;
    const size_t rows = audio_model_rows(&some, s->samples.n), before = mem_total(&account);
    float *got = malloc(rows * (size_t)width * sizeof *got), *again = malloc(rows * (size_t)width * sizeof *got);
    float *out = malloc((size_t)some.output * sizeof *out), wanted;
    size_t n;
    const float *hidden = golden(&f, "audio", "tower_hidden", &n);
    assert_int_equal(n, (size_t)(layers + 1) * rows * (size_t)some.hidden);
    const weight *output = &some.weights->matrix[AUDIO_OUTPUT], *last = &some.weights->matrix[AUDIO_PROJECTION];
    for (some.layers = 0; some.layers <= layers; some.layers++) {
        compute(ops, model, &some, s, INFINITY, got);
        for (size_t row = 0; row < rows; row++, hidden += some.hidden) {
            project(output, some.weights->vector[AUDIO_OUTPUT_BIAS], hidden, out);
            for (int i = 0; i < width; i++) {
                double sum = 0;
                for (int k = 0; k < some.output; k++) sum += (double)of_matrix(last, i, k) * (double)out[k];
                wanted = (float)sum;
                char what[64];
                snprintf(what, sizeof what, "behind layer %d, row %zu, %d", some.layers, row, i);
                near(what, got + row * (size_t)width + (size_t)i, &wanted, 1, 2e-4f);
            }
        }
        compute(ops, model, &some, s, 0, again); /* a piece at a time */
        assert_memory_equal(got, again, rows * (size_t)width * sizeof *got);
    }
    const float *soft = golden(&f, "audio", "soft_tokens", &n);
    near("rows of the sound", got, soft, n, 1e-4f);
    assert_int_equal(mem_total(&account), before);
    free(got);
    free(again);
    free(out);
    kakeya_sound_close(s);
    ops->model_destroy(model);
    language_model_close(verifier);
    assert_int_equal(mem_total(&account), 0);
    close_model(&f);
}

/* What `info` says of its workspace is what it then takes, and of its weights what the engine has. */
static void test_its_memory_is_told(void **state) {
    (void)state;
    for (int m = 0; m < HEARING_MODELS; m++) {
        mem_account account;
        mem_account_init(&account, NULL, 0);
        language_model *verifier;
        backend_model *model;
        char path[512];
        snprintf(path, sizeof path, "%s/%s", VISION, hearing_models[m]);
        ok(language_model_open(path, &account, &verifier, &failure));
        const backend_ops *ops = backend_find("cpu", NULL);
        const backend_model_options options = {.verifier = verifier, .threads = 2, .account = &account};
        ok(ops->model_create(&options, &model, &failure));
        const audio_model *audio = verifier->sound;
        kakeya_sound *s = open_sound("chirp.wav");
        float *rows = calloc(audio_model_rows(audio, s->samples.n) * (size_t)audio->text_hidden, sizeof *rows);
        const size_t before = mem_total(&account);
        atomic_store(&account.peak_bytes, before);
        compute(ops, model, audio, s, INFINITY, rows);
        assert_int_equal(
            backend_measure_find(ops)->sound_bytes(audio, verifier->config.checkpoint_format, s->samples.n),
            atomic_load(&account.peak_bytes) - before);
        kakeya_engine_options described;
        kakeya_description *description;
        KAKEYA_INIT(&described);
        described.model = path;
        ok(kakeya_describe(&described, &description, &failure));
        const kakeya_facts facts = kakeya_description_facts(description);
        const vision_sizes sizes = audio_model_sizes(audio, WEIGHT_Q4_0 /* it has weights, which say their own */);
        assert_int_equal(facts.audio_parameters, sizes.parameters);
        assert_int_equal(facts.audio_bytes, sizes.bytes);
        assert_int_equal(facts.audio_layers, audio->layers);
        kakeya_description_close(description);
        free(rows);
        kakeya_sound_close(s);
        ops->model_destroy(model);
        language_model_close(verifier);
        assert_int_equal(mem_total(&account), 0);
    }
}

/* Those of E2B and E4B, as transformers counts them. */
static void test_sizes_of_a_published_conformer(void **state) {
    (void)state;
    const audio_model audio = {.conformer = true,
                               .layers = 12,
                               .hidden = 1024,
                               .heads = 8,
                               .head_dim = 128,
                               .intermediate = 4096,
                               .output = 1536,
                               .channels = {128, 32},
                               .kernel = 5,
                               .text_hidden = 1536};
    const vision_sizes sizes = audio_model_sizes(&audio, WEIGHT_BF16);
    assert_int_equal(sizes.parameters, 304824608 + 1536 * 1536);
    assert_int_equal(audio_model_rows(&audio, 16000), 25);
    assert_int_equal(audio_model_rows(&audio, 14400), 23);
    assert_int_equal(audio_model_rows(&audio, 480000), 750);
    assert_int_equal(audio_model_rows(&audio, 161), 1);
    assert_int_equal(audio_model_rows(&audio, 160), 0);
}

/* --------------------------------------------------------------------------------------------------------- prompts */

static prompt open_sound_prompt(const fixture *f) {
    prompt p = {.n_media = 1, .media = {{.sound = open_sound("chirp.wav")}}};
    p.ids = golden(f, "audio", "input_ids", &p.n);
    return p;
}

static void close_sound_prompt(prompt *p) { kakeya_sound_close((kakeya_sound *)(uintptr_t)p->media[0].sound); }

static void test_logits_are_those_of_the_reference(void **state) {
    (void)state;
    for (int m = 0; m < HEARING_MODELS; m++) {
        fixture f = open_model(hearing_models[m]);
        prompt p = open_sound_prompt(&f);
        float *hidden, *logits = score(&f, &p, 0, &hidden);
        size_t n, n_rows, begin = 0;
        while (p.ids[begin] != kakeya_engine_sound_token(f.engine)) begin++;
        const float *soft = golden(&f, "audio", "soft_tokens", &n);
        int tokens;
        ok(kakeya_engine_sound_tokens(f.engine, p.media[0].sound, &tokens, &failure));
        assert_int_equal((size_t)tokens * (size_t)f.hidden, n);
        near("rows of the sound", hidden + begin * (size_t)f.hidden, soft, n, 1e-3f);
        const int32_t *rows = golden(&f, "audio", "rows", &n_rows);
        const float *wanted = golden(&f, "audio", "hidden", &n);
        for (int layer = 0; layer <= f.layers; layer++)
            for (size_t i = 0; i < n_rows; i++, wanted += f.hidden)
                near("hidden states", hidden + ((size_t)layer * p.n + (size_t)rows[i]) * (size_t)f.hidden, wanted,
                     (size_t)f.hidden, 2e-3f);
        wanted = golden(&f, "audio", "logits", &n);
        for (size_t i = 0; i < n_rows; i++)
            near(hearing_models[m], logits + (size_t)rows[i] * (size_t)f.vocab, wanted + i * (size_t)f.vocab,
                 (size_t)f.vocab, 1e-3f);
        for (int chunk = 1; chunk < 40; chunk += 12) { /* sounds are never cut */
            float *again = score(&f, &p, chunk, NULL);
            assert_memory_equal(again, logits, p.n * (size_t)f.vocab * sizeof *again);
            free(again);
        }
        free(hidden);
        free(logits);
        close_sound_prompt(&p);
        close_model(&f);
    }
}

static void sync_prompt(kakeya_session *session, const prompt *p, size_t *reused) {
    ok(kakeya_session_sync_media(session, p->ids, p->n, p->media, p->n_media, reused, NULL, NULL, &failure));
}

static void check_answer(const fixture *f, kakeya_session *session, const prompt *p) {
    kakeya_generate_options options;
    KAKEYA_INIT(&options);
    options.max_tokens = GREEDY;
    options.ignore_stop_tokens = true;
    ok(kakeya_session_generate(session, &options, NULL, &failure));
    size_t all, n;
    const int32_t *tokens = kakeya_session_tokens(session, &all), *wanted = golden(f, "audio", "greedy", &n);
    assert_int_equal(all, p->n + GREEDY);
    for (size_t i = 0; i < GREEDY; i++)
        if (tokens[p->n + i] != wanted[i])
            fail_msg("answer's token %zu: %d, not %d", i, (int)tokens[p->n + i], (int)wanted[i]);
}

/* Nothing is computed again of a sound that is known; another sample has all behind it computed. */
static void test_sounds_in_sessions(void **state) {
    (void)state;
    for (int m = 0; m < HEARING_MODELS; m++) {
        fixture f = open_model(hearing_models[m]);
        prompt p = open_sound_prompt(&f), other = p;
        kakeya_session *session = open_session(&f, 0), *fork, *loaded = open_session(&f, 0);
        size_t reused, bytes;
        void *data;
        sync_prompt(session, &p, &reused);
        assert_int_equal(reused, 0);
        assert_int_equal(kakeya_engine_sound_counts(f.engine).computed, 1);
        ok(kakeya_session_fork(session, &fork, &failure));
        ok(session_to_memory(session, &data, &bytes, &failure));
        ok(session_from_memory(loaded, data, bytes, &failure));
        check_answer(&f, session, &p);
        kakeya_session *const copies[] = {session, fork, loaded};
        for (size_t i = 0; i < 3; i++) {
            sync_prompt(copies[i], &p, &reused);
            assert_true(reused >= p.n - 1);
            check_answer(&f, copies[i], &p);
        }
        assert_int_equal(kakeya_engine_sound_counts(f.engine).computed, 1);

        kakeya_sound *changed = open_sound("chirp.wav");
        const kakeya_sound_facts facts = kakeya_sound_describe(changed);
        changed->samples.sample[5000] += 0.25f;
        ok(kakeya_sound_of_samples(&facts, changed->samples.sample, changed->samples.n,
                                   (kakeya_sound **)(uintptr_t)&other.media[0].sound, &failure));
        int32_t *keys[2] = {malloc(p.n * sizeof(int32_t)), malloc(p.n * sizeof(int32_t))};
        ok(kakeya_prompt_keys(f.engine, p.ids, p.n, p.media, 1, keys[0], &failure));
        ok(kakeya_prompt_keys(f.engine, p.ids, p.n, other.media, 1, keys[1], &failure));
        size_t same = 0;
        while (keys[0][same] == keys[1][same]) same++;
        assert_int_equal(p.ids[same], kakeya_engine_sound_token(f.engine));
        sync_prompt(session, &other, &reused);
        assert_true(reused <= same);
        assert_int_equal(kakeya_engine_sound_counts(f.engine).computed, 2);
        sync_prompt(session, &p, &reused);
        assert_true(reused <= same);
        check_answer(&f, session, &p);
        kakeya_sound_close((kakeya_sound *)(uintptr_t)other.media[0].sound);
        kakeya_sound_close(changed);
        kakeya_free(data);
        free(keys[0]);
        free(keys[1]);
        kakeya_session_close(session);
        kakeya_session_close(fork);
        kakeya_session_close(loaded);
        close_sound_prompt(&p);
        close_model(&f);
    }
}

static void wrong(kakeya_session *session, const int32_t *ids, size_t n, const kakeya_media *media, size_t n_media,
                  const char *says) {
    memset(&failure, 0, sizeof failure);
    assert_int_not_equal(kakeya_session_sync_media(session, ids, n, media, n_media, NULL, NULL, NULL, &failure),
                         KAKEYA_OK);
    if (!strstr(failure.message, says)) fail_msg("\"%s\" does not say \"%s\"", failure.message, says);
}

static void test_what_is_refused(void **state) {
    (void)state;
    fixture f = open_model("tiny-e"), deaf = open_model("tiny-tower");
    prompt p = open_sound_prompt(&f);
    kakeya_session *session = open_session(&f, 0), *other = open_session(&deaf, 0);
    kakeya_sound *sweep = open_sound("sweep.wav");
    const kakeya_media two[] = {p.media[0], p.media[0]}, longer = {.sound = sweep};
    assert_int_equal(kakeya_engine_sound_token(deaf.engine), -1);
    wrong(other, p.ids, p.n, p.media, 1, "the model reads no sound");
    wrong(session, p.ids, p.n, two, 2, "2 sounds, but the prompt has room for 1");
    wrong(session, p.ids, p.n, &longer, 1, "sound 0 is 10 tokens, but the prompt has room for 15");
    wrong(session, p.ids, 3, p.media, 1, "1 sounds, but the prompt has room for 0");
    int tokens;
    sweep->samples.n = 160;
    assert_int_equal(kakeya_engine_sound_tokens(f.engine, sweep, &tokens, &failure), KAKEYA_INVALID_ARGUMENT);
    kakeya_sound_close(sweep);
    kakeya_session_close(session);
    kakeya_session_close(other);
    close_sound_prompt(&p);
    close_model(&f);
    close_model(&deaf);
}

/* Pictures and sounds in one prompt find their own places, whatever the order in which they are given. */
static void test_sounds_beside_pictures(void **state) {
    (void)state;
    fixture f = open_model("tiny-e");
    prompt heard = open_sound_prompt(&f), seen = open_prompt(&f, 0), both = {0}, turned;
    int32_t *ids = malloc((heard.n + seen.n) * sizeof *ids);
    memcpy(ids, heard.ids, heard.n * sizeof *ids);
    memcpy(ids + heard.n, seen.ids, seen.n * sizeof *ids);
    both = (prompt){.ids = ids, .n = heard.n + seen.n, .n_media = 2, .media = {heard.media[0], seen.media[0]}};
    turned = both;
    turned.media[0] = seen.media[0];
    turned.media[1] = heard.media[0];
    float *first = score(&f, &both, 0, NULL), *second = score(&f, &turned, 17, NULL),
          *alone = score(&f, &heard, 0, NULL);
    assert_memory_equal(first, second, both.n * (size_t)f.vocab * sizeof *first);
    assert_memory_equal(first, alone, heard.n * (size_t)f.vocab * sizeof *first);
    free(first);
    free(second);
    free(alone);
    free(ids);
    close_sound_prompt(&heard);
    close_prompt(&seen);
    close_model(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_are_decoded),
        cmocka_unit_test(test_mp3_is_decoded),
        cmocka_unit_test(test_files_that_end_early_are_refused),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_samples_stay_in_their_range),
        cmocka_unit_test(test_samples_from_elsewhere),
        cmocka_unit_test(test_log_mel_is_that_of_the_reference),
        cmocka_unit_test(test_layers_are_those_of_the_reference),
        cmocka_unit_test(test_its_memory_is_told),
        cmocka_unit_test(test_sizes_of_a_published_conformer),
        cmocka_unit_test(test_logits_are_those_of_the_reference),
        cmocka_unit_test(test_sounds_in_sessions),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_sounds_beside_pictures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
