#include "grammar/formats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/regex.h"

enum { MAX_EXPRESSION = 8192 };

/* RFC 3339; years begin with 0001, since most readers know none before. */
#define YEAR "(000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})"
#define LEAP "((\\d\\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00))"
#define DATE                                                                                                           \
    "(" YEAR                                                                                                           \
    "-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))|" LEAP         \
    "-02-29)"
#define FRACTION "(\\.\\d+)?"
#define HOUR     "([01]\\d|2[0-3])"
#define TIME     HOUR ":[0-5]\\d:[0-5]\\d" FRACTION "([Zz]|[+-]" HOUR ":[0-5]\\d)"

/* Leap seconds: 23:59:60 in UTC, at offsets of whole and half hours. Appends the alternatives. */
static void put_leap_seconds(char *out, size_t room) {
    size_t n = strlen(out);
    n += (size_t)snprintf(out + n, room - n, "|23:59:60" FRACTION "[Zz]");
    for (int offset = -47; offset < 48; offset++) { /* in half hours */
        int size = 30 * abs(offset), local = (24 * 60 - 1 + 30 * offset + 24 * 60) % (24 * 60);
        n += (size_t)snprintf(out + n, room - n, "|%02d:%02d:60" FRACTION "%s%02d:%02d", local / 60, local % 60,
                              offset < 0 ? "-"
                              : offset   ? "\\+"
                                         : "[+-]",
                              size / 60, size % 60);
    }
}
/* RFC 3339, appendix A */
#define CLOCK "T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S)"
#define DAYS  "(\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)"
/* RFC 2673, 4291 */
#define BYTE "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 BYTE "(\\." BYTE "){3}"
#define H    "[0-9A-Fa-f]{1,4}"
#define LAST "(" H ":" H "|" IPV4 ")"
#define IPV6                                                                                                           \
    "((" H ":){6}" LAST "|::(" H ":){5}" LAST "|(" H ")?::(" H ":){4}" LAST "|((" H ":){0,1}" H ")?::(" H ":){3}" LAST \
    "|((" H ":){0,2}" H ")?::(" H ":){2}" LAST "|((" H ":){0,3}" H ")?::" H ":" LAST "|((" H ":){0,4}" H ")?::" LAST   \
    "|((" H ":){0,5}" H ")?::" H "|((" H ":){0,6}" H ")?::)"
/* RFC 1123. Labels with hyphens in the third and fourth place (xn--) would have to be decoded, and are left out. */
#define NAME       "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST       NAME "(\\." NAME ")*"
#define NO_A_LABEL "^(?!([^.]*\\.)*[^.]{2}--)"
/* Characters beyond ASCII of RFC 3987 and 6531 */
#define BEYOND "\\u{A0}-\\u{D7FF}\\u{F900}-\\u{FDCF}\\u{FDF0}-\\u{FFEF}\\u{10000}-\\u{1FFFD}"
/* RFC 9562, of a version */
#define UUID(version) "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-" version "[0-9A-Fa-f]{3}-[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12}"
/* RFC 5321: a dot-atom or a quoted text, a domain or an address */
#define ATOM(more)  "[A-Za-z0-9!#$%&'*+/=?^_`{|}~" more "-]+"
#define LOCAL(more) "(" ATOM(more) "(\\." ATOM(more) ")*|\"([ !#-\\[\\]-~" more "]|\\\\[ -~])*\")"
#define MAIL(more)  LOCAL(more) "@(" HOST "|\\[(" IPV4 "|IPv6:" IPV6 ")\\])"
/* RFC 3986, and 3987 with the characters beyond ASCII */
#define HEX        "%[0-9A-Fa-f]{2}"
#define P(more)    "([A-Za-z0-9._~!$&'()*+,;=:@" more "-]|" HEX ")"
#define PN(more)   "([A-Za-z0-9._~!$&'()*+,;=@" more "-]|" HEX ")"
#define Q(more)    "([A-Za-z0-9._~!$&'()*+,;=:@/?" more "-]|" HEX ")*"
#define USER(more) "(([A-Za-z0-9._~!$&'()*+,;=:" more "-]|" HEX ")*@)?"
#define REG(more)  "([A-Za-z0-9._~!$&'()*+,;=" more "-]|" HEX ")*"
#define AUTHORITY(more)                                                                                                \
    "//" USER(more) "(\\[(" IPV6 "(%25([A-Za-z0-9._~-]|" HEX                                                           \
                    ")+)?|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|" REG(more) ")(:\\d*)?"
#define SCHEME       "[A-Za-z][A-Za-z0-9+.-]*:"
#define SEGMENTS(m)  "(/" P(m) "*)*"
#define ABSOLUTE(m)  "/(" P(m) "+" SEGMENTS(m) ")?"
#define ROOTLESS(m)  P(m) "+" SEGMENTS(m)
#define NO_SCHEME(m) PN(m) "+" SEGMENTS(m)
#define BEHIND(m)    "(\\?" Q(m) ")?(#" Q(m) ")?"
#define URI(m)       SCHEME "(" AUTHORITY(m) SEGMENTS(m) "|" ABSOLUTE(m) "|" ROOTLESS(m) "|)" BEHIND(m)
#define REFERENCE(m)                                                                                                   \
    "((" SCHEME ")?(" AUTHORITY(m) SEGMENTS(m) "|" ABSOLUTE(m) "|)|" SCHEME ROOTLESS(m) "|" NO_SCHEME(m) ")" BEHIND(m)
