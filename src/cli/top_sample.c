#include "cli/top_sample.h"

#ifdef KAKEYA_SERVE

#include <cjson/cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/terminal.h"

enum { LEAST_WIDTH = 40, LEAST_HEIGHT = 10 };

/* ---------------------------------------------------------------------------------------------------------- reading */

/* The sum of the series of a name whose labels contain `label` (NULL: any); NaN where there is none. */
static double series(const char *metrics, const char *name, const char *label) {
    double sum = NAN;
    size_t length = strlen(name);
    for (const char *line = metrics, *end; *line; line = *end ? end + 1 : end) {
        end = line + strcspn(line, "\n");
        if (strncmp(line, name, length) != 0 || (line[length] != '{' && line[length] != ' ')) continue;
        const char *number = end;
        while (number > line && number[-1] != ' ') number--;
        const char *found = label ? strstr(line, label) : line;
        if (!found || found > number) continue;
        double value = strtod(number, NULL);
        sum = isnan(sum) ? value : sum + value;
    }
    return sum;
}

static double value_of(const char *metrics, const char *name, const char *label) {
    double value = series(metrics, name, label);
    return isnan(value) ? 0 : value;
}

/* Of metrics that may have vLLM's names (--metrics-names). */
static double either(const char *metrics, const char *own, const char *vllm) {
    double value = series(metrics, own, NULL);
    return isnan(value) ? value_of(metrics, vllm, NULL) : value;
}

/* Shown characters are one column each. */
static void copy_text(char *out, size_t room, const char *text) {
    size_t n = 0;
    for (; text && *text && n + 1 < room; text++) {
        unsigned char c = (unsigned char)*text;
        if ((c & 0xc0) == 0x80) continue; /* of a character that was shown as one */
        out[n++] = c >= 0x20 && c < 0x7f ? (char)c : '?';
    }
    out[n] = '\0';
}

