/* What the gate has against a report, in messages that are safe to print. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/gate.h"
#include "measure/gate_private.h"

static void escape(char *out, size_t bytes, const char *text) {
    size_t n = 0;
    for (; *text && n + 5 < bytes; text++) {
        unsigned char c = (unsigned char)*text;
        if (c >= 0x20 && c < 0x7f && c != '\\') {
            out[n++] = (char)c;
        } else {
            n += (size_t)snprintf(out + n, bytes - n, c == '\\' ? "\\\\" : "\\x%02x", c);
        }
    }
    out[n] = '\0';
}

void gate_violate(gate_context *context, const char *code, const char *format, ...) {
    gate_result *result = context->result;
    size_t same = 0;
    for (size_t i = 0; i < result->n_violations; i++) same += strcmp(result->violation[i].code, code) == 0;
    if (same >= GATE_MAX_PER_CODE) return;
    gate_violation *grown = realloc(result->violation, (result->n_violations + 1) * sizeof *grown);
    if (!grown) {
        context->out_of_memory = true;
        return;
    }
    result->violation = grown;
    gate_violation *violation = &grown[result->n_violations++];
    violation->code = code;
    char message[sizeof violation->message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    escape(violation->message, sizeof violation->message, message);
}

void gate_note(gate_context *context, const char *format, ...) {
    gate_result *result = context->result;
    if (result->note[0]) return;
    char note[sizeof result->note];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(note, sizeof note, format, arguments);
    va_end(arguments);
    escape(result->note, sizeof result->note, note);
}

void gate_allow_keys(gate_context *context, const char *where, const cJSON *object, const char *list,
                     const char *more) {
    for (const cJSON *item = cJSON_IsObject(object) ? object->child : NULL; item; item = item->next)
        if (!eval_is_listed(list, item->string) && !eval_is_listed(more, item->string))
            gate_violate(context, "UNKNOWN_KEY", "%s holds \"%.60s\", which kakeya eval does not write", where,
                         item->string);
}
