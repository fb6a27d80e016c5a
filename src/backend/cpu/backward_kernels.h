/* The functions of backward.h for one type of numbers, BACKWARD_REAL; included by it alone, once for each. Every sum
 * runs in the order of its index. d_... is the gradient of the loss with respect to ...; where a gradient is added to,
 * it says so. */

/* out = x * s * gain, s = (mean(x^2) + eps)^-1/2; gain NULL: ones. d_x += s (g - n mean(g n)) with n = x s, g =
 * d_out * gain. */
static inline void BACKWARD(rms_norm)(const BACKWARD_REAL *x, const BACKWARD_REAL *gain, const BACKWARD_REAL *d_out,
                                      int n, BACKWARD_REAL eps, BACKWARD_REAL *d_x) {
    double squares = 0, along = 0;
    for (int i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    double s = 1 / sqrt(squares / n + (double)eps);
    for (int i = 0; i < n; i++) along += (double)d_out[i] * (gain ? (double)gain[i] : 1) * (double)x[i] * s;
    along /= n;
    for (int i = 0; i < n; i++) {
        double g = (double)d_out[i] * (gain ? (double)gain[i] : 1);
        d_x[i] += (BACKWARD_REAL)(s * (g - (double)x[i] * s * along));
    }
}

/* A rotation's gradient is turned back. In place. */
static inline void BACKWARD(rope)(BACKWARD_REAL *d, int half, int pairs, const BACKWARD_REAL *cosine,
                                  const BACKWARD_REAL *sine) {
    for (int j = 0; j < pairs; j++) {
        BACKWARD_REAL a = d[j], b = d[j + half];
        d[j] = a * cosine[j] + b * sine[j];
        d[j + half] = b * cosine[j] - a * sine[j];
    }
}

/* out = gelu_tanh(gate) * up. d_gate and d_up are set; d_gate may be d_out. */
static inline void BACKWARD(gated)(const BACKWARD_REAL *gate, const BACKWARD_REAL *up, const BACKWARD_REAL *d_out,
                                   int n, BACKWARD_REAL *d_gate, BACKWARD_REAL *d_up) {
    const BACKWARD_REAL root = (BACKWARD_REAL)0.79788456080286535588, cubic = (BACKWARD_REAL)0.044715; /* sqrt(2/pi) */
    for (int i = 0; i < n; i++) {
        BACKWARD_REAL x = gate[i], u = root * (x + cubic * x * x * x);
        BACKWARD_REAL t =
            (BACKWARD_REAL)(sizeof(BACKWARD_REAL) == sizeof(float) ? (double)tanhf((float)u) : tanh((double)u));
        BACKWARD_REAL gelu = x * (1 + t) / 2;
        BACKWARD_REAL slope = (1 + t) / 2 + x * (1 - t * t) * root * (1 + 3 * cubic * x * x) / 2;
        BACKWARD_REAL d = d_out[i];
        if (d_up) d_up[i] = d * gelu;
        d_gate[i] = d * up[i] * slope;
    }
}

/* A row of attention weights p over n keys: d_p becomes the gradient of the scores, p (d_p - sum(p d_p)). */
static inline void BACKWARD(softmax)(const BACKWARD_REAL *p, int n, BACKWARD_REAL *d_p) {
    double along = 0;
    for (int i = 0; i < n; i++) along += (double)p[i] * (double)d_p[i];
    for (int i = 0; i < n; i++) d_p[i] = p[i] * (d_p[i] - (BACKWARD_REAL)along);
}

/* Weights of the chosen experts, softmax(z) * scale: d_z from d_share. */
static inline void BACKWARD(route)(const BACKWARD_REAL *share, const BACKWARD_REAL *scale, const BACKWARD_REAL *d_share,
                                   int n, BACKWARD_REAL *d_z) {
    double along = 0;
    for (int i = 0; i < n; i++) along += (double)share[i] * (double)d_share[i]; /* p scale d_share */
    for (int i = 0; i < n; i++)
        d_z[i] = share[i] * d_share[i] - (scale[i] != 0 ? share[i] / scale[i] : 0) * (BACKWARD_REAL)along;
}

/* The gradient of rms_norm's gain: d_gain += d_out x s. */
static inline void BACKWARD(rms_gain)(const BACKWARD_REAL *x, const BACKWARD_REAL *d_out, int n, BACKWARD_REAL eps,
                                      BACKWARD_REAL *d_gain) {
    double squares = 0;
    for (int i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    BACKWARD_REAL s = (BACKWARD_REAL)(1 / sqrt(squares / n + (double)eps));
    for (int i = 0; i < n; i++) d_gain[i] += d_out[i] * x[i] * s;
}

/* out = silu(gate) * up. d_gate and d_up are set; d_gate may be d_out. */
static inline void BACKWARD(silu_gated)(const BACKWARD_REAL *gate, const BACKWARD_REAL *up, const BACKWARD_REAL *d_out,
                                        int n, BACKWARD_REAL *d_gate, BACKWARD_REAL *d_up) {
    for (int i = 0; i < n; i++) {
        BACKWARD_REAL x = gate[i], d = d_out[i];
        BACKWARD_REAL s = (BACKWARD_REAL)(sizeof(BACKWARD_REAL) == sizeof(float) ? 1 / (1 + (double)expf(-(float)x))
                                                                                 : 1 / (1 + exp(-(double)x)));
        d_up[i] = d * x * s;
        d_gate[i] = d * up[i] * s * (1 + x * (1 - s));
    }
}

/* -log softmax(z)[target] of a row of logits after the soft cap (0: none). z becomes the gradient with respect to the
 * logits before the cap, times `scale`. */
static inline double BACKWARD(cross_entropy)(BACKWARD_REAL *z, int n, int target, BACKWARD_REAL cap,
                                             BACKWARD_REAL scale) {
    double largest = (double)z[0], sum = 0, at = (double)z[target];
    for (int i = 1; i < n; i++) {
        if ((double)z[i] > largest) largest = (double)z[i];
    }
    for (int i = 0; i < n; i++) {
        BACKWARD_REAL off = z[i] - (BACKWARD_REAL)largest,
                      e = (BACKWARD_REAL)(sizeof(BACKWARD_REAL) == sizeof(float) ? (double)expf((float)off)
                                                                                 : exp((double)off));
        BACKWARD_REAL inside = cap > 0 ? z[i] / cap : 0;
        sum += (double)e;
        z[i] = e * (1 - inside * inside);
    }
    BACKWARD_REAL each = (BACKWARD_REAL)((double)scale / sum);
    for (int i = 0; i < n; i++) z[i] *= each;
    double inside = cap > 0 ? at / (double)cap : 0;
    z[target] -= (BACKWARD_REAL)((double)scale * (1 - inside * inside));
    return largest + log(sum) - at;
}

/* KL(p | q) of two rows of logits after the soft cap (0: none). z of q becomes the gradient with respect to q's logits
 * before the cap, times `scale`; p's row is spent. */
static inline double BACKWARD(kl)(BACKWARD_REAL *p, BACKWARD_REAL *z, int n, BACKWARD_REAL cap, BACKWARD_REAL scale) {
    double largest[2] = {(double)p[0], (double)z[0]}, sum[2] = {0}, kl = 0;
    for (int i = 1; i < n; i++) {
        if ((double)p[i] > largest[0]) largest[0] = (double)p[i];
        if ((double)z[i] > largest[1]) largest[1] = (double)z[i];
    }
    for (int i = 0; i < n; i++) {
        sum[0] += exp((double)p[i] - largest[0]);
        sum[1] += exp((double)z[i] - largest[1]);
    }
    double log_p = largest[0] + log(sum[0]), log_q = largest[1] + log(sum[1]);
    for (int i = 0; i < n; i++) {
        double lp = (double)p[i] - log_p, lq = (double)z[i] - log_q, share = exp(lp),
               inside = cap > 0 ? (double)z[i] / (double)cap : 0;
        kl += share * (lp - lq);
        z[i] = (BACKWARD_REAL)((double)scale * (exp(lq) - share) * (1 - inside * inside));
    }
    return kl;
}

/* 1 - cosine of p and t; d_p += scale times its gradient. */
static inline double BACKWARD(direction)(const BACKWARD_REAL *p, const BACKWARD_REAL *t, int n, BACKWARD_REAL scale,
                                         BACKWARD_REAL *d_p) {
    double pp = 1e-30, tt = 1e-30, pt = 0;
    for (int i = 0; i < n; i++) {
        pp += (double)p[i] * (double)p[i];
        tt += (double)t[i] * (double)t[i];
        pt += (double)p[i] * (double)t[i];
    }
    double length = sqrt(pp * tt), cosine = pt / length;
    for (int i = 0; i < n; i++)
        d_p[i] += (BACKWARD_REAL)((double)scale * (cosine * (double)p[i] / pp - (double)t[i] / length));
    return 1 - cosine;
}

/* (|p| - |t|)^2; d_p += scale times its gradient. */
static inline double BACKWARD(magnitude)(const BACKWARD_REAL *p, const BACKWARD_REAL *t, int n, BACKWARD_REAL scale,
                                         BACKWARD_REAL *d_p) {
    double pp = 1e-30, tt = 0;
    for (int i = 0; i < n; i++) {
        pp += (double)p[i] * (double)p[i];
        tt += (double)t[i] * (double)t[i];
    }
    double length = sqrt(pp), off = length - sqrt(tt);
    for (int i = 0; i < n; i++) d_p[i] += (BACKWARD_REAL)(2 * (double)scale * off * (double)p[i] / length);
    return off * off;
}

/* |p - t|^2; d_p += scale times its gradient. */
static inline double BACKWARD(square)(const BACKWARD_REAL *p, const BACKWARD_REAL *t, size_t n, BACKWARD_REAL scale,
                                      BACKWARD_REAL *d_p) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        BACKWARD_REAL off = p[i] - t[i];
        sum += (double)off * (double)off;
        d_p[i] += 2 * scale * off;
    }
    return sum;
}