static const char *text_of(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static double number_of(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static void read_metrics(top_sample *s, const char *m) {
    s->running = either(m, "kakeya_requests_running", "vllm:num_requests_running");
    s->waiting = either(m, "kakeya_requests_waiting", "vllm:num_requests_waiting");
    s->stop = value_of(m, "kakeya_requests_finished_total", "reason=\"stop\"");
    s->length = value_of(m, "kakeya_requests_finished_total", "reason=\"length\"");
    s->calls = value_of(m, "kakeya_requests_finished_total", "reason=\"tool_calls\"");
    s->cancelled = value_of(m, "kakeya_requests_finished_total", "reason=\"cancelled\"");
    s->failed = value_of(m, "kakeya_requests_finished_total", "reason=\"error\"");
    s->generated = either(m, "kakeya_generation_tokens_total", "vllm:generation_tokens_total");
    s->prompt = either(m, "kakeya_prompt_tokens_total", "vllm:prompt_tokens_total");
    s->cached = value_of(m, "kakeya_prompt_tokens_cached_total", NULL);
    s->forwards = value_of(m, "kakeya_forwards_total", NULL);
    s->drafted = either(m, "kakeya_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total");
    s->accepted = either(m, "kakeya_draft_tokens_accepted_total", "vllm:spec_decode_num_accepted_tokens_total");
    s->preempted = either(m, "kakeya_preemptions_total", "vllm:num_preemptions_total");
    s->kv_room = value_of(m, "kakeya_kv_room_bytes", NULL);
    s->full = value_of(m, "kakeya_kv_bytes", "kind=\"full\"");
    s->sliding = value_of(m, "kakeya_kv_bytes", "kind=\"sliding\"");
    s->latent = value_of(m, "kakeya_kv_bytes", "kind=\"latent\"");
    s->draft = value_of(m, "kakeya_kv_bytes", "kind=\"draft\"");
    s->live = value_of(m, "kakeya_store_entries", "kind=\"live\"");
    s->copies = value_of(m, "kakeya_store_entries", "kind=\"checkpoint\"");
    s->prefix_bytes = value_of(m, "kakeya_store_bytes", "tier=\"ram\"");
    s->resident = value_of(m, "kakeya_process_resident_memory_bytes", NULL);
    s->processor = value_of(m, "kakeya_process_cpu_seconds_total", NULL);
    s->connections = value_of(m, "kakeya_http_connections", NULL);
}

kakeya_status top_sample_read(top_sample *s, const char *health, const char *props, const char *slots,
                              const char *metrics, kakeya_error *error) {
    cJSON *state = cJSON_Parse(health), *facts = props ? cJSON_Parse(props) : NULL;
    s->slots = slots ? cJSON_Parse(slots) : NULL;
    copy_text(s->state, sizeof s->state, text_of(state, "status"));
    s->progress = number_of(state, "progress");
    const char *model = text_of(facts, "model_path");
    copy_text(s->model, sizeof s->model, *model ? model : text_of(state, "model"));
    s->room = (int)number_of(facts, "total_slots");
    bool good =
        s->state[0] && (!slots || cJSON_IsArray(s->slots)) && (!props || facts) &&
        (!isnan(series(metrics, "kakeya_requests_running", NULL)) || strstr(metrics, "\nvllm:num_requests_running"));
    cJSON_Delete(state);
    cJSON_Delete(facts);
    if (!good) return error_set(error, KAKEYA_FORMAT, "the server there is not kakeya serve");
    read_metrics(s, metrics);
    return KAKEYA_OK;
}

void top_sample_free(top_sample *s) {
    cJSON_Delete(s->slots);
    s->slots = NULL;
}

/* ---------------------------------------------------------------------------------------------------------- drawing */

typedef struct drawing {
    text_buffer *out;
    int width, height, line; /* lines so far */
} drawing;

static void draw(drawing *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void draw(drawing *d, const char *format, ...) {
    char line[512];
    va_list values;
    if (d->height && d->line >= d->height) return;
    va_start(values, format);
    int n = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    int shown = n < (int)sizeof line ? n : (int)sizeof line - 1;
    if (shown > d->width) shown = d->width;
    while (shown > 0 && line[shown - 1] == ' ') shown--;
    text_bytes(d->out, line, (size_t)shown);
    text_add(d->out, "\n");
    d->line++;
}

/* "123.4", or "-" where there is nothing to divide by. */
static const char *ratio(char buffer[32], double value, double by, const char *format) {
    if (!(by > 0)) return "-";
    snprintf(buffer, 32,
             strcmp(format, "%") == 0   ? "%.0f %%"
             : strcmp(format, "2") == 0 ? "%.2f"
                                        : "%.1f",
             value / by * (strcmp(format, "%") == 0 ? 100 : 1));
    return buffer;
}

static const char *count(char buffer[32], double value) {
    return format_count(buffer, value > 0 ? (uint64_t)value : 0);
}

static void draw_slot(drawing *d, const cJSON *slot) {
    char id[27], state[9], tokens[32], prompt[32], read[32], bytes[32];
    copy_text(id, sizeof id, text_of(slot, "id"));
    copy_text(state, sizeof state, text_of(slot, "state"));
    draw(d, "%-26s %-8s %8s %8s %8s %8s %8.1f", id, state, count(prompt, number_of(slot, "prompt_tokens")),
         count(read, number_of(slot, "prompt_done")), count(tokens, number_of(slot, "n_tokens")),
         format_bytes(bytes, number_of(slot, "kv_bytes")), number_of(slot, "seconds"));
}

static void draw_slots(drawing *d, const cJSON *slots) {
    int n = cJSON_GetArraySize(slots), shown = 0;
    draw(d, "%-26s %-8s %8s %8s %8s %8s %8s", "request", "state", "prompt", "read", "answer", "K/V", "seconds");
    const cJSON *slot;
    cJSON_ArrayForEach(slot, slots) {
        bool last_line = d->height && d->line + 1 >= d->height;
        if (last_line && n - shown > 1) {
            draw(d, "and %d more", n - shown);
            return;
        }
        draw_slot(d, slot);
        shown++;
    }
}

void top_sample_draw(const top_sample *now, const top_sample *before, const char *url, int width, int height,
                     text_buffer *out) {
    static const top_sample zero = {0};
    drawing d = {.out = out,
                 .width = width < LEAST_WIDTH ? LEAST_WIDTH : width,
                 .height = height && height < LEAST_HEIGHT ? LEAST_HEIGHT : height};
    char a[32], b[32], c[32], e[32], f[32];
    /* A server that was started anew counts from 0 again. */
    if (before && (now->processor < before->processor || now->generated < before->generated)) before = NULL;
    const top_sample *from = before ? before : &zero;
    double seconds = before ? now->seconds - before->seconds : 0;
    bool loading = strcmp(now->state, "loading") == 0 || strcmp(now->state, "waking") == 0;
    draw(&d, "kakeya top  %s  %s  %s%s%s", url, now->model, strcmp(now->state, "ok") == 0 ? "ready" : now->state,
         loading ? " " : "", loading ? ratio(a, now->progress, 1, "%") : "");
    draw(&d, "answers    %.0f running of %d, %.0f waiting", now->running, now->room, now->waiting);
    draw(&d, "ended      %.0f stop, %.0f length, %.0f tool calls, %.0f cancelled, %.0f error", now->stop, now->length,
         now->calls, now->cancelled, now->failed);
    draw(&d, "tokens     %s/s generated, %s/s read", ratio(a, now->generated - from->generated, seconds, "1"),
         ratio(b, now->prompt - from->prompt, seconds, "1"));
    draw(&d, "in all     %s generated, %s read, %s of these cached", count(c, now->generated), count(e, now->prompt),
         ratio(f, now->cached, now->prompt, "%"));
    draw(&d, "forwards   %s tokens each, %s in all; %s of the drafts kept; %s preemptions",
         ratio(a, now->generated - from->generated, before ? now->forwards - from->forwards : 0, "2"),
         ratio(b, now->generated, now->forwards, "2"), ratio(c, now->accepted, now->drafted, "%"),
         count(e, now->preempted));
    draw(&d, "K/V        %s: full %s, sliding %s, latent %s, draft %s",
         format_bytes(a, now->full + now->sliding + now->latent + now->draft), format_bytes(b, now->full),
         format_bytes(c, now->sliding), format_bytes(e, now->latent), format_bytes(f, now->draft));
    draw(&d, "prefixes   %.0f idle sessions and %.0f checkpoints, %s%s%s", now->live, now->copies,
         format_bytes(a, now->prefix_bytes), now->kv_room > 0 ? "; K/V has room for " : "",
         now->kv_room > 0 ? format_bytes(b, now->kv_room) : "");
    draw(&d, "process    %s resident, %s of a core, open connections %.0f", format_bytes(a, now->resident),
         ratio(b, now->processor - from->processor, seconds, "%"), now->connections);
    draw(&d, "%s", "");
    if (now->slots) draw_slots(&d, now->slots);
}

#endif
