#include "media/log_mel.h"

#include <math.h>

#include "media/sound.h"

enum { FRAME = 320, HOP = 160, POINTS = 512, BINS = POINTS / 2 + 1, BITS = 9 };
static const double pi = 3.14159265358979323846, mel_floor = 0.001, top_hz = SOUND_RATE / 2.0;

size_t log_mel_frames(size_t n) { return n <= HOP ? 0 : (n + HOP - 1) / HOP - 1; }

typedef struct tables {
    double window[FRAME], cosine[POINTS / 2], sine[POINTS / 2];
    double edge[LOG_MEL_BANDS + 2]; /* of bands, in Hz */
} tables;

static void make_tables(tables *t) {
    const double top_mel = 2595 * log10(1 + top_hz / 700);
    for (int i = 0; i < FRAME; i++) t->window[i] = 0.5 - 0.5 * cos(2 * pi * i / FRAME);
    for (int i = 0; i < POINTS / 2; i++) {
        t->cosine[i] = cos(2 * pi * i / POINTS);
        t->sine[i] = sin(2 * pi * i / POINTS);
    }
    for (int i = 0; i < LOG_MEL_BANDS + 2; i++)
        t->edge[i] = 700 * (pow(10, top_mel * i / (LOG_MEL_BANDS + 1) / 2595) - 1);
}

/* In place, of POINTS values; radix 2. */
static void transform(const tables *t, double *re, double *im) {
    for (unsigned i = 0; i < POINTS; i++) {
        unsigned j = 0;
        for (int bit = 0; bit < BITS; bit++) j |= (i >> bit & 1) << (BITS - 1 - bit);
        if (j <= i) continue;
        const double r = re[i], m = im[i];
        re[i] = re[j];
        im[i] = im[j];
        re[j] = r;
        im[j] = m;
    }
    for (int half = 1; half < POINTS; half *= 2) {
        const int step = POINTS / (2 * half);
        for (int base = 0; base < POINTS; base += 2 * half) {
            for (int k = 0; k < half; k++) {
                const int a = base + k, b = a + half;
                const double c = t->cosine[k * step], s = -t->sine[k * step];
                const double r = re[b] * c - im[b] * s, m = re[b] * s + im[b] * c;
                re[b] = re[a] - r;
                im[b] = im[a] - m;
                re[a] += r;
                im[a] += m;
            }
        }
    }
}

/* Triangles between the edges of bands. The lowest one lies between two bins and is 0. */
static void bands(const tables *t, const double *magnitude, float *out) {
    const double hz = (double)SOUND_RATE / POINTS;
    for (int i = 0; i < LOG_MEL_BANDS; i++) {
        const double low = t->edge[i], middle = t->edge[i + 1], high = t->edge[i + 2];
        double sum = 0;
        for (int j = (int)(low / hz); j < BINS && j * hz < high; j++) {
            const double up = (j * hz - low) / (middle - low), down = (high - j * hz) / (high - middle);
            const double share = up < down ? up : down;
            if (share > 0) sum += share * magnitude[j];
        }
        out[i] = (float)log(sum + mel_floor);
    }
}

void log_mel(const float *samples, size_t n, float *out) {
    tables t;
    make_tables(&t);
    const size_t frames = log_mel_frames(n);
    for (size_t frame = 0; frame < frames; frame++, out += LOG_MEL_BANDS) {
        double re[POINTS] = {0}, im[POINTS] = {0};
        for (size_t i = 0; i < FRAME; i++) {
            const size_t at = frame * HOP + i; /* HOP zeros stand before the first sample */
            if (at >= HOP && at - HOP < n) re[i] = (double)samples[at - HOP] * t.window[i];
        }
        transform(&t, re, im);
        for (int j = 0; j < BINS; j++) re[j] = sqrt(re[j] * re[j] + im[j] * im[j]);
        bands(&t, re, out);
    }
}
