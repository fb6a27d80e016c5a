/* JSON for the turn format, where 1, 1.0 and 1e0 are three different texts: a tree whose numbers keep their spelling,
 * and numbers written as Python writes them, because the templates are defined by what Python's jinja2 prints. */
#include "text/chat_json.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yajl/yajl_parse.h>

#include "base/json.h"
#include "base/json_text.h"
#include "base/nul.h"

typedef struct builder {
    cJSON *root;
    cJSON *open[JSON_MAX_DEPTH];
    int depth;
    size_t values;
    char *key;
    const char *problem; /* why a callback stopped the parse */
} builder;

static int stop(builder *b, const char *problem) {
    b->problem = problem;
    return 0;
}

static char *copy_text(const char *text, size_t bytes) {
    char *copy = malloc(bytes + 1);
    if (!copy) return NULL;
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
    return copy;
}

static const char too_many_values[] = "more than 524288 values";
_Static_assert(JSON_MAX_VALUES == 524288, "the message names the limit");

static int add_item(builder *b, cJSON *item) {
    if (!item) return stop(b, "out of memory");
    if (++b->values > JSON_MAX_VALUES) {
        cJSON_Delete(item);
        return stop(b, too_many_values);
    }
    if (b->depth == 0) {
        b->root = item;
        return 1;
    }
    cJSON *parent = b->open[b->depth - 1];
    cJSON_bool added =
        cJSON_IsObject(parent) ? cJSON_AddItemToObject(parent, b->key, item) : cJSON_AddItemToArray(parent, item);
    if (added) return 1;
    cJSON_Delete(item);
    return stop(b, "out of memory");
}

static int on_null(void *context) { return add_item(context, cJSON_CreateNull()); }
static int on_boolean(void *context, int value) { return add_item(context, cJSON_CreateBool(value)); }

static int on_number(void *context, const char *text, size_t bytes) {
    builder *b = context;
    char *copy = copy_text(text, bytes);
    if (!copy) return stop(b, "out of memory");
    int added = add_item(b, cJSON_CreateRaw(copy));
    free(copy);
    return added;
}

static int on_string(void *context, const unsigned char *text, size_t bytes) {
    builder *b = context;
    char *copy = nul_spell((const char *)text, bytes);
    if (!copy) return stop(b, "out of memory");
    int added = add_item(b, cJSON_CreateString(copy));
    free(copy);
    return added;
}

static int on_key(void *context, const unsigned char *text, size_t bytes) {
    builder *b = context;
    free(b->key);
    b->key = copy_text((const char *)text, bytes);
    return b->key ? 1 : stop(b, "out of memory");
}

static int open_item(builder *b, cJSON *item) {
    if (b->depth == JSON_MAX_DEPTH) {
        cJSON_Delete(item);
        return stop(b, "nested too deep");
    }
    if (!add_item(b, item)) return 0;
    b->open[b->depth++] = item;
    return 1;
}

static int on_start_map(void *context) { return open_item(context, cJSON_CreateObject()); }
static int on_start_array(void *context) { return open_item(context, cJSON_CreateArray()); }

static int on_end(void *context) {
    ((builder *)context)->depth--;
    return 1;
}

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_boolean,
    .yajl_number = on_number,
    .yajl_string = on_string,
    .yajl_start_map = on_start_map,
    .yajl_map_key = on_key,
    .yajl_end_map = on_end,
    .yajl_start_array = on_start_array,
    .yajl_end_array = on_end,
};

static kakeya_status parse(const char *where, const char *text, size_t bytes, cJSON **out, kakeya_error *error) {
    builder b = {0};
    yajl_handle yajl = yajl_alloc(&callbacks, NULL, &b);
    if (!yajl) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", where);
    kakeya_status status = KAKEYA_OK;
    size_t mark = json_mark_bytes(text, bytes);
    yajl_status result = yajl_parse(yajl, (const unsigned char *)text + mark, bytes - mark);
    size_t at = mark + yajl_get_bytes_consumed(yajl);
    if (result == yajl_status_ok) result = yajl_complete_parse(yajl);
    if (result != yajl_status_ok) {
        unsigned char *reason = b.problem ? NULL : yajl_get_error(yajl, 0, NULL, 0);
        const char *what = b.problem ? b.problem : reason ? (const char *)reason : "malformed";
        bool starved = b.problem && strcmp(b.problem, "out of memory") == 0;
        status = error_set(error, starved ? KAKEYA_OUT_OF_MEMORY : KAKEYA_FORMAT, "%s: byte %zu: %.*s", where, at,
                           (int)strcspn(what, "\n"), what);
        if (reason) yajl_free_error(yajl, reason);
        cJSON_Delete(b.root);
    } else {
        *out = b.root;
    }
    free(b.key);
    yajl_free(yajl);
    return status;
}

kakeya_status chat_json_parse(const char *where, const char *text, size_t bytes, cJSON **out, kakeya_error *error) {
    char *mended;
    size_t mended_bytes;
    *out = NULL;
    kakeya_status status = json_text_mend(where, text, bytes, false, &mended, &mended_bytes, error);
    if (status == KAKEYA_OK) status = parse(where, mended ? mended : text, mended ? mended_bytes : bytes, out, error);
    free(mended);
    return status;
}

/* ------------------------------------------------------------------------------------------- dictsort */

typedef struct sorted_item {
    const cJSON *item;
    size_t order;
} sorted_item;

