#include "grammar/unicode_properties.h"

#include <string.h>

#include "grammar/unicode_tables.h"

enum { LAST_CHARACTER = 0x10FFFF, CATEGORY_BITS = 5, SCRIPT_BITS = 8 };

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Categories of categories, and names that stand for another one. */
static const struct {
    const char *name, *other;
    const char *members; /* short names, two letters each */
} groups[] = {
    {"L", "Letter", "LuLlLtLmLo"},
    {"LC", "Cased_Letter", "LuLlLt"},
    {"M", "Mark", "MnMcMe"},
    {"M", "Combining_Mark", "MnMcMe"},
    {"N", "Number", "NdNlNo"},
    {"P", "Punctuation", "PcPdPsPePiPfPo"},
    {"P", "punct", "PcPdPsPePiPfPo"},
    {"S", "Symbol", "SmScSkSo"},
    {"Z", "Separator", "ZsZlZp"},
    {"C", "Other", "CcCfCsCoCn"},
    {"Nd", "digit", "Nd"},
    {"Cc", "cntrl", "Cc"},
};

static bool is(const char *text, size_t bytes, const char *name) {
    return strlen(name) == bytes && memcmp(text, name, bytes) == 0;
}

/* Bits of the categories of that name; 0: there is none. */
static uint32_t categories_of(const char *text, size_t bytes) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < COUNT(unicode_categories); i++) {
        if (is(text, bytes, unicode_categories[i][0]) || is(text, bytes, unicode_categories[i][1])) return 1u << i;
        for (size_t g = 0; g < COUNT(groups); g++)
            if (is(text, bytes, groups[g].name) || is(text, bytes, groups[g].other))
                for (const char *member = groups[g].members; *member; member += 2)
                    if (memcmp(member, unicode_categories[i][0], 2) == 0) bits |= 1u << i;
    }
    return bits;
}

typedef struct receiver {
    void *user;
    void (*add)(void *user, uint32_t low, uint32_t high);
} receiver;

static void add_categories(const receiver *r, uint32_t bits) {
    for (size_t i = 0; i < COUNT(unicode_category_runs); i++) {
        bool last = i + 1 == COUNT(unicode_category_runs);
        uint32_t end = last ? LAST_CHARACTER : (unicode_category_runs[i + 1] >> CATEGORY_BITS) - 1;
        uint32_t category = unicode_category_runs[i] & ((1u << CATEGORY_BITS) - 1);
        if (bits >> category & 1) r->add(r->user, unicode_category_runs[i] >> CATEGORY_BITS, end);
    }
}

static bool add_script(const receiver *r, const char *text, size_t bytes) {
    uint32_t script = 0;
    while (script < COUNT(unicode_scripts) && !is(text, bytes, unicode_scripts[script][0]) &&
           !is(text, bytes, unicode_scripts[script][1]))
        script++;
    if (script == COUNT(unicode_scripts)) return false;
    for (size_t i = 0; i < COUNT(unicode_script_runs); i++) {
        bool last = i + 1 == COUNT(unicode_script_runs);
        uint32_t end = last ? LAST_CHARACTER : (unicode_script_runs[i + 1] >> SCRIPT_BITS) - 1;
        if ((unicode_script_runs[i] & ((1u << SCRIPT_BITS) - 1)) != script) continue;
        r->add(r->user, unicode_script_runs[i] >> SCRIPT_BITS, end);
    }
    return true;
}

static bool add_binary(const receiver *r, const char *text, size_t bytes) {
    size_t i = 0;
    while (i < COUNT(unicode_properties) && !is(text, bytes, unicode_properties[i].name) &&
           !is(text, bytes, unicode_properties[i].alias))
        i++;
    if (i == COUNT(unicode_properties)) return false;
    add_categories(r, unicode_properties[i].categories);
    for (size_t k = 0; k < unicode_properties[i].n; k++) {
        const uint32_t *range = unicode_property_ranges[unicode_properties[i].first + k];
        r->add(r->user, range[0], range[1]);
    }
    return true;
}

bool unicode_property(const char *text, size_t bytes, void *user,
                      void (*add)(void *user, uint32_t low, uint32_t high)) {
    const receiver r = {user, add};
    const char *equals = memchr(text, '=', bytes);
    size_t name = equals ? (size_t)(equals - text) : 0;
    const char *value = equals ? equals + 1 : text;
    size_t length = equals ? bytes - name - 1 : bytes;
    if (equals && (is(text, name, "Script") || is(text, name, "sc"))) return add_script(&r, value, length);
    if (equals && !is(text, name, "General_Category") && !is(text, name, "gc")) return false;
    uint32_t bits = categories_of(value, length);
    add_categories(&r, bits);
    return bits || (!equals && add_binary(&r, value, length));
}

bool unicode_case_fold(size_t i, unicode_fold *out) {
    if (i >= COUNT(unicode_folds)) return false;
    *out = (unicode_fold){unicode_folds[i].first, unicode_folds[i].last, unicode_folds[i].step, unicode_folds[i].to};
    return true;
}