/* RFC 6570 */
#define VARIABLE   "([A-Za-z0-9_]|" HEX ")(\\.?([A-Za-z0-9_]|" HEX "))*(:[1-9]\\d{0,3}|\\*)?"
#define EXPRESSION "\\{[+#./;?&]?" VARIABLE "(," VARIABLE ")*\\}"
#define LITERAL    "([!#$&-;=?-\\[\\]_a-z~" BEYOND "]|" HEX ")"
/* RFC 6901 */
#define POINTER "(/([^/~]|~[01])*)*"
/* Of ECMA-262's expressions those that need no look behind: characters, classes without ranges but the common ones,
 * escapes, groups with none in them. */
#define ONE "([^\\\\()\\[\\]{}|^$*+?.\\x00-\\x1F]|\\.|\\\\[dDwWsSbBnrtfv^$\\\\.*+?()\\[\\]{}|/-]|" SET ")"
#define SET "\\[\\^?(a-z|A-Z|0-9|[A-Za-z0-9_ .,:;@#%&=!<>/'\"()*+?$|{}`~]|\\\\[dDwWsSnrt\\\\\\]\\[.^/-])+\\]"
#define BOUNDS                                                                                                         \
    "\\d{1,3},?|0,\\d|1,[1-9]|2,[2-9]|3,[3-9]|4,[4-9]|5,[5-9]|6,[6-9]|7,[7-9]|8,[89]|9,9|\\d,[1-9]\\d{1,2}|"           \
    "[1-9]\\d,[1-9]\\d{2}"
#define COUNTER    "(([*+?]|\\{(" BOUNDS ")\\})[?]?)?"
#define PART(one)  "(" one COUNTER "|\\^|\\$)*"
#define WHOLE(one) PART(one) "(\\|" PART(one) ")*"
#define GROUP(one) "(" one "|\\((\\?:|\\?=|\\?!)?" WHOLE(one) "\\))"

#define YEARS   "years before 0001; leap seconds at offsets that are no half hours"
#define LABELS  "labels with hyphens in the third and fourth place, which would have to be decoded (`xn--`)"
#define PRIVATE "private characters, and those beyond the first supplementary plane"

static const struct {
    const char *name, *expression;
    uint16_t most;        /* characters; 0: any number */
    const char *left_out; /* of the standard's language, beside what is longer; for docs/reference/grammar.md */
} formats[] = {
    {"date-time", DATE "[Tt](" TIME, 0, YEARS}, /* leap seconds follow */
    {"date", DATE, 0, "years before 0001"},
    {"time", "(" TIME, 0, "leap seconds at offsets that are no half hours"},
    {"duration", "P(" DAYS "(" CLOCK ")?|" CLOCK "|\\d+W)", 0, ""},
    {"uuid", "[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}", 0, ""},
    {"uuid1", UUID("1"), 0, ""}, /* those of one version, as pydantic names them */
    {"uuid3", UUID("3"), 0, ""},
    {"uuid4", UUID("4"), 0, ""},
    {"uuid5", UUID("5"), 0, ""},
    {"uuid6", UUID("6"), 0, ""},
    {"uuid7", UUID("7"), 0, ""},
    {"uuid8", UUID("8"), 0, ""},
    {"email", MAIL(""), 254, "comments and folding white space"},
    {"idn-email", MAIL(BEYOND), 254, "comments, folding white space, domains beyond ASCII"},
    {"hostname", NO_A_LABEL HOST, 253, LABELS},
    {"idn-hostname", NO_A_LABEL HOST, 253, LABELS ", names beyond ASCII"},
    {"ipv4", IPV4, 0, ""},
    {"ipv6", IPV6, 0, ""},
    {"uri", URI(""), 0, ""},
    {"uri-reference", REFERENCE(""), 0, ""},
    {"iri", URI(BEYOND), 0, PRIVATE},
    {"iri-reference", REFERENCE(BEYOND), 0, PRIVATE},
    {"uri-template", "(" LITERAL "|" EXPRESSION ")*", 0, "operators that are reserved for extensions"},
    {"json-pointer", POINTER, 0, ""},
    {"relative-json-pointer", "(0|[1-9]\\d*)(#|" POINTER ")", 0, ""},
    {"regex", WHOLE(GROUP(ONE)), 0,
     "groups in groups, ranges but the common ones, back references, named groups, look-behind"},
};

static size_t find(const char *name) {
    size_t i = 0;
    while (i < sizeof formats / sizeof *formats && strcmp(formats[i].name, name) != 0) i++;
    return i;
}

bool format_is_known(const char *name) { return find(name) < sizeof formats / sizeof *formats; }

kakeya_status format_dfa(const char *name, dfa *out, uint32_t *most, kakeya_error *error) {
    size_t i = find(name);
    *out = (dfa){0};
    *most = UINT32_MAX;
    if (i == sizeof formats / sizeof *formats)
        return error_set(error, KAKEYA_UNSUPPORTED, "the format '%.60s' is not supported", name);
    if (formats[i].most) *most = formats[i].most;
    char text[MAX_EXPRESSION];
    size_t n = (size_t)snprintf(text, sizeof text, "%s", formats[i].expression);
    if (strstr(name, "time")) {
        put_leap_seconds(text, sizeof text - 1);
        n = strlen(text);
        text[n++] = ')';
    }
    return regex_compile(text, n, REGEX_WHOLE, out, error);
}

const char *format_left_out(size_t i, const char **name, uint32_t *most) {
    if (i >= sizeof formats / sizeof *formats) return NULL;
    *name = formats[i].name;
    *most = formats[i].most;
    return formats[i].left_out;
}