static int ascii_lower(unsigned char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

static int compare_items(const void *a, const void *b) {
    const sorted_item *x = a, *y = b;
    const unsigned char *p = (const unsigned char *)x->item->string, *q = (const unsigned char *)y->item->string;
    while (*p && ascii_lower(*p) == ascii_lower(*q)) p++, q++;
    int difference = ascii_lower(*p) - ascii_lower(*q);
    if (difference) return difference;
    return x->order < y->order ? -1 : 1;
}

const cJSON **chat_sorted(const cJSON *object, size_t *n) {
    *n = (size_t)cJSON_GetArraySize(object);
    sorted_item *items = malloc((*n + 1) * sizeof *items);
    const cJSON **sorted = malloc((*n + 1) * sizeof *sorted);
    if (items && sorted) {
        size_t i = 0;
        const cJSON *item;
        cJSON_ArrayForEach(item, object) {
            items[i] = (sorted_item){.item = item, .order = i};
            i++;
        }
        qsort(items, *n, sizeof *items, compare_items);
        for (i = 0; i < *n; i++) sorted[i] = items[i].item;
    } else {
        free(sorted);
        sorted = NULL;
    }
    free(items);
    return sorted;
}

/* ------------------------------------------------------------------------------------------- values */

/* The shortest decimal that reads back as the same double, laid out as Python's repr: fixed from 1e-4 to below 1e16. */
static void put_float(chat_writer *w, const char *spelling) {
    enum { MOST_DIGITS = 17, FIXED_BELOW = 16, FIXED_FROM = -4 };
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c_locale) {
        chat_fail(w, KAKEYA_OUT_OF_MEMORY, "out of memory");
        return;
    }
    locale_t before = uselocale(c_locale);
    double value = strtod(spelling, NULL);
    char scientific[40] = "";
    for (int digits = 1; digits <= MOST_DIGITS; digits++) {
        snprintf(scientific, sizeof scientific, "%.*e", digits - 1, value);
        if (strtod(scientific, NULL) == value) break; /* exact equality is the definition */
    }
    uselocale(before);
    freelocale(c_locale);

    const char *at = scientific;
    if (*at == '-') chat_put(w, at++, 1);
    if (*at < '0' || *at > '9') { /* 1e999 */
        chat_puts(w, at);
        return;
    }
    char digits[MOST_DIGITS + 1];
    size_t n = 0;
    for (; *at != 'e'; at++) {
        if (*at != '.') digits[n++] = *at;
    }
    int exponent = atoi(at + 1);
    if (exponent < FIXED_FROM || exponent >= FIXED_BELOW) {
        char tail[16];
        chat_put(w, digits, 1);
        if (n > 1) {
            chat_puts(w, ".");
            chat_put(w, digits + 1, n - 1);
        }
        snprintf(tail, sizeof tail, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        chat_puts(w, tail);
    } else if (exponent < 0) {
        chat_puts(w, "0.");
        for (int i = -1; i > exponent; i--) chat_puts(w, "0");
        chat_put(w, digits, n);
    } else {
        size_t whole = (size_t)exponent + 1;
        chat_put(w, digits, n < whole ? n : whole);
        for (size_t i = n; i < whole; i++) chat_puts(w, "0");
        chat_puts(w, ".");
        if (n > whole) {
            chat_put(w, digits + whole, n - whole);
        } else {
            chat_puts(w, "0");
        }
    }
}

static void put_number(chat_writer *w, const char *spelling) {
    if (strpbrk(spelling, ".eE")) {
        put_float(w, spelling);
    } else {
        chat_puts(w, strcmp(spelling, "-0") == 0 ? "0" : spelling);
    }
}

static void put_object(chat_writer *w, const cJSON *object, bool escape_keys) {
    size_t n;
    const cJSON **items = chat_sorted(object, &n);
    if (!items) {
        chat_fail(w, KAKEYA_OUT_OF_MEMORY, "out of memory");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (i) chat_puts(w, ",");
        if (escape_keys) chat_put_control(w, CHAT_QUOTE);
        chat_puts(w, items[i]->string);
        if (escape_keys) chat_put_control(w, CHAT_QUOTE);
        chat_puts(w, ":");
        chat_put_value(w, items[i], escape_keys);
    }
    free(items);
}

void chat_put_fields(chat_writer *w, const cJSON *object) { put_object(w, object, false); }

void chat_put_value(chat_writer *w, const cJSON *value, bool escape_keys) {
    if (cJSON_IsNull(value)) {
        chat_puts(w, "null");
    } else if (cJSON_IsString(value)) {
        chat_put_control(w, CHAT_QUOTE);
        chat_puts(w, value->valuestring);
        chat_put_control(w, CHAT_QUOTE);
    } else if (cJSON_IsBool(value)) {
        chat_puts(w, cJSON_IsTrue(value) ? "true" : "false");
    } else if (cJSON_IsObject(value)) {
        chat_puts(w, "{");
        put_object(w, value, escape_keys);
        chat_puts(w, "}");
    } else if (cJSON_IsArray(value)) {
        chat_puts(w, "[");
        const cJSON *item;
        cJSON_ArrayForEach(item, value) {
            if (item != value->child) chat_puts(w, ",");
            chat_put_value(w, item, escape_keys);
        }
        chat_puts(w, "]");
    } else {
        put_number(w, value->valuestring);
    }
}
