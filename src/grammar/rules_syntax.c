/* GBNF and Lark's syntax to rules. */
#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/rules.h"
#include "text/utf8.h"

enum { MAX_GROUPS = 60, MAX_COUNT = 100000, MAX_NODES = 100000, MAX_PARAMETERS = 8 };

typedef struct word {
    const char *text; /* borrowed */
    size_t bytes;
} word;

/* name{parameters}: body */
typedef struct template {
    word name, parameters[MAX_PARAMETERS];
    uint32_t n;
    size_t body; /* where it begins */
}
template;

/* A rule that a template is to become, by its arguments, rules. */
typedef struct instance {
    word name; /* of the template */
    uint32_t rule, n, arguments[MAX_PARAMETERS];
    size_t at; /* where it is used */
} instance;

typedef struct parser {
    const char *text;
    size_t bytes, at;
    bool lark;
    int depth;
    template *templates; /* malloc'ed, as are the next */
    size_t n_templates;
    instance *instances;
    size_t n_instances;
    const template *own; /* whose body is read, with ... */
    const instance *with;
    bool skipping; /* the body of a template, which is read where it is used */
    rule_set *out;
    kakeya_status status; /* the first failure sticks */
    kakeya_error *error;
} parser;

static unsigned line_of(const parser *p) {
    unsigned line = 1;
    for (size_t i = 0; i < p->at && i < p->bytes; i++) line += p->text[i] == '\n';
    return line;
}

