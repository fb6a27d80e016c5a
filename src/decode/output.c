#include "decode/output.h"

#include <math.h>

static bool is_stop_token(const decode_output *o, int32_t token) {
    for (int i = 0; i < o->n_stop_tokens; i++)
        if (o->stop_tokens[i] == token) return true;
    return false;
}

static void tell_log_probabilities(kakeya_event *event, const token_log_probabilities *known) {
    event->log_probability = known->chosen;
    event->top = known->top;
    event->n_top = (size_t)known->n_top;
}

static kakeya_event empty_event(const decode_output *o, kakeya_event_type type) {
    return (kakeya_event){.size = sizeof(kakeya_event),
                          .type = type,
                          .token = -1,
                          .stop_token = -1,
                          .stop_string = -1,
                          .log_probability = (double)NAN,
                          .stats = o->stats};
}

/* False: the callback asked to stop. */
static bool deliver(decode_output *o, const output_token *token) {
    if (!o->on_event) return true;
    kakeya_event event = empty_event(o, KAKEYA_EVENT_TOKEN);
    event.token = token->token;
    event.position = token->position;
    tell_log_probabilities(&event, &token->log_probabilities);
    if (o->text.push) {
        event.text = o->stop.text;
        event.text_bytes = o->stop.released;
    }
    return o->on_event(o->user, &event);
}

/* Makes all text that is left certain. It may end with a stop string: bytes of characters wait for the last of them. */
static kakeya_status end_text(decode_output *o, bool *stopped, kakeya_error *error) {
    const char *text;
    size_t bytes;
    *stopped = false;
    kakeya_status status = o->text.finish(o->text.source, &text, &bytes, error);
    if (status == KAKEYA_OK) status = stop_text_flush(&o->stop, text, bytes, stopped, error);
    if (status == KAKEYA_OK && *stopped) o->stop_string = (int32_t)o->stop.completed;
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
    if (status == KAKEYA_OK && *stopped) o->stop_string = (int32_t)o->stop.completed;
    if (status == KAKEYA_OK && last && !*stopped) status = end_text(o, stopped, error);
    *undecided = !last && !*stopped && (incomplete || o->stop.held > 0);
    return status;
}

void output_begin(decode_output *o) {
    o->withheld.token = -1;
    o->finish = KAKEYA_FINISH_NONE;
    o->stop_token = o->stop_string = -1;
}

static bool deliver_withheld(decode_output *o) {
    output_token before = o->withheld;
    o->withheld.token = -1;
    return before.token < 0 || deliver(o, &before);
}

kakeya_status output_take(decode_output *o, const output_token *token, bool last, output_verdict *verdict,
                          kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    bool stop_token = is_stop_token(o, token->token), cut = false;
    if (stop_token && o->withheld.token >= 0) status = end_text(o, &cut, error);
    if (status != KAKEYA_OK) return status;
    if (!deliver_withheld(o)) {
        *verdict = finish_with(o, KAKEYA_FINISH_CANCELLED, OUTPUT_REFUSED);
        return KAKEYA_OK;
    }
    if (stop_token) {
        o->stop_token = token->token;
        o->stop_log_probabilities = token->log_probabilities;
        *verdict = finish_with(o, KAKEYA_FINISH_STOP, OUTPUT_TAKEN_LAST);
        return KAKEYA_OK;
    }

    bool stopped = false, undecided = false;
    if (o->text.push) status = take_text(o, token->token, last, &stopped, &undecided, error);
    if (status != KAKEYA_OK) return status;
    *verdict = OUTPUT_TAKEN;
    if (undecided) {
        o->withheld = *token;
    } else if (!deliver(o, token)) {
        *verdict = finish_with(o, KAKEYA_FINISH_CANCELLED, OUTPUT_TAKEN_LAST);
    } else if (stopped) {
        *verdict = finish_with(o, KAKEYA_FINISH_STOP, OUTPUT_TAKEN_LAST);
    } else if (last) {
        *verdict = finish_with(o, KAKEYA_FINISH_LENGTH, OUTPUT_TAKEN_LAST);
    }
    return KAKEYA_OK;
}

kakeya_status output_cut(decode_output *o, kakeya_finish finish, kakeya_error *error) {
    bool cut;
    o->finish = finish;
    if (o->withheld.token < 0) return KAKEYA_OK;
    kakeya_status status = end_text(o, &cut, error);
    if (status == KAKEYA_OK) (void)deliver_withheld(o); /* it ends here whatever the callback says */
    return status;
}

void output_finish(decode_output *o, kakeya_status status, const kakeya_error *error) {
    if (status != KAKEYA_OK) o->finish = KAKEYA_FINISH_FAILED;
    if (!o->on_event) return;
    kakeya_event event = empty_event(o, KAKEYA_EVENT_FINISH);
    event.finish = o->finish;
    if (o->finish == KAKEYA_FINISH_STOP) {
        event.stop_token = o->stop_token;
        event.stop_string = o->stop_string;
        if (o->stop_token >= 0) tell_log_probabilities(&event, &o->stop_log_probabilities);
    }
    event.error = status != KAKEYA_OK ? error : NULL;
    (void)o->on_event(o->user, &event);
}
