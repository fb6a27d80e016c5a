#include "grammar/formats.h"

#include <string.h>

#include "grammar/regex.h"

#define YEAR "[1-9]\\d{3}"
#define LEAP "([1-9]\\d(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)"
#define DATE                                                                                                           \
    "(" YEAR                                                                                                           \
    "-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))|" LEAP         \
    "-02-29)"
#define TIME  "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define CLOCK "T(\\d{1,4}H(\\d{1,4}M(\\d{1,4}S)?)?|\\d{1,4}M(\\d{1,4}S)?|\\d{1,4}S)"
#define DAYS  "(\\d{1,4}Y(\\d{1,4}M(\\d{1,4}D)?)?|\\d{1,4}M(\\d{1,4}D)?|\\d{1,4}D)"
#define BYTE  "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define H     "[0-9A-Fa-f]{1,4}"
#define IPV4  BYTE "(\\." BYTE "){3}"
/* labels are shorter than the standard allows, so that no name is too long */
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,59}[A-Za-z0-9])?"
#define HOST  LABEL "(\\." LABEL "){0,3}"
#define ATOM  "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define P     "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define Q     "([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})"

static const struct {
    const char *name, *expression;
} formats[] = {
    {"date-time", DATE "T" TIME},
    {"date", DATE},
    {"time", TIME},
    {"duration", "P(" DAYS "(" CLOCK ")?|" CLOCK "|\\d{1,4}W)"},
    {"uuid", "[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}"},
    {"email", ATOM "{1,32}(\\." ATOM "{1,31})?@" HOST},
    {"ipv4", IPV4},
    {"ipv6", "(" H ":){7}" H "|(" H ":){1,7}:|(" H ":){1,6}:" H "|(" H ":){1,5}(:" H "){1,2}|(" H ":){1,4}(:" H
             "){1,3}|(" H ":){1,3}(:" H "){1,4}|(" H ":){1,2}(:" H "){1,5}|" H ":(:" H "){1,6}|:((:" H "){1,7}|:)"},
    {"uri",
     "[A-Za-z][A-Za-z0-9+.-]{0,30}://" HOST "(:\\d{1,5})?(/" P "*)*(\\?" Q "*)?(#" Q "*)?|(mailto|urn|tel):" P "+"},
    {"hostname", HOST},
};

bool format_is_known(const char *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0) return true;
    return false;
}

kakeya_status format_dfa(const char *name, dfa *out, kakeya_error *error) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return regex_compile(formats[i].expression, strlen(formats[i].expression), REGEX_WHOLE, out, error);
    *out = (dfa){0};
    return error_set(error, KAKEYA_UNSUPPORTED, "the format '%.60s' is not supported", name);
}