static uint32_t fail(parser *p, kakeya_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static uint32_t fail(parser *p, kakeya_status status, const char *format, ...) {
    char what[200];
    va_list arguments;
    if (p->status) return RULE_NONE;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    p->status = error_set(p->error, status, "grammar, line %u: %s", line_of(p), what);
    return RULE_NONE;
}

/* The characters that come next, for messages: the text ends where it ends, without a NUL. */
static int shown(const parser *p) {
    enum { SHOWN_BYTES = 10 };
    size_t left = p->at < p->bytes ? p->bytes - p->at : 0;
    return (int)utf8_valid_bytes(p->text + p->at, left < SHOWN_BYTES ? left : SHOWN_BYTES);
}

static uint32_t add(parser *p, rule_node node) {
    rule_set *r = p->out;
    if (r->n_nodes == MAX_NODES) fail(p, KAKEYA_UNSUPPORTED, "more than %d parts", (int)MAX_NODES);
    if (r->n_nodes == r->node_capacity && !p->status) {
        uint32_t capacity = r->node_capacity ? 2 * r->node_capacity : 64;
        rule_node *nodes = realloc(r->nodes, capacity * sizeof *nodes);
        if (!nodes) fail(p, KAKEYA_OUT_OF_MEMORY, "out of memory");
        if (nodes) r->nodes = nodes;
        if (nodes) r->node_capacity = capacity;
    }
    if (p->status) {
        free(node.text);
        return RULE_NONE;
    }
    node.sibling = RULE_NONE;
    r->nodes[r->n_nodes] = node;
    return r->n_nodes++;
}

static uint32_t add_list(parser *p, rule_kind kind, uint32_t first) {
    return add(p, (rule_node){.kind = kind, .child = first});
}

static uint32_t add_text(parser *p, rule_kind kind, const char *text, size_t bytes) {
    char *own = malloc(bytes + 1);
    if (!own) return fail(p, KAKEYA_OUT_OF_MEMORY, "out of memory");
    memcpy(own, text, bytes);
    own[bytes] = 0;
    return add(p, (rule_node){.kind = kind, .child = RULE_NONE, .text = own, .bytes = bytes});
}

static uint32_t add_repeat(parser *p, uint32_t child, uint32_t minimum, uint32_t maximum) {
    return add(p, (rule_node){.kind = RULE_REPEAT, .child = child, .minimum = minimum, .maximum = maximum});
}

static uint32_t rule_named(parser *p, const char *name, size_t bytes) {
    rule_set *r = p->out;
    for (uint32_t i = 0; i < r->n_rules; i++)
        if (strncmp(r->rules[i].name, name, bytes) == 0 && r->rules[i].name[bytes] == 0) return i;
    if (r->n_rules == RULES_MAX_RULES) return fail(p, KAKEYA_UNSUPPORTED, "more than %d rules", (int)RULES_MAX_RULES);
    if (r->n_rules == r->rule_capacity) {
        uint32_t capacity = r->rule_capacity ? 2 * r->rule_capacity : 32;
        grammar_rule *rules = realloc(r->rules, capacity * sizeof *rules);
        if (!rules) return fail(p, KAKEYA_OUT_OF_MEMORY, "out of memory");
        r->rules = rules;
        r->rule_capacity = capacity;
    }
    char *own = malloc(bytes + 1);
    if (!own) return fail(p, KAKEYA_OUT_OF_MEMORY, "out of memory");
    memcpy(own, name, bytes);
    own[bytes] = 0;
    bool terminal = p->lark && own[own[0] == '_'] >= 'A' && own[own[0] == '_'] <= 'Z';
    r->rules[r->n_rules] = (grammar_rule){.name = own, .body = RULE_NONE, .line = line_of(p), .terminal = terminal};
    return r->n_rules++;
}

/* ------------------------------------------------------------------------------------------------------ characters */

static char here(const parser *p) { return p->at < p->bytes ? p->text[p->at] : 0; }
static char ahead(const parser *p, size_t n) { return p->at + n < p->bytes ? p->text[p->at + n] : 0; }

static bool take(parser *p, const char *what) {
    size_t n = strlen(what);
    if (p->status || p->bytes - p->at < n || memcmp(p->text + p->at, what, n) != 0) return false;
    p->at += n;
    return true;
}

static bool at_comment(const parser *p) {
    return (!p->lark && here(p) == '#') || (p->lark && here(p) == '/' && ahead(p, 1) == '/') ||
           (p->lark && here(p) == '#' && (p->at == 0 || p->text[p->at - 1] == '\n'));
}

static void skip_space(parser *p, bool lines) {
    for (;;) {
        char c = here(p);
        if (at_comment(p))
            while (p->at < p->bytes && here(p) != '\n') p->at++;
        else if (p->at < p->bytes && (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')))
            p->at++;
        else
            return;
    }
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static size_t name_bytes(const parser *p) {
    size_t n = 0;
    while (is_name(ahead(p, n)) && !(p->lark && ahead(p, n) == '-')) n++;
    return n;
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static size_t encode(uint32_t c, char *out) {
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[n] | c);
    return n;
}

static uint32_t take_plain(parser *p) {
    size_t n = utf8_length(p->text + p->at, p->bytes - p->at);
    const unsigned char *s = (const unsigned char *)p->text + p->at;
    p->at += n;
    if (n == 1) return s[0];
    if (n == 2) return (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
    if (n == 3) return (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
    return (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
}

/* A character as it is written between quotes or brackets, escapes included. */
static uint32_t take_character(parser *p) {
    if (here(p) != '\\') return take_plain(p);
    static const char names[] = "ntrfv0", meanings[] = {'\n', '\t', '\r', '\f', '\v', 0};
    char kind = ahead(p, 1);
    if ((unsigned char)kind >= 0x80) { /* itself, like marks */
        p->at++;
        return take_plain(p);
    }
    p->at += 2;
    int digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    uint32_t value = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        if (hex_value(here(p)) < 0) return fail(p, KAKEYA_FORMAT, "\\%c needs %d hexadecimal digits", kind, digits);
        value = value << 4 | (uint32_t)hex_value(here(p));
    }
    if (digits && (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)))
        return fail(p, KAKEYA_FORMAT, "there is no character U+%X", value);
    if (digits) return value;
    const char *name = kind ? strchr(names, kind) : NULL;
    if (name) return (unsigned char)meanings[name - names];
    if ((kind >= 'a' && kind <= 'z') || (kind >= 'A' && kind <= 'Z') || (kind >= '0' && kind <= '9') || !kind)
        return fail(p, KAKEYA_FORMAT, "the escape \\%c is not known", kind);
    return (unsigned char)kind;
}

/* ----------------------------------------------------------------------------------------------------------- atoms */

typedef struct buffer {
    char *data;
    size_t n, room;
} buffer;

static void put(parser *p, buffer *b, const char *bytes, size_t n) {
    if (b->n + n + 1 > b->room) {
        size_t room = 2 * (b->n + n) + 32;
        char *data = realloc(b->data, room);
        if (!data) {
            fail(p, KAKEYA_OUT_OF_MEMORY, "out of memory");
            return;
        }
        b->data = data;
        b->room = room;
    }
    memcpy(b->data + b->n, bytes, n);
    b->n += n;
    b->data[b->n] = 0;
}

static void put_escaped(parser *p, buffer *b, uint32_t c) {
    char text[16];
    put(p, b, text, (size_t)snprintf(text, sizeof text, "\\u{%X}", c));
}

static uint32_t end_buffer(parser *p, buffer *b, rule_kind kind) {
    uint32_t node = p->status ? RULE_NONE : add_text(p, kind, b->data ? b->data : "", b->n);
    free(b->data);
    return node;
}

/* [...], as a class of a regular expression. */
static uint32_t parse_class(parser *p) {
    buffer b = {0};
    put(p, &b, "[", 1);
    if (take(p, "^")) put(p, &b, "^", 1);
    while (p->at < p->bytes && here(p) != ']' && !p->status) {
        put_escaped(p, &b, take_character(p));
        if (here(p) != '-' || ahead(p, 1) == ']') continue;
        p->at++;
        put(p, &b, "-", 1);
        if (p->at < p->bytes) put_escaped(p, &b, take_character(p));
    }
    if (!take(p, "]")) fail(p, KAKEYA_FORMAT, "[ without ]");
    put(p, &b, "]", 1);
    return end_buffer(p, &b, RULE_REGEX);
}

/* Letters of either case. */
static uint32_t ignore_case(parser *p, buffer *b) {
    buffer out = {0};
    put(p, &out, "(?i:", 4);
    for (size_t i = 0; i < b->n; i++) {
        if ((unsigned char)b->data[i] < 0x80)
            put_escaped(p, &out, (unsigned char)b->data[i]);
        else
            put(p, &out, b->data + i, 1);
    }
    put(p, &out, ")", 1);
    free(b->data);
    return end_buffer(p, &out, RULE_REGEX);
}

static void take_quoted(parser *p, buffer *b) {
    char bytes[4];
    while (p->at < p->bytes && here(p) != '"' && here(p) != '\n' && !p->status) {
        uint32_t c = take_character(p);
        if (!p->status) put(p, b, bytes, encode(c, bytes));
    }
    if (!take(p, "\"")) fail(p, KAKEYA_FORMAT, "\" without another");
}

/* The end of a range: a character. */
static void put_end(parser *p, buffer *b, const buffer *end) {
    parser own = {.text = end->data, .bytes = end->n};
    put_escaped(p, b, take_plain(&own));
}

static uint32_t parse_text(parser *p) {
    buffer b = {0}, end = {0};
    take_quoted(p, &b);
    if (p->lark && here(p) == 'i' && !is_name(ahead(p, 1))) {
        p->at++;
        return ignore_case(p, &b);
    }
    skip_space(p, false);
    if (!p->lark || !take(p, "..")) return end_buffer(p, &b, RULE_TEXT);
    skip_space(p, false);
    if (!take(p, "\"")) fail(p, KAKEYA_FORMAT, ".. without a text after it");
    take_quoted(p, &end);
    buffer range = {0};
    bool single = b.n && end.n && utf8_length(b.data, b.n) == b.n && utf8_length(end.data, end.n) == end.n;
    if (!p->status && !single) fail(p, KAKEYA_FORMAT, "a range goes from one character to another");
    if (!p->status) {
        put(p, &range, "[", 1);
        put_end(p, &range, &b);
        put(p, &range, "-", 1);
        put_end(p, &range, &end);
        put(p, &range, "]", 1);
    }
    free(b.data);
    free(end.data);
    return end_buffer(p, &range, RULE_REGEX);
}

/* Flags in front of an expression, as Python has them; returns their bytes. */
static size_t leading_flags(const buffer *b) {
    size_t n = 2;
    if (b->n < 4 || memcmp(b->data, "(?", 2) != 0) return 0;
    while (n < b->n && strchr("isu", b->data[n])) n++;
    return n > 2 && n < b->n && b->data[n] == ')' ? n + 1 : 0;
}

/* (?flags:expression) */
static uint32_t with_flags(parser *p, buffer *b, const char *after, size_t n_after) {
    const size_t leading = b->data ? leading_flags(b) : 0;
    const char *inside = leading ? b->data + 2 : "";
    const size_t n_inside = leading ? leading - 3 : 0;
    const bool any_case = memchr(after, 'i', n_after) || memchr(inside, 'i', n_inside),
               any_line = memchr(after, 's', n_after) || memchr(inside, 's', n_inside);
    if (!any_case && !any_line && !leading) return end_buffer(p, b, RULE_REGEX);
    buffer out = {0};
    put(p, &out, "(?", 2);
    if (any_case) put(p, &out, "i", 1);
    if (any_line) put(p, &out, "s", 1);
    put(p, &out, ":", 1);
    put(p, &out, b->data ? b->data + leading : "", b->n - leading);
    put(p, &out, ")", 1);
    free(b->data);
    return end_buffer(p, &out, RULE_REGEX);
}

/* /.../flags of Lark */
static uint32_t parse_regex(parser *p) {
    buffer b = {0};
    bool class = false;
    while (p->at < p->bytes && (here(p) != '/' || class) && here(p) != '\n') {
        if (here(p) == '[') class = true;
        if (here(p) == ']') class = false;
        if (here(p) == '\\' && ahead(p, 1) == '/') p->at++;
        size_t n = here(p) == '\\' && p->at + 1 < p->bytes ? 2 : 1;
        put(p, &b, p->text + p->at, n);
        p->at += n;
    }
    if (!take(p, "/")) fail(p, KAKEYA_FORMAT, "/ without another");
    const char *flags = p->text + p->at;
    size_t n = 0;
    for (; here(p) >= 'a' && here(p) <= 'z'; p->at++, n++)
        if (!strchr("isu", here(p)))
            fail(p, KAKEYA_UNSUPPORTED, "the flag %c of a regular expression is not supported", here(p));
    return with_flags(p, &b, flags, n);
}

/* A schema in the text, as llguidance has it. */
static uint32_t parse_json(parser *p) {
    const char *end = NULL;
    skip_space(p, true);
    const char *begin = p->text + p->at;
    cJSON *json = cJSON_ParseWithLengthOpts(begin, p->bytes - p->at, &end, false);
    const bool good = json && (cJSON_IsObject(json) || cJSON_IsBool(json));
    cJSON_Delete(json);
    if (!good) return fail(p, KAKEYA_FORMAT, "%%json without a schema after it");
    const unsigned line = line_of(p);
    p->at += (size_t)(end - begin);
    uint32_t node = add_text(p, RULE_JSON, begin, (size_t)(end - begin));
    if (!p->status) p->out->nodes[node].line = line;
    return node;
}

static uint32_t parse_choice(parser *p, bool nested);

static uint32_t parse_group(parser *p, const char *end) {
    if (++p->depth > MAX_GROUPS) return fail(p, KAKEYA_UNSUPPORTED, "more than %d nested groups", (int)MAX_GROUPS);
    uint32_t inner = parse_choice(p, true);
    p->depth--;
    if (!take(p, end)) return fail(p, KAKEYA_FORMAT, "a group is not closed by %s", end);
    return inner;
}

static uint32_t add_name(parser *p, uint32_t rule) {
    return p->status ? RULE_NONE : add(p, (rule_node){.kind = RULE_NAME, .child = RULE_NONE, .rule = rule});
}

/* A rule of an argument's own, by its spelling; a name is the rule that it stands for. */
static uint32_t take_argument(parser *p) {
    const size_t begin = p->at;
    const uint32_t node = parse_choice(p, true);
    if (p->at == begin) fail(p, KAKEYA_FORMAT, "an argument is expected, not '%.*s'", shown(p), p->text + p->at);
    if (p->status) return RULE_NONE;
    const rule_set *r = p->out;
    uint32_t only = node;
    while ((r->nodes[only].kind == RULE_ROW || r->nodes[only].kind == RULE_CHOICE) &&
           r->nodes[only].child != RULE_NONE && r->nodes[r->nodes[only].child].sibling == RULE_NONE)
        only = r->nodes[only].child;
    if (r->nodes[only].kind == RULE_NAME) return r->nodes[only].rule;
    buffer b = {0};
    char of[24];
    /* what a parameter stands for is not in the spelling */
    put(p, &b, of, p->with ? (size_t)snprintf(of, sizeof of, "%u:", p->with->rule) : 0);
    put(p, &b, p->text + begin, p->at - begin);
    const uint32_t rule = p->status ? RULE_NONE : rule_named(p, b.data, b.n);
    if (!p->status && r->rules[rule].body == RULE_NONE) r->rules[rule].body = node;
    if (!p->status) r->rules[rule].terminal = false;
    free(b.data);
    return rule;
}

/* name{arguments}: the rule that the template becomes, which is read when all templates are known. */
static uint32_t use_template(parser *p, word called) {
    instance own = {.name = called, .at = p->at};
    buffer b = {0};
    char number[24];
    if (++p->depth > MAX_GROUPS) return fail(p, KAKEYA_UNSUPPORTED, "more than %d nested groups", (int)MAX_GROUPS);
    put(p, &b, called.text, called.bytes);
    put(p, &b, "{", 1);
    do {
        if (own.n == MAX_PARAMETERS)
            fail(p, KAKEYA_UNSUPPORTED, "more than %d arguments of a template", MAX_PARAMETERS);
        skip_space(p, true);
        if (p->status) break;
        own.arguments[own.n] = take_argument(p);
        put(p, &b, number, (size_t)snprintf(number, sizeof number, "%u,", own.arguments[own.n++]));
        skip_space(p, true);
    } while (!p->status && take(p, ","));
    p->depth--;
    if (!take(p, "}")) fail(p, KAKEYA_FORMAT, "{ without }");
    const uint32_t known = p->out->n_rules;
    own.rule = p->status ? RULE_NONE : rule_named(p, b.data, b.n);
    free(b.data);
    if (p->status || own.rule < known) return own.rule;
    instance *instances = realloc(p->instances, (p->n_instances + 1) * sizeof *instances);
    if (!instances) return fail(p, KAKEYA_OUT_OF_MEMORY, "out of memory");
    p->instances = instances;
    instances[p->n_instances++] = own;
    return own.rule;
}

static bool is_same(word a, word b) { return a.bytes == b.bytes && memcmp(a.text, b.text, a.bytes) == 0; }

static void skip_arguments(parser *p) {
    if (++p->depth > MAX_GROUPS) fail(p, KAKEYA_UNSUPPORTED, "more than %d nested groups", (int)MAX_GROUPS);
    while (!p->status) {
        (void)parse_choice(p, true);
        if (!take(p, ",")) break;
    }
    p->depth--;
    if (!take(p, "}")) fail(p, KAKEYA_FORMAT, "{ without }");
}

static uint32_t parse_name(parser *p, word called) {
    p->at += called.bytes;
    const bool is_template =
        p->lark && here(p) == '{' && ahead(p, 1) != ',' && (ahead(p, 1) < '0' || ahead(p, 1) > '9') && take(p, "{");
    if (is_template && p->skipping) skip_arguments(p);
    if (p->skipping) return add_name(p, 0); /* nothing leads to it */
    if (is_template) return add_name(p, use_template(p, called));
    for (uint32_t i = 0; p->own && i < p->own->n; i++)
        if (is_same(p->own->parameters[i], called)) return add_name(p, p->with->arguments[i]);
    return add_name(p, rule_named(p, called.text, called.bytes));
}

static uint32_t parse_atom(parser *p) {
    if (take(p, "\"")) return parse_text(p);
    if (take(p, "(")) return parse_group(p, ")");
    if (p->lark && take(p, "[")) return add_repeat(p, parse_group(p, "]"), 0, 1);
    if (take(p, "[")) return parse_class(p);
    if (p->lark && take(p, "/")) return parse_regex(p);
    if (p->lark && take(p, "%json")) return parse_json(p);
    if (!p->lark && take(p, ".")) return add_text(p, RULE_REGEX, "[^]", 3);
    size_t n = name_bytes(p);
    if (n == 0) return fail(p, KAKEYA_FORMAT, "'%.*s' is not expected here", shown(p), p->text + p->at);
    return parse_name(p, (word){p->text + p->at, n});
}

static uint32_t take_number(parser *p) {
    uint32_t n = 0;
    if (here(p) < '0' || here(p) > '9') return fail(p, KAKEYA_FORMAT, "a number is expected");
    for (; here(p) >= '0' && here(p) <= '9' && n <= MAX_COUNT; p->at++) n = n * 10 + (uint32_t)(here(p) - '0');
    if (n > MAX_COUNT) return fail(p, KAKEYA_UNSUPPORTED, "more than %d repetitions", (int)MAX_COUNT);
    return n;
}

static uint32_t parse_counted(parser *p) {
    uint32_t one = parse_atom(p), minimum, maximum;
    for (bool more = true; more && !p->status;) {
        size_t before = p->at;
        skip_space(p, false);
        minimum = 0;
        maximum = RULE_NONE;
        if (take(p, "?")) {
            maximum = 1;
        } else if (take(p, "+")) {
            minimum = 1;
        } else if (take(p, "{")) {
            skip_space(p, false);
            minimum = here(p) == ',' ? 0 : take_number(p);
            maximum = minimum;
            skip_space(p, false);
            if (take(p, ",")) {
                skip_space(p, false);
                maximum = here(p) == '}' ? RULE_NONE : take_number(p);
            }
            skip_space(p, false);
            if (!take(p, "}")) fail(p, KAKEYA_FORMAT, "{ without }");
        } else if (p->lark && take(p, "~")) {
            skip_space(p, false);
            minimum = maximum = take_number(p);
            if (take(p, "..")) maximum = take_number(p);
        } else if (!take(p, "*")) {
            more = false;
            p->at = before;
        }
        if (more && maximum < minimum) fail(p, KAKEYA_FORMAT, "{%u,%u} counts backwards", minimum, maximum);
        if (more) one = add_repeat(p, one, minimum, maximum);
    }
    return one;
}

/* What stands behind is the end of an alternative. Outside of groups a line ends it, unless | follows. */
static bool at_end(parser *p, bool nested) {
    size_t before = p->at;
    skip_space(p, true);
    char c = here(p);
    if (p->status || p->at >= p->bytes || c == '|' || c == ')' || (p->lark && (c == ']' || c == '}' || c == ',')))
        return true;
    if (nested) return false;
    bool line = memchr(p->text + before, '\n', p->at - before) != NULL;
    if (line) p->at = before;
    return line;
}

static uint32_t parse_row(parser *p, bool nested) {
    uint32_t first = RULE_NONE, last = RULE_NONE;
    while (!at_end(p, nested)) {
        if (p->lark && take(p, "->")) { /* a name for the tree */
            skip_space(p, false);
            p->at += name_bytes(p);
            continue;
        }
        uint32_t one = parse_counted(p);
        if (p->status) return RULE_NONE;
        *(last == RULE_NONE ? &first : &p->out->nodes[last].sibling) = one;
        last = one;
    }
    return add_list(p, RULE_ROW, first);
}

static uint32_t parse_choice(parser *p, bool nested) {
    uint32_t first = parse_row(p, nested), last = first;
    if (p->status || here(p) != '|') return first;
    while (!p->status && take(p, "|")) {
        if (!p->lark) skip_space(p, true);
        uint32_t row = parse_row(p, nested);
        if (p->status) return RULE_NONE;
        p->out->nodes[last].sibling = row;
        last = row;
    }
    return add_list(p, RULE_CHOICE, first);
}

/* ----------------------------------------------------------------------------------------------------------- rules */

static void define(parser *p, uint32_t rule, uint32_t body) {
    if (p->status) return;
    if (p->out->rules[rule].body != RULE_NONE)
        fail(p, KAKEYA_FORMAT, "the rule %.60s is defined twice", p->out->rules[rule].name);
    p->out->rules[rule].body = body;
}

/* What %import common.NAME brings. */
static void import_common(parser *p, const char *name, size_t bytes, const char *as, size_t as_bytes) {
    static const struct {
        const char *name, *expression;
    } common[] = {{"DIGIT", "[0-9]"},
                  {"HEXDIGIT", "[0-9A-Fa-f]"},
                  {"INT", "[0-9]+"},
                  {"SIGNED_INT", "[+-]?[0-9]+"},
                  {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
                  {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
                  {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
                  {"NUMBER", "[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
                  {"SIGNED_NUMBER", "[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
                  {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
                  {"LCASE_LETTER", "[a-z]"},
                  {"UCASE_LETTER", "[A-Z]"},
                  {"LETTER", "[A-Za-z]"},
                  {"WORD", "[A-Za-z]+"},
                  {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
                  {"WS_INLINE", "[ \\t]+"},
                  {"WS", "[ \\t\\f\\r\\n]+"},
                  {"CR", "\\r"},
                  {"LF", "\\n"},
                  {"NEWLINE", "(\\r?\\n)+"},
                  {"SH_COMMENT", "#[^\\n]*"},
                  {"CPP_COMMENT", "//[^\\n]*"},
                  {"C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/"},
                  {"SQL_COMMENT", "--[^\\n]*"}};
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) {
        if (strlen(common[i].name) != bytes || memcmp(common[i].name, name, bytes) != 0) continue;
        uint32_t rule = rule_named(p, as, as_bytes);
        if (!p->status) define(p, rule, add_text(p, RULE_REGEX, common[i].expression, strlen(common[i].expression)));
        return;
    }
    fail(p, KAKEYA_UNSUPPORTED, "%%import of %.*s is not supported", (int)bytes, name);
}

static void parse_import(parser *p) {
    skip_space(p, false);
    if (!take(p, "common")) {
        fail(p, KAKEYA_UNSUPPORTED, "%%import is supported only from common");
        return;
    }
    skip_space(p, false);
    bool list = take(p, "(");
    if (!list && !take(p, ".")) fail(p, KAKEYA_FORMAT, "%%import common has no name after it");
    for (bool more = true; more && !p->status;) {
        skip_space(p, list);
        const char *name = p->text + p->at, *as = name;
        size_t bytes = name_bytes(p), as_bytes = bytes;
        p->at += bytes;
        skip_space(p, list);
        if (take(p, "->")) {
            skip_space(p, false);
            as = p->text + p->at;
            as_bytes = name_bytes(p);
            p->at += as_bytes;
        }
        import_common(p, name, bytes, as, as_bytes);
        skip_space(p, list);
        more = list && take(p, ",");
    }
    if (list && !take(p, ")")) fail(p, KAKEYA_FORMAT, "( without )");
}

static void parse_ignore(parser *p) {
    skip_space(p, false);
    uint32_t what = parse_choice(p, false);
    if (p->status) return;
    if (p->out->ignored != RULE_NONE) { /* the one or the other */
        p->out->nodes[p->out->ignored].sibling = what;
        what = add_list(p, RULE_CHOICE, p->out->ignored);
    }
    p->out->ignored = what;
}

/* name{parameters}: body. The body is read once for each list of arguments. */
static void parse_template(parser *p, word called) {
    template own = {.name = called};
    do {
        skip_space(p, true);
        const word parameter = {p->text + p->at, name_bytes(p)};
        p->at += parameter.bytes;
        if (own.n == MAX_PARAMETERS)
            fail(p, KAKEYA_UNSUPPORTED, "more than %d parameters of a template", MAX_PARAMETERS);
        else if (parameter.bytes == 0)
            fail(p, KAKEYA_FORMAT, "the name of a parameter is expected, not '%.*s'", shown(p), p->text + p->at);
        else
            own.parameters[own.n++] = parameter;
        skip_space(p, true);
    } while (!p->status && take(p, ","));
    if (!take(p, "}")) fail(p, KAKEYA_FORMAT, "{ without }");
    for (size_t i = 0; i < p->n_templates; i++)
        if (is_same(p->templates[i].name, called))
            fail(p, KAKEYA_FORMAT, "the template %.*s is defined twice", called.bytes > 60 ? 60 : (int)called.bytes,
                 called.text);
    if (p->status) return;
    template *templates = realloc(p->templates, (p->n_templates + 1) * sizeof *templates);
    if (!templates) {
        fail(p, KAKEYA_OUT_OF_MEMORY, "out of memory");
        return;
    }
    p->templates = templates;
    templates[p->n_templates++] = own;
}

/* The rules that templates become. Each may use more of them. */
static void read_instances(parser *p) {
    size_t read = 0;
    for (size_t i = 0; i < p->n_instances && !p->status; i++) {
        const instance own = p->instances[i];
        const template *of = NULL;
        for (size_t k = 0; k < p->n_templates; k++)
            if (is_same(p->templates[k].name, own.name)) of = &p->templates[k];
        p->at = own.at;
        const int bytes = own.name.bytes > 60 ? 60 : (int)own.name.bytes;
        if (!of)
            fail(p, KAKEYA_FORMAT, "there is no template %.*s", bytes, own.name.text);
        else if (of->n != own.n)
            fail(p, KAKEYA_FORMAT, "the template %.*s has %u parameters, not %u", bytes, own.name.text, of->n, own.n);
        if (p->status) return;
        p->own = of;
        p->with = &own;
        p->at = of->body;
        define(p, own.rule, parse_choice(p, false));
        p->own = NULL;
        p->with = NULL;
        read += p->at - of->body;
        if (read > RULES_MAX_BYTES)
            fail(p, KAKEYA_UNSUPPORTED, "templates with their arguments have more than %d bytes", (int)RULES_MAX_BYTES);
    }
}

static void parse_rule(parser *p) {
    while (p->lark && (take(p, "?") || take(p, "!"))) {
    }
    const char *name = p->text + p->at;
    size_t bytes = name_bytes(p);
    if (bytes == 0) {
        fail(p, KAKEYA_FORMAT, "the name of a rule is expected, not '%.*s'", shown(p), p->text + p->at);
        return;
    }
    const word called = {name, bytes};
    p->at += bytes;
    const bool is_template = p->lark && take(p, "{");
    if (is_template) parse_template(p, called);
    uint32_t rule = is_template || p->status ? RULE_NONE : rule_named(p, name, bytes);
    if (p->lark && take(p, ".")) { /* a priority: all readings are followed */
        (void)take(p, "-");
        (void)take_number(p);
    }
    skip_space(p, true);
    if (!take(p, p->lark ? ":" : "::=")) fail(p, KAKEYA_FORMAT, "%s is expected", p->lark ? ":" : "::=");
    skip_space(p, !p->lark);
    if (is_template && !p->status) {
        p->templates[p->n_templates - 1].body = p->at;
        p->skipping = true;
        (void)parse_choice(p, false);
        p->skipping = false;
    } else if (!p->status) {
        define(p, rule, parse_choice(p, false));
    }
    skip_space(p, true);
    if (!p->status && here(p) == ')') fail(p, KAKEYA_FORMAT, ") without (");
}

kakeya_status rules_parse(const char *text, size_t bytes, rule_set *out, kakeya_error *error) {
    parser p = {.text = text, .bytes = bytes, .out = out, .error = error};
    *out = (rule_set){.start = RULE_NONE, .ignored = RULE_NONE};
    if (bytes > RULES_MAX_BYTES) fail(&p, KAKEYA_UNSUPPORTED, "more than %d bytes", (int)RULES_MAX_BYTES);
    p.at = p.status ? 0 : utf8_valid_bytes(text, bytes);
    if (!p.status && (p.at < bytes || memchr(text, 0, bytes))) fail(&p, KAKEYA_FORMAT, "not a text in UTF-8");
    p.at = 0;
    p.lark = true;
    for (size_t i = 0; i + 2 < bytes && p.lark; i++) p.lark = memcmp(text + i, "::=", 3) != 0;
    for (skip_space(&p, true); p.at < bytes && !p.status; skip_space(&p, true)) {
        if (p.lark && take(&p, "%import"))
            parse_import(&p);
        else if (p.lark && take(&p, "%ignore"))
            parse_ignore(&p);
        else if (p.lark && here(&p) == '%')
            fail(&p, KAKEYA_UNSUPPORTED, "'%.*s' is not supported", shown(&p), text + p.at);
        else
            parse_rule(&p);
    }
    read_instances(&p);
    free(p.templates);
    free(p.instances);
    const char *start = p.lark ? "start" : "root";
    for (uint32_t i = 0; i < out->n_rules && !p.status; i++) {
        if (strcmp(out->rules[i].name, start) == 0) out->start = i;
        if (out->rules[i].body == RULE_NONE)
            p.status = error_set(error, KAKEYA_FORMAT, "grammar, line %u: there is no rule %.60s", out->rules[i].line,
                                 out->rules[i].name);
    }
    if (!p.status && out->start == RULE_NONE)
        p.status = error_set(error, KAKEYA_FORMAT, "grammar: the start rule %s is missing", start);
    if (p.status) rules_free(out);
    return p.status;
}

void rules_free(rule_set *rules) {
    for (uint32_t i = 0; i < rules->n_nodes; i++) free(rules->nodes[i].text);
    for (uint32_t i = 0; i < rules->n_rules; i++) free(rules->rules[i].name);
    free(rules->nodes);
    free(rules->rules);
    *rules = (rule_set){0};
}
