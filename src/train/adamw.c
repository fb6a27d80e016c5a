#include "train/adamw.h"

#include <math.h>

enum { BLOCK = 1 << 14, PARTS = 256 /* of a gradient, whose squares are added up one by one */ };

typedef struct adamw_work {
    const adamw_options *o;
    const float *gradient, *unit;
    float *weights, *first, *second;
    double scale, rate, correction[2]; /* 1 - beta^step */
} adamw_work;

static void update(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const adamw_work *w = context;
    double keep[2] = {w->o->beta[0], w->o->beta[1]};
    for (size_t i = begin; i < end; i++) {
        double g = (double)w->gradient[i] * w->scale;
        double m = keep[0] * (double)w->first[i] + (1 - keep[0]) * g,
               v = keep[1] * (double)w->second[i] + (1 - keep[1]) * g * g, x = (double)w->weights[i];
        w->first[i] = (float)m;
        w->second[i] = (float)v;
        x -= w->rate * w->o->decay * x;
        double unit = w->unit ? (double)w->unit[i] : 1;
        x -= unit * w->rate * (m / w->correction[0]) / (sqrt(v / w->correction[1]) + w->o->eps);
        w->weights[i] = (float)x;
    }
}

typedef struct length_work {
    const float *gradient;
    size_t n, of_part;
    double squares[PARTS];
} length_work;

static void add_squares(void *context, size_t begin, size_t end, int thread) {
    enum { LANES = 8 };
    (void)thread;
    length_work *w = context;
    for (size_t part = begin; part < end; part++) {
        size_t at = part * w->of_part, stop = at + w->of_part < w->n ? at + w->of_part : w->n;
        double sum[LANES] = {0};
        for (; at + LANES <= stop; at += LANES) {
            for (size_t i = 0; i < LANES; i++) sum[i] += (double)w->gradient[at + i] * (double)w->gradient[at + i];
        }
        for (; at < stop; at++) sum[0] += (double)w->gradient[at] * (double)w->gradient[at];
        for (int i = 0; i < LANES; i++) w->squares[part] += sum[i];
    }
}

double adamw_length(thread_pool *pool, const float *gradient, size_t n) {
    length_work work = {.gradient = gradient, .n = n, .of_part = n / PARTS + 1};
    thread_pool_for(pool, PARTS, PARTS / 16, add_squares, &work);
    double squares = 0;
    for (int i = 0; i < PARTS; i++) squares += work.squares[i];
    return sqrt(squares);
}

void adamw_step(thread_pool *pool, const adamw_options *o, double rate, int step, double length, const float *gradient,
                const float *unit, size_t n, float *weights, float *first, float *second) {
    adamw_work work = {.o = o,
                       .gradient = gradient,
                       .unit = unit,
                       .weights = weights,
                       .first = first,
                       .second = second,
                       .scale = length > o->clip ? o->clip / length : 1,
                       .rate = rate,
                       .correction = {1 - pow(o->beta[0], step), 1 - pow(o->beta[1], step)}};
    thread_pool_for(pool, n, BLOCK, update, &work);
}

double adamw_rate(bool constant, double peak, int warm_up, int step, int steps) {
    if (constant) return peak;
    if (step <= warm_up) return peak * step / warm_up;
    int length = steps - warm_up > 1 ? steps - warm_up : 1;
    double way = fmin((double)(step - warm_up) / length, 1), floor = peak / 100;
    return floor + (peak - floor) * 0.5 * (1 + cos(acos(-1.0) * way));
}
