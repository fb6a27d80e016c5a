#include "decode/output.h"

static bool is_stop_token(const decode_output *o, int32_t token) {
    for (int i = 0; i < o->n_stop_tokens; i++)
        if (o->stop_tokens[i] == token) return true;
    return false;
}

/* False: the callback asked to stop. */
static bool deliver(decode_output *o, int32_t token) {
    if (!o->on_token) return true;
    bool text = o->text.push != NULL;
    return o->on_token(o->user, token, text ? o->stop.text : NULL, text ? o->stop.released : 0);
}

/* Makes all text that is left certain. */
static kakeya_status end_text(decode_output *o, kakeya_error *error) {
    const char *text;
    size_t bytes;
    kakeya_status status = o->text.finish(o->text.source, &text, &bytes, error);
    if (status == KAKEYA_OK) status = stop_text_flush(&o->stop, text, bytes, error);
    return status;
}

static output_verdict finish_with(decode_output *o, kakeya_finish finish, output_verdict verdict) {
    o->finish = finish;
    return verdict;
}

static kakeya_status take_text(decode_output *o, int32_t token, bool last, bool *stopped, bool *undecided,
                               kakeya_error *error) {
    const char *text;
    size_t bytes;
    bool incomplete = false;
    kakeya_status status = o->text.push(o->text.source, token, &text, &bytes, &incomplete, error);
    if (status == KAKEYA_OK) status = stop_text_push(&o->stop, text, bytes, stopped, error);
    if (status == KAKEYA_OK && last && !*stopped) status = end_text(o, error);
    *undecided = !last && !*stopped && (incomplete || o->stop.held > 0);
    return status;
}

kakeya_status output_take(decode_output *o, int32_t token, bool last, output_verdict *verdict, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    bool stop_token = is_stop_token(o, token);
    if (o->withheld >= 0) {
        if (stop_token) status = end_text(o, error);
        if (status != KAKEYA_OK) return status;
        int32_t before = o->withheld;
        o->withheld = -1;
        if (!deliver(o, before)) {
            *verdict = finish_with(o, KAKEYA_FINISH_CANCELLED, OUTPUT_REFUSED);
            return KAKEYA_OK;
        }
    }
    if (stop_token) {
        *verdict = finish_with(o, KAKEYA_FINISH_STOP, OUTPUT_TAKEN_LAST);
        return KAKEYA_OK;
    }

    bool stopped = false, undecided = false;
    if (o->text.push) status = take_text(o, token, last, &stopped, &undecided, error);
    if (status != KAKEYA_OK) return status;
    *verdict = OUTPUT_TAKEN;
    if (undecided) {
        o->withheld = token;
    } else if (!deliver(o, token)) {
        *verdict = finish_with(o, KAKEYA_FINISH_CANCELLED, OUTPUT_TAKEN_LAST);
    } else if (stopped) {
        *verdict = finish_with(o, KAKEYA_FINISH_STOP, OUTPUT_TAKEN_LAST);
    } else if (last) {
        *verdict = finish_with(o, KAKEYA_FINISH_LENGTH, OUTPUT_TAKEN_LAST);
    }
    return KAKEYA_OK;
}
