#include "grammar/regex_syntax.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/unicode_properties.h"
#include "text/utf8.h"

enum { MAX_GROUPS = 100, LAST_CHARACTER = 0x10FFFF };

typedef struct parser {
    const char *text;
    size_t bytes, at;
    int depth;
    bool behind;             /* inside of a look-behind */
    bool any_case, any_line; /* the flags i and s */
    regex_tree *tree;
    kakeya_status status; /* the first failure sticks */
    kakeya_error *error;
} parser;

void regex_tree_free(regex_tree *tree) {
    free(tree->nodes);
    free(tree->ranges);
    *tree = (regex_tree){0};
}

static uint32_t fail(parser *p, kakeya_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static uint32_t fail(parser *p, kakeya_status status, const char *format, ...) {
    char what[200];
    va_list arguments;
    if (p->status) return REGEX_NONE;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    p->status = error_set(p->error, status, "regular expression, at byte %zu: %s", p->at, what);
    return REGEX_NONE;
}

static uint32_t add_node(parser *p, regex_node node) {
    regex_tree *t = p->tree;
    if (t->n_nodes == t->node_capacity) {
        uint32_t capacity = t->node_capacity ? 2 * t->node_capacity : 64;
        regex_node *nodes = realloc(t->nodes, capacity * sizeof *nodes);
        if (!nodes) return fail(p, KAKEYA_OUT_OF_MEMORY, "out of memory");
        t->nodes = nodes;
        t->node_capacity = capacity;
    }
    node.sibling = REGEX_NONE;
    t->nodes[t->n_nodes] = node;
    return t->n_nodes++;
}

static void add_range(parser *p, uint32_t low, uint32_t high) {
    regex_tree *t = p->tree;
    if (t->n_ranges == t->range_capacity) {
        uint32_t capacity = t->range_capacity ? 2 * t->range_capacity : 64;
        character_range *ranges = realloc(t->ranges, capacity * sizeof *ranges);
        if (!ranges) {
            fail(p, KAKEYA_OUT_OF_MEMORY, "out of memory");
            return;
        }
        t->ranges = ranges;
        t->range_capacity = capacity;
    }
    t->ranges[t->n_ranges++] = (character_range){low, high};
}

static void add_range_to(void *user, uint32_t low, uint32_t high) { add_range(user, low, high); }

/* ---------------------------------------------------------------------------------------------------------- sets */

static int by_low(const void *a, const void *b) {
    uint32_t x = ((const character_range *)a)->low, y = ((const character_range *)b)->low;
    return x < y ? -1 : x > y;
}

/* Sorts the ranges from `first` on and joins those that touch. */
static void tidy(parser *p, uint32_t first) {
    regex_tree *t = p->tree;
    uint32_t n = first;
    if (t->n_ranges == first) return;
    qsort(t->ranges + first, t->n_ranges - first, sizeof *t->ranges, by_low);
    for (uint32_t i = first + 1; i < t->n_ranges; i++) {
        if (t->ranges[i].low <= t->ranges[n].high + 1) {
            if (t->ranges[i].high > t->ranges[n].high) t->ranges[n].high = t->ranges[i].high;
        } else {
            t->ranges[++n] = t->ranges[i];
        }
    }
    t->n_ranges = n + 1;
}

/* The ranges from `first` on become all other characters. */
static void invert(parser *p, uint32_t first) {
    tidy(p, first);
    regex_tree *t = p->tree;
    uint32_t n = t->n_ranges, next = 0;
    for (uint32_t i = first; i < n && !p->status; i++) {
        character_range range = t->ranges[i];
        if (range.low > next) add_range(p, next, range.low - 1);
        next = range.high + 1;
    }
    if (next <= LAST_CHARACTER) add_range(p, next, LAST_CHARACTER);
    if (p->status) return;
    memmove(t->ranges + first, t->ranges + n, (t->n_ranges - n) * sizeof *t->ranges);
    t->n_ranges -= n - first;
}

/* The first of the tidy ranges [first, n) that does not end before the character. */
static uint32_t range_at(const regex_tree *t, uint32_t first, uint32_t n, uint32_t character) {
    while (first < n) {
        const uint32_t middle = first + (n - first) / 2;
        if (t->ranges[middle].high < character)
            first = middle + 1;
        else
            n = middle;
    }
    return first;
}

/* Characters of a run (moved by `from`) that are among the ranges: what they are moved to is, too, from then on. */
static void add_moved(parser *p, uint32_t first, uint32_t n, unicode_fold run, int32_t from, int32_t to) {
    const regex_tree *t = p->tree;
    const uint32_t begin = (uint32_t)((int32_t)run.first + from), end = (uint32_t)((int32_t)run.last + from);
    for (uint32_t i = range_at(t, first, n, begin); i < n && t->ranges[i].low <= end && !p->status; i++) {
        const character_range own = t->ranges[i];
        uint32_t low = own.low > begin ? begin + (own.low - begin + run.step - 1) / run.step * run.step : begin;
        const uint32_t high = own.high < end ? own.high : end;
        const uint32_t many = run.step == 1 ? high - low : 0; /* at once */
        for (; low <= high && !p->status; low += many + run.step) {
            const uint32_t moved = (uint32_t)((int32_t)low - from + to), at = range_at(t, first, n, moved);
            const bool known = at < n && t->ranges[at].low <= moved && t->ranges[at].high >= moved + many;
            if (!known) add_range(p, moved, moved + many);
        }
    }
}

/* With the flag i: characters of the ranges from `first` on in any case. Those that are alike fold to one. */
static void add_other_cases(parser *p, uint32_t first) {
    unicode_fold fold;
    tidy(p, first);
    for (int pass = 0; pass < 2 && p->any_case && !p->status; pass++) {
        const uint32_t n = p->tree->n_ranges;
        for (size_t i = 0; unicode_case_fold(i, &fold); i++) {
            add_moved(p, first, n, fold, 0, fold.to);
            add_moved(p, first, n, fold, fold.to, 0);
        }
        if (p->tree->n_ranges == n) return;
        tidy(p, first);
    }
}

/* A set without surrogates, which are no characters. */
static uint32_t end_set(parser *p, uint32_t first) {
    regex_tree *t = p->tree;
    add_other_cases(p, first);
    for (uint32_t i = first; i < t->n_ranges && !p->status; i++) {
        character_range range = t->ranges[i];
        if (range.low > 0xDFFF || range.high < 0xD800) continue;
        t->ranges[i].high = range.low < 0xD800 ? 0xD7FF : 0;
        t->ranges[i].low = range.low < 0xD800 ? range.low : 1;
        if (range.high > 0xDFFF) add_range(p, 0xE000, range.high);
    }
    uint32_t n = first;
    for (uint32_t i = first; i < t->n_ranges; i++)
        if (t->ranges[i].low <= t->ranges[i].high) t->ranges[n++] = t->ranges[i];
    t->n_ranges = n;
    tidy(p, first);
    return add_node(
        p, (regex_node){.kind = REGEX_SET, .child = REGEX_NONE, .first_range = first, .n_ranges = t->n_ranges - first});
}

/* p{...} and P{...}. */
static void add_property(parser *p) {
    uint32_t first = p->tree->n_ranges;
    bool opposite = p->text[p->at++] == 'P';
    const char *text = p->text + p->at, *end = p->at < p->bytes ? memchr(text, '}', p->bytes - p->at) : NULL;
    size_t n = end && *text == '{' ? (size_t)(end - text - 1) : 0;
    if (n == 0) {
        fail(p, KAKEYA_FORMAT, "\\p needs a property in braces");
    } else if (!unicode_property(text + 1, n, p, add_range_to)) {
        fail(p, KAKEYA_UNSUPPORTED, "the property %.*s is not supported", n > 60 ? 60 : (int)n, text + 1);
    } else {
        p->at += n + 2;
        if (opposite && !p->status) invert(p, first);
    }
}

/* \d, \w, \s and their opposites. */
static bool add_class(parser *p, char name) {
    static const character_range digits[] = {{'0', '9'}};
    static const character_range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const character_range space[] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                                            {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                            {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    char lower = (char)(name | 0x20);
    const character_range *ranges = lower == 'd' ? digits : lower == 'w' ? word : lower == 's' ? space : NULL;
    size_t n = lower == 'd' ? 1 : lower == 'w' ? 4 : sizeof space / sizeof *space;
    if (!ranges) return false;
    uint32_t first = p->tree->n_ranges;
    for (size_t i = 0; i < n; i++) add_range(p, ranges[i].low, ranges[i].high);
    if (lower == 'w') add_other_cases(p, first);
    if (name != lower && !p->status) invert(p, first);
    return true;
}

/* What stands behind a backslash, if it is a class: \d, \w, \s and their opposites, or a property. */
static bool take_class(parser *p) {
    char c = p->at < p->bytes ? p->text[p->at] : 0;
    if (c == 'p' || c == 'P')
        add_property(p);
    else if (add_class(p, c))
        p->at++;
    else
        return false;
    return true;
}

/* --------------------------------------------------------------------------------------------------- characters */

static bool more(const parser *p) { return !p->status && p->at < p->bytes; }
static bool at_byte(const parser *p, char c) { return more(p) && p->text[p->at] == c; }

static bool take(parser *p, char c) {
    bool found = at_byte(p, c);
    p->at += found;
    return found;
}

/* The text is valid UTF-8. */
static uint32_t take_character(parser *p) {
    const unsigned char *s = (const unsigned char *)p->text + p->at;
    size_t length = utf8_length(p->text + p->at, p->bytes - p->at);
    p->at += length;
    switch (length) {
    case 1:
        return s[0];
    case 2:
        return (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
    case 3:
        return (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
    default:
        return (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
    }
}

static int hex_digit(const parser *p) {
    char c = more(p) ? p->text[p->at] : 0;
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static uint32_t take_hex(parser *p, int least, int most) {
    uint32_t value = 0;
    int n = 0;
    for (; n < most && hex_digit(p) >= 0; n++, p->at++) value = value << 4 | (uint32_t)hex_digit(p);
    if (n < least) fail(p, KAKEYA_FORMAT, "an escape needs %d hexadecimal digits", least);
    return value;
}

static uint32_t take_unicode(parser *p) {
    if (take(p, '{')) {
        uint32_t value = take_hex(p, 1, 6);
        if (!take(p, '}')) fail(p, KAKEYA_FORMAT, "\\u{ without }");
        if (value > LAST_CHARACTER) fail(p, KAKEYA_FORMAT, "there is no character U+%X", value);
        return value;
    }
    uint32_t value = take_hex(p, 4, 4);
    if (value >= 0xD800 && value < 0xDC00 && p->at + 1 < p->bytes && memcmp(p->text + p->at, "\\u", 2) == 0) {
        p->at += 2;
        uint32_t low = take_hex(p, 4, 4);
        if (low < 0xDC00 || low > 0xDFFF) fail(p, KAKEYA_FORMAT, "half of a surrogate pair");
        return 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
    }
    return value;
}

/* What stands behind a backslash, if it is one character. in_class: \b is a backspace there. */
static uint32_t take_escaped(parser *p, bool in_class) {
    static const char names[] = "ntrfv0", meanings[] = {'\n', '\t', '\r', '\f', '\v', 0};
    if (!more(p)) return fail(p, KAKEYA_FORMAT, "a backslash at the end");
    uint32_t c = take_character(p);
    if (c == 'x') return take_hex(p, 2, 2);
    if (c == 'u') return take_unicode(p);
    if (c == 'b' && in_class) return '\b';
    if (c == 'c' && more(p) && ((p->text[p->at] | 0x20) >= 'a') && ((p->text[p->at] | 0x20) <= 'z'))
        return (uint32_t)p->text[p->at++] & 31;
    const char *name = c && c < 0x80 ? strchr(names, (int)c) : NULL;
    if (name && !(c == '0' && more(p) && p->text[p->at] >= '0' && p->text[p->at] <= '9'))
        return (unsigned char)meanings[name - names];
    if ((c >= '0' && c <= '9') || c == 'k') return fail(p, KAKEYA_UNSUPPORTED, "back references are not supported");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return fail(p, KAKEYA_UNSUPPORTED, "the escape \\%c is not supported", (char)c);
    return c;
}

/* One end of a range in a class. *set: it was a class such as \d and has been added. */
static uint32_t take_class_item(parser *p, bool *set) {
    *set = false;
    if (!take(p, '\\')) return take_character(p);
    *set = more(p) && take_class(p);
    if (*set) return 0;
    return take_escaped(p, true);
}

static uint32_t parse_class(parser *p) {
    uint32_t first = p->tree->n_ranges;
    bool inverted = take(p, '^');
    while (more(p) && !at_byte(p, ']')) {
        bool set, high_set;
        uint32_t low = take_class_item(p, &set);
        if (set || p->status) continue;
        if (!at_byte(p, '-') || p->at + 1 >= p->bytes || p->text[p->at + 1] == ']') {
            add_range(p, low, low);
            continue;
        }
        p->at++;
        uint32_t high = take_class_item(p, &high_set);
        if (high_set) { /* [a-\d]: the hyphen is one */
            add_range(p, low, low);
            add_range(p, '-', '-');
        } else if (high < low && !p->status) {
            fail(p, KAKEYA_FORMAT, "a range in a class runs backwards");
        } else {
            add_range(p, low, high);
        }
    }
    if (!take(p, ']')) return fail(p, KAKEYA_FORMAT, "[ without ]");
    if (inverted) add_other_cases(p, first);
    if (inverted && !p->status) invert(p, first);
    return end_set(p, first);
}

static uint32_t parse_dot(parser *p) {
    uint32_t first = p->tree->n_ranges;
    if (!p->any_line) {
        add_range(p, '\n', '\n');
        add_range(p, '\r', '\r');
        add_range(p, 0x2028, 0x2029);
    }
    if (!p->status) invert(p, first);
    return end_set(p, first);
}

/* ------------------------------------------------------------------------------------------------------- structure */

static uint32_t parse_alternatives(parser *p);

static uint32_t add_look(parser *p, uint32_t child, bool behind, bool negative) {
    p->tree->looks = true;
    return add_node(p, (regex_node){.kind = REGEX_LOOK, .child = child, .behind = behind, .negative = negative});
}

static uint32_t parse_look(parser *p, bool behind) {
    bool negative = at_byte(p, '!'), outer = p->behind;
    p->at++;
    if (outer) return fail(p, KAKEYA_UNSUPPORTED, "look-around inside of look-behind is not supported");
    if (++p->depth > MAX_GROUPS) return fail(p, KAKEYA_UNSUPPORTED, "more than %d nested groups", MAX_GROUPS);
    p->behind = behind;
    uint32_t inner = parse_alternatives(p);
    p->behind = outer;
    p->depth--;
    if (!take(p, ')')) return fail(p, KAKEYA_FORMAT, "( without )");
    return add_look(p, inner, behind, negative);
}

/* (?flags-flags: and, at the beginning of an expression, (?flags), as other dialects have it. False: there are none. */
static bool take_flags(parser *p) {
    bool on = true, some = false, any_case = p->any_case, any_line = p->any_line;
    size_t at = p->at;
    for (; at < p->bytes && p->text[at] != ':' && p->text[at] != ')'; at++) {
        const char c = p->text[at];
        if (c == '-' && on) {
            on = false;
            continue;
        }
        if (c == 'i') any_case = on;
        if (c == 's') any_line = on;
        if (c != 'i' && c != 's') return false;
        some = true;
    }
    const bool whole = at < p->bytes && p->text[at] == ')';
    if (!some || at == p->bytes || (whole && (p->at != 2 || !on))) return false;
    p->at = at + 1;
    p->any_case = any_case;
    p->any_line = any_line;
    return true;
}

static uint32_t parse_group(parser *p) {
    const bool any_case = p->any_case, any_line = p->any_line;
    if (take(p, '?')) {
        bool behind = take(p, '<');
        if (at_byte(p, '=') || at_byte(p, '!')) return parse_look(p, behind);
        if (behind) { /* a name */
            while (more(p) && !at_byte(p, '>')) p->at++;
            if (!take(p, '>')) return fail(p, KAKEYA_FORMAT, "(?< without >");
        } else if (!take(p, ':') && !take_flags(p)) {
            return fail(p, KAKEYA_UNSUPPORTED, "flags of groups but i and s are not supported");
        } else if (p->text[p->at - 1] == ')') { /* of all that follows */
            return add_node(p, (regex_node){.kind = REGEX_EMPTY, .child = REGEX_NONE});
        }
    }
    if (++p->depth > MAX_GROUPS) return fail(p, KAKEYA_UNSUPPORTED, "more than %d nested groups", MAX_GROUPS);
    uint32_t inner = parse_alternatives(p);
    p->depth--;
    p->any_case = any_case;
    p->any_line = any_line;
    if (!take(p, ')')) return fail(p, KAKEYA_FORMAT, "( without )");
    return inner;
}

/* One of \w before or behind the place, or not. */
static uint32_t add_word_look(parser *p, bool behind, bool negative) {
    uint32_t first = p->tree->n_ranges;
    (void)add_class(p, 'w');
    uint32_t set = end_set(p, first);
    return add_look(p, set, behind, negative);
}

/* \b is (?<=\w)(?!\w)|(?<!\w)(?=\w). */
static uint32_t parse_word_boundary(parser *p) {
    bool inside = at_byte(p, 'B');
    if (p->behind) return fail(p, KAKEYA_UNSUPPORTED, "word boundaries inside of look-behind are not supported");
    p->at++;
    uint32_t choice = add_node(p, (regex_node){.kind = REGEX_ONE_OF, .child = REGEX_NONE}), rows[2];
    for (int word = 0; word < 2 && !p->status; word++) {
        uint32_t before = add_word_look(p, true, !word), behind = add_word_look(p, false, inside ? !word : word);
        rows[word] = add_node(p, (regex_node){.kind = REGEX_IN_ROW, .child = before});
        if (!p->status) p->tree->nodes[before].sibling = behind;
    }
    if (p->status) return REGEX_NONE;
    p->tree->nodes[choice].child = rows[0];
    p->tree->nodes[rows[0]].sibling = rows[1];
    return choice;
}

static uint32_t parse_one(parser *p) {
    if (take(p, '(')) return parse_group(p);
    if (take(p, '[')) return parse_class(p);
    if (take(p, '.')) return parse_dot(p);
    if (take(p, '^')) return add_node(p, (regex_node){.kind = REGEX_BEGIN, .child = REGEX_NONE});
    if (p->behind && at_byte(p, '$')) return fail(p, KAKEYA_UNSUPPORTED, "$ inside of look-behind is not supported");
    if (take(p, '$')) return add_node(p, (regex_node){.kind = REGEX_END, .child = REGEX_NONE});
    if (at_byte(p, '*') || at_byte(p, '+') || at_byte(p, '?'))
        return fail(p, KAKEYA_FORMAT, "%c has nothing to repeat", p->text[p->at]);
    uint32_t first = p->tree->n_ranges;
    if (take(p, '\\')) {
        if (at_byte(p, 'b') || at_byte(p, 'B')) return parse_word_boundary(p);
        if (more(p) && take_class(p)) return end_set(p, first);
        uint32_t c = take_escaped(p, false);
        add_range(p, c, c);
        return end_set(p, first);
    }
    uint32_t c = take_character(p);
    add_range(p, c, c);
    return end_set(p, first);
}

static bool take_number(parser *p, uint32_t *value) {
    size_t start = p->at;
    *value = 0;
    while (more(p) && p->text[p->at] >= '0' && p->text[p->at] <= '9') {
        if (*value <= REGEX_MAX_REPEAT) *value = *value * 10 + (uint32_t)(p->text[p->at] - '0');
        p->at++;
    }
    return p->at > start;
}

/* {m}, {m,} or {m,n}; a brace that begins none of them is a character. */
static bool take_counts(parser *p, uint32_t *minimum, uint32_t *maximum) {
    size_t start = p->at;
    if (!take(p, '{') || !take_number(p, minimum)) {
        p->at = start;
        return false;
    }
    *maximum = *minimum;
    if (take(p, ',') && !take_number(p, maximum)) *maximum = REGEX_NONE;
    if (!take(p, '}')) {
        p->at = start;
        return false;
    }
    if (*maximum < *minimum) fail(p, KAKEYA_FORMAT, "{%u,%u} counts backwards", *minimum, *maximum);
    if (*minimum > REGEX_MAX_REPEAT || (*maximum > REGEX_MAX_REPEAT && *maximum != REGEX_NONE))
        fail(p, KAKEYA_UNSUPPORTED, "more than %d repetitions", (int)REGEX_MAX_REPEAT);
    return true;
}

static uint32_t parse_repeated(parser *p) {
    uint32_t one = parse_one(p);
    uint32_t minimum = 1, maximum = 1;
    bool repeated = true;
    if (p->status) return one;
    if (take(p, '*')) {
        minimum = 0;
        maximum = REGEX_NONE;
    } else if (take(p, '+')) {
        maximum = REGEX_NONE;
    } else if (take(p, '?')) {
        minimum = 0;
    } else {
        repeated = take_counts(p, &minimum, &maximum);
    }
    if (!repeated || p->status) return one;
    (void)take(p, '?'); /* which of the matches is preferred makes no difference here */
    if (at_byte(p, '*') || at_byte(p, '+') || at_byte(p, '?'))
        return fail(p, KAKEYA_FORMAT, "%c after another counter", p->text[p->at]);
    regex_kind kind = p->tree->nodes[one].kind;
    if (kind == REGEX_BEGIN || kind == REGEX_END || kind == REGEX_LOOK)
        return fail(p, KAKEYA_FORMAT, "an anchor cannot be repeated");
    return add_node(p, (regex_node){.kind = REGEX_REPEAT, .child = one, .minimum = minimum, .maximum = maximum});
}

static uint32_t parse_row(parser *p) {
    uint32_t row = add_node(p, (regex_node){.kind = REGEX_IN_ROW, .child = REGEX_NONE}), last = REGEX_NONE;
    while (more(p) && !at_byte(p, '|') && !at_byte(p, ')')) {
        uint32_t one = parse_repeated(p);
        if (p->status) return REGEX_NONE;
        *(last == REGEX_NONE ? &p->tree->nodes[row].child : &p->tree->nodes[last].sibling) = one;
        last = one;
    }
    return row;
}

static uint32_t parse_alternatives(parser *p) {
    uint32_t first = parse_row(p);
    if (!at_byte(p, '|')) return first;
    uint32_t choice = add_node(p, (regex_node){.kind = REGEX_ONE_OF, .child = first}), last = first;
    while (take(p, '|')) {
        uint32_t row = parse_row(p);
        if (p->status) return REGEX_NONE;
        p->tree->nodes[last].sibling = row;
        last = row;
    }
    return choice;
}

kakeya_status regex_parse(const char *text, size_t bytes, regex_tree *out, kakeya_error *error) {
    parser p = {.text = text, .bytes = bytes, .tree = out, .error = error};
    *out = (regex_tree){0};
    if (bytes > REGEX_MAX_BYTES)
        fail(&p, KAKEYA_UNSUPPORTED, "it has %zu bytes, at most %d are supported", bytes, (int)REGEX_MAX_BYTES);
    p.at = utf8_valid_bytes(text, bytes);
    if (p.at < bytes) fail(&p, KAKEYA_FORMAT, "not valid UTF-8");
    p.at = 0;
    if (!p.status) out->root = parse_alternatives(&p);
    if (!p.status && p.at < bytes) fail(&p, KAKEYA_FORMAT, ") without (");
    if (p.status) regex_tree_free(out);
    return p.status;
}
