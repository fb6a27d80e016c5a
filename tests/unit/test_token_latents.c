/* f_theta fed by the drafter's unconditioned pass over the tokens: the prompt's latents against a plain
 * double-precision evaluation of the drafter (no context, no mask), generated tokens against a pass of one token. */
#include "golden.h"

#include "backend/cpu/cache.h"
#include "base/float16.h"

enum { PROMPT = 37, DECODED = 5 };

static double weight_at(const weight *w, size_t row, size_t column) {
    size_t i = row * (size_t)w->in + column;
    if (w->format == WEIGHT_F32) return (double)((const float *)w->stream[0])[i];
    return (double)bf16_to_f32(((const uint16_t *)w->stream[0])[i]);
}

static void multiply(const weight *w, const double *x, double *y) {
    for (int o = 0; o < w->out; o++) {
        double sum = 0;
        for (int k = 0; k < w->in; k++) sum += weight_at(w, (size_t)o, (size_t)k) * x[k];
        y[o] = sum;
    }
}

static void norm(const double *x, const float *w, int n, double eps, double *y) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    double scale = 1 / sqrt(sum / n + eps);
    for (int i = 0; i < n; i++) y[i] = x[i] * scale * (double)w[i];
}

static void rotate(double *x, int dim, int position, double theta) {
    for (int j = 0; j < dim / 2; j++) {
        double angle = position * pow(theta, -2.0 * j / dim), a = x[j], b = x[j + dim / 2];
        x[j] = a * cos(angle) - b * sin(angle);
        x[j + dim / 2] = b * cos(angle) + a * sin(angle);
    }
}

/* Latents [n][2 * rank] of tokens at positions first.. in one non-causal pass. */
static void reference(const language_model *g, const block_drafter_model *d, const restoration_model *f,
                      const int32_t *tokens, int n, int first, double *latents) {
    const block_drafter_config *c = &d->config;
    int hidden = c->hidden, kv = c->kv_heads * c->head_dim, q_dim = c->heads * c->head_dim,
        group = c->heads / c->kv_heads;
    size_t all = (size_t)(c->layers * kv);
    double *h = calloc((size_t)(n * hidden), sizeof *h), *x = calloc((size_t)(n * hidden), sizeof *x);
    double *q = calloc((size_t)(n * q_dim), sizeof *q), *k = calloc((size_t)(n * kv), sizeof *k);
    double *raw = calloc((size_t)n * 2 * all, sizeof *raw), *o = calloc((size_t)q_dim, sizeof *o);
    double *gate = calloc((size_t)c->intermediate, sizeof *gate), *up = calloc((size_t)c->intermediate, sizeof *up);
    double *score = calloc((size_t)n, sizeof *score), *y = calloc((size_t)hidden, sizeof *y);
    for (int t = 0; t < n; t++) {
        for (int i = 0; i < hidden; i++) h[t * hidden + i] = weight_at(&g->weights.embed, (size_t)tokens[t], (size_t)i);
    }
    for (int l = 0; l < c->layers; l++) {
        const block_drafter_layer_weights *w = &d->layer[l];
        for (int t = 0; t < n; t++) {
            norm(h + t * hidden, w->input_norm, hidden, c->rms_eps, x + t * hidden);
            multiply(&w->q_proj, x + t * hidden, q + t * q_dim);
            double *raw_k = raw + (size_t)t * 2 * all + (size_t)(l * kv), *raw_v = raw_k + all;
            multiply(&w->k_proj, x + t * hidden, raw_k);
            multiply(&w->v_proj, x + t * hidden, raw_v);
            memcpy(k + t * kv, raw_k, (size_t)kv * sizeof *k);
            for (int i = 0; i < c->heads + c->kv_heads; i++) {
                double *head =
                    i < c->heads ? q + t * q_dim + i * c->head_dim : k + t * kv + (i - c->heads) * c->head_dim;
                norm(head, i < c->heads ? w->q_norm : w->k_norm, c->head_dim, c->rms_eps, head);
                rotate(head, c->head_dim, first + t, c->rope_theta);
            }
        }
        for (int t = 0; t < n; t++) {
            memset(o, 0, (size_t)q_dim * sizeof *o);
            for (int head = 0; head < c->heads; head++) {
                double top = -1e300, sum = 0;
                for (int s = 0; s < n; s++) {
                    score[s] = 0;
                    for (int i = 0; i < c->head_dim; i++) {
                        score[s] += q[t * q_dim + head * c->head_dim + i] * k[s * kv + head / group * c->head_dim + i];
                    }
                    score[s] /= sqrt(c->head_dim);
                    if (score[s] > top) top = score[s];
                }
                for (int s = 0; s < n; s++) sum += score[s] = exp(score[s] - top);
                for (int s = 0; s < n; s++) {
                    const double *v = raw + (size_t)s * 2 * all + all + (size_t)(l * kv + head / group * c->head_dim);
                    for (int i = 0; i < c->head_dim; i++) o[head * c->head_dim + i] += score[s] / sum * v[i];
                }
            }
            multiply(&w->o_proj, o, y);
            for (int i = 0; i < hidden; i++) h[t * hidden + i] += y[i];
            norm(h + t * hidden, w->post_attention_norm, hidden, c->rms_eps, x + t * hidden);
            multiply(&w->gate_proj, x + t * hidden, gate);
            multiply(&w->up_proj, x + t * hidden, up);
            for (int i = 0; i < c->intermediate; i++) gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
            multiply(&w->down_proj, gate, y);
            for (int i = 0; i < hidden; i++) h[t * hidden + i] += y[i];
        }
    }
    for (int t = 0; t < n; t++) {
        multiply(&f->encoder_k, raw + (size_t)t * 2 * all, latents + (size_t)t * 2 * (size_t)f->config.rank);
        multiply(&f->encoder_v, raw + (size_t)t * 2 * all + all,
                 latents + ((size_t)t * 2 + 1) * (size_t)f->config.rank);
    }
    double *owned[] = {h, x, q, k, raw, o, gate, up, score, y};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) free(owned[i]);
}

