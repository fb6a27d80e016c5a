#include "serve/openai_score.h"
#include "kakeya_study.h"

#include <math.h>
#include <stdlib.h>

/* The logits of all rows lie in memory while their largest are looked for. */
#define MOST_LOGIT_BYTES ((size_t)512 << 20)

/* The largest logits of a row, in descending order, as log-probabilities. */
static void find_top(const float *row, size_t vocab, int top, answer_logprob *out) {
    double largest = -INFINITY, sum = 0;
    for (size_t t = 0; t < vocab; t++) largest = fmax(largest, (double)row[t]);
    for (size_t t = 0; t < vocab; t++) sum += exp((double)row[t] - largest);
    double log_sum = largest + log(sum);
    out->n_top = 0;
    for (size_t t = 0; t < vocab; t++) {
        double value = (double)row[t] - log_sum;
        size_t at = out->n_top;
        if (at == (size_t)top && value <= out->top[at - 1].log_probability) continue;
        if (at == (size_t)top) at--;
        for (; at > 0 && out->top[at - 1].log_probability < value; at--) out->top[at] = out->top[at - 1];
        out->top[at] = (kakeya_log_probability){.token = (int32_t)t, .log_probability = value};
        if (out->n_top < (size_t)top) out->n_top++;
    }
}

bool openai_score(server_context *s, const int32_t *ids, size_t n, int top, answer_logprob **out, api_error *error) {
    size_t vocab = (size_t)kakeya_engine_vocab_size(s->engine);
    *out = NULL;
    if (n > (size_t)s->context) return api_fail_context(error, "prompt", "", n, (size_t)s->context);
    if (top > 0 && n > MOST_LOGIT_BYTES / (vocab * sizeof(float)))
        return api_fail(error, 400, "unsupported_value", "logprobs",
                        "echo with logprobs above 0 takes prompts of at most %zu tokens; this one has %zu",
                        MOST_LOGIT_BYTES / (vocab * sizeof(float)), n);
    kakeya_session *session = NULL;
    kakeya_error why = {0};
    float *nll = malloc((n + 1) * sizeof *nll), *logits = top > 0 ? malloc(n * vocab * sizeof *logits) : NULL;
    answer_logprob *scores = calloc(n, sizeof *scores);
    bool good = nll && scores && (logits || top <= 0);
    if (!good) {
        api_out_of_memory(error);
    } else if (kakeya_session_open(s->engine, &s->settings->session, &session, &why) != KAKEYA_OK) {
        good = api_fail_library(error, NULL, NULL, &why);
    } else if (n > 1 || logits) {
        kakeya_score_options how;
        KAKEYA_INIT(&how);
        how.nll = nll;
        how.logits = logits;
        if (kakeya_session_score(session, ids, n, &how, &why) != KAKEYA_OK)
            good = api_fail_library(error, "invalid_prompt", "prompt", &why);
    }
    for (size_t i = 0; good && i < n; i++) {
        scores[i].token = ids[i];
        scores[i].value = i ? -(double)nll[i - 1] : NAN;
        if (logits && i) find_top(logits + (i - 1) * vocab, vocab, top, &scores[i]);
    }
    kakeya_session_close(session);
    free(nll);
    free(logits);
    if (good) {
        *out = scores;
    } else {
        free(scores);
    }
    return good;
}