static void latents_of_prompt_and_answer(void **state) {
    (void)state;
    mem_account account;
    mem_account_init(&account, NULL, 0);
    language_model *g = NULL;
    block_drafter_model *d = NULL;
    restoration_model *f = NULL;
    REQUIRE_OK(language_model_open(KAKEYA_MODELS "/demo", &account, &g, error));
    REQUIRE_OK(block_drafter_model_open(KAKEYA_MODELS "/demo-dflash", &g->config, &account, &d, error));
    REQUIRE_OK(restoration_model_open(KAKEYA_TEST_DATA "/golden/demo-f-theta-regression", &g->config, &d->config,
                                      &account, &f, error));
    f->config.input = RESTORATION_DRAFTER_TOKEN_KV;
    const backend_ops *ops = backend_find("cpu", NULL);
    backend_model_options options = {.verifier = g,
                                     .drafter = d,
                                     .restoration = f,
                                     .precision = KAKEYA_PRECISION_F32,
                                     .threads = 2,
                                     .account = &account};
    backend_model *m = NULL;
    REQUIRE_OK(ops->model_create(&options, &m, error));
    backend_cache *cache = NULL;
    backend_cache_options cache_options = {.context_tokens = 64,
                                           .attention = KAKEYA_ATTENTION_RESTORED,
                                           .sink = 2,
                                           .window = 8,
                                           .draft_window = 32,
                                           .kv_format = KV_FORMAT_F32,
                                           .account = &account};
    REQUIRE_OK(ops->cache_create(m, &cache_options, &cache, error));
    int32_t tokens[PROMPT + DECODED];
    for (int i = 0; i < PROMPT + DECODED; i++) tokens[i] = (i * 977 + 31) % g->config.vocab;
    for (int at = 0; at < PROMPT + DECODED;) {
        segment_kind kind = at < PROMPT ? SEGMENT_PROMPT : SEGMENT_DECODE;
        int n = at < PROMPT ? (PROMPT - at < 20 ? PROMPT - at : 20) : DECODED;
        backend_segment segment = {.cache = cache, .tokens = tokens + at, .n = n, .kind = kind, .first_logit_row = n};
        REQUIRE_OK(ops->forward(m, &segment, 1, error));
        REQUIRE_OK(ops->cache_commit(cache, n, error));
        at += n;
    }
    caches_flush(&cache, 1);
    size_t width = 2 * (size_t)f->config.rank;
    double *expected = calloc((PROMPT + DECODED) * width, sizeof *expected);
    reference(g, d, f, tokens, PROMPT, 0, expected);
    for (int i = PROMPT; i < PROMPT + DECODED; i++) reference(g, d, f, tokens + i, 1, i, expected + (size_t)i * width);
    for (int p = 0; p < PROMPT + DECODED; p++) {
        const float *found = (const float *)(const void *)latent_code(cache, p);
        for (size_t i = 0; i < width; i++) {
            double difference = fabs((double)found[i] - expected[(size_t)p * width + i]);
            if (!(difference <= 2e-3)) {
                fail_msg("position %d, element %zu is %.7g, expected %.7g", p, i, (double)found[i],
                         expected[(size_t)p * width + i]);
            }
        }
    }
    free(expected);
    ops->cache_destroy(cache);
    ops->model_destroy(m);
    restoration_model_close(f);
    block_drafter_model_close(d);
    language_model_close(g);
    assert_int_equal(mem_total(&account), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(latents_of_prompt_and_answer)};
    return cmocka_run_group_tests_name("token latents", tests, NULL, NULL);
}
